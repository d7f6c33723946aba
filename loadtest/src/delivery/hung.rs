//! `delivery hung`: endpoints that answer, with and without one beside them that never does.

use super::payload;
use super::sending::{self, Arrived, arrive, middle, rates, show};
use super::store::{Store, now_secs};
use crate::machine;
use crate::report::{publish, verdict};
use anyhow::ensure;
use millrace_tests::receivers::{CountingReceiver, by_header};
use std::fmt::Write;
use std::time::Duration;

/// How to measure it.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Messages a round for all endpoints that answer; the hung one gets as many as each of them.
    #[arg(long, default_value_t = 30_000)]
    messages: u32,
    /// Endpoints that answer.
    #[arg(long, default_value_t = 4)]
    endpoints: usize,
    /// Requests at once to each endpoint.
    #[arg(long, default_value_t = 64)]
    concurrency: usize,
    /// How long they take to answer, in milliseconds.
    #[arg(long, default_value_t = 50)]
    latency: u64,
    /// When a request is given up, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    timeout: u64,
    /// Rounds with and without, in turns; the table shows medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    dry: bool,
}

/// What the others may lose.
const LOSS: f64 = 0.10;

/// Measures it.
///
/// # Errors
/// The store or the product fails, or a message is lost or doubled.
pub async fn measure(options: &Options) -> anyhow::Result<()> {
    let store = Store::start().await?;
    sending::pin(&store)?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for n in 0..options.rounds.max(1) {
        for turn in 0..2 {
            if (n + turn) % 2 == 0 {
                let round = one(&store, options, false).await?;
                show("without", &round);
                without.push(round);
            } else {
                let round = one(&store, options, true).await?;
                show("with a hung one", &round);
                with.push(round);
            }
        }
    }
    publish(
        "delivery-hung",
        &section(options, &with, &without)?,
        !options.dry,
    )
}

async fn one(store: &Store, options: &Options, hung: bool) -> anyhow::Result<Arrived> {
    let latency = Duration::from_millis(options.latency);
    let good = CountingReceiver::start(latency, by_header("webhook-id"))?;
    let never = CountingReceiver::start(Duration::from_secs(86_400), by_header("webhook-id"))?;
    let outbox = store.fresh().await?;
    let mut answering = Vec::new();
    let endpoints = options.endpoints.max(1);
    let now = now_secs();
    let make = |n| payload::purchase(n, now, 1);
    if hung {
        // It comes first in every order.
        let no = sending::endpoint(&outbox, "wh_hung", &never.url("/never")).await?;
        let share = options.messages / u32::try_from(endpoints)?;
        outbox.fill("webhook", &[no], 0..share, make).await?;
    }
    for i in 0..endpoints {
        let url = good.url(&format!("/hook/{i}"));
        answering.push(sending::endpoint(&outbox, &format!("wh_{i}"), &url).await?);
    }
    outbox
        .fill("webhook", &answering, 0..options.messages, make)
        .await?;
    let settings = [
        (
            "MILLRACE_DELIVERY__WEBHOOK__CONCURRENCY",
            options.concurrency.to_string(),
        ),
        (
            "MILLRACE_DELIVERY__WEBHOOK__TIMEOUT_MS",
            options.timeout.to_string(),
        ),
    ];
    let mut process = sending::start_product(&outbox, &settings)?;
    let messages = u64::from(options.messages);
    let round = arrive(store, &mut process, messages, || good.requests()).await?;
    outbox.drained(&answering, || process.check()).await?;
    ensure!(
        !hung || never.requests() > 0,
        "the hung endpoint was never asked"
    );
    process.stop().await?;
    outbox.verify(&answering, options.messages).await?;
    let arrivals = good.arrivals();
    ensure!(
        arrivals.times.len() as u64 == messages,
        "{} of {messages} messages arrived",
        arrivals.times.len()
    );
    Ok(round)
}

fn section(options: &Options, with: &[Arrived], without: &[Arrived]) -> anyhow::Result<String> {
    let (w, o) = (middle(with), middle(without));
    let loss = 1.0 - w.rate / o.rate;
    let mut out = String::new();
    writeln!(out, "## One hung destination beside others\n")?;
    writeln!(out, "{}\n", machine::describe(None, None::<u64>))?;
    writeln!(
        out,
        "{} webhooks a round for {} endpoints that answer after {} ms, up to {} requests at once to each; with and without one more\nthat never answers, has as many messages waiting as each of them, and is given up after {} ms a request. The sender alone on\none core; receivers and PostgreSQL (durable) on the other. Messages to those that answer, medians of {} rounds in turns.\n",
        options.messages,
        options.endpoints,
        options.latency,
        options.concurrency,
        options.timeout,
        with.len(),
    )?;
    writeln!(
        out,
        "| | messages/s | CPU-µs a message (sender) | CPU-µs a message (PostgreSQL) | CPU-µs a message (receivers) |\n|---|---|---|---|---|"
    )?;
    for (name, r) in [("without", &o), ("with a hung one", &w)] {
        writeln!(
            out,
            "| {name} | {:.0} | {:.1} | {:.1} | {:.1} |",
            r.rate, r.sender, r.postgres, r.receiver
        )?;
    }
    writeln!(
        out,
        "\nThe others lose **{:.1} %** (wanted ≤ {:.0} %: {}). All rounds, messages/s: without {}; with {}. Others used up to {:.2} of the {}\ncores meanwhile.",
        loss * 100.0,
        LOSS * 100.0,
        verdict(loss <= LOSS),
        rates(without),
        rates(with),
        w.others.max(o.others),
        std::thread::available_parallelism()
            .map_or(0, usize::from)
            .max(2),
    )?;
    Ok(out)
}
