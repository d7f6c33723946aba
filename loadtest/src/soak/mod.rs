//! `soak`: the whole system at half of what it can carry: doors over HTTP, Kafka, attribution, the outbox, delivery to a webhook
//! receiver and to a stand-in for Meta. Nothing may grow: neither memory nor lag, open files or latency.
//!
//! First as many requests as the doors answer, until everything of them is in the ledger and out of the outbox: once to warm up,
//! then for the maximum. Then half of it, evenly, for as long as is asked.

mod load;
mod probe;
mod processes;
mod record;
mod recount;
mod scenery;
mod section;
mod watch;

use crate::report::publish;
use crate::stack::{Stack, bar, fresh_topics};
use crate::{contender, cpu, disk};
use anyhow::{Context, ensure};
use load::{Counts, Load, Pace, Plan};
use millrace_tests::meta_stand_in::MetaStandIn;
use millrace_tests::receivers::{CountingReceiver, Received};
use probe::Probes;
use processes::Processes;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, UNIX_EPOCH};
use watch::{Interval, Latencies, Watch};

const EXAMPLES: &str = "Examples:
  cargo run --release -p loadtest -- soak                            an hour at half of the measured maximum
  cargo run --release -p loadtest -- soak --minutes 10 --rate 2000
  cargo run -p loadtest -- soak --minutes 1 --calibrate 5 --dry";

/// How to soak.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// How long, in minutes.
    #[arg(long, default_value_t = 60.0)]
    pub minutes: f64,
    /// Requests a second. Unset: half of the measured maximum.
    #[arg(long)]
    pub rate: Option<f64>,
    /// How long the maximum is measured, in seconds.
    #[arg(long, default_value_t = 30)]
    pub calibrate: u64,
    /// How long the same load runs before that, unmeasured, in seconds: caches, WAL files and the broker's code are made then.
    #[arg(long, default_value_t = 10)]
    pub warm_up: u64,
    /// Keep-alive connections to the doors.
    #[arg(long, default_value_t = 128)]
    pub connections: usize,
    /// Partitions of both topics.
    #[arg(long, default_value_t = 8)]
    pub partitions: i32,
    /// Requests a second that are followed to their rows, about.
    #[arg(long, default_value_t = 50.0)]
    pub probes: f64,
    /// The generator's seed.
    #[arg(long, default_value_t = 3)]
    pub seed: u64,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// Everything must be through after the load within this time.
const DRAIN: Duration = Duration::from_secs(600);
/// Kafka keeps consumed records so long, and checks every five minutes.
const RETENTION: [(&str, &str); 2] = [("retention.ms", "300000"), ("segment.bytes", "67108864")];

/// What came of it, beside the intervals.
struct Outcome {
    /// Requests a second that the system carried to the end of it, while the maximum was measured; none if it was not.
    maximum: Option<f64>,
    rate: f64,
    intervals: Vec<Interval>,
    seconds: f64,
    accepted: u64,
    refused: u64,
    lost: u64,
    webhooks: u64,
    events: u64,
    /// CPU-µs a request: the three processes, Kafka, PostgreSQL, this program.
    cpu: [f64; 6],
    others: f64,
}

/// Runs it.
///
/// # Errors
/// Something of the stack fails, there is no room, or what was accepted is not what was booked and sent.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(measure(options))
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let stack = Stack::start_with(&["max_wal_size=2GB".to_owned()]).await?;
    fresh_topics(stack.kafka(), options.partitions).await?;
    retain(&stack).await?;
    let database = stack.fresh_database(options.partitions).await?;
    let client = database.client().await;
    let latencies = Latencies::new()?;
    let meta = MetaStandIn::start()?;
    let through = latencies.through.clone();
    let hook = CountingReceiver::start(Duration::ZERO, move |request| {
        arrived(request, &through);
        // Thousands a second for an hour: they are counted, not kept.
        None
    })?;
    scenery::set_up(&client, &hook, &meta).await?;
    let mut processes = Processes::start(&stack, database.url(), &meta.url()).await?;
    let counts = Arc::new(Counts::default());
    let (probes, asked) = tokio::sync::mpsc::unbounded_channel();
    let plan = Plan {
        doors: processes.doors()?,
        connections: options.connections,
        pace: Pace::Closed,
        probe_every: u64::MAX,
        counts: Arc::clone(&counts),
        answered: latencies.answered.clone(),
        probes,
        seed: options.seed,
        name: "M",
    };
    open_for_business(&plan).await?;
    let mut run = Run {
        options,
        watch: Watch::start(database.url()).await?,
        probes: Probes::start(database.url(), asked, latencies.ledger.clone()).await?,
        latencies,
        plan,
        counts,
    };
    let (maximum, each) = match options.rate {
        Some(_) => (None, None),
        None => {
            run.plan.name = "W";
            run.closed(&mut processes, "warming up", options.warm_up)
                .await?;
            run.plan.name = "M";
            let (maximum, each) = run.maximum(&mut processes).await?;
            println!("maximum: {maximum:.0} requests/s, {each:.0} bytes of tables a request");
            (Some(maximum), Some(each))
        }
    };
    let rate = options
        .rate
        .or(maximum.map(|m| m / 2.0))
        .context("a rate")?;
    let requests = rate * options.minutes * 60.0;
    if let Some(each) = each {
        // Tables; and what Kafka keeps for a quarter of an hour, WAL.
        let kafka = 700.0 * rate * (options.minutes * 60.0).min(900.0);
        disk::need((requests * each + kafka + 3e9) as u64)
            .context("a lower --rate or fewer --minutes need less")?;
    }
    for latency in run.latencies.each() {
        latency.reset();
    }
    let before = (processes.cpu(), hook.requests(), meta.counts().received);
    let clocks = cpu::Clocks::read([stack.kafka_pid(), stack.postgres_pid()]);
    let accepted = run.counts.accepted.load(Ordering::Relaxed);
    let refused = run.counts.refused.load(Ordering::Relaxed);
    let (intervals, seconds) = run.soak(&mut processes, rate).await?;
    let spent = clocks.since();
    let done = run.counts.accepted.load(Ordering::Relaxed) - accepted;
    let each = |d: Duration| d.as_secs_f64() * 1e6 / done.max(1) as f64;
    let [kafka, postgres] = spent.trees;
    let now = processes.cpu();
    let mut own = now
        .iter()
        .zip(before.0)
        .map(|(now, then)| now.saturating_sub(then));
    let mut next = || own.next().unwrap_or_default();
    let own = [next(), next(), next()];
    let known = own.iter().sum::<Duration>() + kafka + postgres + spent.own;
    run.drained(&mut processes).await?;
    processes.stop().await?;
    recount::recount(&client, &run.counts, &hook, &meta).await?;
    contender::verify(database.url(), stack.brokers(), "")?;
    let [doors, attribution, delivery] = own;
    let outcome = Outcome {
        maximum,
        rate,
        intervals,
        seconds,
        accepted: done,
        refused: run.counts.refused.load(Ordering::Relaxed) - refused,
        lost: run.probes.lost(),
        webhooks: hook.requests() - before.1,
        events: meta.counts().received - before.2,
        cpu: [doors, attribution, delivery, kafka, postgres, spent.own].map(each),
        others: spent.others(known),
    };
    let body = section::write(options, &outcome, &run.latencies, stack.kafka_version())?;
    let lost = outcome.lost;
    // A run that lost something is no figure of record.
    publish("soak", &body, !options.dry && lost == 0)?;
    ensure!(
        lost == 0,
        "{lost} requests were accepted, and their rows never seen"
    );
    Ok(())
}

/// Kafka is to drop what was consumed long ago.
async fn retain(stack: &Stack) -> anyhow::Result<()> {
    let admin: AdminClient<DefaultClientContext> = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", stack.brokers())
        .create()?;
    for topic in ["clicks", "postbacks"] {
        let mut config = AlterConfig::new(ResourceSpecifier::Topic(topic));
        for (key, value) in RETENTION {
            config = config.set(key, value);
        }
        let altered = admin.alter_configs([&config], &AdminOptions::new()).await?;
        for one in altered {
            one.map_err(|(what, code)| anyhow::anyhow!("{what:?}: {code}"))?;
        }
    }
    Ok(())
}

/// Waits until the doors know the campaign.
async fn open_for_business(plan: &Plan) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(30);
    let (doors, path) = (plan.doors, format!("/c/{}", scenery::CAMPAIGN));
    loop {
        // HEAD records nothing.
        let path = path.clone();
        let head = tokio::task::spawn_blocking(move || crate::fleet::head(doors, &path)).await??;
        if head.starts_with("HTTP/1.1 302") {
            return Ok(());
        }
        ensure!(
            Instant::now() < until,
            "the doors do not know the campaign: {head}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A webhook has arrived: how long after the postback behind it was accepted.
fn arrived(request: &Received, through: &record::Latency) {
    let body = std::str::from_utf8(&request.body).unwrap_or_default();
    let stamp = body
        .split_once("\"timestamp\":\"")
        .and_then(|(_, rest)| rest.split('"').next())
        .and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let at = request.at.duration_since(UNIX_EPOCH).ok();
    if let (Some(stamp), Some(at)) = (stamp, at) {
        let at = i64::try_from(at.as_micros()).unwrap_or(0);
        through.record(at - stamp.as_microsecond());
    }
}

/// A run in progress.
struct Run<'a> {
    options: &'a Options,
    watch: Watch,
    probes: Probes,
    latencies: Latencies,
    plan: Plan,
    counts: Arc<Counts>,
}

impl Run<'_> {
    /// As many requests as are answered, for so many seconds and until all of them are through.
    async fn closed(
        &mut self,
        processes: &mut Processes,
        what: &'static str,
        seconds: u64,
    ) -> anyhow::Result<()> {
        let mut load = Load::start(self.plan.clone())?;
        let progress = bar(what);
        progress.set_length(seconds);
        for _ in 0..seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            progress.inc(1);
            processes.check()?;
            ensure!(!load.ended(), "the load ended: {:?}", load.stop());
        }
        progress.finish_and_clear();
        load.stop()?;
        self.drained(processes).await
    }

    /// How many requests a second go all the way, and how much a request adds to the database.
    async fn maximum(&mut self, processes: &mut Processes) -> anyhow::Result<(f64, f64)> {
        let before = self.watch.look().await?;
        let warmed = self.counts.accepted.load(Ordering::Relaxed);
        let began = Instant::now();
        self.closed(processes, "maximum", self.options.calibrate)
            .await?;
        let accepted = (self.counts.accepted.load(Ordering::Relaxed) - warmed) as f64;
        let rate = accepted / began.elapsed().as_secs_f64();
        let after = self.watch.look().await?;
        let grown = (after.stored - before.stored).max(0) as f64;
        Ok((rate, grown / accepted.max(1.0)))
    }

    /// The load at a rate, in intervals.
    async fn soak(
        &mut self,
        processes: &mut Processes,
        rate: f64,
    ) -> anyhow::Result<(Vec<Interval>, f64)> {
        let seconds = (self.options.minutes * 60.0).max(8.0) as u64;
        let step = if seconds >= 600 {
            60
        } else {
            (seconds / 8).max(1)
        };
        self.plan.pace = Pace::Open(rate);
        self.plan.name = "S";
        self.plan.probe_every = ((rate / self.options.probes.max(0.1)) as u64).max(1);
        let look = self.watch.look().await?;
        // The count begins anew.
        self.watch
            .turn(1.0, &self.counts, &self.latencies, processes, look);
        let mut load = Load::start(self.plan.clone())?;
        let progress = bar("soaking");
        progress.set_length(seconds);
        let mut intervals = Vec::new();
        let began = Instant::now();
        let mut turned = began;
        let mut every = tokio::time::interval(Duration::from_secs(1));
        every.tick().await;
        for second in 1..=seconds {
            every.tick().await;
            progress.inc(1);
            processes.check()?;
            ensure!(!load.ended(), "the load ended: {:?}", load.stop());
            ensure!(!self.probes.ended(), "the watch over rows has ended");
            let look = self.watch.note(&self.counts, &self.latencies.sent).await?;
            if second % step == 0 {
                let took = turned.elapsed().as_secs_f64();
                turned = Instant::now();
                let interval =
                    self.watch
                        .turn(took, &self.counts, &self.latencies, processes, look);
                let line = section::line(intervals.len(), &interval);
                progress.suspend(|| println!("{line}"));
                intervals.push(interval);
            }
        }
        progress.finish_and_clear();
        let took = began.elapsed().as_secs_f64();
        load.stop()?;
        Ok((intervals, took))
    }

    /// Waits until everything accepted is consumed, its rows are seen, and the outbox is empty.
    async fn drained(&mut self, processes: &mut Processes) -> anyhow::Result<()> {
        let until = Instant::now() + DRAIN;
        loop {
            processes.check()?;
            let look = self.watch.look().await?;
            let accepted = i64::try_from(self.counts.accepted.load(Ordering::Relaxed))?;
            if look.consumed >= accepted && look.outbox == 0 && self.probes.open() == 0 {
                return Ok(());
            }
            ensure!(
                Instant::now() < until,
                "{accepted} accepted, {} consumed, {} messages left",
                look.consumed,
                look.outbox
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
