//! The host of a consumer that is measured alone.

use anyhow::{bail, ensure};
use millrace_topics::contract::{
    Batch, ClaimError, InFlight, PartitionHost, StoredPosition, TopicRef,
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Without a batch for so long, a consumer is given up.
const STUCK: Duration = Duration::from_secs(60);

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Records.
    pub records: usize,
    /// Batches in which they came.
    pub batches: usize,
    fault: Option<String>,
}

/// Counts what it is given and forgets it; all positions start at 0.
pub struct Counter {
    topics: Vec<i32>,
    seen: Mutex<Seen>,
    changed: Condvar,
}

impl Counter {
    /// For the topics of a subscription.
    #[must_use]
    pub fn new(topics: &[TopicRef]) -> Arc<Counter> {
        Arc::new(Counter {
            topics: topics.iter().map(|t| t.no).collect(),
            seen: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until so many records were seen.
    ///
    /// # Errors
    /// A partition's log is at fault, or nothing comes any more.
    pub fn wait(&self, records: usize) -> anyhow::Result<Seen> {
        let mut seen = self.lock();
        while seen.records < records {
            if let Some(fault) = &seen.fault {
                bail!("the log faults: {fault}");
            }
            let (now, waited) = self
                .changed
                .wait_timeout(seen, STUCK)
                .unwrap_or_else(PoisonError::into_inner);
            ensure!(
                !waited.timed_out(),
                "no batch for a minute at {} of {records}",
                now.records
            );
            seen = now;
        }
        Ok(seen.clone())
    }
}

impl PartitionHost for Counter {
    fn assigned(
        &self,
        partitions: &[i32],
        _: Duration,
    ) -> Vec<(i32, Result<Vec<StoredPosition>, ClaimError>)> {
        let start = |&topic_no: &i32| StoredPosition {
            topic_no,
            next_offset: 0,
        };
        partitions
            .iter()
            .map(|&p| (p, Ok(self.topics.iter().map(start).collect())))
            .collect()
    }

    fn batch(&self, batch: Batch) -> Result<(), Batch> {
        let mut seen = self.lock();
        seen.records += batch.len();
        seen.batches += 1;
        self.changed.notify_all();
        Ok(())
    }

    fn in_flight(&self, _: i32) -> InFlight {
        InFlight::default()
    }

    fn revoked(&self, _: &[i32], _: bool) {}

    fn fault(&self, partition: i32, reason: String) {
        self.lock().fault = Some(format!("partition {partition}: {reason}"));
        self.changed.notify_all();
    }

    fn wants_reassignment(&self) -> Vec<i32> {
        Vec::new()
    }

    fn progress(&self) -> Vec<(i32, StoredPosition)> {
        Vec::new()
    }
}
