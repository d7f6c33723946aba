//! Workload W into Kafka, as fast as the broker takes it.

use crate::workload::{Made, Target, Totals, Workload};
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

/// Makes the workload and produces it into the two topics, in order; the partition is the product's partitioner's choice, the
/// record's time its acceptance.
///
/// # Errors
/// Kafka does not take it.
pub fn load(
    brokers: &str,
    clicks: &TopicRef,
    postbacks: &TopicRef,
    mut workload: Workload,
    compression: &str,
    bar: &ProgressBar,
) -> anyhow::Result<Loaded> {
    let filler = Filler::new(brokers, [clicks, postbacks], 20, compression)?;
    let started = Instant::now();
    bar.set_length(u64::from(workload.records()));
    let mut made = Workload::blank();
    while workload.next_record(&mut made) {
        filler.put(&made, made.accepted_micros / 1_000)?;
        bar.inc(1);
    }
    filler.flush()?;
    bar.finish_and_clear();
    Ok(Loaded {
        totals: workload.totals(),
        took: started.elapsed(),
    })
}

/// Puts records of a workload into the two topics.
pub struct Filler {
    producer: ThreadedProducer<DefaultProducerContext>,
    topics: [TopicRef; 2],
}

impl Filler {
    /// A producer for clicks and postbacks; `linger` in milliseconds.
    ///
    /// # Errors
    /// librdkafka refuses it.
    pub fn new(
        brokers: &str,
        topics: [&TopicRef; 2],
        linger: u32,
        compression: &str,
    ) -> anyhow::Result<Filler> {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("linger.ms", linger.to_string())
            .set("batch.size", "500000")
            .set("queue.buffering.max.kbytes", "262144")
            .set("queue.buffering.max.messages", "500000")
            .set("compression.type", compression)
            .create()
            .context("a producer")?;
        Ok(Filler {
            producer,
            topics: topics.map(Clone::clone),
        })
    }

    /// Queues a record under a time (milliseconds since 1970); waits while the queue is full.
    ///
    /// # Errors
    /// Kafka does not take it.
    pub fn put(&self, made: &Made, time: i64) -> anyhow::Result<()> {
        let [clicks, postbacks] = &self.topics;
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
            .timestamp(time);
        loop {
            match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    std::thread::park_timeout(Duration::from_millis(5));
                    record = back;
                }
                Err((e, _)) => return Err(e).context("producing"),
            }
        }
    }

    /// Waits until the broker has acknowledged everything.
    ///
    /// # Errors
    /// It does not within a minute.
    pub fn flush(&self) -> anyhow::Result<()> {
        self.producer
            .flush(Duration::from_secs(60))
            .context("the broker acknowledges")
    }
}
