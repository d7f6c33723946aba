//! Measurements of the Kafka backend, for people:
//! `cargo test --release -p millrace-tests --test it -- --ignored --nocapture kafka_throughput`.

use bytes::Bytes;
use millrace_tests::kafka;
use millrace_topics::contract::{
    Batch, BatchLimits, ClaimError, Consumer, InFlight, Outgoing, PartitionHost, Producer,
    StoredPosition, Subscription, TopicRef,
};
use millrace_topics::kafka::{KafkaConsumer, KafkaProducer, KafkaSettings};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const RECORDS: usize = 1_500_000;
const PARTITIONS: i32 = 8;
const PAYLOAD: usize = 500;

/// Counts what it is given and forgets it.
struct Counter {
    topics: Vec<i32>,
    /// (records, batches, bytes)
    seen: Mutex<(usize, usize, usize)>,
    changed: Condvar,
}

impl PartitionHost for Counter {
    fn assigned(
        &self,
        partitions: &[i32],
        _: Duration,
    ) -> Vec<(i32, Result<Vec<StoredPosition>, ClaimError>)> {
        let start = |&topic_no: &i32| StoredPosition {
            topic_no,
            next_offset: 0,
        };
        partitions
            .iter()
            .map(|&p| (p, Ok(self.topics.iter().map(start).collect())))
            .collect()
    }

    fn batch(&self, batch: Batch) -> Result<(), Batch> {
        let mut seen = self.seen.lock().unwrap();
        seen.0 += batch.len();
        seen.1 += 1;
        seen.2 += batch.bytes();
        self.changed.notify_all();
        Ok(())
    }

    fn in_flight(&self, _: i32) -> InFlight {
        InFlight::default()
    }

    fn revoked(&self, _: &[i32], _: bool) {}

    fn fault(&self, partition: i32, reason: String) {
        panic!("{partition}: {reason}");
    }

    fn wants_reassignment(&self) -> Vec<i32> {
        Vec::new()
    }

    fn progress(&self) -> Vec<(i32, StoredPosition)> {
        Vec::new()
    }
}

/// CPU seconds that this process has used.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .rsplit_once(") ")
        .map(|(_, rest)| rest.split(' ').filter_map(|f| f.parse().ok()).collect())
        .unwrap_or_default();
    // Without the state, utime and stime are the 11th and 12th; ticks of 10 ms.
    (fields.get(10).unwrap_or(&0.0) + fields.get(11).unwrap_or(&0.0)) / 100.0
}

async fn preload(producer: &KafkaProducer, topics: &[TopicRef]) {
    let payload = Bytes::from(vec![b'x'; PAYLOAD]);
    let (started, used) = (Instant::now(), cpu());
    let mut sent = 0;
    while sent < RECORDS {
        let acks: Vec<_> = (sent..(sent + 20_000).min(RECORDS))
            .map(|i| {
                // One in ten goes to the second topic, under the key of a record of the first.
                producer.produce(Outgoing {
                    topic_no: topics[usize::from(i % 10 == 9)].no,
                    key: Bytes::from(format!("{:016x}", i / 10 * 10)),
                    payload: payload.clone(),
                })
            })
            .collect();
        sent += acks.len();
        for ack in acks {
            ack.await.unwrap().unwrap();
        }
    }
    let (took, used) = (started.elapsed().as_secs_f64(), cpu() - used);
    println!(
        "produced and acknowledged: {:.0} records/s, {:.2} CPU-µs a record",
        RECORDS as f64 / took,
        used * 1e6 / RECORDS as f64
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn records_a_second() {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let topics = kafka.topics(&["clicks", "postbacks"], PARTITIONS).await;
    let settings = KafkaSettings {
        ack_timeout_ms: 60_000,
        ..kafka.settings()
    };
    let producer = KafkaProducer::start(&settings, &topics).unwrap();
    preload(&producer, &topics).await;
    for _ in 0..3 {
        let host = Arc::new(Counter {
            topics: topics.iter().map(|t| t.no).collect(),
            seen: Mutex::new((0, 0, 0)),
            changed: Condvar::new(),
        });
        let subscription = Subscription {
            group: kafka::group_name("throughput"),
            topics: topics.clone(),
            limits: BatchLimits::default(),
        };
        let consumer = KafkaConsumer::start(&settings, subscription, Arc::clone(&host) as _);
        let consumer = consumer.unwrap();
        let waiting = Arc::clone(&host);
        let (started, used, (records, batches, bytes)) = tokio::task::spawn_blocking(move || {
            // From the first batch on: the group's forming is not measured.
            let seen = waiting.seen.lock().unwrap();
            let mut seen = waiting.changed.wait_while(seen, |s| s.0 == 0).unwrap();
            let (started, used, before) = (Instant::now(), cpu(), *seen);
            while seen.0 < RECORDS {
                seen = waiting.changed.wait(seen).unwrap();
            }
            let n = (seen.0 - before.0, seen.1 - before.1, seen.2 - before.2);
            (started, used, n)
        })
        .await
        .unwrap();
        let (took, used) = (started.elapsed().as_secs_f64(), cpu() - used);
        println!(
            "consumed: {:.0} records/s ({:.0} MB/s), {:.2} CPU-µs a record, {} records a batch",
            records as f64 / took,
            bytes as f64 / took / 1e6,
            used * 1e6 / records as f64,
            records / batches.max(1)
        );
        tokio::task::spawn_blocking(move || consumer.shutdown())
            .await
            .unwrap();
    }
}
