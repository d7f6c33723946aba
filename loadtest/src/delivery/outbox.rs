//! `delivery outbox`: the dispatcher without HTTP, and the bare statements.

use super::store::{Outbox, Store, now_secs};
use super::{null, payload};
use crate::contender::Running;
use crate::cpu::{self, Clocks};
use crate::machine;
use crate::report::{median, publish, verdict};
use crate::stack::POSTGRES_SETTINGS;
use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// How to measure the outbox.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Messages a round.
    #[arg(long, default_value_t = 200_000)]
    messages: u32,
    /// Destinations that they are for, in turns.
    #[arg(long, default_value_t = 8)]
    destinations: usize,
    /// Messages of one request of the channel.
    #[arg(long, default_value_t = 1_000)]
    batch: usize,
    /// Requests to one destination at once.
    #[arg(long, default_value_t = 8)]
    concurrency: usize,
    /// Rounds of each contender, in turns; the table shows medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    dry: bool,
}

/// Wanted of the bare loop's rate.
const SHARE: f64 = 0.7;
/// Messages a second, where the bare loop reaches [`WHERE_BARE`].
const ABSOLUTE: f64 = 30_000.0;
/// See [`ABSOLUTE`].
const WHERE_BARE: f64 = 43_000.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Product,
    Bare,
}

#[derive(Clone, Copy, Debug, Default)]
struct Round {
    rate: f64,
    /// CPU-µs a message.
    program: f64,
    postgres: f64,
    /// Cores that others kept busy.
    others: f64,
    peak_mib: f64,
}

/// Measures it.
///
/// # Errors
/// The store or a contender fails, or a message is lost or doubled.
pub async fn measure(options: &Options) -> anyhow::Result<()> {
    let store = Store::start().await?;
    // Unmeasured: PostgreSQL makes the WAL files that all later rounds use again.
    show("warming up", &one(&store, Who::Bare, options).await?);
    let (mut product, mut bare) = (Vec::new(), Vec::new());
    for n in 0..options.rounds.max(1) {
        let mut order = [Who::Product, Who::Bare];
        if n % 2 == 1 {
            order.reverse();
        }
        for who in order {
            let round = one(&store, who, options).await?;
            show(&format!("{who:?}"), &round);
            match who {
                Who::Product => product.push(round),
                Who::Bare => bare.push(round),
            }
        }
    }
    publish(
        "delivery-outbox",
        &section(options, &product, &bare)?,
        !options.dry,
    )
}

async fn one(store: &Store, who: Who, options: &Options) -> anyhow::Result<Round> {
    let outbox = store.fresh().await?;
    let destinations = outbox
        .destinations(null::NAME, options.destinations.max(1))
        .await?;
    outbox.hold().await?;
    let now = now_secs();
    outbox
        .fill(null::NAME, &destinations, 0..options.messages, |n| {
            payload::purchase(n, now, 1)
        })
        .await?;
    let mut process = start(who, &outbox, options)?;
    outbox.visited(|| process.check()).await?;
    let clocks = Clocks::read([process.pid(), store.pid()]);
    let begun = Instant::now();
    outbox.release().await?;
    outbox.drained(&destinations, || process.check()).await?;
    let took = begun.elapsed();
    let spent = clocks.since();
    let peak = cpu::resident_peak(process.pid());
    process.stop().await?;
    outbox.verify(&destinations, options.messages).await?;
    let [program, postgres] = spent.trees;
    let each = |d: Duration| d.as_secs_f64() * 1e6 / f64::from(options.messages);
    Ok(Round {
        rate: f64::from(options.messages) / took.as_secs_f64(),
        program: each(program),
        postgres: each(postgres),
        others: spent.others(program + postgres + spent.own),
        peak_mib: peak as f64 / f64::from(1 << 20),
    })
}

fn start(who: Who, outbox: &Outbox, options: &Options) -> anyhow::Result<Running> {
    let mut command = Command::new(std::env::current_exe()?);
    match who {
        Who::Product => command
            .args(["deliver-null", "--database", outbox.url()])
            .args(["--batch", &options.batch.to_string()])
            .args(["--concurrency", &options.concurrency.to_string()]),
        Who::Bare => command.args(["deliver-bare", "--database", outbox.url()]),
    };
    let name = match who {
        Who::Product => "dispatcher",
        Who::Bare => "bare statements",
    };
    Running::start(command, name)
}

fn show(what: &str, r: &Round) {
    println!(
        "{what}: {:.0} messages/s; CPU-µs a message: program {:.2}, PostgreSQL {:.2}; peak {:.0} MiB; others used {:.2} cores",
        r.rate, r.program, r.postgres, r.peak_mib, r.others
    );
}

fn middle(rounds: &[Round]) -> Round {
    let of = |f: fn(&Round) -> f64| median(&rounds.iter().map(f).collect::<Vec<_>>());
    Round {
        rate: of(|r| r.rate),
        program: of(|r| r.program),
        postgres: of(|r| r.postgres),
        others: of(|r| r.others),
        peak_mib: of(|r| r.peak_mib),
    }
}

fn section(options: &Options, product: &[Round], bare: &[Round]) -> anyhow::Result<String> {
    let (p, b) = (middle(product), middle(bare));
    let ratio = p.rate / b.rate;
    let mut out = String::new();
    writeln!(
        out,
        "## The outbox without HTTP: the dispatcher and its bare statements\n"
    )?;
    writeln!(out, "{}\n", machine::describe(None, None::<u64>))?;
    writeln!(
        out,
        "{} messages with payloads of {} bytes for {} destinations; claimed, answered at once by a channel that takes {} a request and\n{} requests a destination, ended, written to the send log. The bare loop runs the same statements, one connection for claims\nof 1000 and one for ends of up to 2000, and nothing else. PostgreSQL durable (fsync on), with\n{}. Medians of {} rounds in turns, after one of the bare loop to warm up.\n",
        options.messages,
        payload::purchase(1, now_secs(), 1).len(),
        options.destinations,
        options.batch,
        options.concurrency,
        POSTGRES_SETTINGS.join(", "),
        product.len(),
    )?;
    writeln!(
        out,
        "| | messages/s | program | PostgreSQL | CPU-µs a message | peak memory |\n|---|---|---|---|---|---|"
    )?;
    for (name, r) in [("dispatcher", &p), ("bare statements", &b)] {
        writeln!(
            out,
            "| {name} | {:.0} | {:.2} | {:.2} | {:.2} | {:.0} MiB |",
            r.rate,
            r.program,
            r.postgres,
            r.program + r.postgres,
            r.peak_mib,
        )?;
    }
    let absolute = if b.rate >= WHERE_BARE {
        format!(
            "wanted ≥ {ABSOLUTE:.0} where the bare loop reaches {WHERE_BARE:.0}: {}",
            verdict(p.rate >= ABSOLUTE)
        )
    } else {
        format!(
            "wanted ≥ {ABSOLUTE:.0} where the bare loop reaches {WHERE_BARE:.0}, which it does not here"
        )
    };
    writeln!(
        out,
        "\nDispatcher to bare statements: **{ratio:.2}** (wanted ≥ {SHARE:.2}: {}). Dispatcher: **{:.0}** messages/s ({absolute}). By CPU\nalone: {:.2}. All rounds, messages/s: dispatcher {}; bare {}. Others used up to {:.2} of the {} cores meanwhile.",
        verdict(ratio >= SHARE),
        p.rate,
        (b.program + b.postgres) / (p.program + p.postgres),
        rates(product),
        rates(bare),
        p.others.max(b.others),
        std::thread::available_parallelism().map_or(0, usize::from),
    )?;
    Ok(out)
}

fn rates(rounds: &[Round]) -> String {
    let each: Vec<String> = rounds.iter().map(|r| format!("{:.0}", r.rate)).collect();
    each.join(", ")
}
