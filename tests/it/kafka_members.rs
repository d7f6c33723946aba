//! Members of a group that die, hang and come back, and brokers that do: with processes to kill.

use bytes::Bytes;
use millrace_tests::kafka::{self, Kafka};
use millrace_tests::process::{Launch, Process, Scratch};
use millrace_tests::recording_host::{RecordingHost, RecordingStore};
use millrace_topics::contract::{
    BatchLimits, Consumer, Outgoing, Producer, Subscription, TopicRef,
};
use millrace_topics::kafka::{GroupProtocol, KafkaConsumer, KafkaProducer, KafkaSettings};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const PARTITIONS: i32 = 8;

fn subscription(group: &str, topics: &[TopicRef]) -> Subscription {
    Subscription {
        group: group.to_owned(),
        topics: topics.to_vec(),
        limits: BatchLimits::default(),
    }
}

fn host(name: &str, topics: &[TopicRef], store: &Arc<RecordingStore>) -> Arc<RecordingHost> {
    let numbers: Vec<i32> = topics.iter().map(|t| t.no).collect();
    RecordingHost::new(name, &numbers, store)
}

struct Scene {
    topics: Vec<TopicRef>,
    settings: KafkaSettings,
    group: String,
    store: Arc<RecordingStore>,
    producer: KafkaProducer,
    scratch: Scratch,
}

impl Scene {
    async fn new(kafka: &Kafka, protocol: GroupProtocol) -> Scene {
        let topics = kafka.topics(&["clicks", "postbacks"], PARTITIONS).await;
        let settings = KafkaSettings {
            protocol,
            ..kafka.settings()
        };
        Scene {
            producer: KafkaProducer::start(&settings, &topics).unwrap(),
            topics,
            settings,
            group: kafka::group_name("members"),
            store: RecordingStore::new(),
            scratch: Scratch::new("member").unwrap(),
        }
    }

    fn consume(&self, host: &Arc<RecordingHost>) -> KafkaConsumer {
        let subscription = subscription(&self.group, &self.topics);
        KafkaConsumer::start(&self.settings, subscription, Arc::clone(host) as _).unwrap()
    }

    fn member(&self, name: &str) -> Process {
        let protocol = match self.settings.protocol {
            GroupProtocol::Classic => "classic",
            _ => "consumer",
        };
        Launch::program(
            name,
            Path::new(env!("CARGO_BIN_EXE_kafka-member")),
            self.scratch.path(),
        )
        .args([self.settings.brokers.as_str(), protocol, &self.group])
        .args(
            self.topics
                .iter()
                .map(|t| format!("{}:{}", t.log_name, t.partitions)),
        )
        .spawn()
        .unwrap()
    }

    /// Produces until every record is acknowledged; a refused one is tried again (the broker that it went to has died).
    async fn produce(&self, from: usize, records: usize) {
        for topic in &self.topics {
            let mut left: Vec<usize> = (from..from + records).collect();
            while !left.is_empty() {
                let acks: Vec<_> = left
                    .iter()
                    .map(|i| {
                        let record = Outgoing {
                            topic_no: topic.no,
                            key: Bytes::from(format!("key-{i}")),
                            payload: Bytes::from_static(b"{}"),
                        };
                        (*i, self.producer.produce(record))
                    })
                    .collect();
                left.clear();
                for (i, ack) in acks {
                    if ack.await.unwrap().is_err() {
                        left.push(i);
                    }
                }
            }
        }
    }

    /// Offsets of the ledger leave no gap and no record was committed twice.
    fn check(&self) {
        let mut next: BTreeMap<(i32, i32), i64> = BTreeMap::new();
        for seen in self.store.ledger() {
            let at = next.entry((seen.partition, seen.topic_no)).or_insert(0);
            assert_eq!(seen.offset, *at, "{seen:?}");
            *at += 1;
        }
    }
}

async fn killed_and_hung(protocol: GroupProtocol) {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let scene = Scene::new(kafka, protocol).await;
    scene.produce(0, 200).await;
    let host = host("survivor", &scene.topics, &scene.store);
    let consumer = scene.consume(&host);
    assert!(scene.store.committed_within(400, SOON).await);

    let mut member = scene.member("killed");
    member.wait_for_log("owns 4.", SOON).await.unwrap();
    assert!(host.owned_within(SOON, |o| o.len() == 4).await);
    scene.produce(200, 200).await;
    member.kill().unwrap();
    assert!(host.owned_within(SOON, |o| o.len() == 8).await);
    assert!(scene.store.committed_within(800, SOON).await);
    scene.check();

    // Another that is stopped past its session, and goes on: what it had is lost, not revoked, and it joins again.
    let mut member = scene.member("hung");
    member.wait_for_log("owns 4.", SOON).await.unwrap();
    assert!(host.owned_within(SOON, |o| o.len() == 4).await);
    member.stop().await.unwrap();
    assert!(host.owned_within(SOON, |o| o.len() == 8).await);
    scene.produce(400, 200).await;
    assert!(scene.store.committed_within(1_200, SOON).await);
    member.resume();
    member
        .wait_for_log("revoked, lost: true.", SOON)
        .await
        .unwrap();
    assert!(host.owned_within(SOON, |o| o.len() == 4).await);
    member.kill().unwrap();
    assert!(host.owned_within(SOON, |o| o.len() == 8).await);
    scene.check();
    tokio::task::spawn_blocking(move || consumer.shutdown())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn members_die_and_hang_under_kip_848() {
    killed_and_hung(GroupProtocol::Consumer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_die_and_hang_under_the_classic_protocol() {
    killed_and_hung(GroupProtocol::Classic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_of_a_cluster_die_and_nothing_is_lost() {
    if kafka::is_absent() {
        eprintln!("not run: Apache Kafka is absent");
        return;
    }
    let started = tokio::task::spawn_blocking(Kafka::start_cluster).await;
    let kafka = Arc::new(started.unwrap());
    let mut scene = Scene::new(&kafka, GroupProtocol::Auto).await;
    scene.settings.ack_timeout_ms = 30_000;
    scene.producer = KafkaProducer::start(&scene.settings, &scene.topics).unwrap();
    let host = host("cluster", &scene.topics, &scene.store);
    let consumer = scene.consume(&host);
    scene.produce(0, 200).await;
    assert!(scene.store.committed_within(400, SOON).await);
    for node in [0, 2] {
        let k = Arc::clone(&kafka);
        let killed = tokio::task::spawn_blocking(move || k.kill(node));
        // Records are under way while it dies.
        let records = 1_000;
        let before = scene.store.committed();
        scene.produce(before, records).await;
        killed.await.unwrap();
        assert!(
            scene
                .store
                .committed_within(before + 2 * records, SOON)
                .await,
            "{} of {}",
            scene.store.committed(),
            before + 2 * records
        );
        let k = Arc::clone(&kafka);
        tokio::task::spawn_blocking(move || k.start_again(node))
            .await
            .unwrap();
    }
    scene.check();
    consumer.health().unwrap();
    tokio::task::spawn_blocking(move || consumer.shutdown())
        .await
        .unwrap();
}
