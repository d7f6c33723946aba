//! What every backend of the log promises. One suite of tests runs over all of them.
//!
//! **Producing.** [`Producer::produce`] never blocks; the returned [`Acknowledgement`] resolves once the log has the record
//! for good, or with the reason why it has not. Records of one producer and one partition keep their order.
//!
//! **Consuming.** A consumer runs on a thread of its own and talks to a [`PartitionHost`] (the runtime). For partition `p` of
//! a group it holds partition `p` of EVERY topic of the group, or does not start it at all:
//! 1. [`PartitionHost::assigned`]: partitions were given; the host claims them in the store and answers with the stored
//!    positions. Consumption starts exactly there. A failed claim leaves the partition paused; it is tried again.
//! 2. [`PartitionHost::batch`]: records, in offset order per topic. The host takes them or hands them back (no room).
//! 3. [`PartitionHost::revoked`]: they are gone; nothing of them is handed over after this returns.
//!
//! The group's own committed offset is a progress report for lag tools; nothing ever starts from it.

use bytes::Bytes;
use std::time::Duration;
use tokio::sync::oneshot;

/// One topic of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRef {
    /// Number of (name, generation) in the catalogue; part of every record's id.
    pub no: i32,
    /// Its name in Millrace (`clicks`, `postbacks` …).
    pub name: String,
    /// Its name in the log: prefix, name and, from the second on, generation.
    pub log_name: String,
    /// How many partitions it has.
    pub partitions: i32,
}

/// A record to produce. The partition is `partitioner::partition(key, partitions)`.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The topic's number.
    pub topic_no: i32,
    /// The partition key.
    pub key: Bytes,
    /// The record.
    pub payload: Bytes,
}

/// Where an acknowledged record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
}

/// Why a record was not produced.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProduceError {
    /// It is larger than the log takes; it was not sent, and never will be.
    #[error("the record has {bytes} bytes, the log takes at most {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// No such topic in the catalogue this producer was made with.
    #[error("no topic number {0} in the catalogue")]
    UnknownTopic(i32),
    /// The log did not take it in time, or is away. It may be there nevertheless: a retry can make a duplicate, which the
    /// actors recognise.
    #[error("the log did not acknowledge: {0}")]
    Unavailable(String),
    /// The queue before the log is full.
    #[error("the queue before the log is full")]
    QueueFull,
    /// The producer was closed.
    #[error("the producer is closed")]
    Closed,
}

/// Resolves when the log has the record, or will not have it.
pub type Acknowledgement = oneshot::Receiver<Result<Position, ProduceError>>;

/// A boxed future, for object-safe traits.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Produces with acknowledgement. Cheap to share; one a process is enough.
pub trait Producer: Send + Sync {
    /// Hands the record over. Never blocks, never waits; batching is the backend's.
    fn produce(&self, record: Outgoing) -> Acknowledgement;

    /// Whether the log answers now.
    ///
    /// # Errors
    /// What is wrong, for a person.
    fn health(&self, timeout: Duration) -> BoxFuture<'_, Result<(), String>>;

    /// Waits for what is under way, at most `timeout`, and refuses what comes later.
    fn close(&self, timeout: Duration) -> BoxFuture<'_, ()>;
}

/// One record within a [`Batch`]; its bytes lie in the batch's arena.
#[derive(Clone, Copy, Debug)]
pub struct RecordRef {
    /// The topic's number.
    pub topic_no: i32,
    /// The offset.
    pub offset: i64,
    /// Start of the key in the arena.
    key_start: u32,
    /// Start of the payload in the arena.
    payload_start: u32,
    /// End of the payload in the arena.
    payload_end: u32,
}

/// Records of one partition, of any of its topics: offsets ascend within a topic. Keys and payloads lie in one arena, so
/// that a record costs no allocation.
#[derive(Debug, Default)]
pub struct Batch {
    /// The partition.
    pub partition: i32,
    arena: Vec<u8>,
    records: Vec<RecordRef>,
    /// Topics (by number) whose end was reached with the last record of this batch. A batch may carry ends alone.
    pub ends: Vec<i32>,
    follows: Vec<(i32, i64)>,
}

impl Batch {
    /// An empty batch of a partition.
    #[must_use]
    pub fn new(partition: i32) -> Batch {
        Batch {
            partition,
            ..Batch::default()
        }
    }

    /// An empty batch with room for `records` records of `bytes` bytes together.
    #[must_use]
    pub fn with_capacity(partition: i32, records: usize, bytes: usize) -> Batch {
        Batch {
            partition,
            arena: Vec::with_capacity(bytes),
            records: Vec::with_capacity(records),
            ends: Vec::new(),
            follows: Vec::new(),
        }
    }

    /// Appends a record; false if the arena (4 GiB) has no room, which limits far below it prevent.
    pub fn push(&mut self, topic_no: i32, offset: i64, key: &[u8], payload: &[u8]) -> bool {
        let at = |n: usize| u32::try_from(n).ok();
        let start = self.arena.len();
        let (Some(key_start), Some(payload_start), Some(payload_end)) = (
            at(start),
            at(start + key.len()),
            at(start + key.len() + payload.len()),
        ) else {
            return false;
        };
        self.arena.extend_from_slice(key);
        self.arena.extend_from_slice(payload);
        self.records.push(RecordRef {
            topic_no,
            offset,
            key_start,
            payload_start,
            payload_end,
        });
        true
    }

    /// Says that the records of this topic follow directly upon everything before `offset`: the consumer handed that over,
    /// or began there. A host that has not processed so far has lost a batch on the way, and must not go on.
    pub fn follow(&mut self, topic_no: i32, offset: i64) {
        self.follows.push((topic_no, offset));
    }

    /// What the consumer said of each topic by [`Batch::follow`].
    #[must_use]
    pub fn follows(&self) -> &[(i32, i64)] {
        &self.follows
    }

    /// The records, in the order in which they are to be decided.
    #[must_use]
    pub fn records(&self) -> &[RecordRef] {
        &self.records
    }

    /// A record's key.
    #[must_use]
    pub fn key(&self, record: &RecordRef) -> &[u8] {
        self.arena
            .get(record.key_start as usize..record.payload_start as usize)
            .unwrap_or_default()
    }

    /// A record's payload.
    #[must_use]
    pub fn payload(&self, record: &RecordRef) -> &[u8] {
        self.arena
            .get(record.payload_start as usize..record.payload_end as usize)
            .unwrap_or_default()
    }

    /// How many records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is neither a record nor an end.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.ends.is_empty()
    }

    /// Bytes of keys and payloads.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.arena.len()
    }

    /// Orders the records by the place of their topic in `topics` (clicks before postbacks parks less), offsets ascending
    /// within each.
    pub fn order_by_topic(&mut self, topics: &[TopicRef]) {
        let rank = |no: i32| topics.iter().position(|t| t.no == no).unwrap_or(usize::MAX);
        if self.records.is_sorted_by_key(|r| rank(r.topic_no)) {
            return;
        }
        // Offsets ascend within a topic already: gathering topic by topic keeps them so, and sorts nothing.
        let mut ordered = Vec::with_capacity(self.records.len());
        for topic in topics {
            ordered.extend(self.records.iter().filter(|r| r.topic_no == topic.no));
        }
        let known = |no: i32| topics.iter().any(|t| t.no == no);
        ordered.extend(self.records.iter().filter(|r| !known(r.topic_no)));
        self.records = ordered;
    }
}

/// The stored position of one topic of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPosition {
    /// The topic's number.
    pub topic_no: i32,
    /// The first offset that was not yet consumed.
    pub next_offset: i64,
}

/// Why a partition cannot be started now.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClaimError {
    /// Somebody holds its rows, or the store is away: try again.
    #[error("not yet: {0}")]
    Later(String),
    /// It was stopped (poison, a newer wire version, an operator) and stays so until somebody resumes it.
    #[error("stopped: {0}")]
    Stopped(String),
}

/// What a partition holds that its actor has not finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Records handed over and not yet committed.
    pub records: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// The runtime, as a consumer sees it. All calls come from the consumer's own thread, never from within an async runtime.
pub trait PartitionHost: Send + Sync + 'static {
    /// Partitions were assigned: claim each in the store, start its actor, answer with the stored positions of all topics.
    /// May block up to `wait`.
    fn assigned(
        &self,
        partitions: &[i32],
        wait: Duration,
    ) -> Vec<(i32, Result<Vec<StoredPosition>, ClaimError>)>;

    /// Takes a batch, or hands it back untouched if there is no room. Never blocks.
    ///
    /// # Errors
    /// The batch itself.
    fn batch(&self, batch: Batch) -> Result<(), Batch>;

    /// What the partition has under way: the consumer pauses above its high and resumes below its low watermark, and hands
    /// over small batches only to an idle partition.
    fn in_flight(&self, partition: i32) -> InFlight;

    /// Partitions are gone. Not `lost`: wait for the open transaction, at most 2 s. `lost`: do not wait at all.
    fn revoked(&self, partitions: &[i32], lost: bool);

    /// The partition can go no further for a reason of the log (its position is out of range …): stop it, keep the reason
    /// where people look.
    fn fault(&self, partition: i32, reason: String);

    /// Partitions whose actor stopped by itself and that may be claimed again (fenced while still assigned, restarted after
    /// an operator's resume). The consumer calls `assigned` for them anew. Polled about once a second.
    fn wants_reassignment(&self) -> Vec<i32>;

    /// Stored positions as far as committed, for the group's progress report.
    fn progress(&self) -> Vec<(i32, StoredPosition)>;
}

/// Limits of handing over.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Records in one batch at most.
    pub records: usize,
    /// Bytes of keys and payloads at which a batch is full: one record may pass them.
    pub bytes: usize,
    /// Pause a partition when this many records are under way or waiting.
    pub high_records: usize,
    /// Pause a partition when this many bytes are under way or waiting.
    pub high_bytes: usize,
}

impl Default for BatchLimits {
    fn default() -> BatchLimits {
        BatchLimits {
            records: 5_000,
            bytes: 4 << 20,
            high_records: 10_000,
            high_bytes: 8 << 20,
        }
    }
}

/// What to consume.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// The consumer group.
    pub group: String,
    /// All topics of the group, of equal partition counts, in the order in which a batch is to hold them.
    pub topics: Vec<TopicRef>,
    /// Limits.
    pub limits: BatchLimits,
}

/// A running consumer.
pub trait Consumer: Send + Sync {
    /// Stops fetching for these partitions (all if empty) until [`Consumer::resume`]; what was handed over goes on.
    fn pause(&self, partitions: &[i32]);

    /// Undoes [`Consumer::pause`].
    fn resume(&self, partitions: &[i32]);

    /// Partitions started now.
    fn owned(&self) -> Vec<i32>;

    /// Whether the consumer's thread lives and has polled within the last 30 s; the reason otherwise. A process whose consumer is
    /// ill ends: what heals by itself is no illness but [`Consumer::waits_for`].
    ///
    /// # Errors
    /// What is wrong, for a person.
    fn health(&self) -> Result<(), String>;

    /// What the consumer waits for and goes on after by itself, however long it takes: a store that is away, a group that another
    /// process holds.
    fn waits_for(&self) -> Option<String> {
        None
    }

    /// Revokes everything (as `revoked(.., lost: false)`), leaves the group, ends the thread. Blocks at most about 5 s.
    fn shutdown(&self);
}
