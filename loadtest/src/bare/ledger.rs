//! The bare loop from topics to a topic: transactions of the producer, the offsets in them.

use super::line;
use super::rows::Batch;
use anyhow::{Context, ensure};
use millrace::runtime::clock::{Clock, SystemClock};
use millrace_schemas::ids::RecordId;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::time::Duration;

/// What to consume, and where to.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Kafka's brokers.
    #[arg(long)]
    pub brokers: String,
    /// The consumer group whose offsets move.
    #[arg(long)]
    pub group: String,
    /// The ledger topic.
    #[arg(long)]
    pub ledger: String,
    /// The numbers of `clicks` and `postbacks`.
    #[arg(long, value_delimiter = ',')]
    pub topics: Vec<i32>,
    /// Consumers, each a thread with a producer of its own.
    #[arg(long, default_value_t = 2)]
    pub consumers: usize,
    /// Records a transaction, a partition: as many as into the store.
    #[arg(long, default_value_t = 5_000)]
    pub batch: usize,
}

const WAIT: Duration = Duration::from_secs(30);
const TOPICS: [&str; 2] = ["clicks", "postbacks"];

/// Consumes both topics from their beginning to the ends that they have now.
///
/// # Errors
/// Kafka is away, or a record is none of the workload's.
pub fn run(options: &Options) -> anyhow::Result<std::convert::Infallible> {
    let consumers = i32::try_from(options.consumers)?.max(1);
    let threads: Vec<_> = (0..consumers)
        .map(|consumer| {
            let options = options.clone();
            std::thread::spawn(move || lane(&options, consumer, consumers))
        })
        .collect();
    for thread in threads {
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("a consumer panicked"))??;
    }
    // Stays, so that whoever measures can read its CPU time.
    loop {
        std::thread::park();
    }
}

fn lane(options: &Options, mine: i32, of: i32) -> anyhow::Result<()> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &options.brokers)
        .set("group.id", &options.group)
        .set("enable.auto.commit", "false")
        .set("fetch.queue.backoff.ms", "2")
        .create()?;
    let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
        .set("bootstrap.servers", &options.brokers)
        .set("transactional.id", format!("{}-{mine}", options.group))
        .set("linger.ms", "20")
        .set("batch.size", "500000")
        .set("queue.buffering.max.kbytes", "262144")
        .set("queue.buffering.max.messages", "500000")
        .create()?;
    producer.init_transactions(WAIT)?;
    let (mut list, mut left, mut lanes) = (TopicPartitionList::new(), 0, 0);
    for topic in TOPICS {
        let about = consumer.fetch_metadata(Some(topic), WAIT)?;
        let partitions = about
            .topics()
            .first()
            .context("no such topic")?
            .partitions()
            .len();
        for partition in (0..i32::try_from(partitions)?).filter(|p| p % of == mine) {
            left += consumer.fetch_watermarks(topic, partition, WAIT)?.1;
            list.add_partition_offset(topic, partition, Offset::Offset(0))?;
            lanes += 1;
        }
    }
    consumer.assign(&list)?;
    let [clicks, postbacks] = options.topics.as_slice() else {
        anyhow::bail!("--topics wants two numbers");
    };
    // The producer's transaction holds all partitions of the lane.
    let batch = options.batch * (lanes / TOPICS.len()).max(1);
    let mut next: BTreeMap<(usize, i32), i64> = BTreeMap::new();
    let mut open = 0;
    while left > 0 {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let message = message?;
        if open == 0 {
            producer.begin_transaction()?;
        }
        let topic = usize::from(message.topic() != TOPICS[0]);
        let payload = message.payload().unwrap_or_default();
        let mut rows = Batch::default();
        let id = |topic_no| RecordId {
            topic_no,
            partition: message.partition(),
            offset: message.offset(),
        };
        match topic {
            0 => rows.click(id(*clicks), payload)?,
            _ => rows.postback(id(*postbacks), payload, SystemClock.wall())?,
        }
        let line = line::of(rows);
        if !line.is_empty() {
            let key = message.key().unwrap_or_default();
            send(&producer, options, message.partition(), key, &line)?;
        }
        next.insert((topic, message.partition()), message.offset() + 1);
        (open, left) = (open + 1, left - 1);
        if open >= batch || left == 0 {
            let mut offsets = TopicPartitionList::new();
            for ((topic, partition), next) in std::mem::take(&mut next) {
                offsets.add_partition_offset(TOPICS[topic], partition, Offset::Offset(next))?;
            }
            let group = consumer.group_metadata().context("no group")?;
            producer.send_offsets_to_transaction(&offsets, &group, WAIT)?;
            producer.commit_transaction(WAIT)?;
            open = 0;
        }
    }
    ensure!(open == 0, "a transaction was left open");
    Ok(())
}

fn send(
    producer: &ThreadedProducer<DefaultProducerContext>,
    options: &Options,
    partition: i32,
    key: &[u8],
    line: &[u8],
) -> anyhow::Result<()> {
    let mut record = BaseRecord::to(&options.ledger)
        .key(key)
        .payload(line)
        .partition(partition);
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                std::thread::park_timeout(Duration::from_millis(5));
                record = back;
            }
            Err((e, _)) => return Err(e).context("producing"),
        }
    }
}
