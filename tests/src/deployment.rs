//! A deployment of a test: a database, a log, the product's processes over them, and what they have got done.

use crate::generator::{List, Topic};
use crate::postgres::{DedicatedServer, TestDatabase, connect};
use crate::process::{Launch, Process, Scratch, eventually};
use crate::recount::{Place, Produced, Report, recount_all};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_postgres::Client;

/// How long any single step of a test may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Which log.
#[derive(Clone, Debug)]
pub enum Log {
    /// Apache Kafka at these brokers, topics under this prefix.
    Kafka {
        /// `bootstrap.servers`.
        brokers: String,
        /// Prefix of topic names and of the group.
        prefix: String,
    },
    /// The Postgres log.
    Postgres,
}

/// Database, log and settings that all processes of a test share.
#[derive(Debug)]
pub struct Deployment {
    /// Where processes run and log.
    pub scratch: Scratch,
    /// The database, on a server of its own.
    pub database: TestDatabase,
    /// The server; `None` while a test has it in its hands.
    server: Option<DedicatedServer>,
    log: Log,
    partitions: i32,
    settings: BTreeMap<String, String>,
}

impl Deployment {
    /// A database on a server of its own, migrated, with the topics of a group made by the product's command line.
    ///
    /// # Errors
    /// Some part of it did not start; the reason is in the message.
    pub async fn start(name: &str, log: Log, partitions: i32) -> anyhow::Result<Deployment> {
        Deployment::start_with(name, log, partitions, &[]).await
    }

    /// As [`Deployment::start`], with settings that its topics are made under, too.
    ///
    /// # Errors
    /// As [`Deployment::start`].
    pub async fn start_with(
        name: &str,
        log: Log,
        partitions: i32,
        more: &[(&str, &str)],
    ) -> anyhow::Result<Deployment> {
        let server = tokio::task::spawn_blocking(DedicatedServer::start).await?;
        Deployment::start_on(server, name, log, partitions, more).await
    }

    /// As [`Deployment::start_with`], on a server of the caller's.
    ///
    /// # Errors
    /// As [`Deployment::start`].
    pub async fn start_on(
        server: DedicatedServer,
        name: &str,
        log: Log,
        partitions: i32,
        more: &[(&str, &str)],
    ) -> anyhow::Result<Deployment> {
        let database = TestDatabase::create_on(&server).await;
        let mut settings = BTreeMap::new();
        let mut set = |key: &str, value: &str| settings.insert(key.to_owned(), value.to_owned());
        set("log.partitions", &partitions.to_string());
        match &log {
            Log::Kafka { brokers, prefix } => {
                set("log.backend", "kafka");
                set("log.brokers", brokers);
                set("log.prefix", prefix);
            }
            Log::Postgres => {
                set("log.backend", "postgres");
            }
        }
        for (key, value) in more {
            set(key, value);
        }
        let deployment = Deployment {
            scratch: Scratch::new(name)?,
            database,
            server: Some(server),
            log,
            partitions,
            settings,
        };
        let create = deployment.launch("topics")?.args(["topics", "create"]);
        create.run(PATIENCE).await?;
        Ok(deployment)
    }

    /// Sets a key of `millrace.toml` for all processes started from now on.
    pub fn set(&mut self, key: &str, value: impl ToString) {
        self.settings.insert(key.to_owned(), value.to_string());
    }

    /// The product's command line with the deployment's settings.
    ///
    /// # Errors
    /// The product was not built.
    pub fn launch(&self, name: &str) -> anyhow::Result<Launch> {
        let mut launch =
            Launch::product(name, self.scratch.path())?.env("DATABASE_URL", self.database.url());
        for (key, value) in &self.settings {
            launch = launch.setting(key, value);
        }
        Ok(launch)
    }

    /// `millrace run --roles ROLE`, ready to be started.
    ///
    /// # Errors
    /// The product was not built.
    pub fn role(&self, role: &str, name: &str) -> anyhow::Result<Launch> {
        Ok(self
            .launch(name)?
            .args(["run", "--roles", role])
            .setting("http.doors", crate::process::free_address()?)
            .setting("http.admin", crate::process::free_address()?))
    }

    /// `millrace run --roles attribution`.
    ///
    /// # Errors
    /// The product was not built.
    pub fn attribution(&self, name: &str) -> anyhow::Result<Launch> {
        self.role("attribution", name)
    }

    /// A process that only delivers, to receivers on loopback.
    ///
    /// # Errors
    /// The product was not built.
    pub fn delivery(&self, name: &str) -> anyhow::Result<Launch> {
        Ok(self
            .role("delivery", name)?
            .setting("delivery.allowed_networks", "127.0.0.0/8")
            .setting("delivery.stub.enabled", "true")
            .setting("delivery.poll_ms", 20))
    }

    /// The database's address as `host:port`.
    #[must_use]
    pub fn database_address(&self) -> &str {
        let after = self.database.url().split_once('@').map_or("", |(_, r)| r);
        after.split_once('/').map_or(after, |(address, _)| address)
    }

    /// The server, to stop or kill it off the async threads.
    ///
    /// # Errors
    /// It failed to come back.
    pub async fn with_server<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&mut DedicatedServer) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let Some(mut server) = self.server.take() else {
            anyhow::bail!("the server is gone");
        };
        let (server, done) = tokio::task::spawn_blocking(move || {
            let done = act(&mut server);
            (server, done)
        })
        .await?;
        self.server = Some(server);
        Ok(done)
    }

    /// A connection that goes around any proxy.
    pub async fn store(&self) -> Client {
        connect(self.database.url()).await
    }

    /// The topics by number.
    ///
    /// # Errors
    /// The store failed.
    pub async fn topics(&self) -> anyhow::Result<BTreeMap<Topic, (i32, String)>> {
        let rows = self
            .store()
            .await
            .query(
                "SELECT name, topic_no, log_name FROM topics WHERE retired_at IS NULL",
                &[],
            )
            .await?;
        let mut topics = BTreeMap::new();
        for topic in [Topic::Clicks, Topic::Postbacks] {
            let row = rows
                .iter()
                .find(|r| r.get::<_, &str>(0) == topic.name())
                .ok_or_else(|| anyhow::anyhow!("no topic {} in the catalogue", topic.name()))?;
            topics.insert(topic, (row.get(1), row.get(2)));
        }
        Ok(topics)
    }

    /// Which log.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Produces a list, in its order, and waits for the log's acknowledgement of all of it.
    ///
    /// # Errors
    /// The log did not take a record.
    pub async fn produce(&self, list: List) -> anyhow::Result<Produced> {
        let lines = list.records.iter().map(|record| Line {
            topic: record.topic.name().to_owned(),
            key: record.key.clone(),
            payload: record.payload.clone(),
        });
        let places = self.append(lines.collect()).await?;
        Ok(Produced::new(list, places))
    }

    /// Produces records of any topics of the catalogue, in their order, and waits for the log's acknowledgement of all of them;
    /// answers the place of each.
    ///
    /// # Errors
    /// The log did not take a record, or a topic is not there.
    pub async fn append(&self, lines: Vec<Line>) -> anyhow::Result<Vec<Place>> {
        let mut store = self.store().await;
        let catalogue = millrace_topics::catalogue::load(&store).await?;
        match &self.log {
            Log::Kafka { brokers, .. } => {
                let brokers = brokers.clone();
                let produce = move || kafka_produce(&brokers, &catalogue, &lines);
                tokio::task::spawn_blocking(produce).await?
            }
            Log::Postgres => postgres_produce(&mut store, &catalogue, &lines).await,
        }
    }

    /// Records consumed so far (the sum of all positions), 0 while the store is away.
    pub async fn progress(&self) -> i64 {
        let look = async {
            let (client, connection) =
                tokio_postgres::connect(self.database.url(), tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            let sql = "SELECT coalesce(sum(next_offset), 0)::bigint FROM positions";
            Ok::<i64, tokio_postgres::Error>(client.query_one(sql, &[]).await?.get(0))
        };
        look.await.unwrap_or(0)
    }

    /// Waits until at least `records` are consumed, while `process` lives.
    ///
    /// # Errors
    /// Not in time, or the process ended before; the end of its log is in the message.
    pub async fn wait_for_progress(
        &self,
        process: &mut Process,
        records: i64,
    ) -> anyhow::Result<()> {
        let what = format!("{records} records consumed by {}", process.name());
        let seen = eventually(&what, PATIENCE, async || {
            if let Some(status) = process.ended() {
                anyhow::bail!("{} ended with {status}", process.name());
            }
            Ok((self.progress().await >= records).then_some(()))
        });
        match seen.await {
            Ok(()) => Ok(()),
            Err(e) => anyhow::bail!(
                "{e} (at {}):\n{}",
                self.progress().await,
                process.last_words(30)
            ),
        }
    }

    /// Waits until everything produced is consumed.
    ///
    /// # Errors
    /// Not in time; where the partitions stand is in the message.
    pub async fn settled(&self, produced: &Produced, within: Duration) -> anyhow::Result<()> {
        self.consumed(produced, within, false).await
    }

    /// Waits until everything produced is consumed, but for what stands behind a partition that stopped.
    ///
    /// # Errors
    /// Not in time; where the partitions stand is in the message.
    pub async fn at_rest(&self, produced: &Produced, within: Duration) -> anyhow::Result<()> {
        self.consumed(produced, within, true).await
    }

    async fn consumed(
        &self,
        produced: &Produced,
        within: Duration,
        or_stopped: bool,
    ) -> anyhow::Result<()> {
        let store = self.store().await;
        let ends = produced.ends();
        let waited = eventually("everything consumed", within, async || {
            let rows = store
                .query(
                    "SELECT topic_no, partition,
                            CASE WHEN $1 AND stopped_reason IS NOT NULL THEN 9223372036854775807 ELSE next_offset END
                     FROM positions JOIN ownership USING (group_name, partition)",
                    &[&or_stopped],
                )
                .await?;
            let stored: BTreeMap<(i32, i32), i64> = rows
                .iter()
                .map(|r| ((r.get(0), r.get(1)), r.get(2)))
                .collect();
            let done = ends.iter().all(|(at, end)| stored.get(at) >= Some(end));
            Ok(done.then_some(()))
        });
        if let Err(error) = waited.await {
            let rows = store
                .query(
                    "SELECT topic_no, partition, next_offset, epoch, owner, stopped_reason
                     FROM positions JOIN ownership USING (group_name, partition) ORDER BY 1, 2",
                    &[],
                )
                .await?;
            let lines: Vec<String> = rows
                .iter()
                .map(|r| {
                    let at = (r.get(0), r.get(1));
                    let (next, epoch): (i64, i64) = (r.get(2), r.get(3));
                    let (owner, stopped): (String, Option<String>) = (r.get(4), r.get(5));
                    let end = ends.get(&at).copied().unwrap_or(0);
                    format!("  {at:?}: {next} of {end}, epoch {epoch} of {owner} {stopped:?}")
                })
                .collect();
            anyhow::bail!("{error}\n{}", lines.join("\n"));
        }
        Ok(())
    }

    /// Waits until everything is consumed and recounts it, facts and counters.
    ///
    /// # Errors
    /// Not in time.
    pub async fn recounted(&self, produced: &Produced) -> anyhow::Result<Report> {
        self.settled(produced, PATIENCE).await?;
        recount_all(&self.store().await, produced).await
    }

    /// How many partitions each topic has.
    #[must_use]
    pub fn partitions(&self) -> i32 {
        self.partitions
    }

    /// The end of every process's log, for the message of a failed test.
    #[must_use]
    pub fn last_words(&self) -> String {
        let mut words = String::new();
        for entry in std::fs::read_dir(self.scratch.path())
            .into_iter()
            .flatten()
            .flatten()
        {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let from = lines.len().saturating_sub(40);
            words.push_str(&format!(
                "--- {}\n{}\n",
                entry.file_name().to_string_lossy(),
                lines[from..].join("\n")
            ));
        }
        words
    }
}

mod produce;
pub use produce::Line;
use produce::{kafka_produce, postgres_produce};

/// A place in the log by its parts.
fn place(topic_no: i32, partition: i32, offset: i64) -> Place {
    Place {
        topic_no,
        partition,
        offset,
    }
}
