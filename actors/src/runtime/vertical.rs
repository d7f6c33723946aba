//! What a stream with state must say of itself to be run by the partition-actor shell.

use super::session::{Failure, Session};
use millrace_schemas::ids::RecordId;
use millrace_schemas::outcome::Outcome;
use millrace_schemas::time::{Micros, Now};
use millrace_topics::catalogue::GroupSpec;
use millrace_topics::contract::TopicRef;
use std::borrow::Cow;

/// A decoded record of a batch.
#[derive(Debug)]
pub struct Item<R> {
    /// Coordinates of its first acceptance: what every row born of it is named by.
    pub id: RecordId,
    /// Where in the batch it stands.
    pub index: usize,
    /// When a door accepted it, clamped to five minutes ahead of the wall clock, or to the stream's time if that is later.
    pub accepted_at: Micros,
    /// The greatest `accepted_at` so far, this record's included.
    pub stream: Micros,
    /// It was a dead letter and comes again.
    pub replayed: bool,
    /// What it says.
    pub record: R,
}

/// The item of the record at a place in the batch, of items in that order; none: it was not decoded.
#[must_use]
pub fn item_at<R>(items: &[Item<R>], index: usize) -> Option<&Item<R>> {
    let at = items.binary_search_by_key(&index, |i| i.index).ok()?;
    items.get(at)
}

/// A record as read off the wire.
#[derive(Debug)]
pub struct Decoded<R> {
    /// When a door accepted it.
    pub accepted_at: Micros,
    /// The workspace, for the dead letter.
    pub workspace: i32,
    /// First coordinates, if it is a replay.
    pub replay: Option<RecordId>,
    /// The record.
    pub record: R,
}

/// Why bytes are no record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    /// They never will be: a dead letter.
    Undecodable(String),
    /// A newer build reads them: the partition stops.
    Newer(u64),
}

/// Changes of the outcome counts of a batch: (topic number, partition, outcome, reason) → how many. A handful of entries,
/// looked through for every record: a list beats a tree here.
#[derive(Debug, Default, Clone)]
pub struct Tally(Vec<(TallyKey, i64)>);

type TallyKey = (i32, i32, Outcome, Cow<'static, str>);

impl Tally {
    /// Counts a record's outcome.
    pub fn add(
        &mut self,
        id: RecordId,
        outcome: Outcome,
        reason: impl Into<Cow<'static, str>>,
        n: i64,
    ) {
        let key: TallyKey = (id.topic_no, id.partition, outcome, reason.into());
        match self.0.iter_mut().find(|(held, _)| *held == key) {
            Some((_, count)) => *count += n,
            None => self.0.push((key, n)),
        }
    }

    /// A record that waited has its last outcome now.
    pub fn settle_parked(&mut self, id: RecordId, outcome: Outcome, reason: &'static str) {
        self.add(id, Outcome::Parked, "", -1);
        self.add(id, outcome, reason, 1);
    }

    /// Changes that are not zero, in key order.
    pub fn changes(&self) -> impl Iterator<Item = (i32, i32, Outcome, &str, i64)> {
        let mut all: Vec<_> = self.0.iter().filter(|(_, n)| *n != 0).collect();
        all.sort_unstable();
        all.into_iter()
            .map(|((t, p, o, r), n)| (*t, *p, *o, r.as_ref(), *n))
    }
}

/// A record that ends among the dead letters.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// First coordinates.
    pub id: RecordId,
    /// Its workspace, if known.
    pub workspace: Option<i32>,
    /// Its key.
    pub key: Vec<u8>,
    /// Its original bytes.
    pub payload: Vec<u8>,
    /// The reason's code.
    pub reason: &'static str,
    /// What a person may want to know; never a contact or a secret.
    pub detail: String,
    /// When it was accepted, if known.
    pub accepted_at: Option<Micros>,
}

/// A record for another topic, written with the batch and relayed after its commit.
#[derive(Debug, Clone)]
pub struct Emit {
    /// The topic's number.
    pub topic_no: i32,
    /// Its key.
    pub key: Vec<u8>,
    /// The record, frozen.
    pub payload: Vec<u8>,
}

/// What every stream's decisions may bring about beside its own facts.
#[derive(Debug, Default)]
pub struct Effects {
    /// Outcomes.
    pub tally: Tally,
    /// Dead letters.
    pub dead: Vec<DeadLetter>,
    /// Records for other topics.
    pub emits: Vec<Emit>,
    /// The greatest value of the stream's own mark (see `positions.mark`).
    pub mark: i64,
}

/// How far a partition has read.
#[derive(Debug, Clone, Default)]
pub struct Frontier {
    /// Per topic of the group, in its order: greatest `accepted_at`, and whether its end was reached.
    pub topics: Vec<(Micros, bool)>,
}

impl Frontier {
    /// Whether all topics were read to their ends.
    #[must_use]
    pub fn at_end(&self) -> bool {
        self.topics.iter().all(|(_, end)| *end)
    }
}

/// What a partition's actor is told when it starts, and again after it dropped its slice.
#[derive(Debug, Clone)]
pub struct Start {
    /// The partition.
    pub partition: i32,
    /// Partitions of the group.
    pub partitions: i32,
    /// The greatest mark of the whole group.
    pub mark: i64,
}

/// Records of a batch beside their raw bytes.
pub struct Raw<'a> {
    pub(crate) batch: &'a millrace_topics::contract::Batch,
}

impl<'a> Raw<'a> {
    /// The bytes of a batch.
    #[must_use]
    pub fn of(batch: &'a millrace_topics::contract::Batch) -> Raw<'a> {
        Raw { batch }
    }

    /// Original bytes of the record at an index.
    #[must_use]
    pub fn payload(&self, index: usize) -> &[u8] {
        self.batch
            .records()
            .get(index)
            .map(|r| self.batch.payload(r))
            .unwrap_or_default()
    }

    /// Its key.
    #[must_use]
    pub fn key(&self, index: usize) -> &[u8] {
        self.batch
            .records()
            .get(index)
            .map(|r| self.batch.key(r))
            .unwrap_or_default()
    }
}

/// A stream with state. `decide` and `settle` are pure; `load`, `claim` and `write` are its SQL.
///
/// The value itself is the slice: a bounded cache of the store. A [`Vertical::Draft`] is the overlay and the effects of one
/// attempt at a batch; it is dropped when the attempt fails, and merged when it was committed.
#[allow(async_fn_in_trait, reason = "futures stay on the actor's own thread")]
pub trait Vertical: Sized + Unpin + 'static {
    /// Group and topics.
    const GROUP: GroupSpec;
    /// A decoded record.
    type Record;
    /// Something that time alone brings about, read by [`Vertical::due`].
    type Due;
    /// Overlay and effects of one attempt.
    type Draft: Default;

    /// Drops all state and starts afresh.
    fn reset(&mut self, start: &Start);

    /// A batch begins, or a sweep of what is due: the one moment for taking what may be replaced while the process runs. Whatever
    /// comes of the batch, halves and further attempts included, is decided by what was taken here.
    fn begin(&mut self) {}

    /// Reads a record.
    ///
    /// # Errors
    /// See [`DecodeError`].
    fn decode(
        &self,
        topic: &TopicRef,
        payload: &[u8],
    ) -> Result<Decoded<Self::Record>, DecodeError>;

    /// Loads what the records need and the slice lacks. Runs before the transaction: the fence proves afterwards that
    /// nobody else wrote in between.
    ///
    /// # Errors
    /// The store's.
    async fn load(
        &mut self,
        session: &Session,
        items: &[Item<Self::Record>],
        due: &[Self::Due],
    ) -> Result<(), Failure>;

    /// Decides one record. Pure: no clock, no I/O; may panic without harm.
    fn decide(
        &self,
        draft: &mut Self::Draft,
        effects: &mut Effects,
        item: &Item<Self::Record>,
        raw: &Raw<'_>,
        now: Now,
    );

    /// A record that can be read is not decided, and ends among the dead letters with this attempt. Told in the order of the
    /// records. Pure, as [`Vertical::decide`] is, and must not panic; what it has written must be what the store takes of any record,
    /// or the partition ends up stopped.
    fn set_aside(&self, _: &mut Self::Draft, _: &Item<Self::Record>) {}

    /// Decides what is due.
    fn decide_due(&self, draft: &mut Self::Draft, effects: &mut Effects, due: &Self::Due, now: Now);

    /// Claims the keys wider than the partition that the draft named, and reads the owners of the rest.
    ///
    /// # Errors
    /// The store's.
    async fn claim(&self, session: &Session, draft: &mut Self::Draft) -> Result<(), Failure>;

    /// Settles bookings by the claims. Pure.
    fn settle(&self, draft: &mut Self::Draft, effects: &mut Effects, now: Now);

    /// Writes the facts in bulk.
    ///
    /// # Errors
    /// The store's.
    async fn write(
        &self,
        session: &Session,
        draft: &Self::Draft,
        items: &[Item<Self::Record>],
        now: Now,
    ) -> Result<(), Failure>;

    /// Takes a committed draft into the slice and bounds it.
    fn merge(&mut self, draft: Self::Draft);

    /// Whether [`Vertical::due`] may find anything; costs nothing.
    fn may_be_due(&self, stream: Micros) -> bool;

    /// What is due by stream time, a bounded number of it.
    ///
    /// # Errors
    /// The store's.
    async fn due(
        &mut self,
        session: &Session,
        stream: Micros,
        frontier: &Frontier,
    ) -> Result<Vec<Self::Due>, Failure>;

    /// The days (since 1970) on which the draft's facts lie: their partitions are made before the transaction.
    fn fact_tables(&self) -> &'static [&'static str];

    /// Tables that take rows of the wall clock's day: its partitions are made before the transaction too.
    fn wall_tables(&self) -> &'static [&'static str] {
        &[]
    }
}
