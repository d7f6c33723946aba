//! `delivery meta`: events to a stand-in for Meta that takes its time, the product and reqwest alone at the same concurrency.

use super::payload;
use super::post::{self, Form};
use super::sending::{self, Arrived, arrive, middle, rates, show};
use super::store::{Store, now_secs};
use crate::machine;
use crate::report::{publish, verdict};
use anyhow::ensure;
use millrace::delivery::meta::settings::Meta;
use millrace_tests::meta_stand_in::MetaStandIn;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How to measure the channel `meta`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Events a round.
    #[arg(long, default_value_t = 150_000)]
    messages: u32,
    /// Pixels, each with a dataset of its own.
    #[arg(long, default_value_t = 1)]
    pixels: usize,
    /// Requests at once to each dataset; unless given, the product's own setting.
    #[arg(long)]
    concurrency: Option<usize>,
    /// How long the stand-in takes to answer, in milliseconds.
    #[arg(long, default_value_t = 50)]
    latency: u64,
    /// Rounds of each contender, in turns; the table shows medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    dry: bool,
}

/// Wanted, in events a second.
const LEAST: f64 = 10_000.0;

impl Options {
    fn concurrency(&self) -> usize {
        self.concurrency
            .unwrap_or_else(|| Meta::default().concurrency)
    }
}

/// Measures it.
///
/// # Errors
/// The store, the product or the comparator fails, or an event is lost or doubled.
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
        "delivery-meta",
        &section(options, &with, &without, &tails)?,
        !options.dry,
    )
}

fn stand_in(options: &Options) -> anyhow::Result<MetaStandIn> {
    let stand_in = MetaStandIn::start()?;
    for i in 0..options.pixels.max(1) {
        stand_in.dataset(&payload::dataset(i), payload::TOKEN, None);
    }
    stand_in.latency(Duration::from_millis(options.latency));
    stand_in.keep(0);
    Ok(stand_in)
}

async fn ours(store: &Store, options: &Options) -> anyhow::Result<(Arrived, Duration)> {
    let stand_in = stand_in(options)?;
    let outbox = store.fresh().await?;
    let mut destinations = Vec::new();
    for i in 0..options.pixels.max(1) {
        let id = format!("px_{i}");
        destinations
            .push(sending::pixel(&outbox, &id, &payload::dataset(i), payload::TOKEN).await?);
    }
    let now = now_secs();
    outbox
        .fill("meta", &destinations, 0..options.messages, |n| {
            payload::purchase(n, now, options.pixels)
        })
        .await?;
    let settings = [
        ("MILLRACE_DELIVERY__META__GRAPH_URL", stand_in.url()),
        (
            "MILLRACE_DELIVERY__META__CONCURRENCY",
            options.concurrency().to_string(),
        ),
    ];
    let mut process = sending::start_product(&outbox, &settings)?;
    let messages = u64::from(options.messages);
    let round = arrive(store, &mut process, messages, || stand_in.counts().received).await?;
    let last = Instant::now();
    outbox.drained(&destinations, || process.check()).await?;
    let tail = last.elapsed();
    process.stop().await?;
    outbox.verify(&destinations, options.messages).await?;
    once(&stand_in, messages)?;
    Ok((round, tail))
}

async fn bare(store: &Store, options: &Options) -> anyhow::Result<Arrived> {
    let stand_in = stand_in(options)?;
    let defaults = Meta::default();
    let mut process = sending::start_bare(&post::Options {
        url: format!("{}/{}", stand_in.url(), defaults.version),
        form: Form::Meta,
        messages: options.messages,
        concurrency: options.concurrency() * options.pixels.max(1),
        now: now_secs(),
        pixels: options.pixels,
        batch: defaults.batch,
    })?;
    let messages = u64::from(options.messages);
    let round = arrive(store, &mut process, messages, || stand_in.counts().received).await?;
    process.stop().await?;
    once(&stand_in, messages)?;
    Ok(round)
}

fn once(stand_in: &MetaStandIn, messages: u64) -> anyhow::Result<()> {
    let counts = stand_in.counts();
    ensure!(
        counts.unique == messages && counts.duplicates == 0 && counts.refused == 0,
        "{messages} events were sent: {counts:?}"
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
    let mut out = String::new();
    writeln!(out, "## Events to Meta\n")?;
    writeln!(out, "{}\n", machine::describe(None, None::<u64>))?;
    writeln!(
        out,
        "{} events a round, payloads of {} bytes, for {} dataset(s) of a stand-in that checks every event and answers after {} ms; up to\n{} events a request, {} requests at once to each. The sender alone on one core; stand-in and PostgreSQL (durable) on\nthe other. The product is `millrace run --roles delivery` over a filled outbox; the comparator posts the same events with the\nsame client from memory. Rates as the stand-in sees them, medians of {} rounds in turns.\n",
        options.messages,
        payload::purchase(1, now_secs(), options.pixels).len(),
        options.pixels.max(1),
        options.latency,
        Meta::default().batch,
        options.concurrency(),
        with.len(),
    )?;
    writeln!(
        out,
        "| | events/s | CPU-µs an event (sender) | CPU-µs an event (PostgreSQL) | CPU-µs an event (stand-in) |\n|---|---|---|---|---|"
    )?;
    for (name, r) in [("meta", &p), ("bare reqwest", &b)] {
        writeln!(
            out,
            "| {name} | {:.0} | {:.2} | {:.2} | {:.2} |",
            r.rate, r.sender, r.postgres, r.receiver
        )?;
    }
    writeln!(
        out,
        "\nProduct: **{:.0}** events/s (wanted ≥ {LEAST:.0}: {}); {:.2} of bare reqwest, which claims nothing and writes nothing down. All\nrounds, events/s: product {}; bare {}. The last ends were written down {:.0} ms after the last event had arrived. Others used up\nto {:.2} of the {} cores meanwhile.",
        p.rate,
        verdict(p.rate >= LEAST),
        p.rate / b.rate,
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
