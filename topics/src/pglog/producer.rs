//! The producer: records go to one appender, a thread of this process; one statement appends whatever has come together.

mod appender;

use super::Connector;
use crate::contract::{
    Acknowledgement, BoxFuture, Outgoing, Position, ProduceError, Producer, TopicRef,
};
use crate::partitioner;
use appender::Appender;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

/// How the producer batches and how much it holds.
#[derive(Clone, Copy, Debug)]
pub struct ProducerOptions {
    /// Largest record (key and payload), in bytes.
    pub max_record_bytes: usize,
    /// How long the first record of an append waits for more.
    pub linger: Duration,
    /// So many records end the wait.
    pub linger_records: usize,
    /// Records of one append at most: what came together while the former one was under way.
    pub batch_records: usize,
    /// Bytes of one append at most (a single larger record still makes one).
    pub batch_bytes: usize,
    /// Records before the log at most; then [`ProduceError::QueueFull`].
    pub queue_records: usize,
    /// Their bytes at most.
    pub queue_bytes: usize,
    /// How long a record may wait for the log before it is given up.
    pub give_up_after: Duration,
}

impl Default for ProducerOptions {
    fn default() -> ProducerOptions {
        ProducerOptions {
            max_record_bytes: 900_000,
            linger: Duration::from_millis(5),
            linger_records: 500,
            batch_records: 5_000,
            batch_bytes: 4 << 20,
            queue_records: 100_000,
            queue_bytes: 64 << 20,
            give_up_after: Duration::from_secs(10),
        }
    }
}

/// A record on its way.
struct Job {
    topic_no: i32,
    partition: i32,
    key: Bytes,
    payload: Bytes,
    since: Instant,
    acknowledge: oneshot::Sender<Result<Position, ProduceError>>,
}

impl Job {
    fn bytes(&self) -> usize {
        self.key.len() + self.payload.len()
    }
}

enum Control {
    /// Answer whether the log does.
    Ping(oneshot::Sender<Result<(), String>>),
    /// Append what has come, then end; give up at the deadline.
    Close(Instant, oneshot::Sender<()>),
}

/// What the producer and its appender share.
#[derive(Debug, Default)]
struct Queue {
    records: AtomicUsize,
    bytes: AtomicUsize,
    closed: AtomicBool,
}

/// Produces to the Postgres log. Dropped without [`Producer::close`], it appends what it has, for at most `give_up_after`.
pub struct PgLogProducer {
    jobs: mpsc::UnboundedSender<Job>,
    control: mpsc::UnboundedSender<Control>,
    partitions: HashMap<i32, i32>,
    queue: Arc<Queue>,
    options: ProducerOptions,
}

impl std::fmt::Debug for PgLogProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgLogProducer")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl PgLogProducer {
    /// Starts the appender; it connects by itself, and again whenever the log was away. `topics` is the catalogue.
    ///
    /// # Errors
    /// No thread or runtime can be had.
    pub fn start(
        connector: Connector,
        topics: &[TopicRef],
        options: ProducerOptions,
    ) -> std::io::Result<PgLogProducer> {
        let (jobs, jobs_in) = mpsc::unbounded_channel();
        let (control, control_in) = mpsc::unbounded_channel();
        let queue = Arc::new(Queue::default());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let appender = Appender::new(connector, options, Arc::clone(&queue), jobs_in, control_in);
        std::thread::Builder::new()
            .name("pglog-appender".to_owned())
            .spawn(move || runtime.block_on(appender.run()))?;
        Ok(PgLogProducer {
            jobs,
            control,
            partitions: topics.iter().map(|t| (t.no, t.partitions)).collect(),
            queue,
            options,
        })
    }

    /// Checks a record and takes its place in the queue; its partition.
    fn admit(&self, record: &Outgoing) -> Result<i32, ProduceError> {
        let bytes = record.key.len() + record.payload.len();
        let limit = self.options.max_record_bytes;
        if self.queue.closed.load(Ordering::Acquire) {
            return Err(ProduceError::Closed);
        }
        let Some(partitions) = self.partitions.get(&record.topic_no) else {
            return Err(ProduceError::UnknownTopic(record.topic_no));
        };
        if bytes > limit {
            return Err(ProduceError::TooLarge { bytes, limit });
        }
        let queued = self.queue.records.fetch_add(1, Ordering::Relaxed);
        let queued_bytes = self.queue.bytes.fetch_add(bytes, Ordering::Relaxed);
        if queued >= self.options.queue_records
            || queued_bytes.saturating_add(bytes) > self.options.queue_bytes
        {
            self.queue.records.fetch_sub(1, Ordering::Relaxed);
            self.queue.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(ProduceError::QueueFull);
        }
        Ok(partitioner::partition(&record.key, *partitions))
    }
}

impl Producer for PgLogProducer {
    fn produce(&self, record: Outgoing) -> Acknowledgement {
        let (acknowledge, acknowledgement) = oneshot::channel();
        // Nobody may be listening any more, so answers may get lost.
        match self.admit(&record) {
            Ok(partition) => {
                let job = Job {
                    topic_no: record.topic_no,
                    partition,
                    key: record.key,
                    payload: record.payload,
                    since: Instant::now(),
                    acknowledge,
                };
                if let Err(back) = self.jobs.send(job) {
                    let _ = back.0.acknowledge.send(Err(ProduceError::Closed));
                }
            }
            Err(error) => {
                let _ = acknowledge.send(Err(error));
            }
        }
        acknowledgement
    }

    fn health(&self, within: Duration) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            if self.control.send(Control::Ping(answer)).is_err() {
                return Err("the appender has ended".to_owned());
            }
            match timeout(within, answered).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err("the appender has ended".to_owned()),
                Err(_) => Err(format!(
                    "PostgreSQL did not answer within {} ms",
                    within.as_millis()
                )),
            }
        })
    }

    fn close(&self, within: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.queue.closed.store(true, Ordering::Release);
            let (answer, answered) = oneshot::channel();
            let deadline = Instant::now() + within;
            if self.control.send(Control::Close(deadline, answer)).is_ok() {
                let _ = timeout_at(deadline, answered).await;
            }
        })
    }
}
