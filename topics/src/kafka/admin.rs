//! Topics of Kafka: make them, count their partitions, grow them, ask for their ends.
//!
//! Every request is bounded to ten seconds and tried again with a fresh client: in the first seconds after a broker's death an
//! admin request can hang for its whole minute although the cluster has long recovered.

use super::client::Quiet;
use super::settings::{KafkaSettings, KafkaSetupError};
use super::topic_ids;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use std::time::{Duration, Instant};

/// One request at most.
const REQUEST: Duration = Duration::from_secs(10);
/// All tries of one request together.
const ALL: Duration = Duration::from_secs(45);

/// Why the cluster did not do it.
#[derive(Debug, thiserror::Error)]
pub enum KafkaAdminError {
    /// The settings are wrong.
    #[error(transparent)]
    Setup(#[from] KafkaSetupError),
    /// The cluster is away, or did not answer in time.
    #[error("Kafka: {0}")]
    Unavailable(String),
    /// The cluster refuses it.
    #[error("Kafka refuses topic `{topic}`: {reason}")]
    Refused {
        /// The topic.
        topic: String,
        /// Its words.
        reason: String,
    },
}

/// First offset kept and next offset to be written of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// The partition.
    pub partition: i32,
    /// The first offset that is still there.
    pub low: i64,
    /// The offset that the next record gets.
    pub high: i64,
}

/// Administers topics. Cheap to make; holds no connection between requests.
#[derive(Clone, Debug)]
pub struct KafkaAdmin {
    settings: KafkaSettings,
}

impl KafkaAdmin {
    /// An administrator of the cluster that `settings` names.
    #[must_use]
    pub fn new(settings: &KafkaSettings) -> KafkaAdmin {
        KafkaAdmin {
            settings: settings.clone(),
        }
    }

    fn admin(&self) -> Result<AdminClient<Quiet>, KafkaSetupError> {
        Ok(AdminClient::from_config_and_context(
            &self.settings.base()?,
            Quiet,
        )?)
    }

    /// Creates a topic unless it is there; answers whether it was made now, once a broker tells of it: the controller says yes
    /// before the brokers know. Its `max.message.bytes` takes a full request of the producer.
    ///
    /// # Errors
    /// [`KafkaAdminError`].
    pub async fn create_topic(
        &self,
        name: &str,
        partitions: i32,
        replication: i32,
    ) -> Result<bool, KafkaAdminError> {
        let bytes = self.settings.topic_message_bytes().to_string();
        let answer = self
            .tried(|| async {
                let admin = self.admin()?;
                let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(replication))
                    .set("max.message.bytes", &bytes);
                Ok(admin.create_topics([&topic], &options()).await)
            })
            .await?;
        match answer {
            Ok(()) => self.until_told(name).await.map(|()| true),
            Err(RDKafkaErrorCode::TopicAlreadyExists) => Ok(false),
            Err(code) => Err(refused(name, code)),
        }
    }

    async fn until_told(&self, name: &str) -> Result<(), KafkaAdminError> {
        let deadline = Instant::now() + ALL;
        while self.partitions(name).await?.is_none() {
            if Instant::now() >= deadline {
                let reason = format!("`{name}` was made, and no broker tells of it");
                return Err(KafkaAdminError::Unavailable(reason));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Raises the number of partitions of a topic to `partitions`.
    ///
    /// # Errors
    /// [`KafkaAdminError`]; Kafka refuses to lower it.
    pub async fn grow_topic(&self, name: &str, partitions: i32) -> Result<(), KafkaAdminError> {
        let count = usize::try_from(partitions).unwrap_or(0);
        self.tried(|| async {
            let admin = self.admin()?;
            let request = NewPartitions::new(name, count);
            Ok(admin.create_partitions([&request], &options()).await)
        })
        .await?
        .map_err(|code| refused(name, code))
    }

    /// Deletes a topic; one that is not there is no error.
    ///
    /// # Errors
    /// [`KafkaAdminError`].
    pub async fn delete_topic(&self, name: &str) -> Result<(), KafkaAdminError> {
        let answer = self
            .tried(|| async {
                let admin = self.admin()?;
                Ok(admin.delete_topics(&[name], &options()).await)
            })
            .await?;
        match answer {
            Ok(()) | Err(RDKafkaErrorCode::UnknownTopicOrPartition) => Ok(()),
            Err(code) => Err(refused(name, code)),
        }
    }

    /// How many partitions a topic has; `None` if there is no such topic.
    ///
    /// # Errors
    /// [`KafkaAdminError`].
    pub async fn partitions(&self, name: &str) -> Result<Option<i32>, KafkaAdminError> {
        let name = name.to_owned();
        self.asked(move |client| {
            let metadata = client.fetch_metadata(Some(&name), REQUEST)?;
            let Some(topic) = metadata.topics().iter().find(|t| t.name() == name) else {
                return Ok(None);
            };
            match topic.error() {
                None => Ok(i32::try_from(topic.partitions().len()).ok()),
                Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART) => Ok(None),
                Some(error) => Err(KafkaError::MetadataFetch(error.into())),
            }
        })
        .await
    }

    /// First and next offset of each of the first `partitions` partitions of a topic.
    ///
    /// # Errors
    /// [`KafkaAdminError`].
    pub async fn watermarks(
        &self,
        name: &str,
        partitions: i32,
    ) -> Result<Vec<Watermarks>, KafkaAdminError> {
        let name = name.to_owned();
        self.asked(move |client| {
            (0..partitions)
                .map(|partition| {
                    let (low, high) = client.fetch_watermarks(&name, partition, REQUEST)?;
                    Ok(Watermarks {
                        partition,
                        low,
                        high,
                    })
                })
                .collect()
        })
        .await
    }

    /// The cluster's ids of these topics, in their order: they tell a topic that was made anew from the one before. `None`: there
    /// is no such topic, or the brokers give topics no ids.
    ///
    /// # Errors
    /// [`KafkaAdminError`].
    pub async fn topic_ids(
        &self,
        names: Vec<String>,
    ) -> Result<Vec<Option<String>>, KafkaAdminError> {
        self.asked(move |client| topic_ids::of(client.client(), &names, REQUEST))
            .await
    }

    /// Runs an admin request until it is answered: each try bounded, each with a fresh client. The inner result is the
    /// cluster's word on the topic.
    async fn tried<F, Fut>(
        &self,
        mut request: F,
    ) -> Result<Result<(), RDKafkaErrorCode>, KafkaAdminError>
    where
        F: FnMut() -> Fut,
        Fut: Future<
            Output = Result<
                Result<Vec<Result<String, (String, RDKafkaErrorCode)>>, KafkaError>,
                KafkaSetupError,
            >,
        >,
    {
        let deadline = Instant::now() + ALL;
        loop {
            let reason =
                match tokio::time::timeout(REQUEST + Duration::from_secs(1), request()).await {
                    Err(_) => "no answer in time".to_owned(),
                    Ok(Err(setup)) => return Err(setup.into()),
                    Ok(Ok(Err(error))) => error.to_string(),
                    Ok(Ok(Ok(topics))) => match topics.into_iter().next() {
                        None | Some(Ok(_)) => return Ok(Ok(())),
                        Some(Err((_, code))) if transient(code) => code.to_string(),
                        Some(Err((_, code))) => return Ok(Err(code)),
                    },
                };
            if Instant::now() >= deadline {
                return Err(KafkaAdminError::Unavailable(reason));
            }
            tracing::debug!(reason, "kafka admin: trying again with a fresh client");
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// Runs a blocking question on a thread of its own, with a fresh client each try.
    async fn asked<T, F>(&self, question: F) -> Result<T, KafkaAdminError>
    where
        T: Send + 'static,
        F: Fn(&BaseConsumer<Quiet>) -> Result<T, KafkaError> + Send + 'static,
    {
        let mut config = self.settings.base()?;
        config.set("allow.auto.create.topics", "false");
        let asking = tokio::task::spawn_blocking(move || {
            let deadline = Instant::now() + ALL;
            loop {
                let client: BaseConsumer<Quiet> =
                    BaseConsumer::from_config_and_context(&config, Quiet)
                        .map_err(KafkaSetupError::from)?;
                match question(&client) {
                    Ok(answer) => return Ok(answer),
                    Err(error) if Instant::now() >= deadline => {
                        return Err(KafkaAdminError::Unavailable(error.to_string()));
                    }
                    Err(error) => {
                        tracing::debug!(%error, "kafka admin: asking again with a fresh client");
                        std::thread::sleep(Duration::from_millis(250));
                    }
                }
            }
        });
        asking
            .await
            .map_err(|e| KafkaAdminError::Unavailable(e.to_string()))?
    }
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(REQUEST))
        .operation_timeout(Some(REQUEST))
}

fn refused(topic: &str, code: RDKafkaErrorCode) -> KafkaAdminError {
    KafkaAdminError::Refused {
        topic: topic.to_owned(),
        reason: code.to_string(),
    }
}

/// Errors that pass by themselves while a cluster starts or moves its leaders.
fn transient(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::OperationTimedOut
            | RDKafkaErrorCode::RequestTimedOut
            | RDKafkaErrorCode::BrokerTransportFailure
            | RDKafkaErrorCode::NotController
            | RDKafkaErrorCode::LeaderNotAvailable
            | RDKafkaErrorCode::BrokerNotAvailable
            | RDKafkaErrorCode::CoordinatorNotAvailable
    )
}
