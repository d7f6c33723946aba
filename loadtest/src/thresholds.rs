//! Frames that fire nothing, through the vertical of thresholds without the store, against the bare parse into the same owned wire
//! type. One thread, all records in memory, CPU time of the thread; in turns.
//!
//! The product's side is that of a batch: decode, what is cold, replay windows, conditions, trackers, outcomes, merge. Two mixes: kinds
//! that no module maps, and kinds that modules map whose trackers find nothing to tell, as nearly all frames of a shard are.

use crate::report::{median, publish, verdict};
use crate::{machine, stack};
use anyhow::ensure;
use millrace::modules::{Modules, shipped};
use millrace::runtime::vertical::{Effects, Item, Raw, Start, Vertical};
use millrace::settings;
use millrace::thresholds::actor::Thresholds;
use millrace::thresholds::draft::Draft;
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::frame::Frame;
use millrace_schemas::ids::RecordId;
use millrace_schemas::outcome::{Outcome, reason};
use millrace_schemas::time::{Micros, Now};
use millrace_topics::catalogue::FRAMES;
use millrace_topics::contract::{Batch, TopicRef};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How to measure thresholds.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Frames.
    #[arg(long, default_value_t = 200_000)]
    pub records: u64,
    /// Keys (houses, vendors, boards) over which they are spread.
    #[arg(long, default_value_t = 5_000)]
    pub keys: u64,
    /// The generator's seed.
    #[arg(long, default_value_t = 3)]
    pub seed: u64,
    /// Rounds of each, in turns.
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,
    /// Frames a batch.
    #[arg(long, default_value_t = 5_000)]
    pub batch: usize,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// Frames a second and core that the product must take.
const WANTED: f64 = 200_000.0;
/// Its share of the bare parse.
const SHARE: f64 = 0.5;

/// What the frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mix {
    Unmapped,
    Untriggered,
}

impl Mix {
    fn name(self) -> &'static str {
        match self {
            Mix::Unmapped => "kinds that nothing maps",
            Mix::Untriggered => "mapped kinds, nothing to tell",
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Mix::Unmapped => reason::UNMAPPED,
            Mix::Untriggered => "",
        }
    }
}

/// CPU time of this thread.
fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), nanos)
}

/// Runs it.
///
/// # Errors
/// A shipped manifest is refused, a frame fires.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let modules = modules()?;
    let topic = TopicRef {
        no: 1,
        name: FRAMES.to_owned(),
        log_name: FRAMES.to_owned(),
        partitions: 1,
    };
    let mut rows = String::new();
    let mut verdicts = String::new();
    for mix in [Mix::Unmapped, Mix::Untriggered] {
        let batches = batches(options, mix, &topic)?;
        let records: usize = batches.iter().map(Batch::len).sum();
        let nanos = |d: Duration| d.as_secs_f64() * 1e9 / records as f64;
        let bar = stack::bar(mix.name());
        bar.set_length(options.rounds as u64);
        let (mut taken, mut parsed, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.rounds.max(1) {
            taken.push(nanos(decide(&modules, &batches, mix, &topic)?));
            parsed.push(nanos(parse(&batches)?));
            whole.push(nanos(parse_whole(&batches)?));
            bar.inc(1);
        }
        bar.finish_and_clear();
        let (t, p, w) = (median(&taken), median(&parsed), median(&whole));
        let bytes: usize = batches
            .iter()
            .flat_map(|b| b.records().iter().map(|r| b.payload(r).len()))
            .sum();
        let list = |ns: &[f64]| {
            let each: Vec<String> = ns.iter().map(|ns| format!("{ns:.0}")).collect();
            each.join(", ")
        };
        verdicts.push_str(&format!(
            "\nOf {}: {:.0} frames/s a core (wanted ≥ {WANTED:.0}: {}), **{:.2}** of the bare parse (wanted ≥ {SHARE}: {}). All rounds, ns a frame: product\n{}; bare parse {}.\n",
            mix.name(),
            1e9 / t,
            verdict(1e9 / t >= WANTED),
            p / t,
            verdict(p / t >= SHARE),
            list(&taken),
            list(&parsed),
        ));
        rows.push_str(&format!(
            "| {} | {} | {t:.0} | {:.0} | {p:.0} | **{:.2}** | {w:.0} | {:.2} |\n",
            mix.name(),
            bytes / records.max(1),
            1e9 / t,
            p / t,
            w / t,
        ));
    }
    let body = format!(
        "## Thresholds, without the store: `loadtest thresholds`\n\n{}\n\n{} frames over {} keys in batches of {}, one thread, CPU time, medians of {} rounds in turns. The bare parse reads the same\nrecords into the same owned type and leaves the body as it stands; the whole parse reads the body into a tree, too.\n\n| frames | bytes each | ns a frame | frames/s a core | bare parse, ns | ratio to it | whole parse, ns | ratio to that |\n|---|---|---|---|---|---|---|---|\n{rows}{verdicts}",
        machine::describe(None, options.seed),
        options.records,
        options.keys,
        options.batch,
        options.rounds,
    );
    publish("thresholds", &body, !options.dry)
}

fn modules() -> anyhow::Result<Arc<Modules>> {
    let loaded = shipped::load(&["uo".to_owned()], None);
    let modules = loaded.map_err(|faults| anyhow::anyhow!("{faults:?}"))?;
    Ok(Arc::new(modules))
}

/// The `n`th frame of a mix: kind, key, body. What a key's frames say never changes, so that nothing has crossed, changed or risen.
fn frame(mix: Mix, n: u64, keys: u64, dice: &mut fastrand::Rng) -> (&'static str, String, Value) {
    let key = format!("0x{:08x}", 0x4000_0000 + n % keys);
    let (x, y, z) = (dice.u16(..7_000), dice.u16(..4_000), dice.u8(..90));
    if mix == Mix::Unmapped {
        let body = json!({"serial": key, "name": "Ann the Bold", "map": "Felucca", "x": x, "y": y, "z": z,
            "region": "Britain", "skills": {"magery": 99.1, "wrestling": 80}, "mounted": dice.bool()});
        return (
            ["player.move", "item.moved", "mob.spawn"][(n % 3) as usize],
            key,
            body,
        );
    }
    match n % 4 {
        0 => (
            "house.decay",
            key.clone(),
            json!({"serial": key, "from": "LikeNew", "to": "Slightly", "map": "Felucca", "x": x, "y": y, "z": z,
                "region": "Britain", "name": "The Old Mill", "ownerSerial": "0x1f", "ownerAcct": "ann", "ownerName": "Ann",
                "ban": {"x": x, "y": y, "z": z}, "builtOn": "2026-01-01T00:00:00Z", "lastRefreshed": "2026-11-29T00:00:00Z"}),
        ),
        1 => (
            "vendor.listing",
            key.clone(),
            json!({"vendor": key, "serial": key, "shopName": "Ann's Bows", "ownerSerial": "0x1f", "ownerName": "Ann", "ownerAcct": "ann",
                "map": "Felucca", "x": x, "y": y, "z": z, "items": [{"serial": "0x2", "name": "a bow", "price": 700},
                {"serial": "0x3", "name": "a kryss", "price": 1900}],
                "fees": {"exempt": false, "holdGold": 100_000 + u32::from(x), "chargePerPeriod": 60, "periodsRemaining": 1_600}}),
        ),
        2 => (
            "champ.update",
            key.clone(),
            json!({"serial": key, "spawn": key, "name": "Abyss", "type": "Abyss", "active": false, "bossUp": false, "level": 0,
                "kills": 0, "maxKills": 250, "map": "Felucca", "x": x, "y": y}),
        ),
        _ => (
            "account.login.result",
            key.clone(),
            json!({"acct": key, "accepted": true, "ip": format!("198.51.100.{z}")}),
        ),
    }
}

fn batches(options: &Options, mix: Mix, topic: &TopicRef) -> anyhow::Result<Vec<Batch>> {
    let mut dice = fastrand::Rng::with_seed(options.seed);
    let mut all = vec![Batch::new(0)];
    for n in 0..options.records {
        let (kind, key, body) = frame(mix, n, options.keys.max(1), &mut dice);
        let frame = Frame {
            v: WIRE_VERSION,
            ws: 1,
            shard: ["atlantic", "pacific", "sonoma"][(n % 3) as usize].to_owned(),
            boot: "2026-11-30T06:00:00Z".to_owned(),
            seq: n + 1,
            kind: kind.to_owned(),
            key,
            accepted_at: Micros(1_790_000_000_000_000 + i64::try_from(n)? * 1_000),
            body: serde_json::value::to_raw_value(&body)?,
            replay: None,
        };
        if all.last().is_none_or(|b| b.len() >= options.batch.max(1)) {
            all.push(Batch::new(0));
        }
        if let Some(batch) = all.last_mut() {
            let payload = serde_json::to_vec(&frame)?;
            batch.push(
                topic.no,
                i64::try_from(n)?,
                frame.log_key().as_bytes(),
                &payload,
            );
        }
    }
    Ok(all)
}

fn decide(
    modules: &Arc<Modules>,
    batches: &[Batch],
    mix: Mix,
    topic: &TopicRef,
) -> anyhow::Result<Duration> {
    let settings = settings::Thresholds {
        slice_keys: usize::MAX,
    };
    let mut vertical = Thresholds::new(Arc::clone(modules).into(), settings, 2);
    vertical.reset(&Start {
        partition: 0,
        partitions: 1,
        mark: 0,
    });
    let mut counted: i64 = 0;
    let mut records: i64 = 0;
    let started = thread_cpu();
    for batch in batches {
        let mut items = Vec::with_capacity(batch.len());
        let mut stream = Micros(0);
        for (index, raw) in batch.records().iter().enumerate() {
            let decoded = vertical
                .decode(topic, batch.payload(raw))
                .map_err(|e| anyhow::anyhow!("{e:?}"))?;
            stream = stream.max(decoded.accepted_at);
            items.push(Item {
                id: RecordId {
                    topic_no: topic.no,
                    partition: 0,
                    offset: raw.offset,
                },
                index,
                accepted_at: decoded.accepted_at,
                stream,
                replayed: false,
                record: decoded.record,
            });
        }
        let cold = vertical.cold(&items);
        vertical.learn_nothing(cold);
        let (mut draft, mut effects) = (Draft::default(), Effects::default());
        let bytes = Raw::of(batch);
        let mut now = Now {
            stream,
            wall: stream,
        };
        for item in &items {
            now.stream = item.stream;
            vertical.decide(&mut draft, &mut effects, item, &bytes, now);
        }
        ensure!(
            draft.steps.is_empty(),
            "a frame fires: {:?}",
            draft.steps.first()
        );
        vertical.settle(&mut draft, &mut effects, now);
        vertical.merge(draft);
        for (_, _, outcome, why, n) in effects.tally.changes() {
            ensure!(
                (outcome, why) == (Outcome::Applied, mix.reason()),
                "{n} frames end {outcome:?} ({why})"
            );
            counted += n;
        }
        records += i64::try_from(items.len())?;
    }
    let took = thread_cpu().saturating_sub(started);
    ensure!(counted == records, "{counted} outcomes of {records} frames");
    Ok(took)
}

fn parse(batches: &[Batch]) -> anyhow::Result<Duration> {
    let started = thread_cpu();
    for batch in batches {
        let mut all = Vec::with_capacity(batch.len());
        for raw in batch.records() {
            all.push(serde_json::from_slice::<Frame>(batch.payload(raw))?);
        }
        for frame in &all {
            std::hint::black_box(frame.seq);
        }
    }
    Ok(thread_cpu().saturating_sub(started))
}

fn parse_whole(batches: &[Batch]) -> anyhow::Result<Duration> {
    let started = thread_cpu();
    for batch in batches {
        let mut all = Vec::with_capacity(batch.len());
        for raw in batch.records() {
            let frame = serde_json::from_slice::<Frame>(batch.payload(raw))?;
            let body: Value = serde_json::from_str(frame.body.get())?;
            all.push((frame, body));
        }
        for (frame, body) in &all {
            std::hint::black_box((frame.seq, body));
        }
    }
    Ok(thread_cpu().saturating_sub(started))
}
