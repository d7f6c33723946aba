//! `rebalance`: how long partitions stand still when a member of their group comes, leaves in order, or is killed, while
//! records keep coming.
//!
//! The times are the store's own: PostgreSQL keeps the time of each commit (`track_commit_timestamp`), and a watcher that looks
//! every few milliseconds writes down when each partition's positions were last moved, and whose the partition is.

mod section;
mod watcher;

use crate::books;
use crate::contender::{self, Contender, Running, Tuning, attribution};
use crate::fleet::{self, is_shared};
use crate::pace::Paced;
use crate::report::publish;
use crate::stack::{Stack, WorkloadOptions, bar, topics_as};
use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use watcher::{Seen, Watcher, now_micros};

const EXAMPLES: &str = "Examples:
  cargo run --release -p loadtest -- rebalance        both protocols, three rounds; about 5 minutes
  cargo run --release -p loadtest -- rebalance --protocols consumer --rounds 1 --dry
  cargo run -p loadtest -- rebalance --short          KIP-848, one round, few records, prints only";

/// How to measure rebalances.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Records a second while members come and go.
    #[arg(long, default_value_t = 20_000.0)]
    pub rate: f64,
    /// Partitions of both topics.
    #[arg(long, default_value_t = 12)]
    pub partitions: i32,
    /// Group protocols, as `log.group_protocol` has them.
    #[arg(long, value_delimiter = ',', default_values_t = ["consumer".to_owned(), "classic".to_owned()])]
    pub protocols: Vec<String>,
    /// Rounds of each protocol, in turns.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// The generator's seed.
    #[arg(long, default_value_t = 3)]
    pub seed: u64,
    /// KIP-848 alone, one round, few records; prints only.
    #[arg(long)]
    pub short: bool,
    /// Print only; leave BENCHMARKS.md as it is.
    #[arg(long)]
    pub dry: bool,
}

/// What happens to the group of two, then three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A third member joins.
    Joins,
    /// One of three is killed.
    Killed,
    /// One of two leaves by SIGTERM.
    Leaves,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Event::Joins => "a third member joins",
            Event::Killed => "one of three is killed (SIGKILL)",
            Event::Leaves => "one of two leaves (SIGTERM)",
        }
    }
}

/// One event, and what the partitions did.
#[derive(Clone, Debug)]
struct Pause {
    protocol: String,
    event: Event,
    /// Until all partitions were shared out and had moved again, in seconds.
    settled: f64,
    /// Longest standstill of each partition that changed its owner, in milliseconds.
    moved: Vec<f64>,
    /// Of each that did not.
    untouched: Vec<f64>,
    /// Longest standstill of every partition in the quiet time before.
    usual: Vec<f64>,
}

/// How long nothing happens before each event.
const QUIET: Duration = Duration::from_secs(2);
/// How long a group may take to settle.
const PATIENCE: Duration = Duration::from_secs(90);

/// Runs it.
///
/// # Errors
/// Something of the stack fails, a group does not settle, or a record is lost or doubled.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut options = options.clone();
    if options.short {
        options.rate = options.rate.min(500.0);
        options.partitions = options.partitions.min(6);
        options.protocols.truncate(1);
        options.rounds = 1;
        options.dry = true;
    }
    ensure!(
        options.partitions >= 3,
        "three members need three partitions"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(measure(&options))
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let stack = Stack::start_with(&["track_commit_timestamp=on".to_owned()]).await?;
    let mut pauses = Vec::new();
    let progress = bar("events");
    progress.set_length((options.rounds.max(1) * options.protocols.len() * 3) as u64);
    for n in 0..options.rounds.max(1) {
        let mut order = options.protocols.clone();
        if n % 2 == 1 {
            order.reverse();
        }
        for protocol in order {
            let prefix = format!("{protocol}{n}.");
            pauses.extend(one(&stack, options, &protocol, &prefix, &progress).await?);
        }
    }
    progress.finish_and_clear();
    let body = section::write(options, &pauses, stack.kafka_version())?;
    publish("rebalance", &body, !options.dry)
}

/// One group through all three events.
async fn one(
    stack: &Stack,
    options: &Options,
    protocol: &str,
    prefix: &str,
    progress: &ProgressBar,
) -> anyhow::Result<Vec<Pause>> {
    let topics = topics_as(stack.kafka(), prefix, options.partitions).await?;
    let database = stack.fresh_database_for(prefix, options.partitions).await?;
    // More than any run takes; made as they are sent.
    let workload = WorkloadOptions {
        records: ((options.rate * 600.0) as u32).max(100_000),
        partitions: options.partitions,
        seed: options.seed,
    };
    let tuning = Tuning {
        batch: 5_000,
        arbiters: 2,
        partitions: options.partitions,
        slice_clicks: 20_000,
    };
    let start = || {
        let mut command = attribution(stack.brokers(), database.url(), &tuning)?;
        command
            .env("MILLRACE_LOG__PREFIX", prefix)
            .env("MILLRACE_LOG__GROUP_PROTOCOL", protocol);
        Running::start(command, "member")
    };
    let mut group = Group {
        client: database.client().await,
        watcher: Watcher::start(database.url()).await?,
        load: Paced::start(stack.brokers(), &topics, workload.workload(), options.rate)?,
        members: vec![start()?, start()?],
        partitions: options.partitions,
        protocol,
    };
    group.settle(2, now_micros()).await?;
    let mut pauses = Vec::new();
    for event in [Event::Joins, Event::Killed, Event::Leaves] {
        tokio::time::sleep(QUIET).await;
        let before = group.watcher.owners();
        let at = now_micros();
        let left = match event {
            Event::Joins => {
                group.members.push(start()?);
                3
            }
            Event::Killed => {
                group.members.remove(0).kill()?;
                2
            }
            Event::Leaves => {
                group.members.remove(0).stop().await?;
                1
            }
        };
        let settled = group.settle(left, at).await?;
        let pause = group.pause(event, at, settled, &before);
        progress.suspend(|| println!("{}", section::line(&pause)));
        progress.inc(1);
        pauses.push(pause);
    }
    group.finish().await?;
    contender::verify(database.url(), stack.brokers(), prefix)?;
    Ok(pauses)
}

/// A group under load, and whoever watches it.
struct Group<'a> {
    client: tokio_postgres::Client,
    watcher: Watcher,
    load: Paced,
    members: Vec<Running>,
    partitions: i32,
    protocol: &'a str,
}

impl Group<'_> {
    /// Waits until so many members have shared out all partitions and each has committed since: when that was.
    async fn settle(&mut self, members: usize, since: i64) -> anyhow::Result<i64> {
        let until = Instant::now() + PATIENCE;
        loop {
            for member in &mut self.members {
                member.check()?;
            }
            ensure!(!self.load.ended(), "the load ended: {:?}", self.load.stop());
            let owners = self.watcher.owners();
            if is_shared(&owners, self.partitions, members) {
                // The last claim, then a commit of everybody.
                let claimed = self.watcher.last_claim().max(since);
                if self.watcher.all_moved_after(claimed, self.partitions) {
                    return Ok(now_micros());
                }
            }
            if Instant::now() > until {
                let words: Vec<String> = self.members.iter().map(Running::last_words).collect();
                anyhow::bail!(
                    "the group has not settled within {PATIENCE:?}: {owners:?}\n{}",
                    words.join("\n---\n")
                );
            }
            self.watcher.check()?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn pause(
        &self,
        event: Event,
        at: i64,
        settled: i64,
        before: &BTreeMap<i32, (String, i64)>,
    ) -> Pause {
        let after = self.watcher.owners();
        let quiet = i64::try_from(QUIET.as_micros()).unwrap_or(0);
        let (mut moved, mut untouched, mut usual) = (Vec::new(), Vec::new(), Vec::new());
        for (partition, seen) in self.watcher.commits() {
            usual.push(within(&seen, at - quiet, at));
            let pause = standstill(&seen, at, settled);
            let owner = |of: &BTreeMap<i32, (String, i64)>| of.get(&partition).map(|o| o.0.clone());
            if owner(before) == owner(&after) {
                untouched.push(pause);
            } else {
                moved.push(pause);
            }
        }
        Pause {
            protocol: self.protocol.to_owned(),
            event,
            settled: (settled - at) as f64 / 1e6,
            moved,
            untouched,
            usual,
        }
    }

    /// Ends the load, waits until all of it is consumed, and recounts it: records by number, rows and payouts against what the
    /// generator made.
    async fn finish(&mut self) -> anyhow::Result<()> {
        let totals = self.load.stop()?;
        let sent = totals.records;
        let group = Contender::Product.group();
        crate::consume::watch(&self.client, group, sent, |_| {
            self.members.iter_mut().try_for_each(Running::check)
        })
        .await?;
        for member in &mut self.members {
            member.stop().await?;
        }
        let row = self
            .client
            .query_one(
                "SELECT (SELECT sum(consumed)::int8 FROM positions), (SELECT sum(n)::int8 FROM outcomes)",
                &[],
            )
            .await?;
        let (consumed, outcomes): (i64, i64) = (row.get(0), row.get(1));
        ensure!(
            i64::try_from(sent)? == consumed && consumed == outcomes,
            "{sent} records sent, {consumed} consumed, {outcomes} outcomes"
        );
        books::verify(&self.client, Contender::Product.name(), &totals).await?;
        let held = fleet::owners(&self.client, group).await?;
        held.first_key_value().context("somebody owned it")?;
        Ok(())
    }
}

/// The longest time between two commits that overlaps `from..to`, in milliseconds; all in µs since 1970. What lies before
/// `from` of a standstill that had begun then counts too.
fn standstill(commits: &[Seen], from: i64, to: i64) -> f64 {
    let mut longest = 0;
    let mut last: Option<i64> = None;
    for at in commits.iter().map(|c| c.at) {
        if let Some(before) = last
            && at > from
            && before < to
        {
            longest = longest.max(at - before);
        }
        last = Some(at);
    }
    // Still standing.
    if let Some(before) = last
        && before < to
    {
        longest = longest.max(to - before);
    }
    longest as f64 / 1e3
}

/// The longest time between two commits of `from..to`, cut off at its ends, in milliseconds.
fn within(commits: &[Seen], from: i64, to: i64) -> f64 {
    let inner = commits
        .iter()
        .map(|c| c.at)
        .filter(|at| (from..to).contains(at));
    let mut longest = 0;
    let mut last = from;
    for at in inner.chain([to]) {
        longest = longest.max(at - last);
        last = at;
    }
    longest as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(at: &[i64]) -> Vec<Seen> {
        at.iter().map(|at| Seen { at: *at }).collect()
    }

    #[test]
    fn a_standstill_is_the_longest_gap_that_touches_the_time() {
        let commits = seen(&[0, 9_000, 10_000, 40_000, 41_000, 99_000]);
        assert_eq!(standstill(&commits, 9_500, 41_000), 30.0);
        assert_eq!(
            standstill(&commits, 20_000, 30_000),
            30.0,
            "it began before"
        );
        assert_eq!(standstill(&commits, 41_500, 50_000), 58.0, "it ended after");
        assert_eq!(standstill(&commits, 99_000, 200_000), 101.0, "it goes on");
        assert_eq!(within(&commits, 9_500, 30_000), 20.0, "cut off at the end");
        assert_eq!(
            within(&commits, 41_000, 50_000),
            9.0,
            "and at the beginning"
        );
    }
}
