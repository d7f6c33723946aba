//! A rule's messages in a rolling hour of the wall clock, in minute counters.
//!
//! An hour that ends within a minute begins within the sixtieth before it: 61 counters hold every rolling hour whole, so that no
//! hour, wherever it begins, holds more than the cap.

use millrace_schemas::time::Micros;

/// Counters.
pub const MINUTES: usize = 61;
const MINUTE_US: i64 = 60_000_000;

/// The counters of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hour {
    /// The minute (since 1970) of the first counter; each further one is of the minute before.
    minute: i32,
    counts: [i32; MINUTES],
}

impl Hour {
    /// Counters in which nothing was counted.
    #[must_use]
    pub fn empty(wall: Micros) -> Hour {
        Hour {
            minute: minute_of(wall),
            counts: [0; MINUTES],
        }
    }

    /// As stored; counters that are missing are 0.
    #[must_use]
    pub fn stored(minute: i32, counts: &[i32]) -> Hour {
        let mut hour = Hour {
            minute,
            counts: [0; MINUTES],
        };
        for (to, from) in hour.counts.iter_mut().zip(counts) {
            *to = *from;
        }
        hour
    }

    /// The minute of the first counter.
    #[must_use]
    pub const fn minute(&self) -> i32 {
        self.minute
    }

    /// The counters.
    #[must_use]
    pub const fn counts(&self) -> &[i32; MINUTES] {
        &self.counts
    }

    /// Lets the time be `wall`: counters older than its hour are gone. A clock that stands behind what is counted changes nothing;
    /// one that stands more than an hour behind takes all of it for its own minute's, so that a clock that once ran ahead holds a
    /// rule back for an hour and not until it is reached.
    pub fn turn(&mut self, wall: Micros) {
        let now = minute_of(wall);
        let ahead = i64::from(now) - i64::from(self.minute);
        if ahead > 0 {
            let by = usize::try_from(ahead).unwrap_or(MINUTES).min(MINUTES);
            self.counts.copy_within(0..MINUTES - by, by);
            for count in self.counts.iter_mut().take(by) {
                *count = 0;
            }
            self.minute = now;
        } else if ahead < -60 {
            let all = i32::try_from(self.sent()).unwrap_or(i32::MAX);
            self.counts = [0; MINUTES];
            if let Some(first) = self.counts.first_mut() {
                *first = all;
            }
            self.minute = now;
        }
    }

    /// Messages that are counted.
    #[must_use]
    pub fn sent(&self) -> i64 {
        self.counts.iter().map(|n| i64::from(*n)).sum()
    }

    /// Counts one more.
    pub fn add(&mut self) {
        if let Some(first) = self.counts.first_mut() {
            *first = first.saturating_add(1);
        }
    }
}

fn minute_of(wall: Micros) -> i32 {
    i32::try_from(wall.0.div_euclid(MINUTE_US)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_hour_is_over_when_it_is() {
        let mut hour = Hour::empty(Micros(59_000_000));
        hour.add();
        hour.turn(Micros(3_600_000_000 + 30_000_000));
        assert_eq!(hour.sent(), 1, "59 minutes and 31 seconds later");
        hour.turn(Micros(3_660_000_000));
        assert_eq!(hour.sent(), 0);
    }

    #[test]
    fn a_clock_that_ran_a_day_ahead_holds_back_for_an_hour() {
        let day = 86_400_000_000;
        let mut hour = Hour::empty(Micros(10 * day));
        hour.add();
        hour.turn(Micros(9 * day));
        assert_eq!(hour.sent(), 1);
        hour.turn(Micros(9 * day + 61 * MINUTE_US));
        assert_eq!(hour.sent(), 0);
    }

    proptest! {
        /// Whatever the steps of a clock that goes forwards, no rolling hour holds more than the cap.
        #[test]
        fn no_rolling_hour_holds_more(steps in proptest::collection::vec(0i64..900, 1..200), cap in 1i64..8) {
            let mut hour = Hour::empty(Micros(0));
            let (mut at, mut sent) = (0i64, Vec::new());
            for step in steps {
                at += step * 1_000_000;
                hour.turn(Micros(at));
                if hour.sent() < cap {
                    hour.add();
                    sent.push(at);
                }
            }
            for from in &sent {
                let within = sent.iter().filter(|t| **t >= *from && **t < from + 3_600_000_000).count();
                prop_assert!(within as i64 <= cap);
            }
        }
    }
}
