//! Consuming from Kafka: one thread a group, which polls for as long as it lives.
//!
//! - `assignment`: rebalances, claims, which partitions run. `round`: what the loop does with those that do.
//! - `partition`, `merge`, `source`: from a partition's queues to batches.
//! - `session`: the thread's loop over one client of Kafka.
//! - `protocol`: KIP-848 or classic.
//!
//! Nothing starts from the group's committed offsets; they are written about once a second so that lag tools see progress.

mod assignment;
mod merge;
mod partition;
mod protocol;
mod round;
mod session;
mod source;

use super::settings::{KafkaSettings, KafkaSetupError};
use crate::contract::{Consumer, PartitionHost, Subscription};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A thread that has not polled for this long is not well.
const SILENCE: Duration = Duration::from_secs(30);
/// How long [`Consumer::shutdown`] waits.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// What the thread is asked to do.
enum Command {
    Pause(Vec<i32>),
    Resume(Vec<i32>),
    Shutdown,
}

/// What the thread tells the rest.
struct Status {
    born: Instant,
    /// Milliseconds after `born` of the last poll.
    polled: AtomicU64,
    ill: Mutex<Option<String>>,
    owned: Mutex<Vec<i32>>,
    kip_848: AtomicBool,
    ended: Mutex<bool>,
    end: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Status {
    fn beat(&self) {
        let ms = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.polled.store(ms, Ordering::Relaxed);
    }

    fn set_ill(&self, why: Option<String>) {
        *lock(&self.ill) = why;
    }

    fn set_owned(&self, owned: Vec<i32>) {
        *lock(&self.owned) = owned;
    }
}

/// Tells that the thread is over, however it ended.
struct Farewell(Arc<Status>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.set_owned(Vec::new());
        *lock(&self.0.ended) = true;
        self.0.end.notify_all();
    }
}

/// A running consumer of Kafka.
pub struct KafkaConsumer {
    status: Arc<Status>,
    commands: Sender<Command>,
    thread: Thread,
}

impl KafkaConsumer {
    /// Starts the thread. Brokers and topics need not be there yet.
    ///
    /// # Errors
    /// The settings are wrong, or the machine gives no thread.
    pub fn start(
        settings: &KafkaSettings,
        subscription: Subscription,
        host: Arc<dyn PartitionHost>,
    ) -> Result<KafkaConsumer, KafkaSetupError> {
        settings.base()?;
        let status = Arc::new(Status {
            born: Instant::now(),
            polled: AtomicU64::new(0),
            ill: Mutex::new(None),
            owned: Mutex::new(Vec::new()),
            kip_848: AtomicBool::new(false),
            ended: Mutex::new(false),
            end: Condvar::new(),
        });
        let (commands, orders): (_, Receiver<Command>) = channel();
        let run = session::Thread {
            settings: settings.clone(),
            subscription,
            host,
            status: Arc::clone(&status),
            orders,
        };
        let farewell = Farewell(Arc::clone(&status));
        let thread = std::thread::Builder::new()
            .name("kafka-consumer".to_owned())
            .spawn(move || {
                let _farewell = farewell;
                run.run();
            })?;
        Ok(KafkaConsumer {
            status,
            commands,
            thread: thread.thread().clone(),
        })
    }

    /// Whether the group runs under KIP-848 (else the classic protocol). Settled once the consumer has joined.
    #[must_use]
    pub fn uses_kip_848(&self) -> bool {
        self.status.kip_848.load(Ordering::Relaxed)
    }

    fn order(&self, command: Command) {
        // A thread that is over takes no orders, and `health` says so.
        drop(self.commands.send(command));
        self.thread.unpark();
    }
}

impl Consumer for KafkaConsumer {
    fn pause(&self, partitions: &[i32]) {
        self.order(Command::Pause(partitions.to_vec()));
    }

    fn resume(&self, partitions: &[i32]) {
        self.order(Command::Resume(partitions.to_vec()));
    }

    fn owned(&self) -> Vec<i32> {
        lock(&self.status.owned).clone()
    }

    fn health(&self) -> Result<(), String> {
        if let Some(why) = lock(&self.status.ill).clone() {
            return Err(why);
        }
        if *lock(&self.status.ended) {
            return Err("the consumer's thread has ended".to_owned());
        }
        let polled = Duration::from_millis(self.status.polled.load(Ordering::Relaxed));
        let silent = self.status.born.elapsed().saturating_sub(polled);
        if silent > SILENCE {
            return Err(format!(
                "the consumer has not polled for {} s",
                silent.as_secs()
            ));
        }
        Ok(())
    }

    fn shutdown(&self) {
        self.order(Command::Shutdown);
        let ended = lock(&self.status.ended);
        let waited = self
            .status
            .end
            .wait_timeout_while(ended, SHUTDOWN, |ended| !*ended)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.1.timed_out() {
            tracing::warn!("kafka consumer: still leaving its group after {SHUTDOWN:?}");
        }
    }
}

impl Drop for KafkaConsumer {
    /// Tells the thread to end, without waiting for it.
    fn drop(&mut self) {
        self.order(Command::Shutdown);
    }
}
