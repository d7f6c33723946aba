//! Workload W into Kafka, as fast as the broker takes it.

use crate::workload::{Target, Totals, Workload};
use anyhow::Context;
use indicatif::ProgressBar;
use millrace_topics::contract::TopicRef;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use std::time::{Duration, Instant};

/// What was loaded.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// Counts.
    pub totals: Totals,
    /// How long it took.
    pub took: Duration,
}

/// Makes the workload and produces it into the two topics; the partition is the product's partitioner's choice, the
/// record's time its acceptance.
///
/// # Errors
/// Kafka does not take it.
pub fn load(
    brokers: &str,
    clicks: &TopicRef,
    postbacks: &TopicRef,
    mut workload: Workload,
    bar: &ProgressBar,
) -> anyhow::Result<Loaded> {
    let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("linger.ms", "20")
        .set("batch.size", "500000")
        .set("queue.buffering.max.kbytes", "262144")
        .set("queue.buffering.max.messages", "500000")
        .set("compression.type", "none")
        .create()
        .context("a producer")?;
    let started = Instant::now();
    bar.set_length(u64::from(workload.records()));
    let mut made = Workload::blank();
    while workload.next_record(&mut made) {
        let topic = match made.target {
            Target::Clicks => clicks,
            Target::Postbacks => postbacks,
        };
        let partition =
            millrace_topics::partitioner::partition(made.key.as_bytes(), topic.partitions);
        let mut record = BaseRecord::to(&topic.log_name)
            .key(&made.key)
            .payload(&made.payload)
            .partition(partition)
            .timestamp(made.accepted_micros / 1_000);
        loop {
            match producer.send(record) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    std::thread::park_timeout(Duration::from_millis(5));
                    record = back;
                }
                Err((e, _)) => return Err(e).context("producing"),
            }
        }
        bar.inc(1);
    }
    producer
        .flush(Duration::from_secs(60))
        .context("the broker acknowledges")?;
    bar.finish_and_clear();
    Ok(Loaded {
        totals: workload.totals(),
        took: started.elapsed(),
    })
}
