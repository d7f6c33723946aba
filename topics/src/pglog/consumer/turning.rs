//! What the consumer's thread does, turn by turn.

use super::group::take_group;
use super::part::{Part, State};
use super::{Command, ConsumerOptions, Shared};
use crate::contract::{ClaimError, PartitionHost, Subscription};
use crate::pglog::Connector;
use crate::pglog::describe;
use crate::pglog::reader::{Lane, Reader};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};

/// How soon a partition without room is looked at again: the host has no way to say that it has room.
const NO_ROOM: Duration = Duration::from_millis(2);
/// How soon a busy partition with little to read is looked at again.
const GATHER: Duration = Duration::from_millis(5);
/// How often the host is asked for partitions that are to be assigned anew.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// The consumer's thread. Host calls are made outside of the runtime.
pub(super) struct Turning {
    connector: Connector,
    subscription: Subscription,
    host: Arc<dyn PartitionHost>,
    options: ConsumerOptions,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedReceiver<Command>,
    hint: Arc<Notify>,
    reader: Option<Reader>,
    parts: BTreeMap<i32, Part>,
    asked: Instant,
    /// The trouble last logged, and when.
    warned: Option<(String, Instant)>,
}

impl Turning {
    pub(super) fn new(
        connector: Connector,
        subscription: Subscription,
        host: Arc<dyn PartitionHost>,
        options: ConsumerOptions,
        shared: Arc<Shared>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Turning {
        let now = Instant::now();
        let partitions = subscription.topics.iter().map(|t| t.partitions).min();
        Turning {
            parts: (0..partitions.unwrap_or(0))
                .map(|p| (p, Part::new(now)))
                .collect(),
            connector,
            subscription,
            host,
            options,
            shared,
            commands,
            hint: Arc::new(Notify::new()),
            reader: None,
            asked: now,
            warned: None,
        }
    }

    pub(super) fn run(mut self, runtime: &Runtime) {
        loop {
            self.turned();
            while let Ok(command) = self.commands.try_recv() {
                if self.obey(command) {
                    self.leave(false);
                    return;
                }
            }
            let wait = match self.turn(runtime) {
                Ok(wait) => {
                    if self.reader.is_some() {
                        self.shared.lock().trouble = None;
                        self.warned = None;
                    }
                    wait
                }
                Err(trouble) => {
                    self.reader = None;
                    self.warn(trouble);
                    self.options.retry
                }
            };
            if !wait.is_zero() && self.wait(runtime, wait) {
                self.leave(false);
                return;
            }
        }
    }

    fn turned(&self) {
        let ms = self.shared.started.elapsed().as_millis();
        let ms = u64::try_from(ms).unwrap_or(u64::MAX);
        self.shared.turned.store(ms, Ordering::Relaxed);
    }

    /// Says what is wrong: at once if it is news, else every 30 s.
    fn warn(&mut self, trouble: String) {
        let known = self
            .warned
            .as_ref()
            .is_some_and(|(t, at)| *t == trouble && at.elapsed() < Duration::from_secs(30));
        if !known {
            tracing::warn!(group = %self.subscription.group, reason = %trouble, "the consumer waits");
            self.warned = Some((trouble.clone(), Instant::now()));
        }
        self.shared.lock().trouble = Some(trouble);
    }

    /// True: stop.
    fn obey(&mut self, command: Command) -> bool {
        let (partitions, pause) = match command {
            Command::Stop => return true,
            Command::Pause(partitions) => (partitions, true),
            Command::Resume(partitions) => (partitions, false),
        };
        for (partition, part) in &mut self.parts {
            if partitions.is_empty() || partitions.contains(partition) {
                part.paused = pause;
            }
        }
        false
    }

    /// Waits for a hint, a command or the time; true: stop.
    fn wait(&mut self, runtime: &Runtime, wait: Duration) -> bool {
        let command = runtime.block_on(async {
            tokio::select! {
                command = self.commands.recv() => Some(command.unwrap_or(Command::Stop)),
                () = self.hint.notified() => None,
                () = tokio::time::sleep(wait) => None,
            }
        });
        command.is_some_and(|c| self.obey(c))
    }

    /// One turn; how long to wait before the next.
    fn turn(&mut self, runtime: &Runtime) -> Result<Duration, String> {
        if self.reader.is_none() {
            runtime.block_on(self.open())?;
        }
        self.assign(runtime)?;
        let mut wait = self.options.poll;
        for part in self.parts.values_mut() {
            if let Some(batch) = part.held.take()
                && let Err(batch) = self.host.batch(batch)
            {
                part.held = Some(batch);
                wait = NO_ROOM;
            }
        }
        let limits = self.subscription.limits;
        let mut wants = Vec::new();
        for (partition, part) in &mut self.parts {
            if part.state != State::Running || part.paused || part.held.is_some() {
                continue;
            }
            match part.room(&limits, self.host.in_flight(*partition)) {
                Some(room) => {
                    // Small batches are left to gather for a busy partition.
                    if room.at_least > 1 {
                        wait = wait.min(GATHER);
                    }
                    wants.push((*partition, room, &mut part.lanes));
                }
                None => wait = NO_ROOM,
            }
        }
        let Some(reader) = self.reader.as_mut() else {
            return Ok(wait);
        };
        if wants.is_empty() {
            return Ok(wait);
        }
        let read = answered(runtime, self.options.answer, reader.read(&mut wants))?;
        drop(wants);
        for (partition, result) in read {
            let Some(part) = self.parts.get_mut(&partition) else {
                continue;
            };
            match result {
                Ok(batch) => {
                    if let Err(batch) = self.host.batch(batch) {
                        part.held = Some(batch);
                    }
                    wait = Duration::ZERO;
                }
                Err(fault) => {
                    tracing::error!(partition, reason = %fault.0, "the log cannot go on");
                    part.reset(State::Halted);
                    self.host.fault(partition, fault.0);
                    self.tell_owned();
                }
            }
        }
        Ok(wait)
    }

    /// Connects and takes the group. Kept out, it lets go of what it had: another process owns it now.
    async fn open_session(&self) -> Result<Reader, (bool, String)> {
        let topics = self.subscription.topics.iter().map(|t| t.no).collect();
        let open = async {
            let reader = Reader::open(&self.connector, &self.hint, topics)
                .await
                .map_err(|e| (false, e))?;
            match take_group(reader.client(), &self.subscription.group).await {
                Ok(None) => Ok(reader),
                Ok(Some(holder)) => Err((true, holder)),
                Err(error) => Err((false, describe(&error))),
            }
        };
        tokio::time::timeout(self.options.claim_wait, open)
            .await
            .unwrap_or_else(|_| Err((false, SILENT.to_owned())))
    }

    async fn open(&mut self) -> Result<(), String> {
        match self.open_session().await {
            Ok(reader) => {
                self.reader = Some(reader);
                Ok(())
            }
            Err((false, trouble)) => Err(trouble),
            Err((true, holder)) => {
                self.leave(true);
                Err(format!(
                    "group `{}` is consumed by another process ({holder}); the Postgres log has one process a group",
                    self.subscription.group
                ))
            }
        }
    }

    /// Assigns what waits for it.
    fn assign(&mut self, runtime: &Runtime) -> Result<(), String> {
        let now = Instant::now();
        if now.duration_since(self.asked) >= ASK_EVERY {
            self.asked = now;
            for partition in self.host.wants_reassignment() {
                if let Some(part) = self.parts.get_mut(&partition) {
                    part.reset(State::Waiting(now));
                }
            }
        }
        let due: Vec<i32> = self
            .parts
            .iter()
            .filter(|(_, p)| matches!(p.state, State::Waiting(at) if at <= now))
            .map(|(partition, _)| *partition)
            .collect();
        if due.is_empty() {
            return Ok(());
        }
        let claimed = self.host.assigned(&due, self.options.claim_wait);
        self.turned();
        let later = Instant::now() + self.options.retry;
        for (partition, claim) in claimed {
            let Some(part) = self.parts.get_mut(&partition) else {
                continue;
            };
            match claim {
                Ok(stored) => {
                    let lanes: Vec<Lane> = self
                        .subscription
                        .topics
                        .iter()
                        .map(|topic| Lane {
                            topic_no: topic.no,
                            position: stored
                                .iter()
                                .find(|s| s.topic_no == topic.no)
                                .map_or(0, |s| s.next_offset),
                            told: None,
                        })
                        .collect();
                    part.reset(State::Running);
                    part.lanes = lanes;
                }
                Err(ClaimError::Later(reason)) => {
                    tracing::info!(partition, %reason, "claimed later");
                    part.reset(State::Waiting(later));
                }
                Err(ClaimError::Stopped(reason)) => {
                    tracing::warn!(partition, %reason, "stopped");
                    part.reset(State::Halted);
                }
            }
        }
        let Some(reader) = self.reader.as_mut() else {
            return Ok(());
        };
        for partition in due {
            let Some(part) = self.parts.get_mut(&partition) else {
                continue;
            };
            if part.state == State::Running {
                let check = reader.check(partition, &part.lanes);
                let checked = answered(runtime, self.options.answer, check)?;
                if let Err(fault) = checked {
                    tracing::error!(partition, reason = %fault.0, "the log cannot go on");
                    part.reset(State::Halted);
                    self.host.fault(partition, fault.0);
                }
            }
        }
        self.tell_owned();
        Ok(())
    }

    fn tell_owned(&self) {
        self.shared.lock().owned = self
            .parts
            .iter()
            .filter(|(_, p)| p.state == State::Running)
            .map(|(partition, _)| *partition)
            .collect();
    }

    /// Gives everything back.
    fn leave(&mut self, lost: bool) {
        let now = Instant::now();
        let mut owned = Vec::new();
        for (partition, part) in &mut self.parts {
            if part.state == State::Running {
                owned.push(*partition);
            }
            part.reset(State::Waiting(now));
        }
        if !owned.is_empty() {
            self.host.revoked(&owned, lost);
        }
        self.tell_owned();
    }
}

const SILENT: &str = "PostgreSQL does not answer";

/// Runs a query to its end, or gives it up.
fn answered<T>(
    runtime: &Runtime,
    within: Duration,
    query: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, String> {
    // The timer is made within the runtime.
    runtime.block_on(async {
        match tokio::time::timeout(within, query).await {
            Ok(result) => result.map_err(|e| describe(&e)),
            Err(_) => Err(SILENT.to_owned()),
        }
    })
}
