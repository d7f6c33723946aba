//! One destination: what is claimed for it and not yet sent, what is under way, and its breaker.

use crate::delivery::breaker::{Admission, Breaker};
use crate::delivery::channel::{Leased, Target, Traits};
use crate::delivery::destination::Destination;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;
use uuid::Uuid;

/// A message that is claimed.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub message: Leased,
    pub token: Uuid,
    /// Not sent after this moment by our own clock: the lease might end during the request.
    pub send_before: Instant,
}

/// A destination's lane.
pub(super) struct Lane {
    pub destination: Destination,
    /// As of the last claim.
    pub target: Option<Rc<dyn Target>>,
    pub ready: VecDeque<Held>,
    /// Requests under way.
    pub in_flight: usize,
    pub breaker: Breaker,
    /// Paused meanwhile: what is ready goes back.
    pub paused: bool,
    /// Nothing is sent before: the receiver asked to be left alone.
    pub rests_until: Option<Instant>,
}

impl Lane {
    pub fn new(destination: Destination) -> Lane {
        Lane {
            destination,
            target: None,
            ready: VecDeque::new(),
            in_flight: 0,
            breaker: Breaker::default(),
            paused: false,
            rests_until: None,
        }
    }

    /// Requests that may be under way at once, as the breaker stands.
    fn allowed(&self, traits: &Traits, now: Instant) -> usize {
        if self.rests_until.is_some_and(|until| now < until) {
            return 0;
        }
        match self.breaker.admits(now) {
            Admission::All => traits.concurrency,
            Admission::One => 1,
            Admission::NotBefore(_) | Admission::Wait => 0,
        }
    }

    /// How many messages to claim. Idempotent channels claim one round of requests ahead, so that a request that ends is
    /// followed by another at once; of others nothing is claimed that is not sent at once, since what a dead process leaves
    /// behind would end unknown.
    pub fn room(&self, traits: &Traits, now: Instant) -> usize {
        let allowed = self.allowed(traits, now);
        if self.paused || allowed == 0 {
            return 0;
        }
        if allowed == 1 && self.in_flight > 0 {
            return 0;
        }
        let trying = self.breaker != Breaker::default() && allowed == 1;
        let ahead = if traits.idempotent && !trying {
            allowed
        } else {
            0
        };
        // Claimed in pieces worth a statement: not before half of what is ahead is used up.
        if ahead > 0 && self.ready.len() * 2 > ahead * traits.batch {
            return 0;
        }
        let requests = (allowed + ahead).saturating_sub(self.in_flight);
        (requests * traits.batch)
            .saturating_sub(self.ready.len())
            .min(super::run::CLAIM_AT_MOST)
    }

    /// The messages of the next request, if one may begin.
    pub fn next(&mut self, traits: &Traits, now: Instant) -> Option<(Rc<dyn Target>, Vec<Held>)> {
        if self.paused || self.ready.is_empty() || self.in_flight >= self.allowed(traits, now) {
            return None;
        }
        let target = Rc::clone(self.target.as_ref()?);
        let n = self.ready.len().min(traits.batch);
        let messages: Vec<Held> = self.ready.drain(..n).collect();
        if self.breaker.admits(now) == Admission::One {
            self.breaker.tries();
        }
        self.in_flight += 1;
        Some((target, messages))
    }

    /// Whether nothing is known of it that must be kept.
    pub fn is_idle(&self) -> bool {
        let rests = self.rests_until.is_some_and(|until| Instant::now() < until);
        self.in_flight == 0 && self.ready.is_empty() && self.breaker == Breaker::default() && !rests
    }
}
