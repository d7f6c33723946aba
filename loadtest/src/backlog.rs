//! `backlog`: a long backlog in Kafka, drained by one process that is killed once in the middle. Memory must stay flat.

use crate::books;
use crate::consume::watch;
use crate::contender::{Contender, Running, Tuning, attribution};
use crate::report::{publish, verdict};
use crate::stack::{Stack, WorkloadOptions, bar};
use crate::{cpu, disk, machine};
use anyhow::Context;
use indicatif::ProgressBar;
use std::fmt::Write;
use std::time::Instant;

const EXAMPLES: &str = "Examples:
  cargo run --release -p loadtest -- backlog                       10 million records; about 4 minutes and 14 GB of disk
  cargo run --release -p loadtest -- backlog --records 1000000 --dry";

/// How to measure a backlog.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Records in both topics.
    #[arg(long, default_value_t = 10_000_000)]
    pub records: u32,
    /// Partitions of both topics.
    #[arg(long, default_value_t = 8)]
    pub partitions: i32,
    /// Clicks that a partition's slice may hold: full long before a tenth of the records is consumed.
    #[arg(long)]
    pub slice_clicks: Option<usize>,
    /// The generator's seed.
    #[arg(long, default_value_t = 3)]
    pub seed: u64,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// How much more memory the rest may take than the first tenth.
const RISE: f64 = 1.2;

/// Memory when so many records were consumed.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: u64,
    mib: f64,
}

/// One process's life: from where it began to where it ended.
#[derive(Clone, Debug, Default)]
struct Life {
    rate: f64,
    samples: Vec<Sample>,
    cpu: f64,
}

/// Runs it.
///
/// # Errors
/// Something of the stack fails, there is no room, or the ledger is not what the workload says.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(measure(options))
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    disk::need(u64::from(options.records) * 1_100 + 4_000_000_000)?;
    // Of settings that are given twice the last counts: less WAL is kept than a short measurement may have.
    let stack = Stack::start_with(&["max_wal_size=2GB".to_owned()]).await?;
    let workload = WorkloadOptions {
        records: options.records,
        partitions: options.partitions,
        seed: options.seed,
    };
    let loaded = stack.preload_as("", &workload, "lz4").await?;
    let total = loaded.totals.records;
    let tuning = Tuning {
        batch: 5_000,
        arbiters: 2,
        partitions: options.partitions,
        slice_clicks: options
            .slice_clicks
            .unwrap_or(options.records as usize / 25 / options.partitions.max(1) as usize),
    };
    let [_, kafka_folder] = stack.folders();
    let kafka_bytes = disk::used(&kafka_folder);
    let database = stack.fresh_database(options.partitions).await?;
    let client = database.client().await;
    let progress = bar("consuming");
    progress.set_length(total);
    let start = || {
        Running::start(
            attribution(stack.brokers(), database.url(), &tuning)?,
            "product",
        )
    };
    let began = Instant::now();
    let mut process = start()?;
    let first = live(&client, &mut process, total / 2, &progress).await?;
    process.kill()?;
    let killed = Instant::now();
    let mut process = start()?;
    let second = live(&client, &mut process, total, &progress).await?;
    let took = began.elapsed();
    process.stop().await?;
    progress.finish_and_clear();
    books::verify(&client, Contender::Product.name(), &loaded.totals).await?;
    let size: i64 = client
        .query_one("SELECT pg_database_size(current_database())", &[])
        .await?
        .get(0);
    let [postgres_folder, _] = stack.folders();
    let mut out = String::new();
    writeln!(
        out,
        "## A backlog of {:.1} million records\n\n{}\n",
        total as f64 / 1e6,
        machine::describe(Some(stack.kafka_version()), options.seed)
    )?;
    writeln!(
        out,
        "Workload W, {total} records ({:.1} GB; {:.1} GB in Kafka, lz4) in two topics of {} partitions, drained by one process, slices\nof {} clicks a partition; killed (SIGKILL) when half was consumed, and started again at once: the second one's rate includes its\nwait for the first one's session (6 s here) to end.\n",
        disk::gb(loaded.totals.bytes),
        disk::gb(kafka_bytes),
        options.partitions,
        tuning.slice_clicks,
    )?;
    writeln!(
        out,
        "| process | records/s | CPU-µs a record | MiB in its first tenth | in the rest, most | ratio |\n|---|---|---|---|---|---|"
    )?;
    let mut worst: f64 = 0.0;
    for (name, life) in [("first", &first), ("second", &second)] {
        let (early, late) = split(&life.samples).context("a process was looked at")?;
        worst = worst.max(late / early);
        writeln!(
            out,
            "| {name} | {:.0} | {:.2} | {early:.0} | {late:.0} | {:.2} |",
            life.rate,
            life.cpu,
            late / early
        )?;
    }
    writeln!(
        out,
        "\nMemory of the rest to that of the first tenth: at most **{worst:.2}×** (wanted ≤ {RISE:.1}: {}). Drained in {:.0} s, of which the\nsecond process took {:.0}; the ledger holds what the generator made, once. PostgreSQL: {:.1} GB of tables and indexes, {:.1} GB on\ndisk with WAL.\n",
        verdict(worst <= RISE),
        took.as_secs_f64(),
        killed.elapsed().as_secs_f64(),
        size as f64 / 1e9,
        disk::gb(disk::used(&postgres_folder)),
    )?;
    writeln!(out, "Resident MiB by records consumed (millions):\n")?;
    writeln!(out, "{}", curve(&first, &second))?;
    publish("backlog", &out, !options.dry)
}

/// Watches one process until so many records are consumed.
async fn live(
    client: &tokio_postgres::Client,
    process: &mut Running,
    until: u64,
    progress: &ProgressBar,
) -> anyhow::Result<Life> {
    let group = Contender::Product.group();
    let pid = process.pid();
    let mut samples = Vec::new();
    let (first, last, seconds) = watch(client, group, until, |at| {
        progress.set_position(at);
        samples.push(Sample {
            at,
            mib: cpu::resident(pid) as f64 / f64::from(1 << 20),
        });
        process.check()
    })
    .await?;
    let consumed = last.saturating_sub(first).max(1) as f64;
    Ok(Life {
        rate: consumed / seconds,
        samples,
        cpu: cpu::tree(pid).as_secs_f64() * 1e6 / consumed,
    })
}

/// The most memory in the first tenth of what a process consumed, and in the rest.
fn split(samples: &[Sample]) -> Option<(f64, f64)> {
    // It consumes nothing before it has joined.
    let (first, last) = (samples.first()?.at, samples.last()?.at);
    let tenth = first + (last - first) / 10;
    let most = |late: bool| {
        samples
            .iter()
            .filter(|s| s.at > first && (s.at > tenth) == late)
            .map(|s| s.mib)
            .fold(0.0, f64::max)
    };
    let (early, late) = (most(false), most(true));
    (early > 0.0).then_some((early, late))
}

/// Twenty points of both lives.
fn curve(first: &Life, second: &Life) -> String {
    let all: Vec<&Sample> = first.samples.iter().chain(&second.samples).collect();
    let step = (all.len() / 20).max(1);
    all.iter()
        .step_by(step)
        .map(|s| format!("{:.1}: {:.0}", s.at as f64 / 1e6, s.mib))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_tenth_is_of_what_was_consumed() {
        let sample = |(at, mib): (u64, f64)| Sample { at, mib };
        let samples: Vec<Sample> = [(500, 40.0), (550, 90.0), (600, 100.0), (1_600, 110.0)]
            .map(sample)
            .to_vec();
        assert_eq!(split(&samples), Some((100.0, 110.0)));
        assert_eq!(split(&[]), None);
    }
}
