//! `delivery webhook`: one endpoint that takes its time, the product and reqwest alone at the same concurrency.

use super::payload;
use super::post::{self, Form};
use super::sending::{self, Arrived, arrive, middle, rates, show};
use super::store::{Store, now_secs};
use crate::machine;
use crate::report::{publish, verdict};
use millrace_tests::receivers::{CountingReceiver, by_header};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How to measure webhooks.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Messages a round.
    #[arg(long, default_value_t = 10_000)]
    messages: u32,
    /// Requests at once.
    #[arg(long, default_value_t = 64)]
    concurrency: usize,
    /// How long the receiver takes to answer, in milliseconds.
    #[arg(long, default_value_t = 50)]
    latency: u64,
    /// Rounds of each contender, in turns; the table shows medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    dry: bool,
}

/// Wanted of reqwest's rate.
const SHARE: f64 = 0.95;

/// Measures it.
///
/// # Errors
/// The store, the product or the comparator fails, or a message is lost or doubled.
pub async fn measure(options: &Options) -> anyhow::Result<()> {
    let store = Store::start().await?;
    sending::pin(&store)?;
    let (mut with, mut without, mut tails) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..options.rounds.max(1) {
        for turn in 0..2 {
            if (n + turn) % 2 == 0 {
                let (round, tail) = ours(&store, options).await?;
                show("product", &round);
                with.push(round);
                tails.push(tail.as_secs_f64() * 1e3);
            } else {
                let round = bare(&store, options).await?;
                show("bare reqwest", &round);
                without.push(round);
            }
        }
    }
    publish(
        "delivery-webhook",
        &section(options, &with, &without, &tails)?,
        !options.dry,
    )
}

fn receiver(options: &Options) -> anyhow::Result<CountingReceiver> {
    CountingReceiver::start(
        Duration::from_millis(options.latency),
        by_header("webhook-id"),
    )
}

async fn ours(store: &Store, options: &Options) -> anyhow::Result<(Arrived, Duration)> {
    let receiver = receiver(options)?;
    let outbox = store.fresh().await?;
    let no = sending::endpoint(&outbox, "wh_bench", &receiver.url("/hook")).await?;
    let now = now_secs();
    outbox
        .fill("webhook", &[no], 0..options.messages, |n| {
            payload::purchase(n, now, 1)
        })
        .await?;
    let concurrency = options.concurrency.to_string();
    let settings = [("MILLRACE_DELIVERY__WEBHOOK__CONCURRENCY", concurrency)];
    let mut process = sending::start_product(&outbox, &settings)?;
    let messages = u64::from(options.messages);
    let round = arrive(store, &mut process, messages, || receiver.requests()).await?;
    let last = Instant::now();
    outbox.drained(&[no], || process.check()).await?;
    let tail = last.elapsed();
    process.stop().await?;
    outbox.verify(&[no], options.messages).await?;
    once(&receiver, messages)?;
    Ok((round, tail))
}

async fn bare(store: &Store, options: &Options) -> anyhow::Result<Arrived> {
    let receiver = receiver(options)?;
    let mut process = sending::start_bare(&post::Options {
        url: receiver.url("/hook"),
        form: Form::Webhook,
        messages: options.messages,
        concurrency: options.concurrency,
        now: now_secs(),
        pixels: 1,
        batch: 1,
    })?;
    let messages = u64::from(options.messages);
    let round = arrive(store, &mut process, messages, || receiver.requests()).await?;
    process.stop().await?;
    once(&receiver, messages)?;
    Ok(round)
}

fn once(receiver: &CountingReceiver, messages: u64) -> anyhow::Result<()> {
    let arrivals = receiver.arrivals();
    anyhow::ensure!(
        arrivals.times.len() as u64 == messages && arrivals.repeated().is_empty(),
        "{} messages arrived, {} of them more than once",
        arrivals.times.len(),
        arrivals.repeated().len()
    );
    Ok(())
}

fn section(
    options: &Options,
    with: &[Arrived],
    without: &[Arrived],
    tails: &[f64],
) -> anyhow::Result<String> {
    let (p, b) = (middle(with), middle(without));
    let ratio = p.rate / b.rate;
    let mut out = String::new();
    writeln!(out, "## Webhooks\n")?;
    writeln!(out, "{}\n", machine::describe(None, None::<u64>))?;
    writeln!(
        out,
        "{} messages of {} bytes a round to one endpoint that answers after {} ms, {} requests at once; the sender alone on one core,\nreceiver and PostgreSQL (durable) on the other. The product is `millrace run --roles delivery` over a filled outbox; the\ncomparator posts the same bodies with the same client. Rates as the receiver sees them, medians of {} rounds in turns.\n",
        options.messages,
        payload::purchase(1, now_secs(), 1).len(),
        options.latency,
        options.concurrency,
        with.len(),
    )?;
    writeln!(
        out,
        "| | messages/s | CPU-µs a message (sender) | CPU-µs a message (PostgreSQL) | CPU-µs a message (receiver) |\n|---|---|---|---|---|"
    )?;
    for (name, r) in [("webhooks", &p), ("bare reqwest", &b)] {
        writeln!(
            out,
            "| {name} | {:.0} | {:.1} | {:.1} | {:.1} |",
            r.rate, r.sender, r.postgres, r.receiver
        )?;
    }
    writeln!(
        out,
        "\nWebhooks to bare reqwest: **{ratio:.3}** (wanted ≥ {SHARE:.2}: {}). No more than {:.0} requests/s are possible at this concurrency and\nlatency. All rounds, messages/s: webhooks {}; bare {}. The last ends were written down {:.0} ms after the last request had\narrived. Others used up to {:.2} of the {} cores meanwhile.",
        verdict(ratio >= SHARE),
        options.concurrency as f64 * 1e3 / options.latency.max(1) as f64,
        rates(with),
        rates(without),
        crate::report::median(tails),
        p.others.max(b.others),
        std::thread::available_parallelism()
            .map_or(0, usize::from)
            .max(2),
    )?;
    Ok(out)
}
