//! Puts records into a log. Into Kafka by librdkafka alone, so that keys are partitioned by somebody else's code; into the
//! Postgres log by the product's appender, the only one there is.

use super::place;
use crate::recount::Place;
use millrace_topics::catalogue;
use millrace_topics::contract::{Outgoing, TopicRef};
use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_postgres::Client;

/// A record that is to be put into a log.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its topic, as the catalogue names it.
    pub topic: String,
    /// Its key.
    pub key: Vec<u8>,
    /// What it says.
    pub payload: Vec<u8>,
}

#[derive(Debug, Default)]
struct Reports {
    places: Vec<Option<(i32, i64)>>,
    failed: Option<String>,
}

#[derive(Clone)]
struct Collect(Arc<Mutex<Reports>>);

impl ClientContext for Collect {}

impl ProducerContext for Collect {
    type DeliveryOpaque = Box<usize>;

    fn delivery(&self, result: &DeliveryResult<'_>, at: Box<usize>) {
        let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(message) => {
                if let Some(slot) = reports.places.get_mut(*at) {
                    *slot = Some((message.partition(), message.offset()));
                }
            }
            Err((error, _)) => reports.failed = Some(error.to_string()),
        }
    }
}

pub(super) fn kafka_produce(
    brokers: &str,
    topics: &[TopicRef],
    lines: &[Line],
) -> anyhow::Result<Vec<Place>> {
    let reports = Arc::new(Mutex::new(Reports {
        places: vec![None; lines.len()],
        failed: None,
    }));
    let producer: BaseProducer<Collect> = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .set("linger.ms", "20")
        .set("message.timeout.ms", "60000")
        .create_with_context(Collect(reports.clone()))?;
    for (i, line) in lines.iter().enumerate() {
        let topic = catalogue::find(topics, &line.topic)?;
        let mut next = BaseRecord::with_opaque_to(&topic.log_name, Box::new(i))
            .key(&line.key)
            .payload(&line.payload);
        while let Err((error, back)) = producer.send(next) {
            if error != KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull) {
                return Err(error.into());
            }
            producer.poll(Duration::from_millis(50));
            next = back;
        }
        producer.poll(Duration::ZERO);
    }
    producer.flush(Duration::from_secs(60))?;
    let reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = &reports.failed {
        anyhow::bail!("Kafka did not take a record: {why}");
    }
    lines
        .iter()
        .zip(&reports.places)
        .map(|(line, at)| {
            let (partition, offset) =
                at.ok_or_else(|| anyhow::anyhow!("a record was not acknowledged"))?;
            Ok(place(
                catalogue::find(topics, &line.topic)?.no,
                partition,
                offset,
            ))
        })
        .collect()
}

/// Records of one transaction of the appender.
const APPENDED_AT_ONCE: usize = 1_000;

pub(super) async fn postgres_produce(
    store: &mut Client,
    topics: &[TopicRef],
    lines: &[Line],
) -> anyhow::Result<Vec<Place>> {
    let mut places = Vec::with_capacity(lines.len());
    for some in lines.chunks(APPENDED_AT_ONCE) {
        let records = some
            .iter()
            .map(|line| {
                Ok(Outgoing {
                    topic_no: catalogue::find(topics, &line.topic)?.no,
                    key: line.key.clone().into(),
                    payload: line.payload.clone().into(),
                })
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let tx = store.transaction().await?;
        let positions = millrace_topics::pglog::append_in(&tx, topics, &records).await?;
        tx.commit().await?;
        places.extend(
            records
                .iter()
                .zip(positions)
                .map(|(r, p)| place(r.topic_no, p.partition, p.offset)),
        );
    }
    Ok(places)
}
