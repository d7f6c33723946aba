//! Latencies: of the interval that runs, and of all.

use hdrhistogram::Histogram;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The longest that is told apart, in µs: ten minutes.
const LONGEST: u64 = 600_000_000;

/// p50, p99, p99.9 in milliseconds, and how many there were.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shares {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub n: u64,
}

struct Both {
    interval: Histogram<u64>,
    all: Histogram<u64>,
}

/// One kind of latency. Cheap to clone; all clones record into the same.
#[derive(Clone)]
pub(super) struct Latency(Arc<Mutex<Both>>);

impl Latency {
    pub fn new() -> anyhow::Result<Latency> {
        let make = || Histogram::new_with_bounds(1, LONGEST, 3);
        Ok(Latency(Arc::new(Mutex::new(Both {
            interval: make()?,
            all: make()?,
        }))))
    }

    fn open(&self) -> MutexGuard<'_, Both> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records one, in µs; what is below 1 counts as 1, what is above the longest as the longest.
    pub fn record(&self, micros: i64) {
        let value = u64::try_from(micros).unwrap_or(0).max(1);
        let mut both = self.open();
        both.interval.saturating_record(value);
        both.all.saturating_record(value);
    }

    /// What the interval held; the next one begins.
    pub fn turn(&self) -> Shares {
        let mut both = self.open();
        let shares = shares(&both.interval);
        both.interval.reset();
        shares
    }

    /// All of it.
    pub fn all(&self) -> Shares {
        shares(&self.open().all)
    }

    /// Forgets everything.
    pub fn reset(&self) {
        let mut both = self.open();
        both.interval.reset();
        both.all.reset();
    }
}

fn shares(histogram: &Histogram<u64>) -> Shares {
    let at = |share| histogram.value_at_quantile(share) as f64 / 1e3;
    Shares {
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        n: histogram.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_ends_and_the_whole_goes_on() {
        let latency = Latency::new().expect("bounds");
        for i in 1..=1_000 {
            latency.record(i * 1_000);
        }
        let first = latency.turn();
        assert_eq!(first.n, 1_000);
        assert!((498.0..502.0).contains(&first.p50), "{first:?}");
        assert!((988.0..992.0).contains(&first.p99), "{first:?}");
        latency.record(-5);
        assert_eq!((latency.turn().n, latency.all().n), (1, 1_001));
        latency.reset();
        assert_eq!(latency.all().n, 0);
    }
}
