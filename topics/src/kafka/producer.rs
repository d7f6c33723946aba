//! Producing into Kafka: idempotent, acknowledged by all in-sync replicas, one delivery report a record.
//!
//! The cost of a record is what a door pays for durability, so there is little of it: one allocation for the way back (the
//! acknowledgement travels through librdkafka as a boxed sender), one copy of the bytes, no task and no lock beyond
//! librdkafka's own. One thread polls for delivery reports for as long as the producer lives.

use super::client;
use super::settings::{KafkaSettings, KafkaSetupError};
use crate::contract::{
    Acknowledgement, BoxFuture, Outgoing, Position, ProduceError, Producer, TopicRef,
};
use crate::partitioner;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext, PurgeConfig};
use rdkafka::{ClientConfig, ClientContext};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

type Answer = Result<Position, ProduceError>;

/// Callbacks of the producer.
struct Reports {
    max_record_bytes: usize,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        client::note(&error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<oneshot::Sender<Answer>>;

    fn delivery(&self, report: &DeliveryResult<'_>, sender: Self::DeliveryOpaque) {
        let answer = match report {
            // A retry that Kafka recognised as its own repeat is acknowledged without an offset (-1).
            Ok(message) => Ok(Position {
                partition: message.partition(),
                offset: message.offset(),
            }),
            Err((error, message)) => Err(refusal(
                error,
                message.key_len() + message.payload_len(),
                self.max_record_bytes,
            )),
        };
        // Nobody waits any longer: the door gave up first.
        drop(sender.send(answer));
    }
}

/// What an error means to the caller. Kafka refuses a whole batch of records when the batch is too large for a topic: a record
/// that is itself within the limit is then not the culprit, and may be tried again.
fn refusal(error: &KafkaError, bytes: usize, limit: usize) -> ProduceError {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::MessageSizeTooLarge) if bytes > limit => {
            ProduceError::TooLarge { bytes, limit }
        }
        Some(RDKafkaErrorCode::QueueFull) => ProduceError::QueueFull,
        _ => ProduceError::Unavailable(error.to_string()),
    }
}

struct Shared {
    /// (topic number, its name in Kafka, partitions), by number.
    routes: Vec<(i32, String, i32)>,
    max_record_bytes: usize,
    config: ClientConfig,
    /// Replaced when librdkafka declares it broken for good (a fatal error of the idempotent producer).
    client: RwLock<Arc<BaseProducer<Reports>>>,
    closed: AtomicBool,
    stop: AtomicBool,
    /// One probe at a time, so that probes of an absent broker do not pile up on blocking threads.
    probe: tokio::sync::Mutex<()>,
}

impl Shared {
    fn make(
        config: &ClientConfig,
        max_record_bytes: usize,
    ) -> Result<Arc<BaseProducer<Reports>>, KafkaError> {
        BaseProducer::from_config_and_context(config, Reports { max_record_bytes }).map(Arc::new)
    }

    fn client(&self) -> Arc<BaseProducer<Reports>> {
        Arc::clone(&self.client.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn send(&self, record: &Outgoing, sender: Box<oneshot::Sender<Answer>>) {
        let refuse = |sender: Box<oneshot::Sender<Answer>>, error| drop(sender.send(Err(error)));
        if self.closed.load(Ordering::Acquire) {
            return refuse(sender, ProduceError::Closed);
        }
        let Some((_, topic, partitions)) = self.routes.iter().find(|r| r.0 == record.topic_no)
        else {
            return refuse(sender, ProduceError::UnknownTopic(record.topic_no));
        };
        let bytes = record.key.len() + record.payload.len();
        if bytes > self.max_record_bytes {
            let limit = self.max_record_bytes;
            return refuse(sender, ProduceError::TooLarge { bytes, limit });
        }
        let out = BaseRecord::with_opaque_to(topic, sender)
            .partition(partitioner::partition(&record.key, *partitions))
            .key(record.key.as_ref())
            .payload(record.payload.as_ref());
        let client = self.client.read().unwrap_or_else(PoisonError::into_inner);
        if let Err((error, out)) = client.send::<[u8], [u8]>(out) {
            refuse(
                out.delivery_opaque,
                refusal(&error, bytes, self.max_record_bytes),
            );
        }
    }

    /// The poll thread: always on, or reports (and librdkafka's own events) would pile up.
    fn poll(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let client = self.client();
            client.poll(Duration::from_millis(100));
            if let Some((code, reason)) = client.client().fatal_error() {
                tracing::warn!(%code, reason, "kafka producer: fatal error, starting anew");
                match Shared::make(&self.config, self.max_record_bytes) {
                    Ok(new) => {
                        *self.client.write().unwrap_or_else(PoisonError::into_inner) = new;
                        // Dropping the old one below fails what it still holds.
                    }
                    Err(error) => tracing::warn!(%error, "kafka producer: cannot start anew"),
                }
            }
        }
    }

    fn probe(&self, timeout: Duration) -> Result<(), String> {
        let client = self.client();
        if let Some((code, reason)) = client.client().fatal_error() {
            return Err(format!("{code}: {reason}"));
        }
        let topic = self.routes.first().map(|r| r.1.as_str());
        let metadata = client
            .client()
            .fetch_metadata(topic, timeout)
            .map_err(|e| format!("Kafka does not answer: {e}"))?;
        for topic in metadata.topics() {
            if let Some(error) = topic.error() {
                let code = RDKafkaErrorCode::from(error);
                return Err(format!("topic {}: {code}", topic.name()));
            }
            if let Some(p) = topic.partitions().iter().find(|p| p.leader() < 0) {
                return Err(format!(
                    "topic {}, partition {}: no leader",
                    topic.name(),
                    p.id()
                ));
            }
        }
        Ok(())
    }
}

/// The producer. Dropping it fails what is still under way; [`Producer::close`] first waits for it.
pub struct KafkaProducer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl KafkaProducer {
    /// Starts a producer for the topics of `topics`. Brokers need not be there yet.
    ///
    /// # Errors
    /// The settings are wrong, or the machine gives no thread.
    pub fn start(
        settings: &KafkaSettings,
        topics: &[TopicRef],
    ) -> Result<KafkaProducer, KafkaSetupError> {
        let mut config = settings.base()?;
        let timeout = settings.ack_timeout_ms.max(1);
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            // Beyond it a report says so, whatever the broker does; the linger must lie below.
            .set("message.timeout.ms", timeout.to_string())
            .set("linger.ms", settings.linger_ms.min(timeout - 1).to_string())
            .set("message.max.bytes", settings.request_bytes().to_string())
            .set("queue.buffering.max.messages", "1000000")
            .set(
                "queue.buffering.max.kbytes",
                (settings.queue_bytes / 1024).max(1_024).to_string(),
            );
        let client = Shared::make(&config, settings.max_record_bytes)?;
        let shared = Arc::new(Shared {
            routes: topics
                .iter()
                .map(|t| (t.no, t.log_name.clone(), t.partitions))
                .collect(),
            max_record_bytes: settings.max_record_bytes,
            config,
            client: RwLock::new(client),
            closed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            probe: tokio::sync::Mutex::new(()),
        });
        let polled = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("kafka-producer".to_owned())
            .spawn(move || polled.poll())?;
        Ok(KafkaProducer {
            shared,
            thread: Some(thread),
        })
    }
}

impl Producer for KafkaProducer {
    fn produce(&self, record: Outgoing) -> Acknowledgement {
        let (sender, receiver) = oneshot::channel();
        self.shared.send(&record, Box::new(sender));
        receiver
    }

    fn health(&self, timeout: Duration) -> BoxFuture<'_, Result<(), String>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            if shared.closed.load(Ordering::Acquire) {
                return Err(ProduceError::Closed.to_string());
            }
            let asking = async {
                let _one = shared.probe.lock().await;
                let probed = Arc::clone(&shared);
                tokio::task::spawn_blocking(move || probed.probe(timeout))
                    .await
                    .unwrap_or_else(|e| Err(e.to_string()))
            };
            tokio::time::timeout(timeout, asking)
                .await
                .unwrap_or_else(|_| Err(format!("Kafka does not answer within {timeout:?}")))
        })
    }

    fn close(&self, timeout: Duration) -> BoxFuture<'_, ()> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            shared.closed.store(true, Ordering::Release);
            let flushed = tokio::task::spawn_blocking(move || {
                let client = shared.client();
                if let Err(error) = client.flush(timeout) {
                    tracing::warn!(%error, left = client.in_flight_count(), "kafka producer: closed with records under way");
                    // Their senders get an answer now, not after the ack timeout.
                    client.purge(PurgeConfig::default().queue().inflight());
                }
            });
            if let Err(error) = flushed.await {
                tracing::warn!(%error, "kafka producer: flush failed");
            }
        })
    }
}

impl Drop for KafkaProducer {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn topic() -> TopicRef {
        TopicRef {
            no: 1,
            name: "clicks".to_owned(),
            log_name: "clicks".to_owned(),
            partitions: 4,
        }
    }

    fn record(topic_no: i32, bytes: usize) -> Outgoing {
        Outgoing {
            topic_no,
            key: Bytes::from_static(b"k"),
            payload: Bytes::from(vec![b'x'; bytes]),
        }
    }

    #[tokio::test]
    async fn what_cannot_be_sent_is_refused_at_once() {
        let settings = KafkaSettings {
            // Nobody listens there.
            brokers: "127.0.0.1:1".to_owned(),
            max_record_bytes: 100,
            ack_timeout_ms: 300,
            ..KafkaSettings::default()
        };
        let producer = KafkaProducer::start(&settings, &[topic()]).unwrap();
        assert_eq!(
            producer.produce(record(2, 1)).await.unwrap(),
            Err(ProduceError::UnknownTopic(2))
        );
        assert_eq!(
            producer.produce(record(1, 100)).await.unwrap(),
            Err(ProduceError::TooLarge {
                bytes: 101,
                limit: 100
            })
        );
        // Without a broker the record fails at the ack timeout, not later.
        let late = tokio::time::timeout(Duration::from_secs(5), producer.produce(record(1, 1)));
        assert!(matches!(
            late.await.unwrap().unwrap(),
            Err(ProduceError::Unavailable(_))
        ));
        assert!(producer.health(Duration::from_millis(200)).await.is_err());
        producer.close(Duration::from_millis(200)).await;
        assert_eq!(
            producer.produce(record(1, 1)).await.unwrap(),
            Err(ProduceError::Closed)
        );
    }
}
