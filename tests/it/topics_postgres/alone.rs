//! What only the Postgres log promises.

use super::PostgresLog;
use crate::topics_suite::{Log, SOON};
use bytes::Bytes;
use millrace_tests::recording_host::{Event, RecordingHost, RecordingStore};
use millrace_topics::catalogue::GroupSpec;
use millrace_topics::contract::{
    BatchLimits, Consumer, Outgoing, ProduceError, Producer, Subscription, TopicRef,
};
use millrace_topics::pglog::segments::{SegmentOptions, Upkeep, maintain};
use millrace_topics::pglog::{append_in, create_topic, record_at, watermarks};
use std::sync::Arc;
use std::time::{Duration, Instant};

const GROUPS: &[GroupSpec] = &[GroupSpec {
    name: "g",
    topics: &["clicks"],
}];

/// Segments that may be closed and dropped at once.
const AT_ONCE: SegmentOptions = SegmentOptions {
    max_bytes: 1,
    max_age: Duration::ZERO,
    spare_age: Duration::ZERO,
    retention: Duration::ZERO,
    groups: GROUPS,
};

pub(super) fn record(topic: &TopicRef, key: &str, payload: &str) -> Outgoing {
    Outgoing {
        topic_no: topic.no,
        key: Bytes::copy_from_slice(key.as_bytes()),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
    }
}

pub(super) async fn produced(producer: &Arc<dyn Producer>, topic: &TopicRef, texts: &[String]) {
    let waiting: Vec<_> = texts
        .iter()
        .map(|t| producer.produce(record(topic, t, t)))
        .collect();
    for acknowledgement in waiting {
        acknowledgement.await.unwrap().unwrap();
    }
}

pub(super) fn subscription(topics: &[TopicRef], group: &str) -> Subscription {
    Subscription {
        group: group.to_owned(),
        topics: topics.to_vec(),
        limits: BatchLimits::default(),
    }
}

pub(super) async fn shut(consumer: &Arc<dyn Consumer>) {
    let consumer = Arc::clone(consumer);
    tokio::task::spawn_blocking(move || consumer.shutdown())
        .await
        .unwrap();
}

pub(super) fn texts(prefix: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{prefix}{i}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_are_read_across_and_dropped_only_when_all_have_passed() {
    let log = PostgresLog::start(false).await.unwrap();
    let topics = log.topics(&["clicks"], 2).await;
    let producer = log.producer(&topics, 900_000);
    let mut client = log.database.client().await;
    for round in 0..3 {
        produced(&producer, &topics[0], &texts(&format!("{round}-"), 50)).await;
        let upkeep = maintain(&mut client, &AT_ONCE).await.unwrap();
        // No group has a position: nothing may go, though its retention is over.
        let opened = Some(round + 2);
        assert_eq!(
            upkeep,
            Upkeep {
                opened,
                dropped: vec![]
            }
        );
    }
    produced(&producer, &topics[0], &texts("last-", 10)).await;
    let store = RecordingStore::new();
    let host = RecordingHost::new("a", &[topics[0].no], &store);
    let consumer = log.consumer(subscription(&topics, "g"), Arc::clone(&host));
    assert!(store.committed_within(160, SOON).await);
    // Rolled under a reader.
    maintain(&mut client, &AT_ONCE).await.unwrap();
    produced(&producer, &topics[0], &texts("more-", 10)).await;
    assert!(store.committed_within(170, SOON).await);
    let high = watermarks(&client, &topics).await.unwrap();
    for w in &high {
        let offsets: Vec<i64> = store
            .ledger()
            .iter()
            .filter(|s| s.partition == w.partition)
            .map(|s| s.offset)
            .collect();
        assert_eq!(offsets, (0..w.high).collect::<Vec<_>>());
        assert_eq!(w.low, 0);
    }

    // One partition's position at the end, the other's within the second segment.
    let second: i64 = client
        .query_one(
            "SELECT first_offset + 1 FROM log_bounds WHERE segment_no = 2 AND topic_no = $1 AND partition = 1",
            &[&topics[0].no],
        )
        .await
        .unwrap()
        .get(0);
    client
        .execute(
            "INSERT INTO positions (group_name, partition, topic_no, next_offset) VALUES ('g', 0, $1, $2), ('g', 1, $1, $3)",
            &[&topics[0].no, &high[0].high, &second],
        )
        .await
        .unwrap();
    let keep = SegmentOptions {
        retention: Duration::from_secs(3_600),
        max_bytes: i64::MAX,
        max_age: Duration::from_secs(3_600),
        ..AT_ONCE
    };
    assert_eq!(
        maintain(&mut client, &keep).await.unwrap(),
        Upkeep::default()
    );
    let drop_now = SegmentOptions {
        retention: Duration::ZERO,
        ..keep
    };
    let upkeep = maintain(&mut client, &drop_now).await.unwrap();
    assert_eq!(upkeep.dropped, [1]);
    let low = watermarks(&client, &topics).await.unwrap();
    assert_eq!(low[1].low, second - 1);
    assert!(
        record_at(&client, topics[0].no, 1, low[1].low - 1)
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        record_at(&client, topics[0].no, 1, low[1].low)
            .await
            .unwrap()
            .is_some()
    );
    client
        .execute("UPDATE positions SET next_offset = 1000", &[])
        .await
        .unwrap();
    let upkeep = maintain(&mut client, &drop_now).await.unwrap();
    assert_eq!(
        upkeep.dropped,
        [2, 3, 4],
        "all but the open one and its spare"
    );
    shut(&consumer).await;

    // What is gone is out of range; nothing is skipped in silence.
    let late = RecordingStore::new();
    let host = RecordingHost::new("late", &[topics[0].no], &late);
    let consumer = log.consumer(subscription(&topics, "late"), Arc::clone(&host));
    let faults = |e: &[Event]| {
        let fault = |e: &&Event| matches!(e, Event::Fault { reason, .. } if reason.contains("out of range"));
        e.iter().filter(fault).count() == 2
    };
    assert!(host.events_within(SOON, faults).await);
    shut(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_roll_beside_producers_and_readers() {
    let log = PostgresLog::start(false).await.unwrap();
    let topics = log.topics(&["clicks"], 3).await;
    let store = RecordingStore::new();
    let host = RecordingHost::new("a", &[topics[0].no], &store);
    let consumer = log.consumer(subscription(&topics, "g"), host);
    let mut tasks = Vec::new();
    for name in ["a", "b"] {
        let producer = log.producer(&topics, 900_000);
        let topic = topics[0].clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..30 {
                produced(&producer, &topic, &texts(&format!("{name}{round}-"), 40)).await;
            }
        }));
    }
    let mut client = log.database.client().await;
    let mut rolled = 0;
    // A spare of 50 ms is older than any of these statements.
    let options = SegmentOptions {
        spare_age: Duration::from_millis(50),
        ..AT_ONCE
    };
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        rolled += usize::from(
            maintain(&mut client, &options)
                .await
                .unwrap()
                .opened
                .is_some(),
        );
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(rolled > 1, "{rolled}");
    assert!(store.committed_within(2_400, SOON).await);
    assert_eq!(store.refused(), 0);
    shut(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_within_a_transaction_holds_later_ones_back() {
    let log = PostgresLog::start(false).await.unwrap();
    let topics = log.topics(&["clicks"], 1).await;
    let store = RecordingStore::new();
    let host = RecordingHost::new("a", &[topics[0].no], &store);
    let consumer = log.consumer(subscription(&topics, "g"), host);
    let producer = log.producer(&topics, 900_000);
    let mut client = log.database.client().await;
    let tx = client.transaction().await.unwrap();
    let first = append_in(&tx, &topics, &[record(&topics[0], "k", "first")])
        .await
        .unwrap();
    let mut second = producer.produce(record(&topics[0], "k", "second"));
    // It waits for the head; once PostgreSQL says so, it has neither come nor been seen.
    let watch = log.database.client().await;
    let deadline = Instant::now() + SOON;
    loop {
        let waiting: i64 = watch
            .query_one(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        if waiting > 0 {
            break;
        }
        assert!(Instant::now() < deadline);
    }
    assert!(second.try_recv().is_err());
    assert_eq!(store.committed(), 0);
    tx.commit().await.unwrap();
    assert_eq!(first[0].offset, 0);
    assert_eq!(second.await.unwrap().unwrap().offset, 1);
    assert!(store.committed_within(2, SOON).await);
    shut(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_made_once_and_told_apart() {
    let log = PostgresLog::start(false).await.unwrap();
    let topics = log.topics(&["clicks"], 2).await;
    let client = log.database.client().await;
    let producer = log.producer(&topics, 900_000);
    produced(&producer, &topics[0], &texts("r", 10)).await;
    create_topic(&client, &topics[0]).await.unwrap();
    let total: i64 = watermarks(&client, &topics)
        .await
        .unwrap()
        .iter()
        .map(|w| w.high)
        .sum();
    assert_eq!(total, 10);
    // A topic of the catalogue without partitions in the log.
    let row = client
        .query_one(
            "INSERT INTO topics (name, generation, log_name, partitions) VALUES ('bare', 1, 'bare', 1) RETURNING topic_no",
            &[],
        )
        .await
        .unwrap();
    let bare = TopicRef {
        no: row.get(0),
        name: "bare".to_owned(),
        log_name: "bare".to_owned(),
        partitions: 1,
    };
    let both = [topics[0].clone(), bare.clone()];
    let producer = log.producer(&both, 900_000);
    let missing = producer.produce(record(&bare, "k", "x"));
    let there = producer.produce(record(&topics[0], "k", "x"));
    assert_eq!(
        missing.await.unwrap(),
        Err(ProduceError::UnknownTopic(bare.no))
    );
    there.await.unwrap().unwrap();
    let store = RecordingStore::new();
    let host = RecordingHost::new("a", &[bare.no], &store);
    let consumer = log.consumer(subscription(&[bare], "g"), Arc::clone(&host));
    let fault = |e: &[Event]| {
        e.iter()
            .any(|e| matches!(e, Event::Fault { reason, .. } if reason.contains("topics create")))
    };
    assert!(host.events_within(SOON, fault).await);
    shut(&consumer).await;
}

/// The reader's statement, as the planner sees it after many rows: the index in order, no sort, no other table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_are_served_in_order_by_the_index() {
    let log = PostgresLog::start(false).await.unwrap();
    let topics = log.topics(&["clicks"], 4).await;
    let producer = log.producer(&topics, 900_000);
    let long: Vec<String> = (0..3_000)
        .map(|i| format!("{i}{}", "x".repeat(400)))
        .collect();
    produced(&producer, &topics[0], &long).await;
    let client = log.database.client().await;
    client
        .batch_execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET plan_cache_mode = force_generic_plan")
        .await
        .unwrap();
    let sql = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE r(1, 1, 100, 10)";
    client
        .batch_execute("PREPARE r(int, int, bigint, bigint) AS SELECT last_offset, n, records FROM log_chunks_1
            WHERE topic_no = $1 AND partition = $2 AND last_offset >= $3 ORDER BY last_offset LIMIT $4")
        .await
        .unwrap();
    let plan: Vec<String> = client
        .query(sql, &[])
        .await
        .unwrap()
        .iter()
        .map(|r| r.get(0))
        .collect();
    let plan = plan.join("\n");
    assert!(plan.contains("Index Scan using log_chunks_1_at"), "{plan}");
    assert!(!plan.contains("Sort"), "{plan}");
    let chunks: i64 = client
        .query_one("SELECT count(*) FROM log_chunks", &[])
        .await
        .unwrap()
        .get(0);
    assert!(chunks < 400, "{chunks} rows for 3 000 records of 400 bytes");
    let toasted: i64 = client
        .query_one(
            "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE relname = 'log_chunks_1'",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(toasted, 0, "chunks stay in line");
}
