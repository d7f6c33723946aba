//! The actix shell around [`Core`]: one actor a partition, one message a batch, one batch at a time.
//!
//! An actor is never revived: whatever ends it (a fence, a stop, a panic of the shell itself) ends it for good, and the host
//! builds a new one from the store when the consumer asks again. So no state survives that was not committed.

use super::core::{Core, Exit};
use super::vertical::Vertical;
use actix::prelude::*;
use millrace_topics::contract::{Batch, StoredPosition};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How an actor stands, as its host sees it.
#[derive(Debug, Clone)]
pub enum Standing {
    /// It takes batches.
    Running,
    /// Another owner claimed the partition, at this moment.
    Fenced(Instant),
    /// Stopped red, for this reason.
    Stopped(String),
    /// It ended.
    Ended,
}

/// What actor and host share of a partition.
#[derive(Debug)]
pub struct Slot {
    /// Told to stop: nothing further is begun.
    pub stop: Arc<AtomicBool>,
    /// Records handed over and not finished.
    pub records: AtomicUsize,
    /// Their bytes.
    pub bytes: AtomicUsize,
    /// Stored positions as of the last commit.
    pub positions: Mutex<Vec<StoredPosition>>,
    /// The claim's epoch.
    pub epoch: AtomicI64,
    standing: Mutex<Standing>,
    busy: Mutex<bool>,
    idle: Condvar,
}

impl Slot {
    /// A slot of a partition about to start.
    #[must_use]
    pub fn new(stop: Arc<AtomicBool>, positions: Vec<StoredPosition>, epoch: i64) -> Slot {
        Slot {
            stop,
            records: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            positions: Mutex::new(positions),
            epoch: AtomicI64::new(epoch),
            standing: Mutex::new(Standing::Running),
            busy: Mutex::new(false),
            idle: Condvar::new(),
        }
    }

    /// How its actor stands.
    pub fn standing(&self) -> Standing {
        self.standing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sets how its actor stands.
    pub fn stand(&self, standing: Standing) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    fn set_busy(&self, busy: bool) {
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = busy;
        if !busy {
            self.idle.notify_all();
        }
    }

    /// Waits until no transaction is open, at most until `deadline`. True: none is.
    pub fn wait_idle(&self, deadline: Instant) -> bool {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        while *busy {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            busy = self
                .idle
                .wait_timeout(busy, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }
}

/// The actor of one partition of one group.
pub struct PartitionActor<V: Vertical> {
    core: Option<Core<V>>,
    slot: Arc<Slot>,
    tick: Duration,
}

impl<V: Vertical> PartitionActor<V> {
    /// Wraps a claimed partition.
    #[must_use]
    pub fn new(core: Core<V>, slot: Arc<Slot>, tick: Duration) -> PartitionActor<V> {
        PartitionActor {
            core: Some(core),
            slot,
            tick,
        }
    }

    /// Runs one piece of work with the mailbox closed meanwhile. `handed`: records and bytes that are finished with it.
    fn work<F, Fut>(&mut self, ctx: &mut Context<Self>, handed: (usize, usize), work: F)
    where
        F: FnOnce(Core<V>) -> Fut,
        Fut: Future<Output = (Core<V>, Result<(), Exit>)> + 'static,
    {
        let Some(core) = self.core.take() else { return };
        self.slot.set_busy(true);
        let guard = BusyGuard(Arc::clone(&self.slot));
        let future = work(core)
            .into_actor(self)
            .map(move |(core, result), actor, ctx| {
                let positions = core.positions();
                actor.slot.epoch.store(core.claim().epoch, Ordering::SeqCst);
                *actor
                    .slot
                    .positions
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = positions;
                // After the positions: who sees nothing under way sees how far it came.
                actor.slot.records.fetch_sub(handed.0, Ordering::SeqCst);
                actor.slot.bytes.fetch_sub(handed.1, Ordering::SeqCst);
                drop(guard);
                match result {
                    Ok(()) => actor.core = Some(core),
                    Err(exit) => actor.end(exit, ctx),
                }
            });
        ctx.wait(future);
    }

    fn end(&mut self, exit: Exit, ctx: &mut Context<Self>) {
        self.slot.stand(match exit {
            Exit::Fenced => Standing::Fenced(Instant::now()),
            Exit::Stopped(why) => Standing::Stopped(why),
            Exit::Cancelled | Exit::Gap => Standing::Ended,
        });
        self.slot.stop.store(true, Ordering::SeqCst);
        ctx.stop();
    }
}

/// Frees those who wait, even if the work panicked.
struct BusyGuard(Arc<Slot>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.set_busy(false);
    }
}

impl<V: Vertical> Actor for PartitionActor<V> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.set_mailbox_capacity(8);
        ctx.run_interval(self.tick, |actor, ctx| {
            if actor.slot.stop.load(Ordering::SeqCst) {
                actor.end(Exit::Cancelled, ctx);
                return;
            }
            actor.work(ctx, (0, 0), |mut core| async move {
                let result = core.sweep().await;
                (core, result)
            });
        });
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        if matches!(self.slot.standing(), Standing::Running) {
            self.slot.stand(Standing::Ended);
        }
    }
}

/// A batch for a partition.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Deliver(pub Batch);

impl<V: Vertical> Handler<Deliver> for PartitionActor<V> {
    type Result = ();

    fn handle(&mut self, Deliver(batch): Deliver, ctx: &mut Context<Self>) {
        let (records, bytes) = (batch.len(), batch.bytes());
        if self.slot.stop.load(Ordering::SeqCst) {
            // Revoked: what is queued is somebody else's now.
            self.end(Exit::Cancelled, ctx);
            return;
        }
        self.work(ctx, (records, bytes), move |mut core| async move {
            let began = Instant::now();
            let result = core.process(&batch).await;
            metrics::histogram!("batch_seconds", "group" => V::GROUP.name)
                .record(began.elapsed().as_secs_f64());
            (core, result)
        });
    }
}

/// Ends the actor after the work under way.
#[derive(Message)]
#[rtype(result = "()")]
pub struct End;

impl<V: Vertical> Handler<End> for PartitionActor<V> {
    type Result = ();

    fn handle(&mut self, _: End, ctx: &mut Context<Self>) {
        self.end(Exit::Cancelled, ctx);
    }
}
