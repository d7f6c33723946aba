//! Emits: relayed in order, sent again after a crash, received once.

use bytes::Bytes;
use millrace_schemas::emit::EmitSource;
use millrace_tests::postgres::TestDatabase;
use millrace_tests::process::eventually;
use millrace_topics::catalogue;
use millrace_topics::contract::{
    Acknowledgement, BoxFuture, Outgoing, Position, ProduceError, Producer, TopicRef,
};
use millrace_topics::partitioner;
use millrace_topics::pglog::{self, Connector, PgLogProducer, ProducerOptions};
use millrace_topics::relay::{EmitError, Relay, Relayed, accept, emit_directly, keep};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_postgres::Client;

/// (topic, partition) → payloads.
type Lanes = BTreeMap<(i32, i32), Vec<Vec<u8>>>;

/// A log in memory that fails when told to: the record may be there nevertheless.
#[derive(Default)]
struct Flaky {
    log: Mutex<Lanes>,
    produced: AtomicUsize,
    fail: Mutex<Vec<(usize, bool)>>,
}

impl Producer for Flaky {
    fn produce(&self, record: Outgoing) -> Acknowledgement {
        let (tell, told) = oneshot::channel();
        let n = self.produced.fetch_add(1, Ordering::SeqCst);
        let partition = partitioner::partition(&record.key, 2);
        let fail = self.fail.lock().unwrap().iter().find(|f| f.0 == n).copied();
        let mut log = self.log.lock().unwrap();
        let lane = log.entry((record.topic_no, partition)).or_default();
        if fail.is_none_or(|(_, there)| there) {
            lane.push(record.payload.to_vec());
        }
        let offset = i64::try_from(lane.len()).unwrap();
        let answer = match fail {
            None => Ok(Position { partition, offset }),
            Some(_) => Err(ProduceError::Unavailable("as told".to_owned())),
        };
        tell.send(answer).unwrap();
        told
    }

    fn health(&self, _: Duration) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn close(&self, _: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

async fn topics(client: &Client) -> Vec<TopicRef> {
    let mut out = Vec::new();
    for name in ["clicks", "postbacks"] {
        let topic = catalogue::register(client, name, "", 2).await.unwrap();
        pglog::create_topic(client, &topic).await.unwrap();
        out.push(topic);
    }
    out
}

async fn emit(client: &Client, topics: &[TopicRef], n: i64) {
    for seq in 0..n {
        let topic = &topics[usize::try_from(seq % 2).unwrap()];
        client
            .execute(
                "INSERT INTO emits (group_name, source_partition, seq, topic_no, key, payload) VALUES ('g', 1, $1, $2, $3, $4)",
                &[
                    &seq,
                    &topic.no,
                    &format!("k{}", seq % 7).into_bytes(),
                    &format!("{{\"n\":{seq}}}").into_bytes(),
                ],
            )
            .await
            .unwrap();
    }
}

async fn left(client: &Client) -> i64 {
    let row = client.query_one("SELECT count(*) FROM emits", &[]).await;
    row.unwrap().get(0)
}

/// What receivers of the log accept, by number: one receiver a partition, reading its topics one after the other.
async fn received(client: &mut Client, log: &Flaky) -> Vec<i64> {
    let lanes = log.log.lock().unwrap().clone();
    let mut out = Vec::new();
    for ((topic_no, partition), payloads) in lanes {
        let arrived: Vec<(i32, EmitSource)> = payloads
            .iter()
            .map(|p| (topic_no, EmitSource::of(p).unwrap()))
            .collect();
        // In batches of three, each its own transaction.
        for batch in arrived.chunks(3) {
            let tx = client.transaction().await.unwrap();
            let new = accept(&tx, "receiver", partition, batch).await.unwrap();
            tx.commit().await.unwrap();
            for ((_, source), new) in batch.iter().zip(new) {
                assert_eq!((source.group.as_str(), source.partition), ("g", 1));
                if new {
                    out.push(source.seq);
                }
            }
        }
    }
    out.sort_unstable();
    out
}

#[tokio::test]
async fn what_is_emitted_is_received_once_whatever_fails() {
    let database = TestDatabase::create().await;
    let mut client = database.client().await;
    let topics = topics(&client).await;
    emit(&client, &topics, 100).await;
    let log = Arc::new(Flaky::default());
    // Some fail and are not there, some are.
    *log.fail.lock().unwrap() = (0..150)
        .filter(|n| n % 5 == 2)
        .map(|n| (n, n % 2 == 0))
        .collect();
    let producer: Arc<dyn Producer> = Arc::clone(&log) as _;
    let relay = Relay::new(producer, &topics, "g", 1);
    let mut turns = 0;
    while left(&client).await > 0 {
        let turn = relay.turn(&client).await.unwrap();
        turns += 1;
        assert!(turns < 200, "{turn:?}");
    }
    assert!(turns > 1);
    assert_eq!(
        received(&mut client, &log).await,
        (0..100).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_crash_between_acknowledgement_and_deletion_sends_twice_and_is_received_once() {
    let database = TestDatabase::create().await;
    let mut client = database.client().await;
    let topics = topics(&client).await;
    emit(&client, &topics, 20).await;
    let log = Arc::new(Flaky::default());
    for crash in [true, false] {
        let producer: Arc<dyn Producer> = Arc::clone(&log) as _;
        let relay = Relay::new(producer, &topics, "g", 1).with_sent_hook(Arc::new(move || {
            assert!(!crash, "the crash");
        }));
        let url = database.url().to_owned();
        let turn = tokio::spawn(async move {
            let client = millrace_tests::postgres::connect(&url).await;
            relay.turn(&client).await.unwrap()
        })
        .await;
        assert_eq!(turn.is_err(), crash);
    }
    assert_eq!(left(&client).await, 0);
    assert_eq!(log.produced.load(Ordering::SeqCst), 40);
    assert_eq!(
        received(&mut client, &log).await,
        (0..20).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_record_too_large_stays_and_says_so() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    let topics = topics(&client).await;
    emit(&client, &topics, 30).await;
    client
        .execute(
            "UPDATE emits SET payload = convert_to('{\"x\":\"' || repeat('x', 3000) || '\"}', 'UTF8') WHERE seq = 4",
            &[],
        )
        .await
        .unwrap();
    let connector = Connector::plain(database.url()).unwrap();
    let options = ProducerOptions {
        max_record_bytes: 2_000,
        ..ProducerOptions::default()
    };
    let producer = Arc::new(PgLogProducer::start(connector, &topics, options).unwrap());
    let relay = Relay::new(producer, &topics, "g", 1);
    let turn = relay.turn(&client).await.unwrap();
    assert!(
        matches!(turn.refused, Some((4, ProduceError::TooLarge { .. }))),
        "{turn:?}"
    );
    let rows = client
        .query("SELECT seq, topic_no, key FROM emits ORDER BY seq", &[])
        .await
        .unwrap();
    let lanes: BTreeSet<(i32, i32)> = rows
        .iter()
        .map(|r| (r.get(1), partitioner::partition(r.get(2), 2)))
        .collect();
    assert_eq!(lanes.len(), 1, "only what stands behind it waits");
    assert_eq!(rows[0].get::<_, i64>(0), 4);
}

#[tokio::test]
async fn the_owner_relays_what_its_partitions_emit() {
    let database = TestDatabase::create().await;
    let client = database.client().await;
    let topics = topics(&client).await;
    emit(&client, &topics, 50).await;
    client
        .execute("UPDATE emits SET source_partition = 2 WHERE seq >= 40", &[])
        .await
        .unwrap();
    let connector = Connector::plain(database.url()).unwrap();
    let options = ProducerOptions::default();
    let producer = PgLogProducer::start(connector.clone(), &topics, options).unwrap();
    let relayed = Relayed {
        connector,
        producer: Arc::new(producer),
        topics: topics.clone(),
        group: "g".to_owned(),
        sent: Arc::new(|| {}),
        idle: Duration::from_millis(5),
    };
    let task = tokio::spawn(keep(relayed, || vec![0, 1]));
    eventually(
        "all but ten are relayed",
        Duration::from_secs(30),
        async || Ok((left(&client).await == 10).then_some(())),
    )
    .await
    .unwrap();
    task.abort();
    let high: i64 = pglog::watermarks(&client, &topics)
        .await
        .unwrap()
        .iter()
        .map(|w| w.high)
        .sum();
    assert_eq!(high, 40, "partition 2 belongs to somebody else");
    assert_eq!(left(&client).await, 10);
}

#[tokio::test]
async fn direct_emits_share_the_transaction() {
    let database = TestDatabase::create().await;
    let mut client = database.client().await;
    let topics = topics(&client).await;
    let records: Vec<Outgoing> = (0..10)
        .map(|i| Outgoing {
            topic_no: topics[0].no,
            key: Bytes::from(format!("k{i}")),
            payload: Bytes::from(format!("{{\"n\":{i}}}")),
        })
        .collect();
    for commit in [false, true] {
        let tx = client.transaction().await.unwrap();
        let positions = emit_directly(&tx, &topics, "g", 3, &records).await.unwrap();
        assert_eq!(positions.len(), 10);
        if commit {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let high: i64 = pglog::watermarks(&client, &topics)
            .await
            .unwrap()
            .iter()
            .map(|w| w.high)
            .sum();
        assert_eq!(high, if commit { 10 } else { 0 });
        if commit {
            let at = positions[9];
            let record = pglog::record_at(&client, topics[0].no, at.partition, at.offset).await;
            let (key, payload) = record.unwrap().unwrap();
            assert_eq!(key, b"k9");
            let text = String::from_utf8(payload).unwrap();
            assert_eq!(
                text,
                r#"{"n":9,"emit":{"group":"g","partition":3,"seq":9}}"#
            );
        }
    }
    let tx = client.transaction().await.unwrap();
    let unknown = Outgoing {
        topic_no: 77,
        ..records[0].clone()
    };
    let error = emit_directly(&tx, &topics, "g", 3, &[unknown]).await;
    assert!(matches!(error, Err(EmitError::Append(_))));
}
