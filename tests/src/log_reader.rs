//! Reads what a log holds, from the first record to the last, by librdkafka alone: no product code, no group.

use crate::recount::Place;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Where topics end.
pub struct Watermarks(BaseConsumer);

impl Watermarks {
    /// Over a connection of its own.
    ///
    /// # Errors
    /// librdkafka's.
    pub fn new(brokers: &str) -> anyhow::Result<Watermarks> {
        let consumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("group.id", "reader-of-ends")
            .set("reconnect.backoff.max.ms", "250")
            .create()?;
        Ok(Watermarks(consumer))
    }

    /// The end of each partition of a topic. Blocks.
    ///
    /// # Errors
    /// Kafka does not answer within a minute.
    pub fn ends(&self, topic: &str, partitions: i32) -> anyhow::Result<Vec<(i32, i64)>> {
        let until = Instant::now() + PATIENCE;
        let mut all = Vec::new();
        for partition in 0..partitions {
            all.push((partition, watermarks(&self.0, topic, partition, until)?.1));
        }
        Ok(all)
    }
}

/// First and last of a partition, asked again until the time is up.
fn watermarks(
    consumer: &BaseConsumer,
    topic: &str,
    partition: i32,
    until: Instant,
) -> anyhow::Result<(i64, i64)> {
    loop {
        match consumer.fetch_watermarks(topic, partition, Duration::from_secs(5)) {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() >= until => return Err(error.into()),
            Err(_) => {}
        }
    }
}

/// A record as the log holds it.
#[derive(Clone, Debug)]
pub struct Logged {
    /// Where.
    pub place: Place,
    /// Its key.
    pub key: Vec<u8>,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// Everything in these topics (number, log name, partitions), in the order of their places. Blocks.
///
/// # Errors
/// Kafka does not answer within a minute.
pub fn read_all(brokers: &str, topics: &[(i32, String, i32)]) -> anyhow::Result<Vec<Logged>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "reader-of-everything")
        .set("enable.auto.commit", "false")
        .set("fetch.queue.backoff.ms", "2")
        .set("reconnect.backoff.max.ms", "250")
        .create()?;
    let until = Instant::now() + PATIENCE;
    let mut list = TopicPartitionList::new();
    // By name and partition: where its last record ends.
    let mut open: BTreeMap<(String, i32), i64> = BTreeMap::new();
    for (_, name, partitions) in topics {
        for partition in 0..*partitions {
            let (low, high) = watermarks(&consumer, name, partition, until)?;
            if high > low {
                list.add_partition_offset(name, partition, Offset::Offset(low))?;
                open.insert((name.clone(), partition), high);
            }
        }
    }
    consumer.assign(&list)?;
    let numbers: BTreeMap<&str, i32> = topics.iter().map(|(no, n, _)| (n.as_str(), *no)).collect();
    let mut all = Vec::new();
    while !open.is_empty() {
        anyhow::ensure!(
            Instant::now() < until,
            "the log was not read in time: {open:?} are open"
        );
        // What goes wrong on the way mends itself, or the time runs out.
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(200)) else {
            continue;
        };
        let at = (message.topic().to_owned(), message.partition());
        let Some(end) = open.get(&at).copied() else {
            continue;
        };
        if message.offset() < end {
            all.push(Logged {
                place: Place {
                    topic_no: numbers.get(message.topic()).copied().unwrap_or_default(),
                    partition: message.partition(),
                    offset: message.offset(),
                },
                key: message.key().unwrap_or_default().to_vec(),
                payload: message.payload().unwrap_or_default().to_vec(),
            });
        }
        if message.offset() + 1 >= end {
            open.remove(&at);
        }
    }
    all.sort_by_key(|r| r.place);
    Ok(all)
}
