//! One destination: what is claimed for it and not yet sent, what is under way, and its breaker.

use crate::delivery::breaker::{Admission, Breaker};
use crate::delivery::channel::{Leased, Target, Traits};
use crate::delivery::destination::Destination;
use crate::delivery::lease::Place;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How long claims may go on from where the last one ended. What was given back, or committed late, stands further ahead: it is
/// found when they begin at the beginning again.
const GO_ON: Duration = Duration::from_secs(2);

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
    /// Where the next claim begins, and since when claims have not begun at the beginning.
    position: Option<(Place, Instant)>,
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
            position: None,
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

    /// Where the next claim begins: behind what the last one brought, if there was more. Else it would pass over all that is
    /// claimed and not yet written down, thousands of messages for some channels.
    pub fn goes_on_at(&self, now: Instant) -> Option<Place> {
        let (place, since) = self.position?;
        (now.duration_since(since) < GO_ON).then_some(place)
    }

    /// A claim that was begun at `now` ended here, with more behind it; none: it brought all that was left.
    pub fn claimed(&mut self, last: Option<Place>, now: Instant) {
        let since = self
            .position
            .filter(|_| self.goes_on_at(now).is_some())
            .map_or(now, |(_, since)| since);
        self.position = last.map(|place| (place, since));
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

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_schemas::time::Micros;

    #[test]
    fn claims_go_on_where_they_ended_and_now_and_then_from_the_beginning() {
        let mut lane = Lane::new(Destination {
            no: 1,
            workspace: 1,
            channel: "stub".to_owned(),
            reference: "x".to_owned(),
        });
        let t = Instant::now();
        let place = |n| Place {
            due_at: Micros(n),
            id: Uuid::from_u128(1),
        };
        assert_eq!(lane.goes_on_at(t), None);
        lane.claimed(Some(place(1)), t);
        assert_eq!(lane.goes_on_at(t), Some(place(1)));
        lane.claimed(Some(place(2)), t + GO_ON / 2);
        assert_eq!(lane.goes_on_at(t + GO_ON / 2), Some(place(2)));
        // Counted from the first that did not begin at the beginning, however many followed.
        assert_eq!(lane.goes_on_at(t + GO_ON), None);
        lane.claimed(Some(place(3)), t + GO_ON);
        assert_eq!(lane.goes_on_at(t + GO_ON), Some(place(3)));
        lane.claimed(None, t + GO_ON);
        assert_eq!(lane.goes_on_at(t + GO_ON), None);
    }
}
