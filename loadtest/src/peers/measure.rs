//! One round of one contender.

use super::peer::{Given, Peer};
use crate::books;
use crate::consume::watch_sum;
use crate::contender::{Running, Tuning};
use crate::cpu::{self, Clocks};
use crate::stack::Stack;
use crate::workload::Totals;
use anyhow::{Context, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio_postgres::Client;

/// What all rounds share.
pub struct Bench<'a> {
    /// PostgreSQL and Kafka with the workload in it.
    pub stack: &'a Stack,
    /// What the product and the bare loop are told.
    pub tuning: Tuning,
    /// What the workload holds.
    pub totals: Totals,
    /// Settings to try in place of the files'.
    pub tried: &'a BTreeMap<Peer, String>,
    /// What the first contender wrote: all others must write the same.
    pub rows: OnceLock<Vec<(&'static str, String)>>,
}

/// What one round took.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Records of the workload a second, from the first sight of progress on.
    pub rate: f64,
    /// CPU-ns a record by process: the contender's own, then Kafka and PostgreSQL; all since their start.
    pub by: Vec<(&'static str, f64)>,
    /// What of the contender's own was used before its first progress was seen: start-up above all.
    pub before: f64,
    /// What else the machine did, as a share of a core.
    pub others: f64,
    /// The most memory that its processes had, summed.
    pub peak_mib: f64,
}

impl Round {
    /// CPU-ns a record, all processes.
    #[must_use]
    pub fn cpu(&self) -> f64 {
        self.by.iter().map(|(_, ns)| ns).sum()
    }

    /// One line of it.
    pub fn show(&self, what: &str) {
        println!(
            "{what}: {:.0} records/s; CPU-ns a record {:.0}: {} ({:.0} before the first progress); peak {:.0} MiB; others used {:.2} cores",
            self.rate,
            self.cpu(),
            self.processes(),
            self.before,
            self.peak_mib,
            self.others,
        );
    }

    /// CPU by process, for a table or a line.
    #[must_use]
    pub fn processes(&self) -> String {
        self.by
            .iter()
            .map(|(what, ns)| format!("{what} {ns:.0}"))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// A run's own name: application id, consumer group, ledger topic.
pub fn run_name(peer: Peer) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let name = peer.name().replace([' ', ',', '_'], "-").to_lowercase();
    format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A folder that goes with this value.
pub struct State(std::path::PathBuf);

impl State {
    /// A fresh one.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(run: &str) -> anyhow::Result<State> {
        let path =
            std::env::temp_dir().join(format!("millrace-peers-{}-{run}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(State(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// CPU time of all of them.
pub fn used(running: &[(&'static str, Running)]) -> Duration {
    running.iter().map(|(_, r)| cpu::tree(r.pid())).sum()
}

impl Bench<'_> {
    /// The topics of a run's own.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn make_topics(&self, peer: Peer, run: &str) -> anyhow::Result<()> {
        if peer.has_ledger_topic() {
            let admin = self.stack.admin();
            admin.create_topic(run, self.tuning.partitions, 1).await?;
        }
        Ok(())
    }

    /// They go again.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn drop_topics(&self, peer: Peer, run: &str) -> anyhow::Result<()> {
        if peer.has_ledger_topic() {
            self.stack.admin().delete_topic(run).await?;
            let changelog = format!("{run}-journeys-changelog");
            self.stack.admin().delete_topic(&changelog).await?;
        }
        Ok(())
    }

    /// What a contender is started with, into a database.
    pub fn given<'a>(
        &'a self,
        peer: Peer,
        run: &'a str,
        database: &'a str,
        state: &'a Path,
    ) -> Given<'a> {
        Given {
            brokers: self.stack.brokers(),
            database: Some(database),
            run,
            ledger: run,
            topics: "1,2",
            tried: self.tried.get(&peer).map_or("", String::as_str),
            tuning: &self.tuning,
            state,
        }
    }

    /// By what column of its positions a contender's work is counted, and up to what sum. A sink counts what came out of the
    /// topology, which has no record for a repeated visit or click.
    pub fn goal(&self, peer: Peer) -> (&'static str, u64) {
        if peer.has_ledger_topic() {
            ("consumed", self.totals.decided())
        } else {
            ("next_offset", self.totals.records)
        }
    }

    /// In what the rows in a store differ from those of the first contender.
    ///
    /// # Errors
    /// The store fails.
    pub async fn differ(&self, client: &Client) -> anyhow::Result<Vec<&'static str>> {
        let rows = books::fingerprint(client).await?;
        let first = self.rows.get_or_init(|| rows.clone());
        let differ = (first.iter().zip(&rows)).filter(|(first, mine)| first != mine);
        Ok(differ.map(|(first, _)| first.0).collect())
    }

    /// Runs a contender into a fresh database.
    ///
    /// # Errors
    /// It ends, stands still, or its ledger is not what the generator made.
    pub async fn round(&self, peer: Peer) -> anyhow::Result<Round> {
        let database = self.stack.fresh_database(self.tuning.partitions).await?;
        let client = database.client().await;
        client.batch_execute("CHECKPOINT").await?;
        let run = run_name(peer);
        let state = State::new(&run)?;
        self.make_topics(peer, &run).await?;
        let clocks = Clocks::read([self.stack.kafka_pid(), self.stack.postgres_pid()]);
        let mut running = peer.start(&self.given(peer, &run, database.url(), state.path()))?;
        let (column, goal) = self.goal(peer);
        let mut before = None;
        let seen = watch_sum(&client, column, peer.group(), goal, |at| {
            if at > 0 && before.is_none() {
                before = Some(used(&running));
            }
            running.iter_mut().try_for_each(|(_, r)| r.check())
        })
        .await;
        let (first, last, seconds) = seen.with_context(|| {
            let words: Vec<String> = running.iter().map(|(_, r)| r.last_words()).collect();
            format!("{}\n{}", peer.name(), words.join("\n"))
        })?;
        let share = (last - first) as f64 / goal as f64;
        let round = self.take(&running, &clocks, before.unwrap_or_default(), |records| {
            records * share / seconds
        });
        for (_, process) in &mut running {
            process.stop().await?;
        }
        self.drop_topics(peer, &run).await?;
        books::verify(&client, peer.name(), &self.totals).await?;
        let differ = self.differ(&client).await?;
        ensure!(
            differ.is_empty(),
            "{} did not write what the first contender wrote: {}",
            peer.name(),
            differ.join(", ")
        );
        Ok(round)
    }

    /// Reads all clocks.
    pub fn take(
        &self,
        running: &[(&'static str, Running)],
        clocks: &Clocks<2>,
        before: Duration,
        rate: impl FnOnce(f64) -> f64,
    ) -> Round {
        let records = self.totals.records as f64;
        let each = |d: Duration| d.as_secs_f64() * 1e9 / records;
        let spent = clocks.since();
        let [kafka, postgres] = spent.trees;
        let known = used(running) + kafka + postgres;
        let mut by: Vec<(&'static str, f64)> = running
            .iter()
            .map(|(what, r)| (*what, each(cpu::tree(r.pid()))))
            .collect();
        by.push(("Kafka", each(kafka)));
        by.push(("PostgreSQL", each(postgres)));
        let peak: u64 = running.iter().map(|(_, r)| cpu::tree_peak(r.pid())).sum();
        Round {
            rate: rate(records),
            by,
            before: each(before),
            others: spent.others(known),
            peak_mib: peak as f64 / f64::from(1 << 20),
        }
    }
}
