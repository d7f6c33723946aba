//! Consuming workload W from preloaded Kafka topics: the product against the bare loop, each a process of its own, in turns.

use crate::contender::{Contender, Tuning};
use crate::cpu::Clocks;
use crate::peers::LEAST_OF_BARE;
use crate::report::{median, publish, verdict};
use crate::stack::{self, Stack};
use crate::workload::{Totals, Workload};
use crate::{books, cpu, machine};
use anyhow::ensure;
use std::fmt::Write;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// How to measure consuming.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub workload: stack::WorkloadOptions,
    /// Rounds of each contender, in turns; the table shows medians.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Records a transaction.
    #[arg(long, default_value_t = 5_000)]
    pub batch: usize,
    /// Arbiters of the product, consumers of the bare loop.
    #[arg(long, default_value_t = 2)]
    pub arbiters: usize,
    /// Also measures the product with 1 000, 5 000 and 10 000 records a transaction and 1, 2 and 4 arbiters.
    #[arg(long)]
    pub sweep: bool,
    /// The product alone, to be profiled.
    #[arg(long)]
    pub product_only: bool,
    /// Measure the product's attribution inside this program instead of `millrace run`.
    #[arg(long)]
    pub embedded: bool,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// One run of one contender.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    rate: f64,
    consumer: f64,
    kafka: f64,
    postgres: f64,
    /// What else the machine did, as a share of a core.
    others: f64,
    peak_mib: f64,
}

/// Runs it.
///
/// # Errors
/// Something of the stack is missing or fails, or the ledger is not what the workload says.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(measure(options))
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let stack = Stack::start().await?;
    let loaded = stack.preload(&options.workload).await?;
    println!(
        "workload: {} records, {:.0} MB, produced at {:.0} records/s",
        loaded.totals.records,
        loaded.totals.bytes as f64 / 1e6,
        loaded.totals.records as f64 / loaded.took.as_secs_f64()
    );
    let tuning = Tuning {
        batch: options.batch,
        arbiters: options.arbiters,
        partitions: options.workload.partitions,
        slice_clicks: slice(&options.workload),
    };
    let ours = if options.embedded {
        Contender::Embedded
    } else {
        Contender::Product
    };
    // Unmeasured: the broker compiles its way of fetching, PostgreSQL makes the WAL files that all later rounds use again.
    show(
        "warming up",
        &one(&stack, Contender::Bare, &tuning, &loaded.totals).await?,
    );
    let (mut product, mut bare) = (Vec::new(), Vec::new());
    for n in 0..options.rounds.max(1) {
        // Who goes first changes from round to round.
        let mut order = vec![ours, Contender::Bare];
        if n % 2 == 1 {
            order.reverse();
        }
        for contender in order {
            if options.product_only && contender == Contender::Bare {
                continue;
            }
            let round = one(&stack, contender, &tuning, &loaded.totals).await?;
            show(contender.name(), &round);
            match contender {
                Contender::Bare => bare.push(round),
                _ => product.push(round),
            }
        }
    }
    let mut sweep = Vec::new();
    if options.sweep {
        for (batch, arbiters) in [(1_000, 2), (5_000, 2), (10_000, 2), (5_000, 1), (5_000, 4)] {
            let tuning = Tuning {
                batch,
                arbiters,
                ..tuning
            };
            let mut rounds = Vec::new();
            for _ in 0..2 {
                rounds.push(one(&stack, ours, &tuning, &loaded.totals).await?);
            }
            let round = middle(&rounds);
            show(&format!("batch {batch}, arbiters {arbiters}"), &round);
            sweep.push((batch, arbiters, round));
        }
    }
    if bare.is_empty() {
        return Ok(());
    }
    let body = section(
        options,
        &tuning,
        &loaded.totals,
        &product,
        &bare,
        &sweep,
        &stack,
    )?;
    publish("consume", &body, !options.dry)
}

/// A slice of 10 % of a partition's keys.
#[must_use]
pub fn slice(workload: &stack::WorkloadOptions) -> usize {
    let partitions = u32::try_from(workload.partitions).unwrap_or(1).max(1);
    (Workload::keys(workload.records) / partitions / 10).max(10) as usize
}

async fn one(
    stack: &Stack,
    contender: Contender,
    tuning: &Tuning,
    totals: &Totals,
) -> anyhow::Result<Round> {
    let database = stack.fresh_database(tuning.partitions).await?;
    let client = database.client().await;
    client.batch_execute("CHECKPOINT").await?;
    let clocks = Clocks::read([stack.kafka_pid(), stack.postgres_pid()]);
    let mut process = contender.start(stack.brokers(), database.url(), tuning)?;
    let pid = process.pid();
    let (first, last, seconds) = watch(&client, contender.group(), totals.records, |_| {
        process.check()
    })
    .await?;
    let consumer = cpu::tree(pid);
    let peak = cpu::resident_peak(pid);
    let spent = clocks.since();
    let [kafka, postgres] = spent.trees;
    process.stop().await?;
    books::verify(&client, contender.name(), totals).await?;
    let records = totals.records as f64;
    let per_record = |d: Duration| d.as_secs_f64() * 1e6 / records;
    let known = consumer + kafka + postgres;
    Ok(Round {
        rate: (last - first) as f64 / seconds,
        consumer: per_record(consumer),
        kafka: per_record(kafka),
        postgres: per_record(postgres),
        others: spent.others(known),
        peak_mib: peak as f64 / f64::from(1 << 20),
    })
}

/// Watches the stored positions until all records are consumed: how many were at the first sight of progress, how many at
/// the end, and the seconds between. `look` is called with each figure.
///
/// # Errors
/// The store is away, `look` fails, or nothing moves for a minute.
pub async fn watch(
    client: &Client,
    group: &str,
    records: u64,
    look: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<(u64, u64, f64)> {
    watch_sum(client, "next_offset", group, records, look).await
}

/// As [`watch`], by another column of the positions.
///
/// # Errors
/// As [`watch`].
pub async fn watch_sum(
    client: &Client,
    column: &'static str,
    group: &str,
    records: u64,
    mut look: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<(u64, u64, f64)> {
    let sql =
        format!("SELECT coalesce(sum({column}), 0)::bigint FROM positions WHERE group_name = $1");
    let sql = client.prepare(&sql).await?;
    let mut began: Option<(u64, Instant)> = None;
    let mut moved = Instant::now();
    let mut before = 0;
    let mut every = tokio::time::interval(Duration::from_millis(50));
    loop {
        every.tick().await;
        let at = u64::try_from(client.query_one(&sql, &[&group]).await?.get::<_, i64>(0))?;
        if at > before {
            (before, moved) = (at, Instant::now());
        }
        if at > 0 && began.is_none() {
            began = Some((at, Instant::now()));
        }
        if at < records {
            look(at)?;
        }
        if let Some((first, since)) = began
            && at >= records
        {
            let seconds = since.elapsed().as_secs_f64().max(1e-3);
            look(at)?;
            return Ok((first, at, seconds));
        }
        ensure!(
            moved.elapsed() < Duration::from_secs(60),
            "no progress for a minute at {at} of {records}"
        );
    }
}

fn show(what: &str, r: &Round) {
    println!(
        "{what}: {:.0} records/s; CPU-µs a record: consumer {:.2}, Kafka {:.2}, PostgreSQL {:.2}; peak {:.0} MiB; others used {:.2} cores",
        r.rate, r.consumer, r.kafka, r.postgres, r.peak_mib, r.others
    );
}

fn middle(rounds: &[Round]) -> Round {
    let of = |f: fn(&Round) -> f64| median(&rounds.iter().map(f).collect::<Vec<_>>());
    Round {
        rate: of(|r| r.rate),
        consumer: of(|r| r.consumer),
        kafka: of(|r| r.kafka),
        postgres: of(|r| r.postgres),
        others: of(|r| r.others),
        peak_mib: of(|r| r.peak_mib),
    }
}

fn section(
    options: &Options,
    tuning: &Tuning,
    totals: &Totals,
    product: &[Round],
    bare: &[Round],
    sweep: &[(usize, usize, Round)],
    stack: &Stack,
) -> anyhow::Result<String> {
    let (p, b) = (middle(product), middle(bare));
    let ratio = p.rate / b.rate;
    let mut out = String::new();
    writeln!(
        out,
        "## Consuming workload W: the product and the bare loop\n"
    )?;
    writeln!(
        out,
        "{}\n",
        machine::describe(Some(stack.kafka_version()), options.workload.seed)
    )?;
    writeln!(
        out,
        "{} records ({:.0} MB) in two topics of {} partitions, {} early postbacks, {} repeats; PostgreSQL with {}; {} records a\ntransaction, {} arbiters or consumers, slices of {} clicks a partition (10 % of its keys). Medians of {} rounds in turns,\nafter one of the bare loop to warm up.\n",
        totals.records,
        totals.bytes as f64 / 1e6,
        options.workload.partitions,
        totals.early,
        totals.repeats,
        stack::POSTGRES_SETTINGS.join(", "),
        tuning.batch,
        tuning.arbiters,
        tuning.slice_clicks,
        product.len(),
    )?;
    writeln!(
        out,
        "| | records/s | consumer | Kafka | PostgreSQL | CPU-µs a record | peak memory |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    let mut line = |name: &str, r: &Round| {
        writeln!(
            out,
            "| {name} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} MiB |",
            r.rate,
            r.consumer,
            r.kafka,
            r.postgres,
            r.consumer + r.kafka + r.postgres,
            r.peak_mib
        )
    };
    line("product", &p)?;
    line("bare loop", &b)?;
    for (batch, arbiters, round) in sweep {
        line(
            &format!("product, {batch} a transaction, {arbiters} arbiters"),
            round,
        )?;
    }
    writeln!(
        out,
        "\nProduct to bare loop: **{ratio:.2}** (wanted ≥ {LEAST_OF_BARE:.2}: {}). By CPU alone: {:.2}. All rounds,\nrecords/s: product {}; bare {}. Others used {:.2} of the {} cores meanwhile.",
        verdict(ratio >= LEAST_OF_BARE),
        (b.consumer + b.kafka + b.postgres) / (p.consumer + p.kafka + p.postgres),
        rates(product),
        rates(bare),
        p.others.max(b.others),
        std::thread::available_parallelism().map_or(0, usize::from),
    )?;
    Ok(out)
}

fn rates(rounds: &[Round]) -> String {
    rounds
        .iter()
        .map(|r| format!("{:.0}", r.rate))
        .collect::<Vec<_>>()
        .join(", ")
}
