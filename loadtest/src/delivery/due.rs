//! `delivery due`: messages that become due evenly, long after they were written: how late are they handed over?
//!
//! The outbox is filled before the first is due. Late is what lies between `due_at` and the receiver's answer as the send log has
//! it: a little more than handing over takes.

use super::store::{Outbox, Store, now_secs};
use super::{email, payload, sending};
use crate::contender::Running;
use crate::cpu::Clocks;
use crate::machine;
use crate::report::{publish, verdict};
use anyhow::{Context, ensure};
use clap::ValueEnum;
use millrace::cli::demo::stand_ins::mail::Mail;
use millrace::runtime::clock::{Clock, SystemClock};
use millrace_schemas::time::Micros;
use millrace_tests::receivers::{CountingReceiver, by_header};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How to measure it.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Messages that become due in a second.
    #[arg(long, default_value_t = 1_000)]
    rate: u32,
    /// For how many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Channels, each a measurement of its own.
    #[arg(long, value_delimiter = ',', default_values_t = [Way::Webhook, Way::Email])]
    channels: Vec<Way>,
    /// Seconds from the beginning of filling to the first that is due.
    #[arg(long, default_value_t = 20)]
    lead: u32,
    /// How long a receiver takes to answer (a mail server, for each reply), in milliseconds.
    #[arg(long, default_value_t = 0)]
    latency: u64,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    dry: bool,
}

/// A channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    Webhook,
    Email,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Webhook => "webhook",
            Way::Email => "email",
        }
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Handed over within, in milliseconds.
const WITHIN_MS: f64 = 1_000.0;

/// What came of it.
struct Round {
    way: Way,
    /// Milliseconds from due to answered, sorted.
    late: Vec<f64>,
    /// CPU-µs a message from the first due to the last end: sender, PostgreSQL, receiver.
    cpu: [f64; 3],
    others: f64,
}

impl Round {
    fn share(&self, share: f64) -> f64 {
        let n = self.late.len();
        let at = ((n as f64 * share) as usize).min(n.saturating_sub(1));
        self.late.get(at).copied().unwrap_or(0.0)
    }

    fn latest(&self) -> f64 {
        self.late.last().copied().unwrap_or(0.0)
    }

    fn too_late(&self) -> usize {
        self.late.iter().filter(|ms| **ms > WITHIN_MS).count()
    }
}

/// Whoever takes the messages.
enum Receiver {
    Hook(CountingReceiver),
    Mail(Mail),
}

impl Receiver {
    fn start(way: Way, latency: Duration) -> anyhow::Result<Receiver> {
        Ok(match way {
            Way::Webhook => {
                Receiver::Hook(CountingReceiver::start(latency, by_header("webhook-id"))?)
            }
            Way::Email => {
                let mail = Mail::start()?;
                mail.count_only();
                mail.take_so_long(latency);
                Receiver::Mail(mail)
            }
        })
    }

    /// Its destination.
    async fn place(&self, outbox: &Outbox) -> anyhow::Result<i32> {
        match self {
            Receiver::Hook(hook) => sending::endpoint(outbox, "wh_bench", &hook.url("/hook")).await,
            Receiver::Mail(mail) => email::place(outbox, mail.address().port()).await,
        }
    }

    fn taken(&self) -> u64 {
        match self {
            Receiver::Hook(hook) => hook.requests(),
            Receiver::Mail(mail) => mail.counts().taken as u64,
        }
    }
}

/// Measures it.
///
/// # Errors
/// The store or the product fails, a message is lost, doubled, or sent before it was due.
pub async fn measure(options: &Options) -> anyhow::Result<()> {
    ensure!(
        options.rate > 0 && options.seconds > 0,
        "nothing becomes due"
    );
    let store = Store::start().await?;
    sending::pin(&store)?;
    let mut rounds = Vec::new();
    for way in &options.channels {
        let round = one(&store, options, *way).await?;
        println!(
            "{way}: p50 {:.0} ms, p99 {:.0} ms, latest {:.0} ms, {} later than a second",
            round.share(0.5),
            round.share(0.99),
            round.latest(),
            round.too_late()
        );
        rounds.push(round);
    }
    publish("delivery-due", &section(options, &rounds)?, !options.dry)
}

async fn one(store: &Store, options: &Options, way: Way) -> anyhow::Result<Round> {
    let receiver = Receiver::start(way, Duration::from_millis(options.latency))?;
    let outbox = store.fresh().await?;
    let no = receiver.place(&outbox).await?;
    let messages = options.rate * options.seconds;
    let first = SystemClock.wall().plus_secs(i64::from(options.lead));
    let step = 1_000_000.0 / f64::from(options.rate);
    let due = |n: u32| Some(Micros(first.0 + (f64::from(n) * step) as i64));
    let now = now_secs();
    let make = |n| match way {
        Way::Webhook => payload::purchase(n, now, 1),
        Way::Email => email::notice(n),
    };
    outbox
        .fill_due(way.name(), &[no], 0..messages, make, due)
        .await?;
    let client = outbox.session.client();
    client
        .batch_execute(
            "CREATE TABLE bench_due AS SELECT outbox_id, due_at FROM outbox_due; ANALYZE bench_due",
        )
        .await?;
    let public = ("MILLRACE_HTTP__PUBLIC_URL", "https://m.example".to_owned());
    let mut process = sending::start_product(&outbox, &[public])?;
    up(&mut process, first).await?;
    let clocks = Clocks::read([process.pid(), store.pid()]);
    let last = due(messages).context("a moment")?;
    while SystemClock.wall() < last {
        process.check()?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    outbox.drained(&[no], || process.check()).await?;
    let spent = clocks.since();
    process.stop().await?;
    outbox.verify(&[no], messages).await?;
    ensure!(
        receiver.taken() == u64::from(messages),
        "{} of {messages} messages arrived",
        receiver.taken()
    );
    let rows = client
        .query(
            "SELECT (extract(epoch FROM s.sent_at - d.due_at) * 1000)::float8 FROM send_log s JOIN bench_due d USING (outbox_id) ORDER BY 1",
            &[],
        )
        .await?;
    let late: Vec<f64> = rows.iter().map(|row| row.get(0)).collect();
    ensure!(
        late.first().is_some_and(|ms| *ms >= 0.0),
        "a message was sent before it was due"
    );
    let [sender, postgres] = spent.trees;
    let each = |d: Duration| d.as_secs_f64() * 1e6 / f64::from(messages);
    Ok(Round {
        way,
        late,
        cpu: [sender, postgres, spent.own].map(each),
        others: spent.others(sender + postgres + spent.own),
    })
}

/// Waits until the product is up, and then until the first message is about to be due.
async fn up(process: &mut Running, first: Micros) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    while !process.said("millrace is up") {
        process.check()?;
        ensure!(
            Instant::now() < until,
            "the product is not up after a minute"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let left = first.0 - SystemClock.wall().0;
    ensure!(
        left > 0,
        "the first message was due before the product was up: a longer --lead"
    );
    tokio::time::sleep(Duration::from_micros(u64::try_from(left)?)).await;
    Ok(())
}

fn section(options: &Options, rounds: &[Round]) -> anyhow::Result<String> {
    let mut out = String::new();
    writeln!(out, "## Messages that become due\n")?;
    writeln!(out, "{}\n", machine::describe(None, None::<u64>))?;
    writeln!(
        out,
        "{} messages, written before the first of them was due; {} become due each second, evenly, for {} s, all for one destination whose\nreceiver takes {} ms to answer. `millrace run --roles delivery` with its own settings, alone on one core; receiver and PostgreSQL\n(durable) on the other. Late: from `due_at` to the receiver's answer, by the send log, of every message; handing over ends\nbefore. An idle channel looks every {} ms for what is due.\n",
        options.rate * options.seconds,
        options.rate,
        options.seconds,
        options.latency,
        millrace::settings::Delivery::default().poll_ms,
    )?;
    writeln!(
        out,
        "| channel | late, p50 | p99 | p99.9 | latest | later than {WITHIN_MS:.0} ms | CPU-µs a message: sender | PostgreSQL | receiver | others |\n|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for r in rounds {
        let [sender, postgres, receiver] = r.cpu;
        writeln!(
            out,
            "| {} | {:.0} ms | {:.0} ms | {:.0} ms | **{:.0} ms** | {} | {sender:.1} | {postgres:.1} | {receiver:.1} | {:.2} |",
            r.way,
            r.share(0.5),
            r.share(0.99),
            r.share(0.999),
            r.latest(),
            r.too_late(),
            r.others,
        )?;
    }
    out.push('\n');
    for r in rounds {
        writeln!(
            out,
            "Every message of {} answered within {WITHIN_MS:.0} ms of its time: {}.",
            r.way,
            verdict(r.too_late() == 0)
        )?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_what_is_too_late() {
        let round = Round {
            way: Way::Webhook,
            late: vec![1.0, 2.0, 3.0, 1_000.0, 1_000.1],
            cpu: [0.0; 3],
            others: 0.0,
        };
        assert_eq!(round.share(0.5), 3.0);
        assert_eq!(round.share(0.999), 1_000.1);
        assert_eq!((round.latest(), round.too_late()), (1_000.1, 1));
    }
}
