//! Writing the ledger: the product's batch transaction, and bare writes of the very same rows into the same tables with the same
//! indexes, the position moved in the same transaction. One connection each, transactions one after the other; the clock runs
//! from BEGIN to the answer to COMMIT, putting the rows together included.

mod bare;
mod product;
mod rows;

use crate::report::{median, publish, verdict};
use crate::stack::{POSTGRES_SETTINGS, WorkloadOptions, database_on};
use crate::{cpu, decide, machine, stack};
use anyhow::{Context, ensure};
use millrace_tests::postgres::DedicatedServer;
use millrace_topics::contract::Batch;
use product::Transaction;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How to measure the ledger.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Records of workload W.
    #[arg(long, default_value_t = 400_000)]
    pub records: u32,
    /// Partitions.
    #[arg(long, default_value_t = 8)]
    pub partitions: i32,
    /// The generator's seed.
    #[arg(long, default_value_t = 3)]
    pub seed: u64,
    /// Records a transaction.
    #[arg(long, default_value_t = 5_000)]
    pub batch: usize,
    /// Rounds of each, in turns.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Records of which each has a transaction of its own, about.
    #[arg(long, default_value_t = 5_000)]
    pub single: usize,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Product,
    Copy,
    CopyMerge,
    Unnest,
    Single,
}

impl Way {
    const ALL: [Way; 5] = [
        Way::Product,
        Way::Copy,
        Way::CopyMerge,
        Way::Unnest,
        Way::Single,
    ];

    fn name(self) -> &'static str {
        match self {
            Way::Product => "product",
            Way::Copy => "COPY",
            Way::CopyMerge => "COPY + merge",
            Way::Unnest => "UNNEST",
            Way::Single => "single commits",
        }
    }
}

/// What writing took: time and this thread's CPU inside the transactions.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    wall: Duration,
    client: Duration,
}

/// A running clock.
struct Clock {
    at: Instant,
    cpu: Duration,
}

impl Clock {
    fn start() -> Clock {
        Clock {
            at: Instant::now(),
            cpu: decide::thread_cpu(),
        }
    }

    fn stop(self, spent: &mut Spent) {
        spent.wall += self.at.elapsed();
        spent.client += decide::thread_cpu().saturating_sub(self.cpu);
    }
}

/// One round of one way.
#[derive(Clone, Copy, Debug)]
struct Round {
    rate: f64,
    /// CPU-µs a record.
    client: f64,
    server: f64,
}

/// What all rounds share.
struct Scene {
    server: DedicatedServer,
    batches: Vec<Vec<Batch>>,
    transactions: Vec<Transaction>,
    days: Vec<i64>,
    /// What the product's tables hold, once it has written.
    wanted: Vec<String>,
}

/// Runs it.
///
/// # Errors
/// The store's, or another way's tables end up different from the product's.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(options))
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let server =
        tokio::task::spawn_blocking(|| DedicatedServer::start_durable_with(&POSTGRES_SETTINGS))
            .await?;
    let workload = WorkloadOptions {
        records: options.records,
        partitions: options.partitions.max(1),
        seed: options.seed,
    };
    let topics = decide::topics(workload.partitions);
    let (batches, totals) = decide::batches(&workload, options.batch, &topics);
    let mut scene = Scene {
        server,
        batches,
        transactions: Vec::new(),
        days: Vec::new(),
        wanted: Vec::new(),
    };
    // The first round warms up, and keeps the rows.
    round(&mut scene, Way::Product, options).await?;
    let mut seen: Vec<(Way, Vec<Round>)> = Way::ALL.map(|w| (w, Vec::new())).to_vec();
    for n in 0..options.rounds.max(1) {
        for turn in 0..seen.len() {
            let at = (n + turn) % seen.len();
            let Some((way, rounds)) = seen.get_mut(at) else {
                continue;
            };
            let done = round(&mut scene, *way, options).await?;
            println!("{}: {done:?}", way.name());
            rounds.push(done);
        }
    }
    let rows: usize = scene
        .transactions
        .iter()
        .flat_map(|t| t.facts.iter().chain([&t.keys]))
        .map(rows::Cells::len)
        .sum();
    publish(
        "ledger",
        &section(options, &seen, totals.records, rows)?,
        !options.dry,
    )
}

async fn round(scene: &mut Scene, way: Way, options: &Options) -> anyhow::Result<Round> {
    let partitions = options.partitions.max(1);
    let (database, topics) = database_on(&scene.server, partitions).await?;
    let client = millrace_tests::postgres::connect(database.url()).await;
    client.batch_execute("CHECKPOINT").await?;
    let pid = scene.server.pid().context("the server's process")?;
    let before = cpu::tree(pid);
    let first = scene.transactions.is_empty();
    let (spent, records) = match way {
        Way::Product => {
            let (spent, kept) =
                product::write(database.url(), &scene.batches, &topics, first).await?;
            if first {
                scene.transactions = kept;
            }
            (spent, usize::try_from(options.records)?)
        }
        Way::Single => {
            let some = options.single.div_ceil(options.batch.max(1));
            let few = scene
                .transactions
                .get(..some)
                .unwrap_or(&scene.transactions);
            let spent = bare::write(database.url(), way, &topics, &scene.days, few).await?;
            (spent, few.iter().map(|t| t.records).sum())
        }
        _ => {
            let all = &scene.transactions;
            let spent = bare::write(database.url(), way, &topics, &scene.days, all).await?;
            (spent, usize::try_from(options.records)?)
        }
    };
    // Backends that ended are the postmaster's once it has waited for them.
    let server = cpu::tree(pid).saturating_sub(before);
    if way != Way::Single {
        let holds = fingerprints(&client).await?;
        if first {
            scene.days = days(&client).await?;
            scene.wanted = holds;
        } else {
            ensure!(
                holds == scene.wanted,
                "{} wrote other rows: {holds:?}, not {:?}",
                way.name(),
                scene.wanted
            );
        }
    }
    let each = |d: Duration| d.as_secs_f64() * 1e6 / records.max(1) as f64;
    Ok(Round {
        rate: records as f64 / spent.wall.as_secs_f64().max(1e-9),
        client: each(spent.client),
        server: each(server),
    })
}

/// Count and hash of every table that is written to.
async fn fingerprints(client: &tokio_postgres::Client) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for table in [
        "visits",
        "clicks",
        "conversions",
        "postback_log",
        "rejects",
        "parked",
        "conversion_history",
        "conversion_keys",
    ] {
        let row = client
            .query_one(
                &format!("SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0)::text FROM {table} t"),
                &[],
            )
            .await?;
        let (count, hash): (i64, String) = (row.get(0), row.get(1));
        all.push(format!("{table}: {count} ({hash})"));
    }
    Ok(all)
}

/// Days (since 1970) of which there are facts.
async fn days(client: &tokio_postgres::Client) -> anyhow::Result<Vec<i64>> {
    let rows = client
        .query(
            "SELECT DISTINCT floor(extract(epoch FROM accepted_at) / 86400)::int8 FROM
                (SELECT accepted_at FROM visits UNION ALL SELECT accepted_at FROM clicks
                 UNION ALL SELECT accepted_at FROM postback_log) t ORDER BY 1",
            &[],
        )
        .await?;
    Ok(rows.iter().map(|r| r.get(0)).collect())
}

fn section(
    options: &Options,
    seen: &[(Way, Vec<Round>)],
    records: u64,
    rows: usize,
) -> anyhow::Result<String> {
    let of =
        |rounds: &[Round], f: fn(&Round) -> f64| median(&rounds.iter().map(f).collect::<Vec<_>>());
    let mut out = String::new();
    writeln!(
        out,
        "## Writing the ledger\n\n{}\n",
        machine::describe(None, options.seed)
    )?;
    writeln!(
        out,
        "{records} records of workload W, {rows} rows for visits, clicks, conversions, the postback log, parked postbacks and identity keys,\nin transactions of {} records; PostgreSQL durable (fsync on), with {}. Every way writes the same cells to the same tables\nwith the same indexes (compared row by row after each round) and moves the position in the same transaction; one\nconnection, transactions one after the other, timed from BEGIN to the answer to COMMIT, rows put together within. The\nproduct's fence, claims with their owners, settling and outcome counts are inside its time; decoding, loading and deciding\nare not. The bare ways send all statements of a transaction at once. Single commits: a transaction for each of about {}\nrecords. Medians of {} rounds in turns, after one to warm up.\n",
        options.batch,
        stack::POSTGRES_SETTINGS.join(", "),
        options.single,
        options.rounds.max(1),
    )?;
    writeln!(
        out,
        "| | records/s | CPU-µs a record (client) | CPU-µs a record (PostgreSQL) | all rounds, records/s |\n|---|---|---|---|---|"
    )?;
    for (way, rounds) in seen {
        let all: Vec<String> = rounds.iter().map(|r| format!("{:.0}", r.rate)).collect();
        writeln!(
            out,
            "| {} | {:.0} | {:.2} | {:.2} | {} |",
            way.name(),
            of(rounds, |r| r.rate),
            of(rounds, |r| r.client),
            of(rounds, |r| r.server),
            all.join(", "),
        )?;
    }
    let rate = |way: Way| {
        let found = seen.iter().find(|(w, _)| *w == way);
        found.map_or(0.0, |(_, rounds)| of(rounds, |r| r.rate))
    };
    let bare = [Way::Copy, Way::CopyMerge, Way::Unnest];
    let fastest = bare
        .into_iter()
        .max_by(|a, b| rate(*a).total_cmp(&rate(*b)))
        .context("a bare way")?;
    let ratio = rate(Way::Product) / rate(fastest).max(1e-9);
    writeln!(
        out,
        "\nProduct to {}, the fastest bare bulk write: **{ratio:.2}** (wanted ≥ 0.90: {}).",
        fastest.name(),
        verdict(ratio >= 0.9)
    )?;
    Ok(out)
}
