//! Gates 5 to 8 with their state in memory: decoding notices, all gates, claims, payloads of what passes. One thread, CPU time of the
//! thread. And what cooldowns take while they are held hot: as many as the settings let, and all of them.
//!
//! A decision is a notice's rule on one channel. Users, rules and preferences are made once, as a batch would read them; hours are so
//! wide that what refuses is preferences, cooldowns and sent keys.

pub mod cooldowns;
mod store;

use crate::report::{median, publish, verdict};
use crate::{machine, stack};
use anyhow::ensure;
use millrace::engagement::wire;
use millrace::recipients::decide::{self, Stamp};
use millrace::recipients::facts::{Facts, Person, Place, RuleNow};
use millrace::recipients::hour::Hour;
use millrace::recipients::ledger::Ledger;
use millrace::recipients::preference::Said;
use millrace::recipients::slice::Cooldowns;
use millrace::recipients::store as product;
use millrace::settings;
use millrace_schemas::channel::{Channel, Mode};
use millrace_schemas::ids::RecordId;
use millrace_schemas::notice::Notice;
use millrace_schemas::time::Micros;
use serde_json::json;
use std::time::Duration;

/// How to measure the gates of recipients.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Notices.
    #[arg(long, default_value_t = 100_000)]
    pub records: u32,
    /// Users.
    #[arg(long, default_value_t = 20_000)]
    pub users: u32,
    /// Notices a batch.
    #[arg(long, default_value_t = 2_000)]
    pub batch: usize,
    /// Rounds.
    #[arg(long, default_value_t = 7)]
    pub rounds: usize,
    /// Notices of a round with the store; 0: none is measured.
    #[arg(long, default_value_t = 60_000)]
    pub stored: u32,
    /// Cooldowns, to see what they take.
    #[arg(long, default_value_t = 10_000_000)]
    pub keys: usize,
    /// Partitions whose slices share them.
    #[arg(long, default_value_t = 8)]
    pub partitions: usize,
    /// Cooldowns that a slice holds at most; unset: what the product's settings have.
    #[arg(long)]
    pub slice_keys: Option<usize>,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// Cooldowns may take so many bytes each, or be held up to a bound.
const HOT_BYTES: f64 = 64.0;
/// What the second half of the cooldowns may add to the process, where slices are bounded: nothing, but for what measuring takes.
const FLAT: f64 = 1.05;

const WS: i32 = 1;
const NOW: Micros = Micros(1_796_040_000_000_000);
const RULES: [&str; 2] = ["ru_first", "ru_second"];

/// CPU time of this thread.
fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), nanos)
}

/// What a round came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    decisions: usize,
    passed: usize,
    refused: usize,
}

/// Runs it.
///
/// # Errors
/// A notice cannot be read, or rounds differ in what they decide.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let hot = hot(options)?;
    let notices = notices(options)?;
    let facts = facts(options.users);
    let bar = stack::bar("deciding");
    bar.set_length(options.rounds as u64);
    let (mut took, mut first) = (Vec::new(), None);
    for _ in 0..options.rounds.max(1) {
        let begun = thread_cpu();
        let outcome = round(options, &notices, &facts)?;
        let spent = thread_cpu().saturating_sub(begun);
        ensure!(*first.get_or_insert(outcome) == outcome, "{outcome:?}");
        took.push(spent.as_secs_f64() * 1e9 / outcome.decisions.max(1) as f64);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let outcome = first.unwrap_or_default();
    let stored = match options.stored {
        0 => String::new(),
        _ => with_store(options)?,
    };
    let ns = median(&took);
    let body = format!(
        "## Gates of recipients, with state in memory\n\n{}\n\n{} notices in batches of {}, two rules on three channels each, {} users; one thread, CPU time, median of {} rounds:\ndecoding, gates 0 to 8, claims and the payloads of what passed.\n\n| | |\n|---|---|\n| gate decisions | {} ({} passed, {} refused) |\n| ns a decision | {ns:.0} |\n| decisions/s a core | {:.0} (wanted ≥ 100 000: {}) |\n{hot}{stored}",
        machine::describe(None, None::<u64>),
        options.records,
        options.batch,
        options.users,
        took.len(),
        outcome.decisions,
        outcome.passed,
        outcome.refused,
        1e9 / ns,
        verdict(1e9 / ns >= 100_000.0),
    );
    publish("recipients", &body, !options.dry)
}

/// What cooldowns take: bounded as in the product, which is judged, and all of them at once, for information.
fn hot(options: &Options) -> anyhow::Result<String> {
    let bound = options
        .slice_keys
        .unwrap_or_else(|| settings::Recipients::default().slice_keys);
    let (keys, slices) = (options.keys, options.partitions.max(1));
    let bounded = cooldowns::measure(cooldowns::Options {
        keys,
        slices,
        bound,
    })?;
    let all = cooldowns::measure(cooldowns::Options {
        keys,
        slices: 1,
        bound: keys.saturating_mul(2),
    })?;
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let most = keys as f64 * HOT_BYTES;
    let grown = bounded.grown as f64;
    // Too few to fill every slice twice over say nothing of what comes after.
    let flat = if keys / 2 >= slices.saturating_mul(bound) {
        verdict(bounded.growth() <= FLAT)
    } else {
        "too few to tell"
    };
    Ok(format!(
        "\nCooldowns: {keys} pass through slices of at most {bound} (`recipients.slice_keys`), one for each of {slices} partitions of one process; what\na slice forgets stands in PostgreSQL and is asked of it by the batch that needs it, which is not measured here. Then all of them in\none slice without a bound, which the product does not do, for information. Each in a process of its own, whose growth at its peak is\nshown.\n\n| | bounded | all held |\n|---|---|---|\n| held at the end | {} | {} |\n| the process grew by, MiB | {:.0} (wanted ≤ {:.0}, {keys} × 64 bytes: {}) | {:.0} |\n| the same, to what it was when half had passed | {:.2} (wanted ≤ {FLAT}: {flat}) | {:.2} |\n| bytes a cooldown held, tables | {:.1} | {:.1} |\n| the same at its worst | {:.1} | {:.1} |\n| bytes a cooldown held, growth of the process | {:.1} | {:.1} |\n",
        bounded.held,
        all.held,
        mib(grown),
        mib(most),
        verdict(grown <= most),
        mib(all.grown as f64),
        bounded.growth(),
        all.growth(),
        bounded.each(),
        all.each(),
        bounded.worst,
        all.worst,
        grown / bounded.held.max(1) as f64,
        all.grown as f64 / all.held.max(1) as f64,
    ))
}

/// The section's second half.
fn with_store(options: &Options) -> anyhow::Result<String> {
    let (product, bare) = store::measure(options)?;
    let (p, b) = (median(&product), median(&bare));
    let all = |rounds: &[f64]| {
        let each: Vec<String> = rounds.iter().map(|r| format!("{r:.0}")).collect();
        each.join(", ")
    };
    Ok(format!(
        "\nWith the store, {} notices of one rule on two channels (one message and one refusal each), PostgreSQL durable, one partition:\n\n| | notices/s | rounds |\n|---|---|---|\n| actor | {p:.0} | {} |\n| the same statements | {b:.0} | {} |\n\nRatio: **{:.2}** (wanted ≥ 0.60: {}).\n",
        options.stored,
        all(&product),
        all(&bare),
        p / b,
        verdict(p / b >= 0.6),
    ))
}

/// Notices as they come from the log.
fn notices(options: &Options) -> anyhow::Result<Vec<Vec<u8>>> {
    let rule = |id: &str| json!({"id": id, "version": 1, "channels": ["inapp", "email", "push"], "delay_s": 900, "cooldown_s": 3_600, "hourly_cap": 100});
    let rules: Vec<_> = RULES.iter().map(|id| rule(id)).collect();
    (0..options.records)
        .map(|n| {
            let user = n.wrapping_mul(7_919) % options.users.max(1);
            let notice = json!({
                "v": 1, "ws": WS, "user": format!("user-{user}"), "firing": format!("3-0-{n}-0"),
                "firing_pos": {"generation": 4, "partition": 0, "offset": n}, "trigger": "g.house.warned", "module": "g",
                "shard": "s1", "subject": format!("0x{:x}", 0x4000_0000 + n % 977), "scope": "",
                "dedupe_key": format!("g.house.warned:s1:b1:{n}"),
                "vars": {"stage": "late", "house": format!("0x{n:x}"), "name": "The tower by the river", "url": "/houses/1"},
                "body": {"title": "A house decays", "intro": "A house is about to fall.", "action": {"label": "Open", "url": "/houses/1"}},
                "at": NOW.0, "accepted_at": NOW.0, "rules": rules, "ceiling": "owner",
            });
            Ok(serde_json::to_vec(&notice)?)
        })
        .collect()
}

fn facts(users: u32) -> Facts {
    let said = |n: u32| {
        let mode = |on: bool| if on { Mode::Instant } else { Mode::Off };
        let one = |channel, mode| Said {
            stream: "g.house.warned".into(),
            channel,
            scope: "".into(),
            mode,
            at: Micros(1),
        };
        vec![
            one(Channel::Email, mode(n.is_multiple_of(2))),
            one(Channel::Push, mode(n.is_multiple_of(3))),
        ]
    };
    let person = |n: u32| Person {
        active: !n.is_multiple_of(50),
        has_email: true,
        verified: true,
        has_device: true,
        said: said(n),
        ..Person::default()
    };
    let people = (0..users.max(1)).map(|n| (format!("user-{n}").into(), person(n)));
    let rule = RuleNow {
        ws: WS,
        enabled: true,
        channels: Channel::ALL.to_vec(),
        delay_s: 900,
        cooldown_s: 3_600,
        hourly_cap: i64::MAX,
    };
    let place = Place {
        destinations: Channel::ALL.into_iter().zip(1..).collect(),
        verified_only: true,
    };
    Facts {
        people: std::iter::once((WS, people.collect())).collect(),
        places: std::iter::once((WS, place)).collect(),
        rules: RULES
            .iter()
            .map(|id| ((*id).into(), rule.clone()))
            .collect(),
        ..Facts::default()
    }
}

fn round(options: &Options, notices: &[Vec<u8>], facts: &Facts) -> anyhow::Result<Outcome> {
    let mut cooldowns = Cooldowns::new(1_000_000);
    let mut outcome = Outcome::default();
    for (at, batch) in notices.chunks(options.batch.max(1)).enumerate() {
        let mut read: Vec<Notice> = Vec::with_capacity(batch.len());
        for payload in batch {
            read.push(wire::read(payload).map_err(|e| anyhow::anyhow!("{e:?}"))?);
        }
        let mut firsts = Vec::with_capacity(read.len());
        for notice in &read {
            let (mut wanted, mut refused) = (Vec::new(), Vec::new());
            decide::first(facts, notice, &mut wanted, &mut refused);
            firsts.push((wanted, refused));
        }
        let mut ledger = Ledger::default();
        let wanted = || firsts.iter().flat_map(|(wanted, _)| wanted);
        std::hint::black_box(ledger.warm(&cooldowns, wanted().filter_map(|w| w.cooldown)));
        for w in wanted() {
            ledger.hour_is(w.hour, Hour::empty(NOW));
        }
        for (n, (notice, (wanted, refused))) in read.iter().zip(&mut firsts).enumerate() {
            let offset = at * options.batch + n;
            let cause = RecordId {
                topic_no: 5,
                partition: 0,
                offset: i64::try_from(offset)?,
            };
            let stamp = Stamp {
                cause,
                stream: NOW,
                wall: NOW,
            };
            let mut passed = Vec::new();
            decide::last(&mut ledger, notice, wanted, stamp, &mut passed, refused);
            outcome.passed += passed.len();
            outcome.refused += refused.len();
            for p in &passed {
                std::hint::black_box(product::message(cause, notice, p));
            }
        }
        for (key, at) in ledger.cooled() {
            cooldowns.put(key, at);
        }
    }
    outcome.decisions = outcome.passed + outcome.refused;
    Ok(outcome)
}
