//! When a failed message is tried again. Pure.

use std::time::Duration;

/// Within which bounds a receiver's `Retry-After` is honoured.
pub const RETRY_AFTER_AT_LEAST: Duration = Duration::from_secs(1);
/// See [`RETRY_AFTER_AT_LEAST`].
pub const RETRY_AFTER_AT_MOST: Duration = Duration::from_secs(3_600);

/// The pause before the next attempt: what the receiver asked for, within bounds, but never less than the schedule's own;
/// then up to a quarter more, by `dice` in 0..=1, so that what failed together does not come back together.
#[must_use]
pub fn pause(own: Duration, asked: Option<Duration>, dice: f64) -> Duration {
    let asked = asked.map(within_bounds);
    let base = own.max(asked.unwrap_or_default());
    base.mul_f64(1.0 + 0.25 * dice.clamp(0.0, 1.0))
}

/// What a receiver asked for, as far as it is honoured.
#[must_use]
pub fn within_bounds(asked: Duration) -> Duration {
    asked.clamp(RETRY_AFTER_AT_LEAST, RETRY_AFTER_AT_MOST)
}

/// `first`, doubled with each attempt (from 1), at most `most`.
#[must_use]
pub fn exponential(first: Duration, attempt: u16, most: Duration) -> Duration {
    let doublings = u32::from(attempt.saturating_sub(1)).min(20);
    first.saturating_mul(1 << doublings).min(most)
}

/// Reads `Retry-After`: seconds, or an HTTP date against `now_secs` (since 1970).
#[must_use]
pub fn retry_after(text: &str, now_secs: i64) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(text)
        .ok()?
        .timestamp()
        .as_second();
    let seconds = at.checked_sub(now_secs)?;
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_s_wish_counts_within_bounds() {
        let s = Duration::from_secs;
        assert_eq!(pause(s(5), None, 0.0), s(5));
        assert_eq!(pause(s(5), Some(s(60)), 0.0), s(60));
        assert_eq!(pause(s(5), Some(s(0)), 0.0), s(5));
        assert_eq!(pause(s(5), Some(s(1_000_000)), 0.0), s(3_600));
        assert_eq!(pause(s(4), None, 1.0), s(5));
    }

    #[test]
    fn it_doubles_up_to_its_end() {
        let of = |attempt| exponential(Duration::from_secs(2), attempt, Duration::from_secs(100));
        assert_eq!(
            [1, 2, 3, 6, 7, 200].map(|a| of(a).as_secs()),
            [2, 4, 8, 64, 100, 100]
        );
    }

    #[test]
    fn both_forms_of_retry_after_are_read() {
        assert_eq!(retry_after(" 120 ", 0), Some(Duration::from_secs(120)));
        let date = "Fri, 31 Dec 1999 23:59:59 GMT";
        assert_eq!(retry_after(date, 946_684_798), Some(Duration::from_secs(1)));
        assert_eq!(retry_after(date, 946_684_800), None);
        assert_eq!(retry_after("soon", 0), None);
        assert_eq!(retry_after("-1", 0), None);
    }
}
