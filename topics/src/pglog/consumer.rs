//! The consumer: one thread a group. One process a group: a session's advisory lock keeps a second one out.

mod group;
mod part;
mod turning;

use super::Connector;
use crate::contract::{Consumer, PartitionHost, Subscription};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use turning::Turning;

/// How a consumer waits.
#[derive(Clone, Copy, Debug)]
pub struct ConsumerOptions {
    /// How often an idle consumer looks for records, hints apart.
    pub poll: Duration,
    /// How long a claim may take.
    pub claim_wait: Duration,
    /// How long the server may take to answer a read.
    pub answer: Duration,
    /// How long after a refused claim, or a lost connection, it is tried again.
    pub retry: Duration,
}

impl Default for ConsumerOptions {
    fn default() -> ConsumerOptions {
        ConsumerOptions {
            poll: Duration::from_millis(50),
            claim_wait: Duration::from_secs(5),
            answer: Duration::from_secs(15),
            retry: Duration::from_millis(500),
        }
    }
}

/// Without a sign of life for so long, the consumer is ill.
const SILENT: Duration = Duration::from_secs(30);
/// How long shutdown waits for the thread.
const SHUTDOWN: Duration = Duration::from_secs(5);

enum Command {
    Pause(Vec<i32>),
    Resume(Vec<i32>),
    Stop,
}

/// What the consumer's thread tells others.
struct Shared {
    started: Instant,
    /// Milliseconds from `started` to the last turn.
    turned: AtomicU64,
    state: Mutex<Told>,
    ended: Condvar,
}

#[derive(Default)]
struct Told {
    owned: Vec<i32>,
    trouble: Option<String>,
    over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A consumer of the Postgres log. Dropping it shuts it down.
pub struct PgLogConsumer {
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
}

impl std::fmt::Debug for PgLogConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgLogConsumer")
            .field("owned", &self.owned())
            .finish_non_exhaustive()
    }
}

impl PgLogConsumer {
    /// Starts the consumer's thread. It connects by itself, waits while another process holds the group, and goes on by
    /// itself after the store was away.
    ///
    /// # Errors
    /// No thread or runtime can be had.
    pub fn start(
        connector: Connector,
        subscription: Subscription,
        host: Arc<dyn PartitionHost>,
        options: ConsumerOptions,
    ) -> std::io::Result<PgLogConsumer> {
        let (commands, commands_in) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            started: Instant::now(),
            turned: AtomicU64::new(0),
            state: Mutex::default(),
            ended: Condvar::new(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let name = format!("pglog-{}", subscription.group);
        let turning = Turning::new(
            connector,
            subscription,
            host,
            options,
            Arc::clone(&shared),
            commands_in,
        );
        let ending = Arc::clone(&shared);
        std::thread::Builder::new().name(name).spawn(move || {
            let over = Over(ending);
            turning.run(&runtime);
            drop(over);
        })?;
        Ok(PgLogConsumer { shared, commands })
    }
}

/// Says that the thread has ended, by return or by panic.
struct Over(Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        let mut told = self.0.lock();
        told.over = true;
        told.owned.clear();
        drop(told);
        self.0.ended.notify_all();
    }
}

impl Consumer for PgLogConsumer {
    fn pause(&self, partitions: &[i32]) {
        let _ = self.commands.send(Command::Pause(partitions.to_vec()));
    }

    fn resume(&self, partitions: &[i32]) {
        let _ = self.commands.send(Command::Resume(partitions.to_vec()));
    }

    fn owned(&self) -> Vec<i32> {
        self.shared.lock().owned.clone()
    }

    fn health(&self) -> Result<(), String> {
        let told = self.shared.lock();
        if told.over {
            return Err("the consumer's thread has ended".to_owned());
        }
        let turned = Duration::from_millis(self.shared.turned.load(Ordering::Relaxed));
        let silent = self.shared.started.elapsed().saturating_sub(turned);
        if silent > SILENT {
            return Err(format!(
                "the consumer has not looked at the log for {} s",
                silent.as_secs()
            ));
        }
        Ok(())
    }

    fn waits_for(&self) -> Option<String> {
        self.shared.lock().trouble.clone()
    }

    fn shutdown(&self) {
        let _ = self.commands.send(Command::Stop);
        let told = self.shared.lock();
        let waited = self
            .shared
            .ended
            .wait_timeout_while(told, SHUTDOWN, |t| !t.over);
        if waited.is_ok_and(|(told, _)| !told.over) {
            tracing::warn!("the consumer's thread did not end in time");
        }
    }
}

impl Drop for PgLogConsumer {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
    }
}
