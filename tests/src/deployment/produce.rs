//! Puts a list into a log. Into Kafka by librdkafka alone, so that keys are partitioned by somebody else's code; into the
//! Postgres log by the product's appender, the only one there is.

use super::{Deployment, place};
use crate::generator::{List, Topic};
use crate::recount::Place;
use millrace_topics::contract::Outgoing;
use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    topics: &BTreeMap<Topic, (i32, String)>,
    list: &List,
) -> anyhow::Result<Vec<Place>> {
    let reports = Arc::new(Mutex::new(Reports {
        places: vec![None; list.records.len()],
        failed: None,
    }));
    let producer: BaseProducer<Collect> = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .set("linger.ms", "20")
        .set("message.timeout.ms", "60000")
        .create_with_context(Collect(reports.clone()))?;
    for (i, record) in list.records.iter().enumerate() {
        let (_, log_name) = &topics[&record.topic];
        let mut next = BaseRecord::with_opaque_to(log_name, Box::new(i))
            .key(&record.key)
            .payload(&record.payload);
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
    list.records
        .iter()
        .zip(&reports.places)
        .map(|(record, at)| {
            let (partition, offset) =
                at.ok_or_else(|| anyhow::anyhow!("a record was not acknowledged"))?;
            Ok(place(topics[&record.topic].0, partition, offset))
        })
        .collect()
}

/// Records of one transaction of the appender.
const APPENDED_AT_ONCE: usize = 1_000;

pub(super) async fn postgres_produce(
    deployment: &Deployment,
    list: &List,
) -> anyhow::Result<Vec<Place>> {
    let mut store = deployment.store().await;
    let catalogue = millrace_topics::catalogue::load(&store).await?;
    let mut places = Vec::with_capacity(list.records.len());
    for some in list.records.chunks(APPENDED_AT_ONCE) {
        let records = some
            .iter()
            .map(|record| {
                let topic = millrace_topics::catalogue::find(&catalogue, record.topic.name())?;
                Ok(Outgoing {
                    topic_no: topic.no,
                    key: record.key.clone().into(),
                    payload: record.payload.clone().into(),
                })
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let tx = store.transaction().await?;
        let positions = millrace_topics::pglog::append_in(&tx, &catalogue, &records).await?;
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
