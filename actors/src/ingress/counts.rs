//! What doors count: `door_requests_total{door,status}`, `door_accepted_total{door}`, `door_refused_total{door,reason}` and
//! `door_ack_seconds{door}`, of which one acknowledgement in sixteen is timed.
//!
//! Handles are taken once a worker: the recorder must be installed before the doors are made.

use actix_web::http::StatusCode;
use metrics::{Counter, Histogram};
use std::cell::Cell;
use std::time::Instant;

/// Statuses that doors answer, each with a counter of its own.
const STATUSES: [u16; 16] = [
    200, 204, 302, 400, 401, 403, 404, 405, 408, 409, 413, 414, 415, 429, 500, 503,
];

/// One acknowledgement in this many is timed: a histogram keeps every value until it is scraped.
const TIMED_EVERY: u32 = 16;

/// The counters of one door, of one worker.
pub struct DoorCounts {
    door: &'static str,
    requests: Vec<Counter>,
    accepted: Counter,
    ack: Histogram,
    seen: Cell<u32>,
}

impl DoorCounts {
    /// Those of a door by its name in metrics.
    #[must_use]
    pub fn new(door: &'static str) -> DoorCounts {
        DoorCounts {
            door,
            requests: STATUSES
                .iter()
                .map(|s| metrics::counter!("door_requests_total", "door" => door, "status" => s.to_string()))
                .collect(),
            accepted: metrics::counter!("door_accepted_total", "door" => door),
            ack: metrics::histogram!("door_ack_seconds", "door" => door),
            seen: Cell::new(0),
        }
    }

    /// A request was answered.
    pub fn answered(&self, status: StatusCode) {
        let status = status.as_u16();
        match STATUSES.iter().position(|s| *s == status) {
            Some(i) => {
                if let Some(counter) = self.requests.get(i) {
                    counter.increment(1);
                }
            }
            None => metrics::counter!("door_requests_total", "door" => self.door, "status" => status.to_string())
                .increment(1),
        }
    }

    /// The log acknowledged `n` records.
    pub fn accepted(&self, n: u64) {
        self.accepted.increment(n);
    }

    /// `n` records (or requests) were turned away.
    pub fn refused(&self, reason: &'static str, n: u64) {
        metrics::counter!("door_refused_total", "door" => self.door, "reason" => reason)
            .increment(n);
    }

    /// The start of an acknowledgement that is to be timed, if this one is.
    #[must_use]
    pub fn start(&self) -> Option<Instant> {
        let n = self.seen.get().wrapping_add(1);
        self.seen.set(n);
        n.is_multiple_of(TIMED_EVERY).then(Instant::now)
    }

    /// Its end.
    pub fn end(&self, started: Option<Instant>) {
        if let Some(started) = started {
            self.ack.record(started.elapsed().as_secs_f64());
        }
    }
}

/// Says what the metrics mean; once, after the recorder was installed.
pub fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    describe_counter!(
        "door_requests_total",
        "Requests answered, by door and status"
    );
    describe_counter!(
        "door_accepted_total",
        "Records that the log acknowledged, by door"
    );
    describe_counter!(
        "door_refused_total",
        "Requests (batch doors: lines) turned away and never accepted, by door and reason"
    );
    describe_histogram!(
        "door_ack_seconds",
        Unit::Seconds,
        "From handing a record to the log to its acknowledgement; one in sixteen is timed"
    );
    describe_counter!(
        "feed_unmapped_total",
        "Frames of kinds that no enabled module maps: acknowledged, and kept for nothing"
    );
    describe_gauge!("feeds_connected", "Feeds of shards that live now");
    describe_gauge!(
        "disk_free_bytes",
        Unit::Bytes,
        "Free space of the disk that holds the log"
    );
    describe_gauge!(
        "door_configuration_age_seconds",
        Unit::Seconds,
        "Age of the configuration that the doors hold"
    );
}
