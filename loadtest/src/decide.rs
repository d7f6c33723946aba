//! Decoding and deciding workload W without the store, against the bare parse into the same owned wire types. One thread, all
//! records in memory, CPU time of the thread; in turns.
//!
//! The product's side is that of a batch: decode, learn, decide, claims from a table in memory, settle, merge; partition after
//! partition, each with a slice of its own. Nothing can be loaded, so the slices hold every key: by default as many as a tenth of
//! the whole workload's, which is what they hold when it is consumed.

use crate::report::{median, publish, verdict};
use crate::stack::WorkloadOptions;
use crate::workload::{MARK_REPEAT, Target, Totals, Workload};
use crate::{machine, stack};
use anyhow::ensure;
use millrace::attribution::actor::Attribution;
use millrace::attribution::decide::Record;
use millrace::attribution::draft::Draft;
use millrace::runtime::vertical::{Effects, Item, Raw, Start, Vertical};
use millrace::settings;
use millrace_schemas::click::ClickRecord;
use millrace_schemas::ids::RecordId;
use millrace_schemas::outcome::Outcome;
use millrace_schemas::postback::PostbackRecord;
use millrace_schemas::time::{Micros, Now};
use millrace_tests::claims::{Identities, claim};
use millrace_topics::catalogue::{CLICKS, POSTBACKS};
use millrace_topics::contract::{Batch, TopicRef};
use millrace_topics::partitioner;
use std::collections::HashMap;
use std::time::Duration;

/// How to measure deciding.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Records.
    #[arg(long, default_value_t = 200_000)]
    pub records: u32,
    /// Partitions.
    #[arg(long, default_value_t = 8)]
    pub partitions: i32,
    /// The generator's seed.
    #[arg(long, default_value_t = 3)]
    pub seed: u64,
    /// Rounds of each, in turns.
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,
    /// Records a batch.
    #[arg(long, default_value_t = 5_000)]
    pub batch: usize,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// Both topics, as numbered by a fresh catalogue.
pub fn topics(partitions: i32) -> [TopicRef; 2] {
    let topic = |no, name: &str| TopicRef {
        no,
        name: name.to_owned(),
        log_name: name.to_owned(),
        partitions,
    };
    [topic(1, CLICKS), topic(2, POSTBACKS)]
}

/// CPU time of this thread.
pub fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), nanos)
}

/// Runs it.
///
/// # Errors
/// A record of the workload is not decided as the generator says.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let topics = topics(options.partitions.max(1));
    let workload = WorkloadOptions {
        records: options.records,
        partitions: options.partitions,
        seed: options.seed,
    };
    let (batches, totals) = batches(&workload, options.batch, &topics);
    let bar = stack::bar("deciding");
    bar.set_length(options.rounds as u64 * 2);
    let (mut decided, mut parsed) = (Vec::new(), Vec::new());
    let nanos = |d: Duration| d.as_secs_f64() * 1e9 / totals.records as f64;
    let mut phases = Phases::default();
    for _ in 0..options.rounds.max(1) {
        let (took, outcomes, split) = decide(&batches, &topics)?;
        ensure!(
            outcomes.applied == totals.visits + totals.clicks + totals.postbacks - outcomes.waiting,
            "{outcomes:?} of {totals:?}"
        );
        ensure!(
            outcomes.duplicate + outcomes.waiting_repeats == totals.repeats,
            "{outcomes:?} of {totals:?}"
        );
        decided.push(nanos(took));
        phases = split;
        bar.inc(1);
        parsed.push(nanos(parse(&batches, &topics)?));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let (d, p) = (median(&decided), median(&parsed));
    let ratio = p / d;
    let share = |d: Duration| nanos(d);
    let body = format!(
        "## Decoding and deciding, without the store\n\n{}\n\n{} records in batches of {}, one thread, CPU time, medians of {} rounds in turns.\n\n| | ns a record | records/s a core |\n|---|---|---|\n| decode, decide, settle, merge | {d:.0} | {:.0} |\n| bare parse | {p:.0} | {:.0} |\n\nRatio: **{ratio:.2}** (wanted ≥ 0.50: {}). Of the last round, ns a record: decode {:.0}, learn {:.0}, decide {:.0}, claims and\nsettle {:.0}, merge {:.0}, drop {:.0}.\n",
        machine::describe(None, options.seed),
        totals.records,
        options.batch,
        decided.len(),
        1e9 / d,
        1e9 / p,
        verdict(ratio >= 0.5),
        share(phases.decode),
        share(phases.learn),
        share(phases.decide),
        share(phases.settle),
        share(phases.merge),
        share(phases.drop),
    );
    publish("decide", &body, !options.dry)
}

/// The batches of each partition, of so many records each, and what the workload holds.
pub fn batches(
    options: &WorkloadOptions,
    records: usize,
    topics: &[TopicRef; 2],
) -> (Vec<Vec<Batch>>, Totals) {
    let mut workload = options.workload();
    let mut made = Workload::blank();
    let partitions = options.partitions.max(1);
    let mut all: Vec<(Vec<Batch>, [i64; 2])> = (0..partitions)
        .map(|p| (vec![Batch::new(p)], [0; 2]))
        .collect();
    while workload.next_record(&mut made) {
        let partition = partitioner::partition(made.key.as_bytes(), partitions);
        let place = usize::try_from(partition).unwrap_or(0);
        let at = usize::from(made.target == Target::Postbacks);
        let Some((batches, offsets)) = all.get_mut(place) else {
            continue;
        };
        let (Some(topic), Some(offset)) = (topics.get(at), offsets.get_mut(at)) else {
            continue;
        };
        if batches.last().is_none_or(|b| b.len() >= records) {
            batches.push(Batch::new(partition));
        }
        if let Some(batch) = batches.last_mut() {
            let (key, payload) = (made.key.as_bytes(), made.payload.as_bytes());
            batch.push(topic.no, *offset, key, payload);
            *offset += 1;
        }
    }
    let mut all: Vec<Vec<Batch>> = all.into_iter().map(|(batches, _)| batches).collect();
    for batch in all.iter_mut().flatten() {
        batch.order_by_topic(topics);
    }
    (all, workload.totals())
}

/// What became of the records.
#[derive(Debug, Default)]
struct Outcomes {
    applied: u64,
    duplicate: u64,
    /// Distinct postbacks that still wait at the end.
    waiting: u64,
    /// Their repeats.
    waiting_repeats: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Phases {
    decode: Duration,
    learn: Duration,
    decide: Duration,
    settle: Duration,
    merge: Duration,
    drop: Duration,
}

/// One pass over all partitions.
#[derive(Default)]
struct Pass {
    identities: Identities,
    counts: HashMap<Outcome, i64>,
    phases: Phases,
}

fn decide(
    all: &[Vec<Batch>],
    topics: &[TopicRef; 2],
) -> anyhow::Result<(Duration, Outcomes, Phases)> {
    let mut pass = Pass::default();
    let started = thread_cpu();
    for batches in all {
        pass.partition(batches, topics)?;
    }
    let took = thread_cpu().saturating_sub(started);
    let count = |o: Outcome| u64::try_from(pass.counts.get(&o).copied().unwrap_or(0)).unwrap_or(0);
    // Each identity that was booked is one distinct postback.
    let waiting = distinct_postbacks(all) - u64::try_from(pass.identities.len())?;
    let outcomes = Outcomes {
        applied: count(Outcome::Applied),
        duplicate: count(Outcome::Duplicate),
        waiting,
        waiting_repeats: count(Outcome::Parked).saturating_sub(waiting),
    };
    Ok((took, outcomes, pass.phases))
}

/// The items of a batch, as the product's shell makes them.
///
/// # Errors
/// A record is none.
pub fn decode(
    vertical: &Attribution,
    batch: &Batch,
    topics: &[TopicRef],
    stream: &mut Micros,
) -> anyhow::Result<Vec<Item<Record>>> {
    let mut items = Vec::with_capacity(batch.len());
    for (index, raw) in batch.records().iter().enumerate() {
        let Some(topic) = topics.iter().find(|t| t.no == raw.topic_no) else {
            continue;
        };
        let decoded = vertical
            .decode(topic, batch.payload(raw))
            .map_err(|e| anyhow::anyhow!("{e:?}"))?;
        *stream = decoded.accepted_at.max(*stream);
        items.push(Item {
            id: RecordId {
                topic_no: raw.topic_no,
                partition: batch.partition,
                offset: raw.offset,
            },
            index,
            accepted_at: decoded.accepted_at,
            stream: *stream,
            replayed: false,
            record: decoded.record,
        });
    }
    Ok(items)
}

impl Pass {
    fn partition(&mut self, batches: &[Batch], topics: &[TopicRef; 2]) -> anyhow::Result<()> {
        let mut vertical = Attribution::new(settings::Attribution {
            slice_clicks: usize::MAX,
            ..settings::Attribution::default()
        });
        let first = topics.first();
        vertical.reset(&Start {
            partition: batches.first().map_or(0, |b| b.partition),
            partitions: first.map_or(1, |t| t.partitions),
            mark: 0,
        });
        let mut stream = Micros(0);
        for batch in batches {
            self.batch(&mut vertical, batch, topics, &mut stream)?;
        }
        Ok(())
    }

    fn batch(
        &mut self,
        vertical: &mut Attribution,
        batch: &Batch,
        topics: &[TopicRef; 2],
        stream: &mut Micros,
    ) -> anyhow::Result<()> {
        let t0 = thread_cpu();
        let items = decode(vertical, batch, topics, stream)?;
        let t1 = thread_cpu();
        ensure!(
            vertical.learn(&items) == 0,
            "a slice without a bound asks for nothing"
        );
        let t2 = thread_cpu();
        let (mut draft, mut effects) = (Draft::default(), Effects::default());
        let bytes = Raw::of(batch);
        let mut now = Now {
            stream: *stream,
            wall: *stream,
        };
        for item in &items {
            now.stream = item.stream;
            vertical.decide(&mut draft, &mut effects, item, &bytes, now);
        }
        let t3 = thread_cpu();
        claim(&mut draft, &mut self.identities);
        vertical.settle(&mut draft, &mut effects, now);
        let t4 = thread_cpu();
        vertical.merge(draft);
        let t5 = thread_cpu();
        for (_, _, outcome, _, n) in effects.tally.changes() {
            *self.counts.entry(outcome).or_insert(0) += n;
        }
        drop(items);
        let t6 = thread_cpu();
        let phases = &mut self.phases;
        phases.decode += t1.saturating_sub(t0);
        phases.learn += t2.saturating_sub(t1);
        phases.decide += t3.saturating_sub(t2);
        phases.settle += t4.saturating_sub(t3);
        phases.merge += t5.saturating_sub(t4);
        phases.drop += t6.saturating_sub(t5);
        Ok(())
    }
}

/// Postbacks of the workload without repeats.
fn distinct_postbacks(all: &[Vec<Batch>]) -> u64 {
    all.iter()
        .flatten()
        .flat_map(|b| b.records().iter().map(move |r| (r, b.payload(r))))
        .filter(|(r, payload)| r.topic_no == 2 && !payload.ends_with(MARK_REPEAT))
        .map(|_| 1)
        .sum()
}

fn parse(all: &[Vec<Batch>], topics: &[TopicRef; 2]) -> anyhow::Result<Duration> {
    enum Parsed {
        Click(Box<ClickRecord>),
        Postback(Box<PostbackRecord>),
    }
    let clicks = topics.first().map_or(0, |t| t.no);
    let started = thread_cpu();
    for batch in all.iter().flatten() {
        let mut all = Vec::with_capacity(batch.len());
        for raw in batch.records() {
            let payload = batch.payload(raw);
            all.push(if raw.topic_no == clicks {
                Parsed::Click(Box::new(serde_json::from_slice(payload)?))
            } else {
                Parsed::Postback(Box::new(serde_json::from_slice(payload)?))
            });
        }
        for parsed in &all {
            match parsed {
                Parsed::Click(record) => std::hint::black_box(record.workspace),
                Parsed::Postback(record) => std::hint::black_box(record.workspace),
            };
        }
    }
    Ok(thread_cpu().saturating_sub(started))
}
