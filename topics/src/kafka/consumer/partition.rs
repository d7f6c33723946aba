//! One partition of the group: its topics, whether it runs, and the batch that is filling.

use super::merge::{Room, Stream, fill};
use super::source::Source;
use crate::contract::{Batch, BatchLimits, PartitionHost, StoredPosition, TopicRef};
use std::time::Instant;

/// Whether a partition runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not every topic of the group has given us this partition.
    Partial,
    /// Whole; its claim is to be made (again) at that time.
    Waiting {
        /// When.
        at: Instant,
        /// How often it was refused.
        tries: u32,
    },
    /// Claimed: records flow.
    Started,
    /// Stopped by the host or by a fault; started again only when the host wants it.
    Stopped,
}

/// What a step of a partition came to.
pub(super) enum Step {
    /// Nothing to do.
    Idle,
    /// Something is here, but the actor is busy: look again soon.
    Busy,
    /// A batch was handed over.
    Moved,
    /// The log cannot go on: (topic number, reason).
    Fault(i32, String),
}

/// One partition of the group.
pub(super) struct Partition<S> {
    pub number: i32,
    pub state: State,
    /// One a topic, in the order of the subscription.
    pub streams: Vec<Stream<S>>,
    batch: Batch,
    /// Handed back: it goes first.
    back: Option<Batch>,
    /// Above the high watermark, until below half of it.
    gated: bool,
    /// Size of the last full batch, to make room at once.
    last: (usize, usize),
}

impl<S: Source> Partition<S> {
    pub(super) fn new(number: i32, topics: &[TopicRef]) -> Partition<S> {
        Partition {
            number,
            state: State::Partial,
            streams: topics.iter().map(|t| Stream::new(t.no)).collect(),
            batch: Batch::new(number),
            back: None,
            gated: false,
            last: (0, 0),
        }
    }

    /// Whether every topic of the group has given us this partition.
    pub(super) fn is_whole(&self) -> bool {
        self.streams.iter().all(|s| s.source.is_some())
    }

    /// Whether no topic has.
    pub(super) fn is_empty(&self) -> bool {
        self.streams.iter().all(|s| s.source.is_none())
    }

    /// Drops everything read and not taken by the host.
    pub(super) fn discard(&mut self) {
        self.batch = Batch::new(self.number);
        self.back = None;
        self.gated = false;
    }

    /// Begins at these positions; `None` if one is missing.
    pub(super) fn begin(
        &mut self,
        topics: &[TopicRef],
        positions: &[StoredPosition],
    ) -> Option<()> {
        self.discard();
        for (stream, topic) in self.streams.iter_mut().zip(topics) {
            let stored = positions.iter().find(|p| p.topic_no == topic.no)?;
            stream.restart(stored.next_offset.max(0));
        }
        self.state = State::Started;
        Some(())
    }

    /// One step: offer what was handed back, read, hand over.
    pub(super) fn step(
        &mut self,
        host: &dyn PartitionHost,
        topics: &[TopicRef],
        limits: &BatchLimits,
        now: Instant,
    ) -> Step {
        let flight = host.in_flight(self.number);
        if self.gated {
            self.gated =
                flight.records > limits.high_records / 2 || flight.bytes > limits.high_bytes / 2;
        } else {
            self.gated = flight.records >= limits.high_records || flight.bytes >= limits.high_bytes;
        }
        if self.gated || self.back.is_some() {
            for stream in &mut self.streams {
                stream.rest();
            }
        }
        if self.gated {
            return Step::Busy;
        }
        if let Some(batch) = self.back.take() {
            return self.offer(host, batch);
        }
        let room = Room {
            records: limits.records.max(1),
            bytes: limits.bytes.max(1),
        };
        if self.batch.is_empty() && self.batch.bytes() == 0 && self.last.0 > 0 {
            // A busy partition fills batch after batch: make room once, not by doubling.
            let (records, bytes) = std::mem::take(&mut self.last);
            self.batch = Batch::with_capacity(self.number, records, bytes + bytes / 8);
        }
        let full = match fill(&mut self.streams, &mut self.batch, &room, now) {
            Ok(full) => full,
            Err((topic_no, reason)) => return Step::Fault(topic_no, reason),
        };
        if self.batch.is_empty() {
            return Step::Idle;
        }
        // Not full: there is nothing more right now. An idle actor takes what there is; for a busy one it goes on gathering, so
        // that batches grow with the load.
        if !full && flight.records > 0 {
            return Step::Busy;
        }
        let mut batch = std::mem::replace(&mut self.batch, Batch::new(self.number));
        if full {
            self.last = (batch.len(), batch.bytes());
        }
        batch.order_by_topic(topics);
        for stream in &mut self.streams {
            stream.hand_over(&mut batch);
        }
        self.offer(host, batch)
    }

    fn offer(&mut self, host: &dyn PartitionHost, batch: Batch) -> Step {
        match host.batch(batch) {
            Ok(()) => Step::Moved,
            Err(batch) => {
                self.back = Some(batch);
                Step::Busy
            }
        }
    }
}
