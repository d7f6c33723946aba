//! The order of one feed's frames: which sequence is to come, which are settled. Pure.
//!
//! A sequence is settled once the log has its frame, or once it is certain that the log will never have it (its kind is
//! mapped by nobody, or it was refused and its sender told so). Settled sequences are acknowledged up to the first that is
//! not. A message that could not be read at all may stand for the sequence that was to come: the next one may skip as many
//! as there were of those.

use millrace_schemas::frame::MAX_IN_FLIGHT;

/// How many unreadable messages in a row may each stand for a sequence.
const MAX_SKIP: u64 = 64;

/// Where a feed stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::ingress) struct Order {
    next: u64,
    settled: u64,
    unread: u64,
    /// Something failed: nothing is settled any more.
    held: bool,
}

/// What a sequence is to the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ingress) enum Turn {
    /// It is the one that was to come (or the one behind unreadable ones): it is taken.
    Its,
    /// It came before.
    Repeated,
    /// Something before it is missing.
    Early,
}

impl Order {
    /// A feed that goes on after `seq`.
    pub fn after(seq: u64) -> Order {
        Order {
            next: seq.saturating_add(1),
            settled: seq,
            unread: 0,
            held: false,
        }
    }

    /// The sequence that is to come.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The greatest sequence up to which all are settled.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Whether another message may be read: no more than [`MAX_IN_FLIGHT`] sequences may ever be unsettled, those skipped
    /// with it.
    pub fn has_room(&self) -> bool {
        self.next.saturating_sub(self.settled) + MAX_SKIP < MAX_IN_FLIGHT
    }

    /// Takes a sequence if it is its turn; it is then to be settled by [`Order::settle`].
    pub fn take(&mut self, seq: u64) -> Turn {
        if seq < self.next {
            return Turn::Repeated;
        }
        if seq - self.next > self.unread {
            return Turn::Early;
        }
        self.next = seq.saturating_add(1);
        self.unread = 0;
        Turn::Its
    }

    /// A message came that tells no sequence; the one that it is answered with.
    pub fn unread(&mut self) -> u64 {
        let seq = self.next.saturating_add(self.unread);
        self.unread = (self.unread + 1).min(MAX_SKIP);
        seq
    }

    /// Everything up to `seq`, which was taken, is settled; nothing is once the feed is held.
    pub fn settle(&mut self, seq: u64) {
        debug_assert!(seq < self.next);
        if !self.held {
            self.settled = self.settled.max(seq);
        }
    }

    /// The log did not take a sequence: it must come again, and so must all behind it, those too that the log has.
    pub fn hold(&mut self) {
        self.held = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_come_in_order_and_once() {
        let mut order = Order::after(4);
        assert_eq!(order.take(4), Turn::Repeated);
        assert_eq!(order.take(6), Turn::Early);
        assert_eq!(order.take(5), Turn::Its);
        assert_eq!((order.next(), order.settled()), (6, 4));
        order.settle(5);
        assert_eq!(order.settled(), 5);
    }

    #[test]
    fn behind_a_failure_nothing_is_settled() {
        let mut order = Order::after(4);
        for seq in 5..=7 {
            assert_eq!(order.take(seq), Turn::Its);
        }
        order.settle(5);
        order.hold();
        order.settle(7);
        assert_eq!(order.settled(), 5);
    }

    #[test]
    fn what_cannot_be_read_may_stand_for_what_was_to_come() {
        for (unread, next, turn) in [
            (1, 1, Turn::Its),
            (1, 2, Turn::Its),
            (1, 3, Turn::Early),
            (2, 3, Turn::Its),
            (0, 2, Turn::Early),
        ] {
            let mut order = Order::after(0);
            for i in 0..unread {
                assert_eq!(order.unread(), 1 + i);
            }
            assert_eq!(order.take(next), turn, "{unread} {next}");
        }
        let mut order = Order::after(0);
        order.unread();
        assert_eq!(order.take(2), Turn::Its);
        assert_eq!(order.take(4), Turn::Early, "each skips once");
    }

    #[test]
    fn the_window_is_never_passed() {
        let mut order = Order::after(0);
        let mut taken = 0;
        while order.has_room() {
            for _ in 0..200 {
                order.unread();
            }
            let seq = order.next() + MAX_SKIP;
            assert_eq!(order.take(seq), Turn::Its);
            taken = seq;
        }
        assert!(taken < MAX_IN_FLIGHT, "{taken}");
        order.settle(taken);
        assert!(order.has_room());
    }

    #[test]
    fn the_greatest_sequence_overflows_nothing() {
        let mut order = Order::after(u64::MAX);
        assert_eq!(order.take(u64::MAX), Turn::Its);
        order.unread();
        assert!(order.has_room());
    }
}
