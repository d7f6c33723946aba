//! What a measurement needs beside the contenders: a durable PostgreSQL and one Apache Kafka node.

use crate::broker::Broker;
use crate::preload::{Loaded, load};
use crate::workload::Workload;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use millrace_tests::postgres::{DedicatedServer, TestDatabase, connect};
use millrace_topics::catalogue::{self, CLICKS, POSTBACKS};
use millrace_topics::contract::TopicRef;
use millrace_topics::kafka::{KafkaAdmin, KafkaSettings};
use std::path::PathBuf;

/// How PostgreSQL differs from its defaults; fsync, full_page_writes and synchronous_commit are on.
pub const POSTGRES_SETTINGS: [&str; 6] = [
    "synchronous_commit=on",
    "shared_buffers=1GB",
    "max_wal_size=8GB",
    "checkpoint_timeout=15min",
    "wal_buffers=64MB",
    // As PostgreSQL has it; the server of the tests looks six times as often.
    "autovacuum_naptime=1min",
];

/// Which workload.
#[derive(Clone, Debug, clap::Args)]
pub struct WorkloadOptions {
    /// Records in both topics.
    #[arg(long, default_value_t = 2_000_000)]
    pub records: u32,
    /// Partitions of both topics.
    #[arg(long, default_value_t = 8)]
    pub partitions: i32,
    /// The generator's seed.
    #[arg(long, default_value_t = 3)]
    pub seed: u64,
}

impl WorkloadOptions {
    /// The workload, its stream time ending about now.
    #[must_use]
    pub fn workload(&self) -> Workload {
        let now = jiff::Timestamp::now().as_microsecond();
        let span = i64::from(self.records) * 1_000;
        Workload::new(self.records, self.seed, now - span - 60_000_000)
    }
}

/// PostgreSQL and Kafka, ended with this value.
pub struct Stack {
    postgres: DedicatedServer,
    broker: Broker,
    settings: KafkaSettings,
}

impl Stack {
    /// Starts both.
    ///
    /// # Errors
    /// One of them is not to be had.
    pub async fn start() -> anyhow::Result<Stack> {
        Stack::start_with(&[]).await
    }

    /// Starts both, PostgreSQL with further settings.
    ///
    /// # Errors
    /// One of them is not to be had.
    pub async fn start_with(more: &[String]) -> anyhow::Result<Stack> {
        let mut settings: Vec<String> = POSTGRES_SETTINGS.map(str::to_owned).to_vec();
        settings.extend_from_slice(more);
        let postgres = tokio::task::spawn_blocking(move || {
            let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
            DedicatedServer::start_durable_with(&settings)
        });
        let broker = tokio::task::spawn_blocking(Broker::start);
        let postgres = postgres.await?;
        let broker = broker.await??;
        let settings = KafkaSettings {
            brokers: broker.address().to_owned(),
            ..KafkaSettings::default()
        };
        Ok(Stack {
            postgres,
            broker,
            settings,
        })
    }

    /// Kafka's `bootstrap.servers`.
    #[must_use]
    pub fn brokers(&self) -> &str {
        self.broker.address()
    }

    /// Kafka's administration.
    #[must_use]
    pub fn admin(&self) -> KafkaAdmin {
        KafkaAdmin::new(&self.settings)
    }

    /// The broker's process.
    #[must_use]
    pub fn kafka_pid(&self) -> u32 {
        self.broker.pid()
    }

    /// The version of its jars.
    #[must_use]
    pub fn kafka_version(&self) -> &str {
        self.broker.version()
    }

    /// The postmaster.
    #[must_use]
    pub fn postgres_pid(&self) -> u32 {
        self.postgres.pid().unwrap_or(0)
    }

    /// A migrated database that knows both topics, under the same numbers each time.
    ///
    /// # Errors
    /// PostgreSQL fails.
    pub async fn fresh_database(&self, partitions: i32) -> anyhow::Result<TestDatabase> {
        self.fresh_database_for("", partitions).await
    }

    /// The same for topics under a prefix (`log.prefix`).
    ///
    /// # Errors
    /// PostgreSQL fails.
    pub async fn fresh_database_for(
        &self,
        prefix: &str,
        partitions: i32,
    ) -> anyhow::Result<TestDatabase> {
        Ok(database_for(&self.postgres, prefix, partitions).await?.0)
    }

    /// Where PostgreSQL's data lies, and where Kafka's.
    #[must_use]
    pub fn folders(&self) -> [PathBuf; 2] {
        [self.postgres.data_dir(), self.broker.folder().to_owned()]
    }

    /// How Kafka is reached.
    #[must_use]
    pub fn kafka(&self) -> &KafkaSettings {
        &self.settings
    }

    /// Makes both topics anew and fills them.
    ///
    /// # Errors
    /// Kafka does not take them.
    pub async fn preload(&self, options: &WorkloadOptions) -> anyhow::Result<Loaded> {
        self.preload_as("", options, "none").await
    }

    /// The same under a prefix, compressed as told (`none`, `lz4`).
    ///
    /// # Errors
    /// Kafka does not take them.
    pub async fn preload_as(
        &self,
        prefix: &str,
        options: &WorkloadOptions,
        compression: &'static str,
    ) -> anyhow::Result<Loaded> {
        let topics = topics_as(&self.settings, prefix, options.partitions).await?;
        let brokers = self.brokers().to_owned();
        let workload = options.workload();
        let bar = bar("producing");
        tokio::task::spawn_blocking(move || {
            let [clicks, postbacks] = topics.as_slice() else {
                anyhow::bail!("two topics were made");
            };
            load(&brokers, clicks, postbacks, workload, compression, &bar)
        })
        .await?
        .context("preloading")
    }
}

/// A migrated database on a server, and both topics as its catalogue knows them.
///
/// # Errors
/// PostgreSQL fails.
pub async fn database_on(
    server: &DedicatedServer,
    partitions: i32,
) -> anyhow::Result<(TestDatabase, Vec<TopicRef>)> {
    database_for(server, "", partitions).await
}

async fn database_for(
    server: &DedicatedServer,
    prefix: &str,
    partitions: i32,
) -> anyhow::Result<(TestDatabase, Vec<TopicRef>)> {
    let database = TestDatabase::create_on(server).await;
    let client = connect(database.url()).await;
    let mut topics = Vec::new();
    for topic in [CLICKS, POSTBACKS] {
        topics.push(catalogue::register(&client, topic, prefix, partitions).await?);
    }
    Ok((database, topics))
}

/// Makes both topics anew in Kafka, empty.
///
/// # Errors
/// Kafka fails.
pub async fn fresh_topics(
    settings: &KafkaSettings,
    partitions: i32,
) -> anyhow::Result<Vec<TopicRef>> {
    topics_as(settings, "", partitions).await
}

/// The same under a prefix (`log.prefix`).
///
/// # Errors
/// Kafka fails.
pub async fn topics_as(
    settings: &KafkaSettings,
    prefix: &str,
    partitions: i32,
) -> anyhow::Result<Vec<TopicRef>> {
    let admin = KafkaAdmin::new(settings);
    let mut topics = Vec::new();
    for (no, name) in (1..).zip([CLICKS, POSTBACKS]) {
        let log_name = format!("{prefix}{name}");
        admin.delete_topic(&log_name).await?;
        admin.create_topic(&log_name, partitions, 1).await?;
        topics.push(TopicRef {
            no,
            name: name.to_owned(),
            log_name,
            partitions,
        });
    }
    Ok(topics)
}

/// What to hold up.
#[derive(Clone, Debug, clap::Args)]
pub struct StandOptions {
    #[command(flatten)]
    workload: WorkloadOptions,
    /// Further settings of PostgreSQL, `name=value`.
    #[arg(long)]
    postgres: Vec<String>,
}

/// Holds up a PostgreSQL and a Kafka with the workload in it, until it is ended; for a look by hand.
///
/// # Errors
/// As [`Stack::start`].
pub fn stand(options: &StandOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let stack = Stack::start_with(&options.postgres).await?;
        stack.preload(&options.workload).await?;
        println!("--brokers {}", stack.brokers());
        loop {
            let database = stack.fresh_database(options.workload.partitions).await?;
            println!("--database {}   (Enter: a fresh one)", database.url());
            let mut line = String::new();
            if std::io::stdin().read_line(&mut line)? == 0 {
                std::future::pending::<()>().await;
            }
        }
    })
}

/// A progress bar for people at a terminal.
#[must_use]
pub fn bar(what: &'static str) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg:>10} {bar:40} {human_pos}/{human_len} {per_sec} {eta}");
    let bar = ProgressBar::new(0).with_message(what);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
