//! What the consumer holds of one partition, and what its actor has room for.

use crate::contract::{Batch, BatchLimits, InFlight};
use crate::pglog::reader::{Lane, Room};
use std::time::Instant;

/// How far a partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// To be assigned at that time.
    Waiting(Instant),
    /// Read.
    Running,
    /// Stopped by the host, or by a fault of the log, until the host wants it again.
    Halted,
}

/// One partition.
pub(super) struct Part {
    pub(super) state: State,
    pub(super) lanes: Vec<Lane>,
    /// A batch for which the host had no room.
    pub(super) held: Option<Batch>,
    /// Above the high watermark, until below the low one.
    full: bool,
    /// Paused by an operator.
    pub(super) paused: bool,
}

impl Part {
    pub(super) fn new(now: Instant) -> Part {
        Part {
            state: State::Waiting(now),
            lanes: Vec::new(),
            held: None,
            full: false,
            paused: false,
        }
    }

    pub(super) fn reset(&mut self, state: State) {
        self.state = state;
        self.lanes.clear();
        self.held = None;
        self.full = false;
    }

    /// What it has room for; none above its high watermark, until it is below half of it.
    pub(super) fn room(&mut self, limits: &BatchLimits, flight: InFlight) -> Option<Room> {
        let divide_by = if self.full { 2 } else { 1 };
        self.full = flight.records >= limits.high_records.div_ceil(divide_by)
            || flight.bytes >= limits.high_bytes.div_ceil(divide_by);
        if self.full {
            return None;
        }
        let left =
            |limit: usize, high: usize, used: usize| limit.min(high.saturating_sub(used)).max(1);
        let enough = i64::try_from(limits.records / 4).unwrap_or(i64::MAX).max(1);
        Some(Room {
            records: left(limits.records, limits.high_records, flight.records),
            bytes: left(limits.bytes, limits.high_bytes, flight.bytes),
            at_least: if flight.records == 0 { 1 } else { enough },
        })
    }
}
