//! The Postgres log when connections, sessions or the whole server go away.

use super::PostgresLog;
use super::alone::{produced, record, shut, subscription, texts};
use crate::topics_suite::{Log, SOON};
use millrace_tests::postgres::StopMode;
use millrace_tests::process::eventually;
use millrace_tests::proxy::{Protocol, Proxy};
use millrace_tests::recording_host::{RecordingHost, RecordingStore};
use millrace_topics::contract::{Consumer, ProduceError, Producer};
use millrace_topics::pglog::{
    Connector, ConsumerOptions, PgLogConsumer, PgLogProducer, ProducerOptions, watermarks,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_a_group() {
    let log = PostgresLog::start(false).await.unwrap();
    let topics = log.topics(&["clicks"], 2).await;
    let store = RecordingStore::new();
    let first = RecordingHost::new("first", &[topics[0].no], &store);
    let one = log.consumer(subscription(&topics, "g"), Arc::clone(&first));
    assert!(first.owned_within(SOON, |o| o.len() == 2).await);
    let second = RecordingHost::new("second", &[topics[0].no], &store);
    let two = log.consumer(subscription(&topics, "g"), Arc::clone(&second));
    let trouble = eventually("the second waits", SOON, async || Ok(two.waits_for()))
        .await
        .unwrap();
    assert!(
        trouble.contains("another process") && trouble.contains("server process"),
        "{trouble}"
    );
    two.health().unwrap();
    assert_eq!(second.events(), []);
    produced(&log.producer(&topics, 900_000), &topics[0], &texts("r", 20)).await;
    assert!(store.committed_within(20, SOON).await);
    shut(&one).await;
    assert!(second.owned_within(SOON, |o| o.len() == 2).await);
    produced(&log.producer(&topics, 900_000), &topics[0], &texts("s", 20)).await;
    assert!(store.committed_within(40, SOON).await);
    shut(&two).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_away_is_said_in_time() {
    let mut log = PostgresLog::start(true).await.unwrap();
    let topics = log.topics(&["clicks"], 1).await;
    let options = ProducerOptions {
        queue_records: 10,
        give_up_after: Duration::from_millis(300),
        ..ProducerOptions::default()
    };
    let producer = PgLogProducer::start(log.connector(), &topics, options).unwrap();
    producer.health(SOON).await.unwrap();
    let mut server = log.server.take().unwrap();
    let server = tokio::task::spawn_blocking(move || {
        server.stop(StopMode::Fast);
        server
    })
    .await
    .unwrap();
    assert!(producer.health(Duration::from_secs(2)).await.is_err());
    let waiting: Vec<_> = (0..12)
        .map(|_| producer.produce(record(&topics[0], "k", "x")))
        .collect();
    let mut answers = Vec::new();
    for acknowledgement in waiting {
        answers.push(acknowledgement.await.unwrap());
    }
    let full = answers
        .iter()
        .filter(|a| **a == Err(ProduceError::QueueFull))
        .count();
    assert_eq!(full, 2);
    let away = |a: &&Result<_, _>| matches!(a, Err(ProduceError::Unavailable(_)));
    assert_eq!(answers.iter().filter(away).count(), 10);
    let started = Instant::now();
    producer.close(Duration::from_millis(200)).await;
    assert!(started.elapsed() < Duration::from_secs(2));
    drop(server);
}

/// A proxy before the database of a log, and connections through it.
fn behind_a_proxy(log: &PostgresLog) -> (Proxy, Connector) {
    let target = log.database.url().split(['@', '/']).nth(3).unwrap();
    let proxy = Proxy::start(target.parse().unwrap(), Protocol::Postgres).unwrap();
    let url = log
        .database
        .url()
        .replace(target, &proxy.address().to_string());
    (proxy, Connector::plain(&url).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connections_lose_and_repeat_nothing() {
    let log = PostgresLog::start(false).await.unwrap();
    let topics = log.topics(&["clicks"], 2).await;
    let (proxy, through) = behind_a_proxy(&log);
    let options = ProducerOptions::default();
    let producer: Arc<dyn Producer> =
        Arc::new(PgLogProducer::start(through.clone(), &topics, options).unwrap());
    let store = RecordingStore::new();
    let host = RecordingHost::new("a", &[topics[0].no], &store);
    let consumer: Arc<dyn Consumer> = Arc::new(
        PgLogConsumer::start(
            through,
            subscription(&topics, "g"),
            host,
            ConsumerOptions {
                retry: Duration::from_millis(5),
                ..ConsumerOptions::default()
            },
        )
        .unwrap(),
    );
    let mut acknowledged = Vec::new();
    for round in 0..40 {
        let waiting: Vec<_> = texts(&format!("{round}-"), 50)
            .iter()
            .map(|t| producer.produce(record(&topics[0], t, t)))
            .collect();
        for (n, acknowledgement) in waiting.into_iter().enumerate() {
            if n == round {
                proxy.cut();
            }
            acknowledged.extend(acknowledgement.await.unwrap().ok());
        }
    }
    assert!(acknowledged.len() > 500, "{}", acknowledged.len());
    let high: Vec<i64> = watermarks(&log.database.client().await, &topics)
        .await
        .unwrap()
        .iter()
        .map(|w| w.high)
        .collect();
    let all = usize::try_from(high.iter().sum::<i64>()).unwrap();
    assert!(store.committed_within(all, SOON).await);
    for (partition, high) in (0..).zip(high) {
        let ledger = store.ledger();
        let seen = ledger.iter().filter(|s| s.partition == partition);
        let offsets: Vec<i64> = seen.map(|s| s.offset).collect();
        assert_eq!(offsets, (0..high).collect::<Vec<_>>());
    }
    assert_eq!(store.refused(), 0);
    shut(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_says_nothing_is_noticed_and_found_again() {
    let log = PostgresLog::start(false).await.unwrap();
    let topics = log.topics(&["clicks"], 1).await;
    let (proxy, through) = behind_a_proxy(&log);
    let options = ProducerOptions {
        give_up_after: Duration::from_millis(400),
        ..ProducerOptions::default()
    };
    let producer: Arc<dyn Producer> =
        Arc::new(PgLogProducer::start(through.clone(), &topics, options).unwrap());
    let store = RecordingStore::new();
    let host = RecordingHost::new("a", &[topics[0].no], &store);
    let consumer: Arc<dyn Consumer> = Arc::new(
        PgLogConsumer::start(
            through,
            subscription(&topics, "g"),
            host,
            ConsumerOptions {
                answer: Duration::from_millis(200),
                claim_wait: Duration::from_millis(400),
                retry: Duration::from_millis(5),
                ..ConsumerOptions::default()
            },
        )
        .unwrap(),
    );
    produced(&producer, &topics[0], &texts("r", 10)).await;
    assert!(store.committed_within(10, SOON).await);
    proxy.stall(true);
    let lost = producer
        .produce(record(&topics[0], "k", "x"))
        .await
        .unwrap();
    assert!(
        matches!(lost, Err(ProduceError::Unavailable(_))),
        "{lost:?}"
    );
    eventually("it waits", SOON, async || Ok(consumer.waits_for()))
        .await
        .unwrap();
    // It heals by itself, so nobody may end the process for it.
    consumer.health().unwrap();
    proxy.stall(false);
    proxy.cut();
    eventually("a record is taken", SOON, async || {
        let answer = producer.produce(record(&topics[0], "k", "y")).await?;
        Ok(answer.ok())
    })
    .await
    .unwrap();
    eventually("it is read", SOON, async || {
        Ok(store
            .ledger()
            .iter()
            .find(|s| s.payload == b"y")
            .map(|_| ()))
    })
    .await
    .unwrap();
    assert_eq!(store.refused(), 0);
    shut(&consumer).await;
}
