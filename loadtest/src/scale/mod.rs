//! `scale`: what a record costs when there are more partitions, and when more processes share them.
//!
//! Each count of partitions has topics of its own with the same workload in them. A round measures every shape once, in an
//! order that changes from round to round. The processes of a shape join while their group is paused, so that a measurement
//! begins with all partitions shared out; what starting and joining cost is shown apart.

mod section;

use crate::books;
use crate::consume::{slice, watch};
use crate::contender::{Contender, Tuning, attribution};
use crate::cpu::Clocks;
use crate::disk;
use crate::fleet::Fleet;
use crate::report::{median, publish};
use crate::stack::{Stack, WorkloadOptions};
use crate::workload::Totals;
use std::time::Duration;

const EXAMPLES: &str = "Examples:
  cargo run --release -p loadtest -- scale            1 to 32 partitions, 1 to 4 processes, three rounds; about 10 minutes
  cargo run --release -p loadtest -- scale --rounds 1 --records 500000 --dry
  cargo run -p loadtest -- scale --short              small, prints only: does it still run?";

/// How to measure scale.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Records of the workload, the same for every shape.
    #[arg(long, default_value_t = 2_000_000)]
    pub records: u32,
    /// Partition counts, each with one process.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    pub partitions: Vec<i32>,
    /// Process counts, each over the most partitions.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4])]
    pub processes: Vec<usize>,
    /// Rounds of each shape, in turns; the tables show medians.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Records a transaction at most.
    #[arg(long, default_value_t = 5_000)]
    pub batch: usize,
    /// Arbiters of each process.
    #[arg(long, default_value_t = 2)]
    pub arbiters: usize,
    /// The generator's seed.
    #[arg(long, default_value_t = 3)]
    pub seed: u64,
    /// 1 and 8 partitions, 1 and 2 processes, few records, one round; prints only.
    #[arg(long)]
    pub short: bool,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// Partitions of each topic, and the processes that share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    partitions: i32,
    processes: usize,
}

/// One measurement of one shape. CPU in µs a record.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    rate: f64,
    /// The processes' CPU since they were let go.
    product: f64,
    /// The same with what starting and joining cost.
    product_all: f64,
    kafka: f64,
    postgres: f64,
    /// The sum of processes, Kafka and PostgreSQL with what starting and joining cost each of them.
    whole_all: f64,
    /// Records a transaction.
    batch: f64,
    /// WAL bytes a record.
    wal: f64,
    /// Bytes a record by which the database grew.
    stored: f64,
    peak_mib: f64,
    /// Cores that others kept busy.
    others: f64,
}

impl Round {
    /// The sum of processes, Kafka and PostgreSQL since the group was let go.
    fn whole(&self) -> f64 {
        self.product + self.kafka + self.postgres
    }
}

/// Runs it.
///
/// # Errors
/// Something of the stack is missing or fails, or a ledger is not what the workload says.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut options = options.clone();
    if options.short {
        options.records = options.records.min(30_000);
        options.partitions = vec![1, 8];
        options.processes = vec![1, 2];
        options.rounds = 1;
        options.dry = true;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(measure(&options))
}

fn shapes(options: &Options) -> Vec<Shape> {
    let most = options.partitions.iter().copied().max().unwrap_or(1);
    let alone = options.partitions.iter().map(|p| Shape {
        partitions: *p,
        processes: 1,
    });
    let shared = options.processes.iter().map(|n| Shape {
        partitions: most,
        processes: *n,
    });
    let mut shapes: Vec<Shape> = alone.chain(shared).collect();
    shapes.sort();
    shapes.dedup();
    shapes
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let shapes = shapes(options);
    // The workload once a partition count in Kafka, one ledger, and PostgreSQL's log of writes.
    let copies = options.partitions.len() as u64 + 2;
    disk::need(u64::from(options.records) * 600 * copies + 4_000_000_000)?;
    let stack = Stack::start().await?;
    let mut totals = Totals::default();
    for partitions in &options.partitions {
        let workload = workload(options, *partitions);
        totals = stack
            .preload_as(&prefix(*partitions), &workload, "none")
            .await?
            .totals;
    }
    let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); shapes.len()];
    // Unmeasured: the broker compiles its way of fetching, PostgreSQL makes the WAL files that all later rounds use again.
    if !options.short
        && let Some(last) = shapes.last()
    {
        show(
            "warming up",
            *last,
            &one(&stack, options, *last, &totals).await?,
        );
    }
    for n in 0..options.rounds.max(1) {
        let mut order: Vec<usize> = (0..shapes.len()).collect();
        // Who goes first, and in which direction, changes from round to round.
        if n % 2 == 1 {
            order.reverse();
        }
        order.rotate_left((n / 2) % shapes.len().max(1));
        for at in order {
            let (Some(shape), Some(list)) = (shapes.get(at), rounds.get_mut(at)) else {
                continue;
            };
            let round = one(&stack, options, *shape, &totals).await?;
            show("round", *shape, &round);
            list.push(round);
        }
    }
    let measured: Vec<(Shape, Vec<Round>)> = shapes.into_iter().zip(rounds).collect();
    let body = section::write(options, &totals, &measured, stack.kafka_version())?;
    publish("scale", &body, !options.dry)
}

fn prefix(partitions: i32) -> String {
    format!("p{partitions}.")
}

fn workload(options: &Options, partitions: i32) -> WorkloadOptions {
    WorkloadOptions {
        records: options.records,
        partitions,
        seed: options.seed,
    }
}

async fn one(
    stack: &Stack,
    options: &Options,
    shape: Shape,
    totals: &Totals,
) -> anyhow::Result<Round> {
    let group = Contender::Product.group();
    let prefix = prefix(shape.partitions);
    let tuning = Tuning {
        batch: options.batch,
        arbiters: options.arbiters,
        partitions: shape.partitions,
        slice_clicks: slice(&workload(options, shape.partitions)),
    };
    let database = stack.fresh_database_for(&prefix, shape.partitions).await?;
    let client = database.client().await;
    client.batch_execute("CHECKPOINT").await?;
    let born = Clocks::read([stack.kafka_pid(), stack.postgres_pid()]);
    let mut fleet = Fleet::start_paused(&client, group, shape.partitions, shape.processes, || {
        let mut command = attribution(stack.brokers(), database.url(), &tuning)?;
        command.env("MILLRACE_LOG__PREFIX", &prefix);
        Ok(command)
    })
    .await?;
    let written = written(&client).await?;
    let joined = fleet.cpu();
    let clocks = Clocks::read([stack.kafka_pid(), stack.postgres_pid()]);
    Fleet::release(&client, group).await?;
    let (first, last, seconds) = watch(&client, group, totals.records, |_| fleet.check()).await?;
    let all = fleet.cpu();
    let (spent, since_start) = (clocks.since(), born.since());
    let [kafka, postgres] = spent.trees;
    let (peak, transactions) = (fleet.peak(), fleet.transactions()?);
    let since = written_since(&client, &written).await?;
    fleet.stop().await?;
    books::verify(&client, Contender::Product.name(), totals).await?;
    let records = totals.records as f64;
    let per_record = |d: Duration| d.as_secs_f64() * 1e6 / records;
    let product = all.saturating_sub(joined);
    Ok(Round {
        rate: (last - first) as f64 / seconds,
        product: per_record(product),
        product_all: per_record(all),
        kafka: per_record(kafka),
        postgres: per_record(postgres),
        whole_all: per_record(all + since_start.trees.iter().sum::<Duration>()),
        batch: records / transactions.max(1.0),
        wal: since.0 / records,
        stored: since.1 / records,
        peak_mib: peak as f64 / f64::from(1 << 20),
        others: spent.others(product + kafka + postgres + spent.own),
    })
}

/// Where the WAL stands, and how large the database is.
async fn written(client: &tokio_postgres::Client) -> anyhow::Result<(String, i64)> {
    let row = client
        .query_one(
            "SELECT pg_current_wal_insert_lsn()::text, pg_database_size(current_database())",
            &[],
        )
        .await?;
    Ok((row.get(0), row.get(1)))
}

/// Bytes of WAL, and by which the database grew, since then.
async fn written_since(
    client: &tokio_postgres::Client,
    before: &(String, i64),
) -> anyhow::Result<(f64, f64)> {
    let row = client
        .query_one(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::float8,
                    (pg_database_size(current_database()) - $2)::float8",
            &[&before.0, &before.1],
        )
        .await?;
    Ok((row.get(0), row.get(1)))
}

fn show(what: &str, shape: Shape, r: &Round) {
    println!(
        "{what}: {} partitions, {} processes: {:.0} records/s; CPU-µs a record: product {:.2} (with its start {:.2}), Kafka {:.2}, PostgreSQL {:.2}; {:.0} records a transaction; others used {:.2} cores",
        shape.partitions,
        shape.processes,
        r.rate,
        r.product,
        r.product_all,
        r.kafka,
        r.postgres,
        r.batch,
        r.others
    );
}

fn middle(rounds: &[Round]) -> Round {
    let of = |f: fn(&Round) -> f64| median(&rounds.iter().map(f).collect::<Vec<_>>());
    Round {
        rate: of(|r| r.rate),
        product: of(|r| r.product),
        product_all: of(|r| r.product_all),
        kafka: of(|r| r.kafka),
        postgres: of(|r| r.postgres),
        whole_all: of(|r| r.whole_all),
        batch: of(|r| r.batch),
        wal: of(|r| r.wal),
        stored: of(|r| r.stored),
        peak_mib: of(|r| r.peak_mib),
        others: of(|r| r.others),
    }
}
