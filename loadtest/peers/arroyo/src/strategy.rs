//! The chain of strategies.

use crate::rows::Batch;
use crate::store::{Raw, Store, rows_of};
use crate::{Settings, line};
use sentry_arroyo::backends::kafka::config::KafkaConfig;
use sentry_arroyo::backends::kafka::producer::KafkaProducer;
use sentry_arroyo::backends::kafka::types::KafkaPayload;
use sentry_arroyo::processing::strategies::commit_offsets::CommitOffsets;
use sentry_arroyo::processing::strategies::produce::Produce;
use sentry_arroyo::processing::strategies::reduce::Reduce;
use sentry_arroyo::processing::strategies::run_task::RunTask;
use sentry_arroyo::processing::strategies::run_task_in_threads::{
    ConcurrencyConfig, RunTaskError, RunTaskFunc, RunTaskInThreads,
};
use sentry_arroyo::processing::strategies::{
    CommitRequest, InvalidMessage, MessageRejected, ProcessingStrategy, ProcessingStrategyFactory,
    StrategyError, SubmitError,
};
use sentry_arroyo::types::{InnerMessage, Message, Topic, TopicOrPartition};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, oneshot};

/// Where rows go.
pub enum End {
    /// All chains of a processor share its connection: one is joined before the next is made.
    Store(Arc<Mutex<Store>>),
    /// A topic, by arroyo's own Produce.
    Ledger(KafkaConfig, Topic),
}

/// Makes the chain at each assignment.
pub struct Factory {
    pub settings: Settings,
    pub end: End,
    pub numbers: [i32; 2],
    pub runtime: Handle,
}

type Rows = (Vec<Raw>, Batch);

impl ProcessingStrategyFactory<KafkaPayload> for Factory {
    fn create(&self) -> Box<dyn ProcessingStrategy<KafkaPayload>> {
        match &self.end {
            End::Store(store) => self.into_store(store.clone()),
            End::Ledger(config, topic) => self.into_ledger(config, *topic),
        }
    }
}

impl Factory {
    /// A record's rows, Produce, CommitOffsets. Produce does not wait for the delivery: offsets may be committed before it.
    fn into_ledger(
        &self,
        config: &KafkaConfig,
        topic: Topic,
    ) -> Box<dyn ProcessingStrategy<KafkaPayload>> {
        let numbers = self.numbers;
        let rows = move |message: Message<KafkaPayload>| {
            let key = message.payload().key().cloned();
            let InnerMessage::BrokerMessage(m) = &message.inner_message else {
                return Err(SubmitError::MessageRejected(MessageRejected { message }));
            };
            let raw = Raw::of(m, numbers);
            match rows_of([&raw].into_iter(), numbers) {
                Ok(batch) => {
                    let line = line::of(batch);
                    Ok(message.replace(KafkaPayload::new(key, None, Some(line))))
                }
                Err(_) => Err(SubmitError::InvalidMessage(InvalidMessage::from(m))),
            }
        };
        let producer = KafkaProducer::new(config.clone()).expect("a producer");
        let commit = CommitOffsets::new(Duration::from_millis(self.settings.commit_ms));
        let at_once =
            ConcurrencyConfig::with_runtime(self.settings.produced_at_once, self.runtime.clone());
        let produce = Produce::new(commit, producer, &at_once, TopicOrPartition::Topic(topic));
        Box::new(Paced {
            next: RunTask::new(rows, produce),
            pause: Duration::from_millis(self.settings.rejected_ms),
        })
    }

    /// Batches, their rows, their transaction, CommitOffsets.
    fn into_store(&self, store: Arc<Mutex<Store>>) -> Box<dyn ProcessingStrategy<KafkaPayload>> {
        // One under way and one behind it: arroyo lets one task more run than it is told.
        let one = || ConcurrencyConfig::with_runtime(1, self.runtime.clone());
        // Transactions in order, since the positions of each go on from those of the one before: a task waits for the last.
        let last = std::sync::Mutex::new(None::<oneshot::Receiver<()>>);
        let write = move |message: Message<Rows>| -> RunTaskFunc<(), anyhow::Error> {
            let store = store.clone();
            let (done, mine) = oneshot::channel();
            let before = last.lock().ok().and_then(|mut last| last.replace(mine));
            Box::pin(async move {
                if let Some(before) = before {
                    let failed = |_| RunTaskError::Other(anyhow::anyhow!("the one before failed"));
                    before.await.map_err(failed)?;
                }
                let (message, (raw, batch)) = message.take();
                let written = store.lock().await.write(&raw, batch).await;
                written.map_err(RunTaskError::Other)?;
                let _ = done.send(());
                Ok(message)
            })
        };
        let numbers = self.numbers;
        let parse = move |message: Message<Vec<Raw>>| -> RunTaskFunc<Rows, anyhow::Error> {
            Box::pin(async move {
                let (message, raw) = message.take();
                let batch = rows_of(raw.iter(), numbers).map_err(RunTaskError::Other)?;
                Ok(message.replace((raw, batch)))
            })
        };
        let commit = CommitOffsets::new(Duration::from_millis(self.settings.commit_ms));
        let write = RunTaskInThreads::new(commit, write, &one(), Some("write"));
        let parse = RunTaskInThreads::new(write, parse, &one(), Some("parse"));
        let batch = self.settings.batch;
        let reduce = Reduce::new(
            parse,
            Arc::new(move |mut raw: Vec<Raw>, message: Message<KafkaPayload>| {
                if let InnerMessage::BrokerMessage(m) = message.inner_message {
                    raw.push(Raw::of(&m, numbers));
                }
                Ok(raw)
            }),
            Arc::new(move || Vec::with_capacity(batch)),
            batch,
            Duration::from_millis(self.settings.batch_ms),
            |_| 1,
        );
        Box::new(Paced {
            next: reduce,
            pause: Duration::from_millis(self.settings.rejected_ms),
        })
    }
}

/// Waits a little where the chain takes no more: arroyo's loop asks again at once, and would burn a core while the store is
/// busy.
struct Paced<N> {
    next: N,
    pause: Duration,
}

impl<N: ProcessingStrategy<KafkaPayload>> ProcessingStrategy<KafkaPayload> for Paced<N> {
    fn poll(&mut self) -> Result<Option<CommitRequest>, StrategyError> {
        self.next.poll()
    }

    fn submit(&mut self, message: Message<KafkaPayload>) -> Result<(), SubmitError<KafkaPayload>> {
        let submitted = self.next.submit(message);
        if let Err(SubmitError::MessageRejected(_)) = submitted {
            std::thread::sleep(self.pause);
        }
        submitted
    }

    fn terminate(&mut self) {
        self.next.terminate();
    }

    fn join(&mut self, timeout: Option<Duration>) -> Result<Option<CommitRequest>, StrategyError> {
        self.next.join(timeout)
    }
}
