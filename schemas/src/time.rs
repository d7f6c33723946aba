//! Times on the wire and in state: microseconds since 1970-01-01T00:00:00Z.

use serde::{Deserialize, Serialize};

/// A day in microseconds.
pub const DAY_US: i64 = 86_400_000_000;

/// A moment, in microseconds since the Unix epoch, UTC.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Micros(pub i64);

impl Micros {
    /// The earliest moment; older than any record.
    pub const MIN: Micros = Micros(i64::MIN);

    /// `self + seconds`, saturating.
    #[must_use]
    pub const fn plus_secs(self, seconds: i64) -> Micros {
        Micros(self.0.saturating_add(seconds.saturating_mul(1_000_000)))
    }

    /// Whole milliseconds since the epoch, rounded down.
    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// The UTC day, since 1970: what daily partitions are named by.
    #[must_use]
    pub const fn day(self) -> i64 {
        self.0.div_euclid(DAY_US)
    }

    /// RFC 3339 in UTC; a moment outside jiff's range is printed as its number.
    #[must_use]
    pub fn rfc3339(self) -> String {
        jiff::Timestamp::from_microsecond(self.0)
            .map_or_else(|_| self.0.to_string(), |t| t.to_string())
    }

    /// Parses RFC 3339 with an offset.
    ///
    /// # Errors
    /// The text of the parser's complaint.
    pub fn parse_rfc3339(text: &str) -> Result<Micros, String> {
        text.parse::<jiff::Timestamp>()
            .map(|t| Micros(t.as_microsecond()))
            .map_err(|e| e.to_string())
    }
}

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.rfc3339())
    }
}

/// The two clocks a decision may read (DESIGN § State and time). Never taken from the machine inside `decide`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Greatest `accepted_at` so far: drives booking, park expiry, cooldowns, `fbc`.
    pub stream: Micros,
    /// The machine's clock: drives hourly caps, leases, backoff, retention.
    pub wall: Micros,
}
