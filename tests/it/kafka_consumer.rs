//! The consumer against a real Kafka, under both group protocols.

use bytes::Bytes;
use millrace_tests::kafka::{self, Kafka};
use millrace_tests::process::eventually;
use millrace_tests::recording_host::{Event, RecordingHost, RecordingStore, Seen};
use millrace_topics::contract::{
    BatchLimits, ClaimError, Consumer, Outgoing, Producer, Subscription, TopicRef,
};
use millrace_topics::kafka::{GroupProtocol, KafkaConsumer, KafkaProducer, KafkaSettings};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(40);

/// A group of topics in a running Kafka.
struct Group {
    settings: KafkaSettings,
    topics: Vec<TopicRef>,
    name: String,
    store: Arc<RecordingStore>,
    producer: KafkaProducer,
}

impl Group {
    async fn new(kafka: &Kafka, protocol: GroupProtocol, partitions: i32) -> Group {
        let topics = kafka.topics(&["clicks", "postbacks"], partitions).await;
        let settings = KafkaSettings {
            protocol,
            ..kafka.settings()
        };
        Group {
            producer: KafkaProducer::start(&settings, &topics).unwrap(),
            settings,
            topics,
            name: kafka::group_name("group"),
            store: RecordingStore::new(),
        }
    }

    fn host(&self, name: &str) -> Arc<RecordingHost> {
        let numbers: Vec<i32> = self.topics.iter().map(|t| t.no).collect();
        RecordingHost::new(name, &numbers, &self.store)
    }

    fn start(&self, host: &Arc<RecordingHost>) -> KafkaConsumer {
        self.start_limited(host, BatchLimits::default())
    }

    fn start_limited(&self, host: &Arc<RecordingHost>, limits: BatchLimits) -> KafkaConsumer {
        let subscription = Subscription {
            group: self.name.clone(),
            topics: self.topics.clone(),
            limits,
        };
        KafkaConsumer::start(&self.settings, subscription, Arc::clone(host) as _).unwrap()
    }

    /// Produces `records` keys into every topic and waits for the acknowledgements.
    async fn produce(&self, from: usize, records: usize) {
        let mut acks = Vec::new();
        for i in from..from + records {
            for topic in &self.topics {
                let key = format!("key-{i}");
                acks.push(self.producer.produce(Outgoing {
                    topic_no: topic.no,
                    key: Bytes::from(key.clone()),
                    payload: Bytes::from(format!("{}:{key}", topic.name)),
                }));
            }
        }
        for ack in acks {
            tokio::time::timeout(SOON, ack)
                .await
                .unwrap()
                .unwrap()
                .unwrap();
        }
    }

    /// Every produced record was committed exactly once, in order, both topics of a partition by one host at a time.
    fn check(&self, records: usize) {
        let ledger = self.store.ledger();
        let mut next: BTreeMap<(i32, i32), i64> = BTreeMap::new();
        for seen in &ledger {
            let at = next.entry((seen.partition, seen.topic_no)).or_insert(0);
            assert_eq!(seen.offset, *at, "{seen:?}");
            *at += 1;
        }
        let keys: BTreeSet<(i32, &[u8])> = ledger
            .iter()
            .map(|s| (s.topic_no, s.key.as_slice()))
            .collect();
        assert_eq!(keys.len(), records * self.topics.len());
        assert_eq!(ledger.len(), records * self.topics.len());
    }
}

/// Which hosts committed records of a partition, by topic.
fn hosts_by_partition(ledger: &[Seen], topic_no: i32) -> BTreeMap<i32, BTreeSet<String>> {
    let mut by: BTreeMap<i32, BTreeSet<String>> = BTreeMap::new();
    for seen in ledger.iter().filter(|s| s.topic_no == topic_no) {
        by.entry(seen.partition)
            .or_default()
            .insert(seen.host.clone());
    }
    by
}

/// Waits until `check` finds something.
async fn seen<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let found = eventually(what, SOON, async || Ok(check().await));
    found.await.unwrap()
}

async fn shutdown(consumer: KafkaConsumer) {
    tokio::task::spawn_blocking(move || consumer.shutdown())
        .await
        .unwrap();
}

async fn two_members(protocol: GroupProtocol) {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let group = Group::new(kafka, protocol, 8).await;
    group.produce(0, 400).await;
    let first_host = group.host("first");
    let first = group.start(&first_host);
    assert!(first_host.owned_within(SOON, |o| o.len() == 8).await);
    assert!(group.store.committed_within(800, SOON).await);
    assert_eq!(first.uses_kip_848(), protocol != GroupProtocol::Classic);
    first.health().unwrap();

    let second_host = group.host("second");
    let second = group.start(&second_host);
    assert!(second_host.owned_within(SOON, |o| o.len() == 4).await);
    assert!(first_host.owned_within(SOON, |o| o.len() == 4).await);
    let both: BTreeSet<i32> = first_host
        .owned()
        .into_iter()
        .chain(second_host.owned())
        .collect();
    assert_eq!(both.len(), 8);
    if protocol != GroupProtocol::Classic {
        // What stayed was not touched.
        let kept = first_host.owned();
        let touched = first_host.events().iter().any(|e| {
            matches!(e, Event::Revoked { partitions, .. } if partitions.iter().any(|p| kept.contains(p)))
        });
        assert!(!touched, "a join must leave retained partitions alone");
    }
    let before = group.store.committed();
    group.produce(400, 400).await;
    assert!(group.store.committed_within(1_600, SOON).await);
    group.check(800);
    // Both topics of a partition went to the same member.
    let ledger = &group.store.ledger()[before..];
    let clicks = hosts_by_partition(ledger, group.topics[0].no);
    let postbacks = hosts_by_partition(ledger, group.topics[1].no);
    assert_eq!(clicks, postbacks);
    assert!(clicks.values().all(|hosts| hosts.len() == 1));

    // One leaves: the other gets its half back and nothing is lost.
    shutdown(first).await;
    assert!(first_host.owned().is_empty());
    assert!(second_host.owned_within(SOON, |o| o.len() == 8).await);
    group.produce(800, 100).await;
    assert!(group.store.committed_within(1_800, SOON).await);
    group.check(900);
    let owned = seen("all run", async || {
        (second.owned().len() == 8).then_some(())
    });
    owned.await;
    shutdown(second).await;
    assert!(second_host.owned().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_members_share_whole_partitions_under_kip_848() {
    two_members(GroupProtocol::Consumer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_members_share_whole_partitions_under_the_classic_protocol() {
    two_members(GroupProtocol::Classic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_finds_kip_848_where_it_is_and_falls_back_where_it_is_not() {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let group = Group::new(kafka, GroupProtocol::Auto, 2).await;
    group.produce(0, 10).await;
    let host = group.host("auto");
    let consumer = group.start(&host);
    assert!(group.store.committed_within(20, SOON).await);
    assert!(consumer.uses_kip_848());
    shutdown(consumer).await;

    let old =
        tokio::task::spawn_blocking(|| Kafka::start_with("", &["--feature", "group.version=0"]));
    let old = old.await.unwrap();
    let group = Group::new(&old, GroupProtocol::Auto, 2).await;
    group.produce(0, 10).await;
    let host = group.host("auto");
    let consumer = group.start(&host);
    assert!(group.store.committed_within(20, SOON).await);
    assert!(!consumer.uses_kip_848());
    consumer.health().unwrap();
    shutdown(consumer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_are_told_and_withdrawn() {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let group = Group::new(kafka, GroupProtocol::Auto, 1).await;
    let host = group.host("ends");
    let consumer = group.start(&host);
    let both: Vec<i32> = group.topics.iter().map(|t| t.no).collect();
    let told = |h: Arc<RecordingHost>, both: Vec<i32>| async move {
        seen("both ends", async || (h.at_end(0) == both).then_some(())).await;
    };
    told(Arc::clone(&host), both.clone()).await;
    group.produce(0, 50).await;
    assert!(group.store.committed_within(100, SOON).await);
    told(Arc::clone(&host), both).await;
    shutdown(consumer).await;
}

async fn out_of_range(protocol: GroupProtocol) {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let group = Group::new(kafka, protocol, 2).await;
    group.produce(0, 50).await;
    let (clicks, postbacks) = (group.topics[0].no, group.topics[1].no);
    group.store.set_position(0, clicks, 100_000);
    let host = group.host("range");
    let consumer = group.start(&host);
    let fault = host.events_within(SOON, |events| {
        events.iter().any(|e| {
            matches!(e, Event::Fault { partition: 0, reason } if reason.contains("out of") && reason.contains("100000"))
        })
    });
    assert!(fault.await, "{:?}", host.events());
    // The other partition goes on, and the stopped one stays so.
    let ended = seen("the other partition", async || {
        (host.at_end(1).len() == 2).then_some(())
    });
    ended.await;
    let owned = seen("one runs", async || (consumer.owned() == [1]).then_some(()));
    owned.await;
    assert!(
        group
            .store
            .ledger()
            .iter()
            .all(|s| s.partition == 1 || s.topic_no == postbacks)
    );

    // An operator sets the position: the host wants it again, and it starts there.
    group.store.set_position(0, clicks, 0);
    host.want_again(0);
    assert!(group.store.committed_within(100, SOON).await);
    group.check(50);
    group.produce(50, 50).await;
    assert!(group.store.committed_within(200, SOON).await);
    group.check(100);
    shutdown(consumer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_out_of_range_stops_its_partition_under_kip_848() {
    out_of_range(GroupProtocol::Consumer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_out_of_range_stops_its_partition_under_the_classic_protocol() {
    out_of_range(GroupProtocol::Classic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_claim_is_tried_again_and_a_stopped_one_is_not() {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let group = Group::new(kafka, GroupProtocol::Auto, 3).await;
    group.produce(0, 60).await;
    let host = group.host("claims");
    host.refuse_claims(0, 2, ClaimError::Later("held by another".to_owned()));
    host.refuse_claims(1, 1, ClaimError::Stopped("poison".to_owned()));
    let consumer = group.start(&host);
    assert!(host.owned_within(SOON, |o| *o == [0, 2]).await);
    let refused = host
        .events()
        .iter()
        .filter(|e| matches!(e, Event::Refused { partition: 0 }))
        .count();
    assert_eq!(refused, 2);
    let owned = seen("two run", async || {
        (consumer.owned() == [0, 2]).then_some(())
    });
    owned.await;
    // Records that come while it is stopped are not skipped.
    group.produce(60, 60).await;
    host.want_again(1);
    assert!(host.owned_within(SOON, |o| *o == [0, 1, 2]).await);
    assert!(group.store.committed_within(240, SOON).await);
    group.check(120);
    shutdown(consumer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_actor_is_waited_for_and_nothing_is_lost() {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let group = Group::new(kafka, GroupProtocol::Auto, 2).await;
    group.produce(0, 2_000).await;
    let host = group.host("busy");
    host.hold();
    let limits = BatchLimits {
        records: 100,
        bytes: 1 << 20,
        high_records: 300,
        high_bytes: 1 << 20,
    };
    let consumer = group.start_limited(&host, limits);
    let full = seen("both at their watermark", async || {
        use millrace_topics::contract::PartitionHost as _;
        let flights = [host.in_flight(0).records, host.in_flight(1).records];
        flights.iter().all(|f| (300..400).contains(f)).then_some(())
    });
    full.await;
    assert_eq!(group.store.committed(), 0);
    host.release();
    assert!(group.store.committed_within(4_000, SOON).await);
    group.check(2_000);

    // Handed back batches come again, untouched.
    host.set_no_room(true);
    group.produce(2_000, 50).await;
    let back = host.events_within(SOON, |events| {
        events.iter().any(|e| matches!(e, Event::HandedBack { .. }))
    });
    assert!(back.await);
    host.set_no_room(false);
    assert!(group.store.committed_within(4_100, SOON).await);
    group.check(2_050);

    // Paused by hand: nothing comes until it is resumed.
    consumer.pause(&[0, 1]);
    let paused_at = host.events().len();
    group.produce(2_050, 50).await;
    // The one after it is read, so a paused partition had its chance.
    consumer.resume(&[1]);
    let one = seen("the resumed partition", async || {
        let events = host.events();
        events[paused_at..]
            .iter()
            .any(|e| matches!(e, Event::Batch { partition: 1, .. }))
            .then_some(())
    });
    one.await;
    let events = host.events();
    let zero = events[paused_at..]
        .iter()
        .any(|e| matches!(e, Event::Batch { partition: 0, .. }));
    assert!(!zero, "a paused partition was read");
    consumer.resume(&[]);
    assert!(group.store.committed_within(4_200, SOON).await);
    group.check(2_100);
    shutdown(consumer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_host_is_caught_and_seen() {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let group = Group::new(kafka, GroupProtocol::Auto, 1).await;
    group.produce(0, 10).await;
    let host = group.host("panics");
    host.panic_on_next_claim();
    let consumer = group.start(&host);
    // The claim is tried again all the same.
    assert!(group.store.committed_within(20, SOON).await);
    let ill = seen("ill health", async || consumer.health().err());
    assert!(ill.await.contains("panicked"));
    shutdown(consumer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_reported_to_the_group() {
    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let group = Group::new(kafka, GroupProtocol::Auto, 1).await;
    group.produce(0, 25).await;
    let host = group.host("progress");
    let consumer = group.start(&host);
    assert!(group.store.committed_within(50, SOON).await);
    let (brokers, name) = (kafka.brokers().to_owned(), group.name.clone());
    let topic = group.topics[1].log_name.clone();
    let reported = seen("the committed offset", async || {
        let (brokers, name, topic) = (brokers.clone(), name.clone(), topic.clone());
        tokio::task::spawn_blocking(move || {
            let client: BaseConsumer = rdkafka::ClientConfig::new()
                .set("bootstrap.servers", brokers)
                .set("group.id", name)
                .create()
                .unwrap();
            let mut list = rdkafka::TopicPartitionList::new();
            list.add_partition(&topic, 0);
            let list = client.committed_offsets(list, SOON).ok()?;
            let offset = list.elements().first()?.offset();
            (offset == rdkafka::Offset::Offset(25)).then_some(())
        })
        .await
        .unwrap()
    });
    reported.await;
    shutdown(consumer).await;
}
