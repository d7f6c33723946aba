//! The runtime as a consumer sees it: starts an actor for each partition it is given, hands over batches, answers for what
//! is under way, and lets go.

use super::actor::{Deliver, End, PartitionActor, Slot, Standing};
use super::books::Emits;
use super::clock::SharedClock;
use super::core::Core;
use super::failpoint;
use super::ownership;
use super::session::{Connect, Session};
use super::vertical::Vertical;
use actix::{Actor, Addr, Arbiter, ArbiterHandle};
use millrace_topics::contract::{
    Batch, ClaimError, InFlight, PartitionHost, StoredPosition, TopicRef,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long a fenced partition that is still assigned waits before it is claimed anew: longer than any rebalance takes to
/// tell us that it is no longer ours.
const FENCED_GRACE: Duration = Duration::from_secs(15);
/// How long a revoked partition may finish its open transaction.
const REVOKE_WAIT: Duration = Duration::from_secs(2);
/// How often the store is asked for pauses and resumes.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// What a group's host needs.
#[derive(Clone)]
pub struct HostConfig {
    /// The group's topics, in its order.
    pub topics: Vec<TopicRef>,
    /// Makes an actor's connection.
    pub connect: Connect,
    /// The wall clock.
    pub clock: SharedClock,
    /// How this process names itself in `ownership.owner`.
    pub owner: String,
    /// How often an idle actor looks at what is due.
    pub tick: Duration,
    /// How records for other topics leave.
    pub emits: Emits,
}

struct Running<V: Vertical> {
    addr: Addr<PartitionActor<V>>,
    slot: Arc<Slot>,
    claim: ownership::Claim,
}

struct Shared<V: Vertical> {
    running: Mutex<HashMap<i32, Running<V>>>,
    /// Partitions being claimed; true: revoked meanwhile.
    launching: Mutex<HashMap<i32, Arc<AtomicBool>>>,
    /// Claimed after the consumer had stopped waiting: kept for the next time it asks.
    late: Mutex<HashMap<i32, Running<V>>>,
    /// Partitions that are stopped, and why; true: resumed since.
    stopped: Mutex<HashMap<i32, (String, bool)>>,
    /// Takes no records: an operator's word, and how a host begins, until it has asked whether there is such a word.
    paused: AtomicBool,
    closing: AtomicBool,
}

/// The host of one group in this process.
pub struct GroupHost<V: Vertical> {
    config: HostConfig,
    make: Arc<dyn Fn() -> V + Send + Sync>,
    arbiters: Vec<ArbiterHandle>,
    shared: Arc<Shared<V>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a partition off those launching when the launch is over, whichever way.
struct Launched<V: Vertical>(Arc<Shared<V>>, i32, Arc<AtomicBool>);

impl<V: Vertical> Drop for Launched<V> {
    fn drop(&mut self) {
        self.0.launched(self.1, &self.2);
    }
}

impl<V: Vertical> Shared<V> {
    /// A launch came to its end, whatever it was.
    fn launched(&self, partition: i32, cancelled: &Arc<AtomicBool>) {
        let mut launching = locked(&self.launching);
        if launching
            .get(&partition)
            .is_some_and(|flag| Arc::ptr_eq(flag, cancelled))
        {
            launching.remove(&partition);
        }
    }

    /// Takes a claim that came too late for the call that began it, if its actor still runs.
    fn claimed_late(&self, partition: i32) -> Option<Vec<StoredPosition>> {
        let found = locked(&self.late).remove(&partition)?;
        if !found.addr.connected() || !matches!(found.slot.standing(), Standing::Running) {
            return None;
        }
        let positions = locked(&found.slot.positions).clone();
        locked(&self.running).insert(partition, found);
        Some(positions)
    }
}

impl<V: Vertical> GroupHost<V> {
    /// A host whose actors are spread over `arbiters` threads of their own. Needs a running actix system.
    pub fn new(
        config: HostConfig,
        arbiters: usize,
        make: impl Fn() -> V + Send + Sync + 'static,
    ) -> Arc<GroupHost<V>> {
        let arbiters: Vec<ArbiterHandle> = (0..arbiters.max(1))
            .map(|_| Arbiter::new().handle())
            .collect();
        let shared = Arc::new(Shared {
            running: Mutex::default(),
            launching: Mutex::default(),
            late: Mutex::default(),
            stopped: Mutex::default(),
            paused: AtomicBool::new(true),
            closing: AtomicBool::new(false),
        });
        let host = Arc::new(GroupHost {
            config,
            make: Arc::new(make),
            arbiters,
            shared,
        });
        if let Some(first) = host.arbiters.first() {
            let (shared, connect) = (Arc::clone(&host.shared), Arc::clone(&host.config.connect));
            first.spawn_fn(move || {
                actix_rt::spawn(watch(shared, connect));
            });
        }
        host
    }

    /// Partitions that are stopped, and why.
    #[must_use]
    pub fn stopped(&self) -> Vec<(i32, String)> {
        let mut all: Vec<(i32, String)> = locked(&self.shared.stopped)
            .iter()
            .map(|(partition, (why, _))| (*partition, why.clone()))
            .collect();
        for (partition, running) in locked(&self.shared.running).iter() {
            if let Standing::Stopped(why) = running.slot.standing() {
                all.push((*partition, why));
            }
        }
        all.sort();
        all.dedup();
        all
    }

    /// Partitions whose actors run.
    #[must_use]
    pub fn owned(&self) -> Vec<i32> {
        let mut owned: Vec<i32> = locked(&self.shared.running)
            .iter()
            .filter(|(_, r)| matches!(r.slot.standing(), Standing::Running))
            .map(|(p, _)| *p)
            .collect();
        owned.sort_unstable();
        owned
    }

    /// Ends the arbiters. Call after the consumer was shut down.
    pub fn close(&self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        for arbiter in &self.arbiters {
            arbiter.stop();
        }
    }

    fn arbiter(&self, partition: i32) -> Option<&ArbiterHandle> {
        let at = usize::try_from(partition).unwrap_or(0) % self.arbiters.len().max(1);
        self.arbiters.get(at)
    }
}

/// Looks at once, and then once a second, whether the group is paused and whether stopped partitions were resumed.
async fn watch<V: Vertical>(shared: Arc<Shared<V>>, connect: Connect) {
    let mut session: Option<Session> = None;
    let mut every = tokio::time::interval(WATCH_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !shared.closing.load(Ordering::SeqCst) {
        every.tick().await;
        let live = match session.take() {
            Some(s) if !s.client().is_closed() => s,
            _ => match connect().await {
                Ok(client) => Session::new(client),
                Err(_) => continue,
            },
        };
        let group = V::GROUP.name;
        if let Ok(rows) = live
            .query(
                "SELECT 1 FROM paused_groups WHERE group_name = $1",
                &[&group],
            )
            .await
        {
            let paused = !rows.is_empty();
            if shared.paused.swap(paused, Ordering::SeqCst) != paused {
                let word = if paused { "paused" } else { "resumed" };
                tracing::info!(group, "group {word}");
            }
        }
        let stopped: Vec<i32> = locked(&shared.stopped).keys().copied().collect();
        if !stopped.is_empty() {
            let resumed = live
                .query(
                    "SELECT partition FROM ownership WHERE group_name = $1 AND partition = ANY($2)
                     AND stopped_reason IS NULL",
                    &[&group, &stopped],
                )
                .await
                .unwrap_or_default();
            for row in resumed {
                if let Some(entry) = locked(&shared.stopped).get_mut(&row.get::<_, i32>(0)) {
                    entry.1 = true;
                }
            }
        }
        disown(&shared, &live).await;
        session = Some(live);
    }
}

/// Ends actors whose partition an operator has taken (`millrace positions set`: a new epoch that nobody owns). An idle actor
/// opens no transaction, so it would not notice the fence by itself. Another process's claim is left to the log's protocol.
async fn disown<V: Vertical>(shared: &Shared<V>, session: &Session) {
    let taken = session
        .query(
            "SELECT partition, epoch FROM ownership WHERE group_name = $1 AND owner = ''",
            &[&V::GROUP.name],
        )
        .await
        .unwrap_or_default();
    let running = locked(&shared.running);
    for row in &taken {
        let (partition, epoch): (i32, i64) = (row.get(0), row.get(1));
        let Some(found) = running.get(&partition) else {
            continue;
        };
        if found.slot.epoch.load(Ordering::SeqCst) < epoch {
            found.slot.stop.store(true, Ordering::SeqCst);
            found.slot.stand(Standing::Ended);
        }
    }
}

type Answer = (i32, Result<Vec<StoredPosition>, ClaimError>);

impl<V: Vertical> PartitionHost for GroupHost<V> {
    fn assigned(&self, partitions: &[i32], wait: Duration) -> Vec<Answer> {
        let deadline = Instant::now() + wait;
        let (tell, told) = mpsc::channel::<Answer>();
        // Set when we stop waiting: a claim that succeeds later than that is kept for the next time.
        let abandoned = Arc::new(Mutex::new(false));
        for partition in partitions.iter().copied() {
            let (config, make) = (self.config.clone(), Arc::clone(&self.make));
            let (shared, tell) = (Arc::clone(&self.shared), tell.clone());
            let abandoned = Arc::clone(&abandoned);
            if let Some(answer) = self.shared.claimed_late(partition) {
                let _ = tell.send((partition, Ok(answer)));
                continue;
            }
            let Some(arbiter) = self.arbiter(partition) else {
                continue;
            };
            let cancelled = Arc::new(AtomicBool::new(false));
            {
                let mut launching = locked(&shared.launching);
                if launching.contains_key(&partition) {
                    continue;
                }
                launching.insert(partition, Arc::clone(&cancelled));
            }
            arbiter.spawn_fn(move || {
                actix_rt::spawn(async move {
                    let stop = Arc::new(AtomicBool::new(false));
                    let topics: Arc<[TopicRef]> = config.topics.into();
                    let launched = Core::launch(
                        make(),
                        config.connect,
                        config.clock,
                        topics,
                        partition,
                        &config.owner,
                        Arc::clone(&stop),
                    )
                    .await;
                    let launched = launched.map(|core| core.emitting(config.emits));
                    // Kept among those launching until it stands among the late or the running: asked in between, a second
                    // claim would fence this one.
                    let launched_guard =
                        Launched(Arc::clone(&shared), partition, Arc::clone(&cancelled));
                    if cancelled.load(Ordering::SeqCst) {
                        return;
                    }
                    let answer = match launched {
                        Err(error) => {
                            if let ClaimError::Stopped(why) = &error {
                                locked(&shared.stopped).insert(partition, (why.clone(), false));
                            }
                            Err(error)
                        }
                        Ok(core) => {
                            let gone = locked(&abandoned);
                            let positions = core.positions();
                            let claim = core.claim().clone();
                            let slot = Arc::new(Slot::new(stop, positions.clone(), claim.epoch));
                            let addr =
                                PartitionActor::new(core, Arc::clone(&slot), config.tick).start();
                            locked(&shared.stopped).remove(&partition);
                            let started = Running { addr, slot, claim };
                            if *gone {
                                locked(&shared.late).insert(partition, started);
                                return;
                            }
                            locked(&shared.running).insert(partition, started);
                            Ok(positions)
                        }
                    };
                    // Before the answer: who has it may ask again at once.
                    drop(launched_guard);
                    let _ = tell.send((partition, answer));
                });
            });
        }
        drop(tell);
        let mut answers: Vec<Answer> = Vec::with_capacity(partitions.len());
        while answers.len() < partitions.len() {
            match told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(answer) => answers.push(answer),
                Err(_) => break,
            }
        }
        *locked(&abandoned) = true;
        answers.extend(told.try_iter());
        for partition in partitions {
            if !answers.iter().any(|(p, _)| p == partition) {
                let why = format!("partition {partition}: the store did not answer in time");
                answers.push((*partition, Err(ClaimError::Later(why))));
            }
        }
        answers
    }

    fn batch(&self, batch: Batch) -> Result<(), Batch> {
        let _ = failpoint::hit("consumer.batch");
        if self.shared.paused.load(Ordering::SeqCst) && !batch.records().is_empty() {
            return Err(batch);
        }
        let running = locked(&self.shared.running);
        let Some(found) = running.get(&batch.partition) else {
            return Err(batch);
        };
        let (records, bytes) = (batch.len(), batch.bytes());
        // Counted before it is sent, so that the actor never counts down what was not counted up.
        found.slot.records.fetch_add(records, Ordering::SeqCst);
        found.slot.bytes.fetch_add(bytes, Ordering::SeqCst);
        match found.addr.try_send(Deliver(batch)) {
            Ok(()) => Ok(()),
            Err(error) => {
                found.slot.records.fetch_sub(records, Ordering::SeqCst);
                found.slot.bytes.fetch_sub(bytes, Ordering::SeqCst);
                if matches!(error, actix::prelude::SendError::Closed(_)) {
                    found.slot.stand(match found.slot.standing() {
                        Standing::Running => Standing::Ended,
                        other => other,
                    });
                }
                Err(error.into_inner().0)
            }
        }
    }

    fn in_flight(&self, partition: i32) -> InFlight {
        if self.shared.paused.load(Ordering::SeqCst) {
            return InFlight {
                records: usize::MAX,
                bytes: usize::MAX,
            };
        }
        match locked(&self.shared.running).get(&partition) {
            Some(r) => InFlight {
                records: r.slot.records.load(Ordering::SeqCst),
                bytes: r.slot.bytes.load(Ordering::SeqCst),
            },
            None => InFlight {
                records: usize::MAX,
                bytes: usize::MAX,
            },
        }
    }

    fn revoked(&self, partitions: &[i32], lost: bool) {
        let mut gone = Vec::new();
        {
            let mut running = locked(&self.shared.running);
            for partition in partitions {
                locked(&self.shared.stopped).remove(partition);
                if let Some(cancelled) = locked(&self.shared.launching).remove(partition) {
                    cancelled.store(true, Ordering::SeqCst);
                }
                gone.extend(locked(&self.shared.late).remove(partition));
                gone.extend(running.remove(partition));
            }
        }
        for running in &gone {
            running.slot.stop.store(true, Ordering::SeqCst);
            let _ = running.addr.try_send(End);
        }
        if lost {
            return;
        }
        let deadline = Instant::now() + REVOKE_WAIT;
        for running in &gone {
            if !running.slot.wait_idle(deadline) {
                tracing::warn!(
                    partition = running.claim.partition,
                    "a transaction is still open after its partition was revoked; the next owner's claim fences it"
                );
            }
        }
    }

    fn fault(&self, partition: i32, reason: String) {
        let Some(running) = locked(&self.shared.running).remove(&partition) else {
            return;
        };
        running.slot.stop.store(true, Ordering::SeqCst);
        let _ = running.addr.try_send(End);
        tracing::error!(group = V::GROUP.name, partition, %reason, "partition stopped");
        locked(&self.shared.stopped).insert(partition, (reason.clone(), false));
        let connect = self.config.connect.clone();
        let Some(arbiter) = self.arbiter(partition) else {
            return;
        };
        let claim = ownership::Claim {
            epoch: running.slot.epoch.load(Ordering::SeqCst),
            ..running.claim
        };
        arbiter.spawn_fn(move || {
            actix_rt::spawn(async move {
                for _ in 0..10 {
                    let written = match connect().await {
                        Ok(client) => ownership::stop(&Session::new(client), &claim, &reason)
                            .await
                            .map_err(|f| format!("{f:?}")),
                        Err(e) => Err(e),
                    };
                    match written {
                        Ok(()) => return,
                        Err(e) => tracing::warn!(partition, error = %e, "cannot note the stop yet"),
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            });
        });
    }

    fn wants_reassignment(&self) -> Vec<i32> {
        let mut wanted = Vec::new();
        let mut running = locked(&self.shared.running);
        let mut stopped = locked(&self.shared.stopped);
        running.retain(|partition, r| {
            let standing = match r.slot.standing() {
                Standing::Running if !r.addr.connected() => Standing::Ended,
                other => other,
            };
            match standing {
                Standing::Running => true,
                Standing::Fenced(at) if at.elapsed() < FENCED_GRACE => true,
                Standing::Fenced(_) | Standing::Ended => {
                    wanted.push(*partition);
                    false
                }
                Standing::Stopped(why) => {
                    stopped.insert(*partition, (why, false));
                    false
                }
            }
        });
        stopped.retain(|partition, (_, resumed)| {
            if *resumed {
                wanted.push(*partition);
            }
            !*resumed
        });
        wanted
    }

    fn progress(&self) -> Vec<(i32, StoredPosition)> {
        let running = locked(&self.shared.running);
        let mut all = Vec::new();
        for (partition, r) in running.iter() {
            all.extend(locked(&r.slot.positions).iter().map(|p| (*partition, *p)));
        }
        all
    }
}
