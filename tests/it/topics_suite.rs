//! What every backend of the log promises (`millrace_topics::contract`), as one list of tests over a [`Log`]. Tests of one
//! backend alone live beside its fixture.

use bytes::Bytes;
use millrace_tests::recording_host::{Event, RecordingHost, RecordingStore};
use millrace_topics::contract::{
    BatchLimits, ClaimError, Consumer, Outgoing, Position, ProduceError, Producer, Subscription,
    TopicRef,
};
use millrace_topics::partitioner;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Long enough for a group to form and a restarted log to be found again.
pub const SOON: Duration = Duration::from_secs(60);

/// A backend, as the suite needs it.
#[allow(async_fn_in_trait, reason = "for this binary alone")]
pub trait Log: Sized + Send + Sync + 'static {
    /// One of its own if `own`: it may be restarted. `None` where the backend is absent.
    async fn start(own: bool) -> Option<Self>;
    /// New topics.
    async fn topics(&self, names: &[&str], partitions: i32) -> Vec<TopicRef>;
    /// A producer.
    fn producer(&self, topics: &[TopicRef], max_record_bytes: usize) -> Arc<dyn Producer>;
    /// A consumer.
    fn consumer(&self, subscription: Subscription, host: Arc<RecordingHost>) -> Arc<dyn Consumer>;
    /// Stops the log hard and starts it again.
    async fn restart(&mut self);
}

/// The tests, once a backend.
#[macro_export]
macro_rules! topics_suite {
    ($log:ty) => {
        $crate::topics_suite!($log:
            acknowledgements_ascend_and_placement_is_the_partitioners,
            every_record_arrives_once_in_order,
            consumption_starts_exactly_at_stored_positions,
            a_new_consumer_goes_on_where_the_old_one_stopped,
            a_batch_that_found_no_room_arrives_unchanged,
            paused_partitions_rest_and_go_on,
            a_full_partition_gets_no_more_until_it_has_room,
            ends_are_told,
            after_shutdown_nothing_arrives,
            shutdown_does_not_wait_for_a_stuck_host,
            oversize_is_refused_and_others_pass,
            what_cannot_be_produced_is_said,
            a_position_out_of_range_is_a_fault_and_can_be_mended,
            topics_of_one_partition_meet_in_one_stream,
            large_and_small_records_keep_within_the_limits,
            a_refused_claim_is_tried_again,
            a_stopped_partition_waits_until_it_is_wanted,
            two_producers_share_the_partitions,
            restarted_logs_lose_and_repeat_nothing,
        );
    };
    ($log:ty: $($name:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::topics_suite::$name::<$log>().await;
            }
        )*
    };
}

/// One test's log, topics, group and store.
struct World<L> {
    log: L,
    topics: Vec<TopicRef>,
    group: String,
    store: Arc<RecordingStore>,
    limits: BatchLimits,
}

impl<L: Log> World<L> {
    async fn new(names: &[&str], partitions: i32) -> Option<World<L>> {
        World::on(L::start(false).await?, names, partitions).await
    }

    async fn on(log: L, names: &[&str], partitions: i32) -> Option<World<L>> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Some(World {
            topics: log.topics(names, partitions).await,
            log,
            group: format!("suite-{}-{n}", std::process::id()),
            store: RecordingStore::new(),
            limits: BatchLimits::default(),
        })
    }

    fn producer(&self) -> Arc<dyn Producer> {
        self.log.producer(&self.topics, 900_000)
    }

    fn host(&self, name: &str) -> Arc<RecordingHost> {
        let numbers: Vec<i32> = self.topics.iter().map(|t| t.no).collect();
        RecordingHost::new(name, &numbers, &self.store)
    }

    fn consumer(&self, host: &Arc<RecordingHost>) -> Arc<dyn Consumer> {
        let subscription = Subscription {
            group: self.group.clone(),
            topics: self.topics.clone(),
            limits: self.limits,
        };
        self.log.consumer(subscription, Arc::clone(host))
    }

    /// Everything of the ledger that came from a topic's partition: offsets and payloads.
    fn seen(&self, topic: usize, partition: i32) -> Vec<(i64, String)> {
        let no = self.topics[topic].no;
        self.store
            .ledger()
            .into_iter()
            .filter(|s| s.topic_no == no && s.partition == partition)
            .map(|s| (s.offset, String::from_utf8_lossy(&s.payload).into_owned()))
            .collect()
    }
}

/// `n` records of a topic over twenty keys: `<prefix><i>` under key `k<i % 20>`.
fn records(topic: &TopicRef, prefix: &str, n: usize) -> Vec<Outgoing> {
    (0..n)
        .map(|i| record(topic, &format!("k{}", i % 20), &format!("{prefix}{i}")))
        .collect()
}

fn record(topic: &TopicRef, key: &str, payload: &str) -> Outgoing {
    Outgoing {
        topic_no: topic.no,
        key: Bytes::copy_from_slice(key.as_bytes()),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
    }
}

/// A key that lies in a partition.
fn key_in(topic: &TopicRef, partition: i32) -> String {
    (0..)
        .map(|i| format!("p{i}"))
        .find(|k| partitioner::partition(k.as_bytes(), topic.partitions) == partition)
        .expect("some key lies there")
}

async fn produce(
    producer: &Arc<dyn Producer>,
    records: Vec<Outgoing>,
) -> Vec<Result<Position, ProduceError>> {
    let waiting: Vec<_> = records.into_iter().map(|r| producer.produce(r)).collect();
    let mut out = Vec::with_capacity(waiting.len());
    for acknowledgement in waiting {
        let answer = tokio::time::timeout(SOON, acknowledgement).await;
        out.push(answer.expect("an answer").expect("an answer"));
    }
    out
}

async fn produced(producer: &Arc<dyn Producer>, records: Vec<Outgoing>) -> Vec<Position> {
    let answers = produce(producer, records).await;
    answers
        .into_iter()
        .map(|a| a.expect("acknowledged"))
        .collect()
}

async fn shut(consumer: &Arc<dyn Consumer>) -> Duration {
    let consumer = Arc::clone(consumer);
    let started = Instant::now();
    tokio::task::spawn_blocking(move || consumer.shutdown())
        .await
        .expect("shutdown ends");
    started.elapsed()
}

/// Waits for a condition that nobody announces.
async fn eventually(what: &str, ready: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !ready() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn acknowledgements_ascend_and_placement_is_the_partitioners<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 4).await else {
        return;
    };
    let sent = records(&w.topics[0], "r", 400);
    let positions = produced(&w.producer(), sent.clone()).await;
    let mut next: BTreeMap<i32, i64> = BTreeMap::new();
    for (record, position) in sent.iter().zip(&positions) {
        assert_eq!(position.partition, partitioner::partition(&record.key, 4));
        let next = next.entry(position.partition).or_insert(0);
        assert_eq!(
            position.offset, *next,
            "dense, from 0, in the order of producing"
        );
        *next += 1;
    }
    assert!(next.len() > 1, "twenty keys, more than one partition");
}

pub async fn every_record_arrives_once_in_order<L: Log>() {
    let Some(mut w) = World::<L>::new(&["clicks", "postbacks"], 3).await else {
        return;
    };
    w.limits = BatchLimits {
        records: 70,
        ..BatchLimits::default()
    };
    let host = w.host("a");
    let consumer = w.consumer(&host);
    let producer = w.producer();
    let mut want: BTreeMap<(usize, i32), Vec<(i64, String)>> = BTreeMap::new();
    for round in 0..5 {
        for topic in 0..2 {
            let sent = records(&w.topics[topic], &format!("{round}-{topic}-"), 200);
            let texts: Vec<String> = sent
                .iter()
                .map(|r| String::from_utf8_lossy(&r.payload).into_owned())
                .collect();
            for (position, text) in produced(&producer, sent).await.iter().zip(texts) {
                want.entry((topic, position.partition))
                    .or_default()
                    .push((position.offset, text));
            }
        }
    }
    assert!(w.store.committed_within(2_000, SOON).await);
    for ((topic, partition), list) in &want {
        assert_eq!(
            w.seen(*topic, *partition),
            *list,
            "topic {topic}, partition {partition}"
        );
    }
    assert_eq!(w.store.refused(), 0);
    for event in host.events() {
        if let Event::Batch { records, .. } = event {
            assert!(
                records.len() <= 70,
                "{} records in one batch",
                records.len()
            );
        }
    }
    assert_eq!(consumer.owned(), [0, 1, 2]);
    consumer.health().expect("well");
    shut(&consumer).await;
    assert_eq!(w.store.committed(), 2_000);
}

pub async fn consumption_starts_exactly_at_stored_positions<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    let (topic, producer) = (&w.topics[0], w.producer());
    for partition in 0..2 {
        let key = key_in(topic, partition);
        let sent = (0..50)
            .map(|i| record(topic, &key, &format!("{i}")))
            .collect();
        produced(&producer, sent).await;
    }
    w.store.set_position(0, topic.no, 37);
    w.store.set_position(1, topic.no, 50);
    let host = w.host("a");
    let consumer = w.consumer(&host);
    assert!(w.store.committed_within(13, SOON).await);
    produced(&producer, vec![record(topic, &key_in(topic, 1), "new")]).await;
    assert!(w.store.committed_within(14, SOON).await);
    let want: Vec<_> = (37..50).map(|i| (i, format!("{i}"))).collect();
    assert_eq!(w.seen(0, 0), want);
    assert_eq!(w.seen(0, 1), [(50, "new".to_owned())]);
    shut(&consumer).await;
}

pub async fn a_new_consumer_goes_on_where_the_old_one_stopped<L: Log>() {
    let Some(mut w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    w.limits.records = 16;
    let producer = w.producer();
    for round in 1..=3 {
        produced(&producer, records(&w.topics[0], &format!("{round}-"), 300)).await;
        let host = w.host(&format!("h{round}"));
        let consumer = w.consumer(&host);
        // Stopped in the middle, but for the last.
        let enough = if round == 3 { 900 } else { round * 300 - 150 };
        assert!(w.store.committed_within(enough, SOON).await);
        shut(&consumer).await;
    }
    assert_eq!(w.store.committed(), 900);
    assert_eq!(w.store.refused(), 0);
    for partition in 0..2 {
        let offsets: Vec<i64> = w.seen(0, partition).iter().map(|s| s.0).collect();
        let want: Vec<i64> = (0..).take(offsets.len()).collect();
        assert_eq!(offsets, want);
    }
}

pub async fn a_batch_that_found_no_room_arrives_unchanged<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 1).await else {
        return;
    };
    let host = w.host("a");
    host.set_no_room(true);
    let consumer = w.consumer(&host);
    produced(&w.producer(), records(&w.topics[0], "r", 100)).await;
    let twice = |events: &[Event]| {
        let back = |e: &&Event| matches!(e, Event::HandedBack { .. });
        events.iter().filter(back).count() >= 3
    };
    assert!(host.events_within(SOON, twice).await);
    host.set_no_room(false);
    assert!(w.store.committed_within(100, SOON).await);
    let want: Vec<_> = (0..100).map(|i| (i, format!("r{i}"))).collect();
    assert_eq!(w.seen(0, 0), want);
    shut(&consumer).await;
}

pub async fn paused_partitions_rest_and_go_on<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    let (topic, producer) = (&w.topics[0], w.producer());
    let host = w.host("a");
    let consumer = w.consumer(&host);
    assert!(host.owned_within(SOON, |o| o == [0, 1]).await);
    consumer.pause(&[0]);
    // What was under way when the pause came may still arrive; the second round may not.
    for round in 0..2 {
        let mut sent = Vec::new();
        for partition in 0..2 {
            let key = key_in(topic, partition);
            sent.extend((0..20).map(|i| record(topic, &key, &format!("{round}-{i}"))));
        }
        produced(&producer, sent).await;
        eventually("the other partition goes on", || {
            w.seen(0, 1).len() == 20 * (round + 1)
        })
        .await;
    }
    assert!(
        w.seen(0, 0).len() <= 20,
        "{} of a paused partition",
        w.seen(0, 0).len()
    );
    consumer.resume(&[0]);
    assert!(w.store.committed_within(80, SOON).await);
    let order: Vec<i64> = w.seen(0, 0).iter().map(|s| s.0).collect();
    assert_eq!(order, (0..40).collect::<Vec<_>>());
    shut(&consumer).await;
}

pub async fn a_full_partition_gets_no_more_until_it_has_room<L: Log>() {
    let Some(mut w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    w.limits = BatchLimits {
        records: 10,
        high_records: 30,
        ..BatchLimits::default()
    };
    let (topic, producer) = (&w.topics[0], w.producer());
    let host = w.host("a");
    host.hold();
    let consumer = w.consumer(&host);
    let in_partition = |partition: i32, n: usize| {
        let key = key_in(topic, partition);
        (0..n)
            .map(|i| record(topic, &key, &format!("{i}")))
            .collect::<Vec<_>>()
    };
    produced(&producer, in_partition(0, 500)).await;
    let taken = |events: &[Event], of: i32| {
        let records = |e: &Event| match e {
            Event::Batch {
                partition, records, ..
            } if *partition == of => records.len(),
            _ => 0,
        };
        events.iter().map(records).sum::<usize>()
    };
    assert!(host.events_within(SOON, move |e| taken(e, 0) >= 10).await);
    // Another partition's record shows that the consumer has had its turn.
    produced(&producer, in_partition(1, 1)).await;
    assert!(host.events_within(SOON, move |e| taken(e, 1) == 1).await);
    let most = taken(&host.events(), 0);
    assert!(
        most <= 40,
        "{most} records under way, the high watermark is 30"
    );
    host.release();
    assert!(w.store.committed_within(501, SOON).await);
    assert_eq!(w.store.refused(), 0);
    shut(&consumer).await;
}

pub async fn ends_are_told<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks", "postbacks"], 1).await else {
        return;
    };
    let numbers: Vec<i32> = w.topics.iter().map(|t| t.no).collect();
    let host = w.host("a");
    let consumer = w.consumer(&host);
    let (h, all) = (Arc::clone(&host), numbers.clone());
    eventually("both are empty, and so at their ends", move || {
        h.at_end(0) == all
    })
    .await;
    produced(&w.producer(), records(&w.topics[0], "r", 100)).await;
    assert!(w.store.committed_within(100, SOON).await);
    eventually("the end is told again after new records", || {
        host.at_end(0) == numbers
    })
    .await;
    shut(&consumer).await;
}

pub async fn after_shutdown_nothing_arrives<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    let producer = w.producer();
    let host = w.host("a");
    let consumer = w.consumer(&host);
    produced(&producer, records(&w.topics[0], "r", 50)).await;
    assert!(w.store.committed_within(50, SOON).await);
    let took = shut(&consumer).await;
    assert!(took < Duration::from_secs(6), "{took:?}");
    let events = host.events();
    let gone = |e: &Event| {
        matches!(e, Event::Revoked { partitions, lost: false } if {
            let mut p = partitions.clone();
            p.sort_unstable();
            p == [0, 1]
        })
    };
    assert!(events.last().is_some_and(gone), "{:?}", events.last());
    assert_eq!(consumer.owned(), Vec::<i32>::new());
    assert!(consumer.health().is_err());
    produced(&producer, records(&w.topics[0], "s", 50)).await;
    let other = w.host("b");
    let second = w.consumer(&other);
    assert!(w.store.committed_within(100, SOON).await);
    assert_eq!(host.events(), events);
    shut(&second).await;
}

pub async fn shutdown_does_not_wait_for_a_stuck_host<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 1).await else {
        return;
    };
    let host = w.host("a");
    host.hold();
    let consumer = w.consumer(&host);
    produced(&w.producer(), records(&w.topics[0], "r", 50)).await;
    let some = |e: &[Event]| e.iter().any(|e| matches!(e, Event::Batch { .. }));
    assert!(host.events_within(SOON, some).await);
    let took = shut(&consumer).await;
    assert!(took < Duration::from_secs(6), "{took:?}");
    assert_eq!(w.store.committed(), 0);
}

pub async fn oversize_is_refused_and_others_pass<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 1).await else {
        return;
    };
    let producer = w.log.producer(&w.topics, 10_000);
    let large = "x".repeat(10_001);
    let sent = vec![
        record(&w.topics[0], "k", "before"),
        record(&w.topics[0], "k", &large),
        record(&w.topics[0], "k", &large[..9_999]),
        record(&w.topics[0], "k", "after"),
    ];
    let answers = produce(&producer, sent).await;
    let at = |offset| {
        Ok(Position {
            partition: 0,
            offset,
        })
    };
    let refused = Err(ProduceError::TooLarge {
        bytes: 10_002,
        limit: 10_000,
    });
    assert_eq!(answers, [at(0), refused, at(1), at(2)]);
}

pub async fn what_cannot_be_produced_is_said<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 1).await else {
        return;
    };
    let producer = w.producer();
    let stranger = TopicRef {
        no: 999_999,
        ..w.topics[0].clone()
    };
    let answers = produce(&producer, vec![record(&stranger, "k", "x")]).await;
    assert_eq!(answers, [Err(ProduceError::UnknownTopic(999_999))]);
    producer.health(SOON).await.expect("well");
    // What is under way when it closes is acknowledged.
    let waiting = producer.produce(record(&w.topics[0], "k", "x"));
    producer.close(SOON).await;
    let at = Position {
        partition: 0,
        offset: 0,
    };
    assert_eq!(waiting.await.expect("an answer"), Ok(at));
    let answers = produce(&producer, vec![record(&w.topics[0], "k", "x")]).await;
    assert_eq!(answers, [Err(ProduceError::Closed)]);
}

pub async fn a_position_out_of_range_is_a_fault_and_can_be_mended<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    let (topic, producer) = (&w.topics[0], w.producer());
    for partition in 0..2 {
        produced(
            &producer,
            vec![record(topic, &key_in(topic, partition), "x")],
        )
        .await;
    }
    w.store.set_position(0, topic.no, 5);
    let host = w.host("a");
    let consumer = w.consumer(&host);
    let fault = |e: &[Event]| {
        e.iter()
            .any(|e| matches!(e, Event::Fault { partition: 0, .. }))
    };
    assert!(host.events_within(SOON, fault).await);
    assert!(w.store.committed_within(1, SOON).await, "the other goes on");
    assert_eq!(w.seen(0, 0), []);
    w.store.set_position(0, topic.no, 0);
    host.want_again(0);
    assert!(w.store.committed_within(2, SOON).await);
    assert_eq!(w.seen(0, 0), [(0, "x".to_owned())]);
    shut(&consumer).await;
}

pub async fn topics_of_one_partition_meet_in_one_stream<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks", "postbacks"], 4).await else {
        return;
    };
    let producer = w.producer();
    for topic in &w.topics {
        produced(&producer, records(topic, &topic.name, 100)).await;
    }
    let host = w.host("a");
    let consumer = w.consumer(&host);
    assert!(w.store.committed_within(200, SOON).await);
    for seen in w.store.ledger() {
        assert_eq!(seen.partition, partitioner::partition(&seen.key, 4));
    }
    let place = |no: i32| w.topics.iter().position(|t| t.no == no);
    for event in host.events() {
        if let Event::Batch { records, .. } = event {
            let places: Vec<_> = records.iter().map(|(no, _)| place(*no)).collect();
            assert!(places.is_sorted(), "clicks before postbacks");
        }
    }
    shut(&consumer).await;
}

pub async fn large_and_small_records_keep_within_the_limits<L: Log>() {
    let Some(mut w) = World::<L>::new(&["clicks", "postbacks"], 1).await else {
        return;
    };
    w.limits = BatchLimits {
        records: 50,
        bytes: 50_000,
        high_records: 100,
        high_bytes: 100_000,
    };
    let sizes = [1, 7_990, 300, 8_000, 0, 60_000, 200_000, 12, 30_000, 20_000];
    let mut sent = Vec::new();
    for i in 0..100 {
        let text = "z".repeat(sizes[i % sizes.len()]);
        sent.push(record(&w.topics[i % 2], "k", &format!("{i}{text}")));
    }
    let texts: Vec<String> = sent
        .iter()
        .map(|r| String::from_utf8_lossy(&r.payload).into_owned())
        .collect();
    produced(&w.producer(), sent).await;
    let host = w.host("a");
    let consumer = w.consumer(&host);
    assert!(w.store.committed_within(100, SOON).await);
    let sizes: BTreeMap<(i32, i64), usize> = w
        .store
        .ledger()
        .iter()
        .map(|s| ((s.topic_no, s.offset), s.key.len() + s.payload.len()))
        .collect();
    for event in host.events() {
        if let Event::Batch { records, .. } = event {
            let bytes: usize = records.iter().map(|r| sizes[r]).sum();
            assert!(records.len() <= 50);
            assert!(
                bytes <= 50_000 || records.len() == 1,
                "{} records of {bytes} bytes",
                records.len()
            );
        }
    }
    for topic in 0..2 {
        let want: Vec<String> = texts.iter().skip(topic).step_by(2).cloned().collect();
        let seen: Vec<String> = w.seen(topic, 0).into_iter().map(|s| s.1).collect();
        assert_eq!(seen, want);
    }
    shut(&consumer).await;
}

pub async fn a_refused_claim_is_tried_again<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    produced(&w.producer(), records(&w.topics[0], "r", 100)).await;
    let host = w.host("a");
    host.refuse_claims(1, 2, ClaimError::Later("held".to_owned()));
    let consumer = w.consumer(&host);
    assert!(w.store.committed_within(100, SOON).await);
    let refused = |e: &&Event| matches!(e, Event::Refused { partition: 1 });
    assert_eq!(host.events().iter().filter(refused).count(), 2);
    shut(&consumer).await;
}

pub async fn a_stopped_partition_waits_until_it_is_wanted<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks"], 2).await else {
        return;
    };
    let (topic, producer) = (&w.topics[0], w.producer());
    let host = w.host("a");
    host.refuse_claims(0, 1, ClaimError::Stopped("poison".to_owned()));
    let consumer = w.consumer(&host);
    for partition in 0..2 {
        produced(
            &producer,
            vec![record(topic, &key_in(topic, partition), "x")],
        )
        .await;
    }
    assert!(w.store.committed_within(1, SOON).await);
    assert_eq!(w.seen(0, 0), []);
    host.want_again(0);
    assert!(w.store.committed_within(2, SOON).await);
    shut(&consumer).await;
}

pub async fn two_producers_share_the_partitions<L: Log>() {
    let Some(w) = World::<L>::new(&["clicks", "postbacks"], 3).await else {
        return;
    };
    let mut tasks = Vec::new();
    for name in ["a", "b", "c"] {
        let producer = w.producer();
        let sent: Vec<_> = (0..1_000)
            .map(|i| {
                record(
                    &w.topics[i % 2],
                    &format!("k{}", i % 20),
                    &format!("{name}{i}"),
                )
            })
            .collect();
        tasks.push(tokio::spawn(async move {
            let mut out = Vec::new();
            for part in sent.chunks(50) {
                let topics: Vec<i32> = part.iter().map(|r| r.topic_no).collect();
                let positions = produced(&producer, part.to_vec()).await;
                out.extend(topics.into_iter().zip(positions));
            }
            out
        }));
    }
    let mut places = std::collections::BTreeSet::new();
    for task in tasks {
        let mut last: BTreeMap<(i32, i32), i64> = BTreeMap::new();
        for (topic_no, p) in task.await.expect("produced") {
            assert!(
                places.insert((topic_no, p.partition, p.offset)),
                "given twice"
            );
            let before = last.insert((topic_no, p.partition), p.offset);
            assert!(
                before.is_none_or(|b| b < p.offset),
                "ascending for each producer"
            );
        }
    }
    let host = w.host("a");
    let consumer = w.consumer(&host);
    assert!(w.store.committed_within(3_000, SOON).await);
    let seen: std::collections::BTreeSet<_> = w
        .store
        .ledger()
        .iter()
        .map(|s| (s.topic_no, s.partition, s.offset))
        .collect();
    assert_eq!(seen, places);
    shut(&consumer).await;
}

pub async fn restarted_logs_lose_and_repeat_nothing<L: Log>() {
    let Some(log) = L::start(true).await else {
        return;
    };
    let Some(mut w) = World::on(log, &["clicks", "postbacks"], 2).await else {
        return;
    };
    let host = w.host("a");
    let consumer = w.consumer(&host);
    let producer = w.producer();
    produced(&producer, records(&w.topics[0], "before", 200)).await;
    assert!(w.store.committed_within(200, SOON).await);
    // Records under way while the log goes down: each ends acknowledged or not, and the acknowledged ones are there.
    let (under_way, topic) = (Arc::clone(&producer), w.topics[1].clone());
    let task = tokio::spawn(async move {
        let mut good = Vec::new();
        for i in 0..60 {
            let answers = produce(&under_way, records(&topic, &format!("{i}-"), 20)).await;
            good.extend(answers.into_iter().filter_map(Result::ok));
        }
        good
    });
    w.log.restart().await;
    let good = task.await.expect("produced");
    let deadline = Instant::now() + SOON;
    loop {
        let answers = produce(&producer, vec![record(&w.topics[0], "k0", "after")]).await;
        if answers[0].is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "{answers:?}");
    }
    let is_there = |w: &World<L>, position: &Position| {
        w.seen(1, position.partition)
            .iter()
            .any(|(offset, _)| *offset == position.offset)
    };
    eventually("every acknowledged record arrives", || {
        good.iter().all(|p| is_there(&w, p))
            && w.store.ledger().iter().any(|s| s.payload == b"after")
    })
    .await;
    for topic in 0..2 {
        for partition in 0..2 {
            let offsets: Vec<i64> = w.seen(topic, partition).iter().map(|s| s.0).collect();
            assert!(offsets.is_sorted_by(|a, b| a < b), "once each, in order");
        }
    }
    assert_eq!(w.store.refused(), 0);
    shut(&consumer).await;
}
