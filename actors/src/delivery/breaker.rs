//! A breaker a destination: after failures in a row nothing is sent for a while, then one request tries it. Pure.

use std::time::{Duration, Instant};

/// Failures in a row that open it.
pub const OPENS_AFTER: u32 = 5;
/// How long it stays open at first; doubled each time its trial fails.
pub const FIRST: Duration = Duration::from_secs(5);
/// How long it stays open at most.
pub const MOST: Duration = Duration::from_secs(300);

/// How a destination stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    /// Open until then; afterwards one request may try.
    open_until: Option<Instant>,
    /// A trial is under way.
    trying: bool,
    opened: u32,
}

/// What may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// As many requests as the channel allows.
    All,
    /// One request, to see.
    One,
    /// None before this moment.
    NotBefore(Instant),
    /// A trial is under way.
    Wait,
}

impl Breaker {
    /// What may be sent now.
    #[must_use]
    pub fn admits(&self, now: Instant) -> Admission {
        match self.open_until {
            None => Admission::All,
            Some(_) if self.trying => Admission::Wait,
            Some(until) if now < until => Admission::NotBefore(until),
            Some(_) => Admission::One,
        }
    }

    /// The one request of [`Admission::One`] is begun.
    pub fn tries(&mut self) {
        self.trying = true;
    }

    /// A trial was begun and nothing was sent after all.
    pub fn untried(&mut self) {
        self.trying = false;
    }

    /// A request went through, whatever its answer.
    pub fn alive(&mut self) {
        *self = Breaker::default();
    }

    /// A request failed as if the destination were dead. True: that opened it.
    pub fn dead(&mut self, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        let opens = self.trying || (self.open_until.is_none() && self.failures >= OPENS_AFTER);
        if opens {
            let pause = FIRST.saturating_mul(1 << self.opened.min(10)).min(MOST);
            self.opened = self.opened.saturating_add(1);
            self.open_until = Some(now + pause);
            self.trying = false;
        }
        opens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_tries_and_closes() {
        let t = Instant::now();
        let mut b = Breaker::default();
        for _ in 1..OPENS_AFTER {
            assert!(!b.dead(t));
            assert_eq!(b.admits(t), Admission::All);
        }
        assert!(b.dead(t));
        assert_eq!(b.admits(t), Admission::NotBefore(t + FIRST));
        // Requests that were under way when it opened change nothing.
        assert!(!b.dead(t));
        let later = t + FIRST;
        assert_eq!(b.admits(later), Admission::One);
        b.tries();
        assert_eq!(b.admits(later), Admission::Wait);
        assert!(b.dead(later));
        assert_eq!(b.admits(later), Admission::NotBefore(later + FIRST * 2));
        b.alive();
        assert_eq!(b.admits(later), Admission::All);
    }

    #[test]
    fn one_success_forgets_the_failures() {
        let t = Instant::now();
        let mut b = Breaker::default();
        for _ in 0..20 {
            assert!(!b.dead(t));
            assert!(!b.dead(t));
            b.alive();
        }
        assert_eq!(b.admits(t), Admission::All);
    }
}
