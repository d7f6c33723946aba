//! What every backend of the log promises (`millrace_topics::contract`), as one list of tests over a [`Log`]. Tests of one
//! backend alone live beside its fixture.

mod flow;
mod positions;
mod producing;

pub use flow::*;
pub use positions::*;
pub use producing::*;

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
