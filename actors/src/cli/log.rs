//! The log as the settings name it, behind one face: topics, ends, a producer, a consumer.

use crate::postgres::pool::Database;
use crate::settings::{self, Backend, Settings};
use anyhow::{Context as _, bail};
use millrace_topics::catalogue::{self, GroupSpec};
use millrace_topics::contract::{
    BatchLimits, Consumer, PartitionHost, Producer, Subscription, TopicRef,
};
use millrace_topics::kafka::{self, KafkaAdmin, KafkaConsumer, KafkaProducer, KafkaSettings};
use millrace_topics::pglog::{
    self, Connector, ConsumerOptions, PgLogConsumer, PgLogProducer, ProducerOptions,
};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

/// How often a broker is asked for a topic that it does not know.
const HEARD_WITHIN: u32 = 10;

/// Beginning and end of one partition of one topic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// The topic's number.
    pub topic_no: i32,
    /// The partition.
    pub partition: i32,
    /// First offset kept.
    pub low: i64,
    /// Offset of the next record.
    pub high: i64,
}

/// One backend, ready to be asked.
#[derive(Clone)]
pub(super) enum Log {
    /// Tables of the same database.
    Postgres(Database),
    /// A cluster.
    Kafka(KafkaSettings),
}

impl Log {
    /// The log that the settings name.
    pub fn of(settings: &Settings, database: &Database) -> anyhow::Result<Log> {
        Log::on(settings.log.backend, settings, database)
    }

    /// The log of that backend, whatever the settings name now.
    pub fn on(backend: Backend, settings: &Settings, database: &Database) -> anyhow::Result<Log> {
        match backend {
            Backend::Postgres => Ok(Log::Postgres(database.for_role("log"))),
            Backend::Kafka => {
                let log = &settings.log;
                let Some(brokers) = log.brokers.clone() else {
                    bail!(
                        "log.backend is \"kafka\", but log.brokers names no broker (MILLRACE_LOG__BROKERS=host:9092)"
                    );
                };
                Ok(Log::Kafka(KafkaSettings {
                    brokers,
                    properties: log.properties.clone(),
                    protocol: match log.group_protocol {
                        settings::GroupProtocol::Auto => kafka::GroupProtocol::Auto,
                        settings::GroupProtocol::Consumer => kafka::GroupProtocol::Consumer,
                        settings::GroupProtocol::Classic => kafka::GroupProtocol::Classic,
                    },
                    linger_ms: log.linger_ms,
                    ack_timeout_ms: log.ack_timeout_ms,
                    max_record_bytes: log.max_record_bytes,
                    client_id: format!("millrace-{}", std::process::id()),
                    ..KafkaSettings::default()
                }))
            }
        }
    }

    /// Which backend.
    pub fn backend(&self) -> Backend {
        match self {
            Log::Postgres(_) => Backend::Postgres,
            Log::Kafka(_) => Backend::Kafka,
        }
    }

    /// For people.
    pub fn name(&self) -> String {
        match self {
            Log::Postgres(_) => "the Postgres log".to_owned(),
            Log::Kafka(s) => format!("Kafka at {}", s.brokers),
        }
    }

    /// Makes a registered topic in the log, unless it is there with as many partitions.
    pub async fn create(
        &self,
        client: &Client,
        topic: &TopicRef,
        replication: i32,
    ) -> anyhow::Result<()> {
        match self {
            Log::Postgres(_) => pglog::create_topic(client, topic).await?,
            Log::Kafka(s) => {
                let admin = KafkaAdmin::new(s);
                let made = admin
                    .create_topic(&topic.log_name, topic.partitions, replication)
                    .await?;
                if !made {
                    self.agrees(client, topic).await?;
                }
            }
        }
        Ok(())
    }

    /// How many partitions the log has of a topic; `None`: there is no such topic.
    pub async fn partitions(
        &self,
        client: &Client,
        topic: &TopicRef,
    ) -> anyhow::Result<Option<i32>> {
        match self {
            Log::Postgres(_) => {
                let heads = pglog::watermarks(client, std::slice::from_ref(topic)).await?;
                Ok(i32::try_from(heads.len()).ok().filter(|n| *n > 0))
            }
            Log::Kafka(s) => Ok(KafkaAdmin::new(s).partitions(&topic.log_name).await?),
        }
    }

    /// As [`Log::partitions`], patient with a broker that has not heard yet of a topic that was just made.
    async fn told(&self, client: &Client, topic: &TopicRef) -> anyhow::Result<Option<i32>> {
        for _ in 0..HEARD_WITHIN {
            match self.partitions(client, topic).await? {
                None if self.backend() == Backend::Kafka => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                told => return Ok(told),
            }
        }
        Ok(None)
    }

    /// Fails unless log and catalogue agree on a topic.
    pub async fn agrees(&self, client: &Client, topic: &TopicRef) -> anyhow::Result<()> {
        match self.told(client, topic).await? {
            Some(n) if n == topic.partitions => match self.remade(client, topic).await? {
                None => Ok(()),
                Some(_) => bail!(remade(topic)),
            },
            Some(n) => bail!(
                "topic `{}` has {n} partitions in {}, but {} in the catalogue; counts change only by `millrace topics grow`",
                topic.log_name,
                self.name(),
                topic.partitions
            ),
            None => bail!(
                "topic `{}` is not there in {}; `millrace topics create` makes it",
                topic.log_name,
                self.name()
            ),
        }
    }

    /// The log's id of a topic, where it has one.
    async fn topic_id(&self, topic: &TopicRef) -> anyhow::Result<Option<String>> {
        match self {
            Log::Postgres(_) => Ok(None),
            Log::Kafka(s) => {
                let names = vec![topic.log_name.clone()];
                let ids = KafkaAdmin::new(s).topic_ids(names).await?;
                Ok(ids.into_iter().flatten().next())
            }
        }
    }

    /// The id of the topic that has taken the place of the catalogue's, if another has.
    pub async fn remade(
        &self,
        client: &Client,
        topic: &TopicRef,
    ) -> anyhow::Result<Option<String>> {
        let known: Option<String> = client
            .query_one(
                "SELECT topic_id FROM topics WHERE topic_no = $1",
                &[&topic.no],
            )
            .await?
            .get(0);
        let Some(known) = known else { return Ok(None) };
        Ok(self.topic_id(topic).await?.filter(|id| *id != known))
    }

    /// Writes down which topics these are, where nobody has yet.
    pub async fn remember(&self, client: &Client, topics: &[TopicRef]) -> anyhow::Result<()> {
        for topic in topics {
            let unknown = client
                .query_opt(
                    "SELECT 1 FROM topics WHERE topic_no = $1 AND topic_id IS NULL",
                    &[&topic.no],
                )
                .await?;
            if unknown.is_none() {
                continue;
            }
            if let Some(id) = self.topic_id(topic).await? {
                client
                    .execute(
                        "UPDATE topics SET topic_id = $2 WHERE topic_no = $1 AND topic_id IS NULL",
                        &[&topic.no, &id],
                    )
                    .await?;
            }
        }
        Ok(())
    }

    /// Beginning and end of every partition of these topics.
    pub async fn ends(&self, client: &Client, topics: &[TopicRef]) -> anyhow::Result<Vec<Ends>> {
        let mut ends = Vec::new();
        match self {
            Log::Postgres(_) => {
                for w in pglog::watermarks(client, topics).await? {
                    ends.push(Ends {
                        topic_no: w.topic_no,
                        partition: w.partition,
                        low: w.low,
                        high: w.high,
                    });
                }
            }
            Log::Kafka(s) => {
                let admin = KafkaAdmin::new(s);
                for topic in topics {
                    for w in admin.watermarks(&topic.log_name, topic.partitions).await? {
                        ends.push(Ends {
                            topic_no: topic.no,
                            partition: w.partition,
                            low: w.low,
                            high: w.high,
                        });
                    }
                }
            }
        }
        Ok(ends)
    }

    /// Starts a producer for these topics.
    pub fn producer(
        &self,
        log: &settings::Log,
        topics: &[TopicRef],
    ) -> anyhow::Result<Arc<dyn Producer>> {
        Ok(match self {
            Log::Postgres(database) => {
                let options = ProducerOptions {
                    max_record_bytes: log.max_record_bytes,
                    linger: Duration::from_millis(log.linger_ms),
                    give_up_after: Duration::from_millis(log.ack_timeout_ms),
                    ..ProducerOptions::default()
                };
                Arc::new(PgLogProducer::start(connector(database), topics, options)?)
            }
            Log::Kafka(s) => Arc::new(KafkaProducer::start(s, topics)?),
        })
    }

    /// Starts a group's consumer.
    pub fn consumer(
        &self,
        runtime: &settings::Runtime,
        group: &str,
        topics: Vec<TopicRef>,
        host: Arc<dyn PartitionHost>,
    ) -> anyhow::Result<Arc<dyn Consumer>> {
        let subscription = Subscription {
            group: group.to_owned(),
            topics,
            limits: BatchLimits {
                records: runtime.batch_records,
                bytes: runtime.batch_bytes,
                high_records: runtime.batch_records.saturating_mul(2),
                high_bytes: runtime.batch_bytes.saturating_mul(2),
            },
        };
        Ok(match self {
            Log::Postgres(database) => Arc::new(PgLogConsumer::start(
                connector(database),
                subscription,
                host,
                ConsumerOptions::default(),
            )?),
            Log::Kafka(s) => Arc::new(KafkaConsumer::start(s, subscription, host)?),
        })
    }
}

/// What is said of a topic that was deleted and made anew.
pub(super) fn remade(topic: &TopicRef) -> String {
    format!(
        "topic `{}` {REMADE}, and positions mean nothing in it; stop every process, then `millrace topics adopt --reason …` reads \
         it from its beginning (what was unread in the former one is lost)",
        topic.log_name
    )
}

/// The words of it that are looked for.
pub(super) const REMADE: &str = "was deleted and made anew behind the catalogue";

/// Connections of the Postgres log's own threads.
pub(super) fn connector(database: &Database) -> Connector {
    Connector::new(database.config().clone(), database.tls())
}

/// The word of a backend in `topics.log_id`: a topic belongs to the log it was made in, and its positions mean nothing in
/// another.
pub(super) fn word(backend: Backend) -> &'static str {
    match backend {
        Backend::Postgres => "postgres",
        Backend::Kafka => "kafka",
    }
}

/// The live topics, after checking that they belong to this log and that each group's counts are equal.
pub(super) async fn live_topics(client: &Client, log: &Log) -> anyhow::Result<Vec<TopicRef>> {
    belong(client, log.backend()).await?;
    let topics = catalogue::load(client).await?;
    catalogue::serves_all_groups(&topics)?;
    Ok(topics)
}

/// Fails if a live topic was made in another log than `backend`.
pub(super) async fn belong(client: &Client, backend: Backend) -> anyhow::Result<()> {
    let row = client
        .query_opt(
            "SELECT name, log_id FROM topics WHERE retired_at IS NULL AND log_id <> $1 LIMIT 1",
            &[&word(backend)],
        )
        .await?;
    match row {
        None => Ok(()),
        Some(row) => {
            let (name, other): (String, String) = (row.get(0), row.get(1));
            bail!(
                "topic `{name}` was made in the {other} log, the settings name {}; go back, or stop every process, let \
                 everything be consumed, and run `millrace topics switch`",
                word(backend)
            )
        }
    }
}

/// Registers and makes every topic of these groups that is missing; answers all. New topics of a group get the count of those that
/// are there.
pub(super) async fn create_topics(
    client: &Client,
    log: &Log,
    settings: &settings::Log,
    groups: &[GroupSpec],
) -> anyhow::Result<Vec<TopicRef>> {
    belong(client, log.backend()).await?;
    let before = catalogue::load(client).await?;
    for group in groups {
        let sibling = before
            .iter()
            .find(|t| group.topics.contains(&t.name.as_str()));
        let count = sibling.map_or(settings.partitions, |t| t.partitions);
        for name in group.topics {
            let topic = catalogue::register(client, name, &settings.prefix, count)
                .await
                .with_context(|| format!("registering topic `{name}`"))?;
            client
                .execute(
                    "UPDATE topics SET log_id = $2 WHERE topic_no = $1 AND log_id IS NULL",
                    &[&topic.no, &word(log.backend())],
                )
                .await?;
            log.create(client, &topic, settings.replication)
                .await
                .with_context(|| format!("making topic `{}` in {}", topic.log_name, log.name()))?;
        }
    }
    let topics = live_topics(client, log).await?;
    log.remember(client, &topics).await?;
    Ok(topics)
}
