//! Producer and admin against a real Kafka.

use bytes::Bytes;
use millrace_tests::kafka::{self, Kafka};
use millrace_topics::contract::{Outgoing, ProduceError, Producer, TopicRef};
use millrace_topics::kafka::{KafkaAdmin, KafkaProducer, KafkaSettings};
use millrace_topics::partitioner;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

fn record(topic: &TopicRef, key: &str, payload: impl Into<Bytes>) -> Outgoing {
    Outgoing {
        topic_no: topic.no,
        key: Bytes::copy_from_slice(key.as_bytes()),
        payload: payload.into(),
    }
}

#[tokio::test]
async fn records_are_acknowledged_in_order_and_an_oversized_one_hurts_nobody() {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let topics = kafka.topics(&["clicks"], 4).await;
    let topic = &topics[0];
    let settings = KafkaSettings {
        max_record_bytes: 10_000,
        ..kafka.settings()
    };
    let producer = KafkaProducer::start(&settings, &topics).unwrap();
    producer.health(SOON).await.unwrap();
    let mut waiting = Vec::new();
    for i in 0..500 {
        let key = format!("key-{}", i % 7);
        let bytes = if i == 250 { 10_001 } else { 300 };
        waiting.push((
            i,
            key.clone(),
            producer.produce(record(topic, &key, vec![b'x'; bytes])),
        ));
    }
    let mut next = vec![0; 4];
    for (i, key, ack) in waiting {
        let answer = tokio::time::timeout(SOON, ack).await.unwrap().unwrap();
        if i == 250 {
            let bytes = 10_001 + key.len();
            let limit = 10_000;
            assert_eq!(answer, Err(ProduceError::TooLarge { bytes, limit }));
            continue;
        }
        let at = answer.unwrap();
        assert_eq!(at.partition, partitioner::partition(key.as_bytes(), 4));
        let next = &mut next[usize::try_from(at.partition).unwrap()];
        assert_eq!(at.offset, *next);
        *next += 1;
    }
    let marks = KafkaAdmin::new(&settings)
        .watermarks(&topic.log_name, 4)
        .await
        .unwrap();
    let high: Vec<i64> = marks.iter().map(|m| m.high).collect();
    assert_eq!(high, next);
    producer.close(SOON).await;
    let refused = producer.produce(record(topic, "k", "late")).await.unwrap();
    assert_eq!(refused, Err(ProduceError::Closed));
}

#[tokio::test]
async fn the_largest_records_fit_into_a_topic_that_admin_made() {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let settings = KafkaSettings {
        max_record_bytes: 2_000_000,
        ..kafka.settings()
    };
    let admin = KafkaAdmin::new(&settings);
    let log_name = kafka::group_name("large");
    assert!(admin.create_topic(&log_name, 1, 1).await.unwrap());
    assert!(!admin.create_topic(&log_name, 1, 1).await.unwrap());
    let topic = TopicRef {
        no: 1,
        name: "large".to_owned(),
        log_name,
        partitions: 1,
    };
    let producer = KafkaProducer::start(&settings, std::slice::from_ref(&topic)).unwrap();
    let acks: Vec<_> = (0..5)
        .map(|_| producer.produce(record(&topic, "k", vec![b'x'; 1_999_999])))
        .collect();
    for ack in acks {
        tokio::time::timeout(SOON, ack)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn topics_are_counted_and_grown_but_never_shrunk() {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let admin = KafkaAdmin::new(&kafka.settings());
    let name = kafka::group_name("grown");
    assert_eq!(admin.partitions(&name).await.unwrap(), None);
    admin.create_topic(&name, 2, 1).await.unwrap();
    assert_eq!(admin.partitions(&name).await.unwrap(), Some(2));
    admin.grow_topic(&name, 6).await.unwrap();
    assert_eq!(admin.partitions(&name).await.unwrap(), Some(6));
    assert!(admin.grow_topic(&name, 4).await.is_err());
    admin.delete_topic(&name).await.unwrap();
    admin.delete_topic(&name).await.unwrap();
}

#[tokio::test]
async fn a_broker_away_is_seen_and_its_return_too() {
    if kafka::is_absent() {
        eprintln!("not run: Apache Kafka is absent");
        return;
    }
    let kafka = tokio::task::spawn_blocking(Kafka::start).await.unwrap();
    let kafka = std::sync::Arc::new(kafka);
    let topics = kafka.topics(&["clicks"], 1).await;
    let settings = KafkaSettings {
        ack_timeout_ms: 2_000,
        ..kafka.settings()
    };
    let producer = KafkaProducer::start(&settings, &topics).unwrap();
    let first = producer.produce(record(&topics[0], "k", "one")).await;
    assert_eq!(first.unwrap().unwrap().offset, 0);

    let k = std::sync::Arc::clone(&kafka);
    tokio::task::spawn_blocking(move || k.kill(0))
        .await
        .unwrap();
    assert!(producer.health(Duration::from_secs(2)).await.is_err());
    let failed = producer.produce(record(&topics[0], "k", "two"));
    let failed = tokio::time::timeout(Duration::from_secs(6), failed).await;
    assert!(matches!(
        failed.unwrap().unwrap(),
        Err(ProduceError::Unavailable(_))
    ));

    let k = std::sync::Arc::clone(&kafka);
    tokio::task::spawn_blocking(move || k.start_again(0))
        .await
        .unwrap();
    // The same producer goes on; while the partition finds its leader a record may still fail.
    let mut acked = false;
    for _ in 0..20 {
        let ack = producer.produce(record(&topics[0], "k", "three")).await;
        if ack.unwrap().is_ok() {
            acked = true;
            break;
        }
    }
    assert!(acked, "the producer never recovered");
    producer.health(SOON).await.unwrap();
    // A close with nothing under way is quick.
    tokio::time::timeout(
        Duration::from_secs(5),
        producer.close(Duration::from_secs(4)),
    )
    .await
    .unwrap();
}
