//! What a partition's actor does with a batch, without the actor: its state, the records of a batch, what time brings about.
//! One transaction carries facts, outcomes and positions (`attempt`); nothing of a failed attempt survives (`recovery`).

mod attempt;
mod recovery;

use super::books::Emits;
use super::clock::SharedClock;
use super::failpoint;
use super::ownership::{self, Claim, Progress};
use super::poison::PoisonGauge;
use super::session::{Connect, Failure, Session};
use super::vertical::{DecodeError, Decoded, Frontier, Item, Start, Vertical};
use millrace_schemas::ids::RecordId;
use millrace_schemas::outcome::reason;
use millrace_schemas::time::Micros;
use millrace_topics::contract::{Batch, RecordRef, StoredPosition, TopicRef};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How far ahead of the wall clock an `accepted_at` may lie before it is clamped, in seconds. What the stream has reached already
/// does it no harm: a wall clock that steps back neither changes an order nor makes what is accepted now older than what was before.
const ACCEPTED_SKEW_SECS: i64 = 300;

/// Why an actor ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// Another owner holds the partition.
    Fenced,
    /// A batch follows upon records that were never processed: something was lost on the way from the consumer. The partition
    /// is claimed anew and read again from its stored position.
    Gap,
    /// Stopped red: a person looks.
    Stopped(String),
    /// Told to stop.
    Cancelled,
}

/// The state of one partition's actor.
pub struct Core<V: Vertical> {
    vertical: V,
    session: Option<Session>,
    connect: Connect,
    clock: SharedClock,
    topics: Arc<[TopicRef]>,
    claim: Claim,
    start: Start,
    progress: Vec<Progress>,
    ends: Vec<bool>,
    stream: Micros,
    poison: PoisonGauge,
    days: HashSet<i64>,
    /// The wall clock's day whose partitions were last seen to.
    wall_day: Option<i64>,
    emits: Emits,
    stop: Arc<AtomicBool>,
}

/// A batch as decoded: items in order, and what is set aside instead of decided.
struct Work<'a, R> {
    batch: &'a Batch,
    items: Vec<Item<R>>,
    poison: BTreeMap<usize, (&'static str, String)>,
    /// Records from here on are not touched: the partition stops there, for this reason.
    cut: Option<(usize, String)>,
}

impl<V: Vertical> Core<V> {
    /// Claims the partition and reads its state.
    ///
    /// # Errors
    /// [`millrace_topics::contract::ClaimError`].
    pub async fn launch(
        mut vertical: V,
        connect: Connect,
        clock: SharedClock,
        topics: Arc<[TopicRef]>,
        partition: i32,
        owner: &str,
        stop: Arc<AtomicBool>,
    ) -> Result<Core<V>, millrace_topics::contract::ClaimError> {
        use millrace_topics::contract::ClaimError;
        let session = Session::new(connect().await.map_err(ClaimError::Later)?);
        let claim = ownership::claim(&session, V::GROUP.name, partition, owner).await?;
        let _ = failpoint::hit("claim.after");
        let partitions = topics.first().map_or(1, |t| t.partitions);
        let (progress, mark) = ownership::progress(&session, &claim, &topics)
            .await
            .map_err(|f| ClaimError::Later(format!("{f:?}")))?;
        let start = Start {
            partition,
            partitions,
            mark,
        };
        vertical.reset(&start);
        let stream = stream_of(&progress);
        let ends = vec![false; topics.len()];
        Ok(Core {
            vertical,
            session: Some(session),
            connect,
            clock,
            topics,
            claim,
            start,
            progress,
            ends,
            stream,
            poison: PoisonGauge::default(),
            days: HashSet::new(),
            wall_day: None,
            emits: Emits::default(),
            stop,
        })
    }

    /// How what it emits leaves; without this word, by the relay.
    #[must_use]
    pub fn emitting(mut self, emits: Emits) -> Core<V> {
        self.emits = emits;
        self
    }

    /// The stored positions as this actor knows them.
    #[must_use]
    pub fn positions(&self) -> Vec<StoredPosition> {
        self.progress.iter().map(Progress::stored).collect()
    }

    /// The claim, for stopping the partition from outside.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Processes a batch to its end: every record decided and committed, or the reason why the actor ends.
    ///
    /// # Errors
    /// [`Exit`].
    pub async fn process(&mut self, batch: &Batch) -> Result<(), Exit> {
        for (topic, end) in self.topics.iter().zip(self.ends.iter_mut()) {
            *end &= !batch.records().iter().any(|r| r.topic_no == topic.no);
        }
        for (topic_no, from) in batch.follows() {
            let next = self.next_offset(*topic_no);
            if *from > next {
                metrics::counter!("batch_gaps_total", "group" => V::GROUP.name).increment(1);
                tracing::error!(
                    partition = self.start.partition,
                    topic_no,
                    from,
                    next,
                    "a batch was lost on its way"
                );
                return Err(Exit::Gap);
            }
        }
        self.vertical.begin();
        let mut work = self.decode(batch);
        let until = work.cut.as_ref().map_or(batch.len(), |(at, _)| *at);
        let mut ranges: Vec<Range<usize>> = std::iter::once(0..until).collect();
        while let Some(range) = ranges.pop() {
            if range.is_empty() {
                continue;
            }
            match self.run(&mut work, range.clone(), &[]).await? {
                Ran::Done => {}
                Ran::Again => ranges.push(range),
                Ran::Split => {
                    let middle = range.start + range.len() / 2;
                    ranges.push(middle..range.end);
                    ranges.push(range.start..middle);
                }
            }
        }
        if let Some((_, why)) = work.cut {
            return Err(self.stop_red(why).await);
        }
        for (topic, end) in self.topics.iter().zip(self.ends.iter_mut()) {
            *end |= batch.ends.contains(&topic.no);
        }
        self.sweep().await
    }

    /// Does what time alone brings about.
    ///
    /// # Errors
    /// [`Exit`].
    pub async fn sweep(&mut self) -> Result<(), Exit> {
        loop {
            self.vertical.begin();
            let frontier = self.frontier();
            let mut stream = self.stream;
            if frontier.at_end() {
                stream = stream.max(self.clock.wall());
            }
            if !self.vertical.may_be_due(stream) {
                return Ok(());
            }
            let due = match self.due(stream, &frontier).await {
                Ok(due) if due.is_empty() => return Ok(()),
                Ok(due) => due,
                Err(failure) => {
                    self.recover_from(failure, &mut Duration::from_millis(100))
                        .await?;
                    continue;
                }
            };
            let empty = Batch::new(self.start.partition);
            let mut work = Work {
                batch: &empty,
                items: Vec::new(),
                poison: BTreeMap::new(),
                cut: None,
            };
            if let Ran::Split = self.run(&mut work, 0..0, &due).await? {
                let why = "the store refuses what a due record would write".to_owned();
                return Err(self.stop_red(why).await);
            }
        }
    }

    async fn due(&mut self, stream: Micros, frontier: &Frontier) -> Result<Vec<V::Due>, Failure> {
        self.connected().await?;
        let Some(session) = &self.session else {
            return Ok(Vec::new());
        };
        self.vertical.due(session, stream, frontier).await
    }

    fn frontier(&self) -> Frontier {
        let topics = self
            .progress
            .iter()
            .zip(&self.ends)
            .map(|(p, end)| (Micros(p.stream_time), *end))
            .collect();
        Frontier { topics }
    }

    fn next_offset(&self, topic_no: i32) -> i64 {
        self.progress
            .iter()
            .find(|p| p.topic_no == topic_no)
            .map_or(i64::MAX, |p| p.next_offset)
    }

    /// Whether the stored position says that a record is consumed. Wherever an attempt asks that, it asks here: what is
    /// delivered again, or run again after a commit whose reply was lost, is booked once for this reason alone.
    fn is_behind(&self, raw: &RecordRef) -> bool {
        raw.offset < self.next_offset(raw.topic_no) && !failpoint::sabotaged("position")
    }

    fn decode<'a>(&mut self, batch: &'a Batch) -> Work<'a, V::Record> {
        let latest = self.clock.wall().plus_secs(ACCEPTED_SKEW_SECS);
        let mut work = Work {
            batch,
            items: Vec::with_capacity(batch.len()),
            poison: BTreeMap::new(),
            cut: None,
        };
        let mut stream = self.stream;
        for (index, raw) in batch.records().iter().enumerate() {
            if self.is_behind(raw) {
                continue;
            }
            let Some(topic) = self.topics.iter().find(|t| t.no == raw.topic_no) else {
                continue;
            };
            match self.vertical.decode(topic, batch.payload(raw)) {
                Ok(Decoded {
                    accepted_at,
                    replay,
                    record,
                    ..
                }) => {
                    if self.poison.note(false) {
                        // A good record never passes the cap by itself; what stands before it was let through already.
                        tracing::debug!(partition = batch.partition, "poison gauge above its cap");
                    }
                    let mut at = accepted_at;
                    let bound = latest.max(stream);
                    if at > bound {
                        metrics::counter!("accepted_at_clamped_total").increment(1);
                        at = bound;
                    }
                    if replay.is_none() {
                        stream = stream.max(at);
                    }
                    let own = RecordId {
                        topic_no: raw.topic_no,
                        partition: batch.partition,
                        offset: raw.offset,
                    };
                    work.items.push(Item {
                        id: replay.unwrap_or(own),
                        index,
                        accepted_at: at,
                        stream,
                        replayed: replay.is_some(),
                        record,
                    });
                }
                Err(DecodeError::Newer(v)) => {
                    let why = needs_newer(v, &format!("{}:{}", topic.name, raw.offset));
                    work.cut = Some((index, why));
                    break;
                }
                Err(DecodeError::Undecodable(detail)) => {
                    if self.poison.note(true) {
                        let why = format!(
                            "too many records that cannot be read, the last at {}:{}",
                            topic.name, raw.offset
                        );
                        work.cut = Some((index, why));
                        break;
                    }
                    work.poison.insert(index, (reason::UNDECODABLE, detail));
                }
            }
        }
        work
    }
}

/// Why a partition stops at what a newer build wrote: the words that people find in listings, at `/healthz` and at the doctor's.
#[must_use]
pub fn needs_newer(version: u64, at: &str) -> String {
    format!("{NEWER} {version} at {at}: upgrade this process first, then let the partition go on")
}

/// What such a reason begins with.
pub const NEWER: &str = "a record of wire version";

/// What came of an attempt.
enum Ran {
    /// Committed.
    Done,
    /// State was read anew: run what is left of the range.
    Again,
    /// The store refuses some record of it: run its halves.
    Split,
}

fn stream_of(progress: &[Progress]) -> Micros {
    Micros(progress.iter().map(|p| p.stream_time).max().unwrap_or(0))
}
