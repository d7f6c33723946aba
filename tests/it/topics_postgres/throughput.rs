//! Measurements of the Postgres log, for people: `cargo test -p millrace-tests --test it -- --ignored --nocapture throughput`.

use super::PostgresLog;
use crate::topics_suite::Log;
use bytes::Bytes;
use millrace_topics::contract::{
    Batch, BatchLimits, ClaimError, Consumer, InFlight, Outgoing, PartitionHost, Producer,
    StoredPosition, Subscription,
};
use millrace_topics::pglog::{ConsumerOptions, PgLogConsumer, PgLogProducer, ProducerOptions};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const RECORDS: usize = 400_000;

/// Counts what it is given and forgets it.
#[derive(Default)]
struct Counter {
    topic_no: i32,
    seen: Mutex<usize>,
    batches: AtomicUsize,
    changed: Condvar,
}

impl PartitionHost for Counter {
    fn assigned(
        &self,
        partitions: &[i32],
        _: Duration,
    ) -> Vec<(i32, Result<Vec<StoredPosition>, ClaimError>)> {
        let start = StoredPosition {
            topic_no: self.topic_no,
            next_offset: 0,
        };
        partitions.iter().map(|&p| (p, Ok(vec![start]))).collect()
    }

    fn batch(&self, batch: Batch) -> Result<(), Batch> {
        *self.seen.lock().unwrap() += batch.len();
        self.batches.fetch_add(1, Ordering::Relaxed);
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

/// CPU time of the server's processes, in microseconds.
fn server_cpu(postmaster: u32) -> u64 {
    let ticks = |fields: &[&str], from: usize, to: usize| {
        fields[from..to]
            .iter()
            .map(|f| f.parse::<u64>().unwrap_or(0))
            .sum::<u64>()
    };
    let mut sum = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let Some((head, tail)) = stat.rsplit_once(')') else {
            continue;
        };
        let pid: u32 = head
            .split(' ')
            .next()
            .and_then(|p| p.parse().ok())
            .unwrap_or(0);
        let fields: Vec<&str> = tail.split_whitespace().collect();
        if pid == postmaster {
            sum += ticks(&fields, 11, 15);
        } else if fields[1].parse() == Ok(postmaster) {
            sum += ticks(&fields, 11, 13);
        }
    }
    sum * 10_000
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn throughput() {
    for batch_records in [100, 500, 1_000, 5_000] {
        let log = PostgresLog::start(true).await.unwrap();
        let topics = log.topics(&["clicks"], 8).await;
        let pid = log
            .server
            .as_ref()
            .and_then(millrace_tests::postgres::DedicatedServer::pid)
            .unwrap();
        let options = ProducerOptions {
            batch_records,
            linger_records: batch_records,
            queue_records: RECORDS,
            queue_bytes: 1 << 30,
            give_up_after: Duration::from_secs(120),
            ..ProducerOptions::default()
        };
        let producer = PgLogProducer::start(log.connector(), &topics, options).unwrap();
        producer.health(Duration::from_secs(5)).await.unwrap();
        let payload = Bytes::from(vec![b'x'; 384]);
        let (started, cpu) = (Instant::now(), server_cpu(pid));
        let waiting: Vec<_> = (0..RECORDS)
            .map(|i| {
                producer.produce(Outgoing {
                    topic_no: topics[0].no,
                    key: Bytes::from(format!("{i:016}")),
                    payload: payload.clone(),
                })
            })
            .collect();
        for acknowledgement in waiting {
            acknowledgement.await.unwrap().unwrap();
        }
        let append = (started.elapsed(), server_cpu(pid) - cpu);

        let host = Arc::new(Counter {
            topic_no: topics[0].no,
            ..Counter::default()
        });
        let subscription = Subscription {
            group: "g".to_owned(),
            topics: topics.clone(),
            limits: BatchLimits::default(),
        };
        let (started, cpu) = (Instant::now(), server_cpu(pid));
        let dyn_host: Arc<dyn PartitionHost> = Arc::clone(&host) as _;
        let consumer = PgLogConsumer::start(
            log.connector(),
            subscription,
            dyn_host,
            ConsumerOptions::default(),
        )
        .unwrap();
        let counted = Arc::clone(&host);
        tokio::task::spawn_blocking(move || {
            let mut seen = counted.seen.lock().unwrap();
            while *seen < RECORDS {
                seen = counted.changed.wait(seen).unwrap();
            }
        })
        .await
        .unwrap();
        let consume = (started.elapsed(), server_cpu(pid) - cpu);
        tokio::task::spawn_blocking(move || consumer.shutdown())
            .await
            .unwrap();
        let figure = |(took, cpu): (Duration, u64)| {
            format!(
                "{:7.0} records/s, {:5.2} µs of PostgreSQL a record",
                RECORDS as f64 / took.as_secs_f64(),
                cpu as f64 / RECORDS as f64
            )
        };
        println!(
            "{batch_records:5} an append: append {}; consume {} in {} batches",
            figure(append),
            figure(consume),
            host.batches.load(Ordering::Relaxed)
        );
    }
}
