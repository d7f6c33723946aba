//! Time limits of requests, coarse and cheap. A timer of tokio's is set and taken back for every request, which is a lock, a
//! wheel and a reading of the clock each time, for something that hardly ever fires; here a request takes a slot of its
//! worker, and a task of the worker looks through the slots a few times a second for as long as any is taken.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How often slots are looked through: a limit is kept to within this.
const TICK: Duration = Duration::from_millis(250);

/// The time limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elapsed;

#[derive(Default)]
struct Slot {
    /// The tick at which it is over.
    over_at: u64,
    /// None: free, or over.
    waker: Option<Waker>,
}

#[derive(Default)]
struct Slots {
    /// Ticks so far.
    now: u64,
    all: Vec<Slot>,
    free: Vec<usize>,
    /// Whether the task runs.
    ticking: bool,
}

/// The time limits of one door on one worker.
#[derive(Clone, Default)]
pub(super) struct Patience(Rc<RefCell<Slots>>);

/// A taken slot; it is free again with this value.
struct Taken<'a> {
    patience: &'a Patience,
    slot: usize,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut slots = self.patience.0.borrow_mut();
        if let Some(slot) = slots.all.get_mut(self.slot) {
            slot.waker = None;
        }
        slots.free.push(self.slot);
    }
}

impl Patience {
    /// Awaits `work`, for `limit` and at most a tick longer. Work that is done at once takes no slot.
    ///
    /// # Errors
    /// [`Elapsed`]; the work is dropped.
    pub async fn bound<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        let mut work = pin!(work);
        let mut taken: Option<Taken<'_>> = None;
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(done));
            }
            match &taken {
                None => taken = Some(self.take(limit, context)),
                Some(taken) if !self.renew(taken.slot, context) => {
                    return Poll::Ready(Err(Elapsed));
                }
                Some(_) => {}
            }
            Poll::Pending
        })
        .await
    }

    fn take(&self, limit: Duration, context: &Context<'_>) -> Taken<'_> {
        let ticks = limit.as_millis().div_ceil(TICK.as_millis());
        let mut slots = self.0.borrow_mut();
        // The tick that is under way is a part of one.
        let over_at = slots.now + 1 + u64::try_from(ticks).unwrap_or(u64::MAX / 2);
        let slot = slots.free.pop().unwrap_or(slots.all.len());
        let filled = Slot {
            over_at,
            waker: Some(context.waker().clone()),
        };
        match slots.all.get_mut(slot) {
            Some(free) => *free = filled,
            None => slots.all.push(filled),
        }
        if !std::mem::replace(&mut slots.ticking, true) {
            actix_web::rt::spawn(self.clone().tick());
        }
        Taken {
            patience: self,
            slot,
        }
    }

    /// Notes whom to wake; false: the time is over.
    fn renew(&self, slot: usize, context: &Context<'_>) -> bool {
        let mut slots = self.0.borrow_mut();
        let Some(waker) = slots.all.get_mut(slot).and_then(|s| s.waker.as_mut()) else {
            return false;
        };
        waker.clone_from(context.waker());
        true
    }

    async fn tick(self) {
        loop {
            actix_web::rt::time::sleep(TICK).await;
            let mut over = Vec::new();
            {
                let mut slots = self.0.borrow_mut();
                slots.now += 1;
                let now = slots.now;
                for slot in slots.all.iter_mut().filter(|s| s.over_at <= now) {
                    over.extend(slot.waker.take());
                }
                if slots.free.len() == slots.all.len() {
                    slots.ticking = false;
                    return;
                }
            }
            // Outside the borrow: a waker may run whatever it likes.
            for waker in over {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use std::time::Instant;
    use tokio::sync::oneshot;

    #[actix_web::test]
    async fn what_is_done_in_time_is_answered_and_its_slot_is_free() {
        let patience = Patience::default();
        assert_eq!(patience.bound(TICK, ready(1)).await, Ok(1));
        assert!(
            patience.0.borrow().all.is_empty(),
            "no slot for work that was done at once"
        );
        for n in 0..3 {
            let (tell, told) = oneshot::channel();
            let (done, ()) = tokio::join!(patience.bound(TICK * 100, told), async {
                tokio::task::yield_now().await;
                tell.send(n).expect("somebody listens");
            });
            assert_eq!(done, Ok(Ok(n)));
        }
        let slots = patience.0.borrow();
        assert_eq!((slots.all.len(), slots.free.len()), (1, 1));
    }

    #[actix_web::test]
    async fn what_never_comes_is_over_after_its_limit_and_not_before() {
        let patience = Patience::default();
        let started = Instant::now();
        let (one, two) = tokio::join!(
            patience.bound(TICK, pending::<()>()),
            patience.bound(Duration::ZERO, pending::<()>())
        );
        assert_eq!((one, two), (Err(Elapsed), Err(Elapsed)));
        assert!(started.elapsed() >= TICK);
        assert_eq!(patience.0.borrow().free.len(), 2);
    }

    #[actix_web::test]
    async fn a_request_that_is_given_up_frees_its_slot() {
        let patience = Patience::default();
        {
            let mut work = pin!(patience.bound(TICK * 100, pending::<()>()));
            assert!(futures::poll!(work.as_mut()).is_pending());
            assert_eq!(patience.0.borrow().free.len(), 0);
        }
        assert_eq!(patience.0.borrow().free.len(), 1);
    }
}
