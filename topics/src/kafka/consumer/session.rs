//! The consumer's thread: a loop over one client of Kafka, and what happens when that client is no longer of use.

use super::assignment::Assignment;
use super::protocol::has_kip_848;
use super::{Command, Status, lock};
use crate::contract::{PartitionHost, Subscription};
use crate::kafka::client;
use crate::kafka::settings::{GroupProtocol, KafkaSettings, KafkaSetupError};
use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientConfig, TopicPartitionList};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How long the thread sleeps when there is nothing to do. Records, commands and the group wake it.
const NAP: Duration = Duration::from_millis(20);
/// How long the group's queue is read at once when something stands in it. What waits there (a rebalance, behind whatever the
/// client has to say of its brokers) holds up all partitions: librdkafka fetches nothing until a rebalance was answered.
const HEAR: Duration = Duration::from_millis(1);
/// The same while an actor is busy with what it has (it does not tell when it has finished).
const SHORT_NAP: Duration = Duration::from_millis(1);
/// Progress, wishes of the host, liveness.
const ROUND: Duration = Duration::from_secs(1);
/// Claims that are due are looked for this often.
const CLAIMS: Duration = Duration::from_millis(100);
/// A client that failed for good is made anew after this long.
const ANEW: Duration = Duration::from_secs(3);
/// Under `auto`: without any answer of the group for this long, the classic protocol is tried.
const NO_GROUP: Duration = Duration::from_secs(20);

/// Callbacks of one client. They run inside its poll, on the consumer's thread.
struct GroupContext {
    assignment: Mutex<Assignment<GroupContext>>,
    me: OnceLock<Weak<BaseConsumer<GroupContext>>>,
    status: Arc<Status>,
    /// The group has answered: this client's protocol works.
    joined: AtomicBool,
    /// Something stands in the group's queue.
    told: Arc<AtomicBool>,
}

impl ClientContext for GroupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        client::note(&error, reason);
    }
}

impl ConsumerContext for GroupContext {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        what: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        self.joined.store(true, Ordering::Relaxed);
        // A poll ends with a rebalance; the next may stand behind it, and the queue tells of itself only when it was empty.
        self.told.store(true, Ordering::Relaxed);
        let handled = catch_unwind(AssertUnwindSafe(|| {
            let mut assignment = lock(&self.assignment);
            if what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
                if let Some(me) = self.me.get() {
                    assignment.assign(consumer, me, list);
                }
            } else {
                let lost = consumer.assignment_lost();
                assignment.revoke(consumer, list, lost);
            }
            self.status.set_owned(assignment.started());
        }));
        if handled.is_err() {
            lock(&self.assignment).panicked = Some("a rebalance panicked".to_owned());
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        // A report of progress alone; the next one carries it again.
        if let Err(error) = result {
            tracing::debug!(%error, "kafka consumer: progress not reported");
        }
    }
}

/// Why a client was given up.
enum Exit {
    Shutdown,
    /// The brokers do not have this group protocol.
    NoSuchProtocol,
    /// It failed for good.
    Failed(String),
}

/// The consumer's thread.
pub(super) struct Thread {
    pub settings: KafkaSettings,
    pub subscription: Subscription,
    pub host: Arc<dyn PartitionHost>,
    pub status: Arc<Status>,
    pub orders: Receiver<Command>,
}

impl Thread {
    /// Until it is told to shut down, or panics.
    pub(super) fn run(self) {
        let mut kip_848 = match self.settings.protocol {
            GroupProtocol::Consumer => Some(true),
            GroupProtocol::Classic => Some(false),
            GroupProtocol::Auto => None,
        };
        loop {
            self.status.beat();
            let used = kip_848.unwrap_or_else(|| {
                let base = self.settings.base().ok();
                base.and_then(|b| has_kip_848(&b)).unwrap_or(true)
            });
            self.status.kip_848.store(used, Ordering::Relaxed);
            let exit = catch_unwind(AssertUnwindSafe(|| self.session(used)));
            match exit {
                Ok(Ok(Exit::Shutdown)) => return,
                Ok(Ok(Exit::NoSuchProtocol)) if self.settings.protocol == GroupProtocol::Auto => {
                    tracing::info!("kafka consumer: the brokers have no KIP-848; classic protocol");
                    kip_848 = Some(false);
                    continue;
                }
                Ok(Ok(Exit::NoSuchProtocol)) => {
                    self.status.set_ill(Some(
                        "the brokers do not have the group protocol that is set".to_owned(),
                    ));
                }
                Ok(Ok(Exit::Failed(why))) => self.status.set_ill(Some(why)),
                Ok(Err(error)) => self.status.set_ill(Some(error.to_string())),
                Err(_) => {
                    self.status
                        .set_ill(Some("the consumer's thread panicked".to_owned()));
                    return;
                }
            }
            // Once more, after a while; an order to end is heard meanwhile.
            let until = Instant::now() + ANEW;
            loop {
                let left = until.saturating_duration_since(Instant::now());
                match self.orders.recv_timeout(left) {
                    Ok(Command::Shutdown) | Err(RecvTimeoutError::Disconnected) => return,
                    Ok(_) => {}
                    Err(RecvTimeoutError::Timeout) => break,
                }
            }
        }
    }

    fn config(&self, kip_848: bool) -> Result<ClientConfig, KafkaSetupError> {
        let mut config = self.settings.base()?;
        let kib = (self.settings.prefetch_bytes / 1024).max(64);
        for (property, value) in [
            // Back off 2 ms, not 1 s, when enough was fetched ahead.
            ("fetch.queue.backoff.ms", "2"),
            // A broker answers one request at a time: partitions that come to it late, after a rebalance above all, wait until
            // the one under way has brought something or given up, and so does an end. By itself that is half a second.
            ("fetch.wait.max.ms", "100"),
            ("queued.max.messages.kbytes", kib.to_string().as_str()),
        ] {
            if config.get(property).is_none() {
                config.set(property, value);
            }
        }
        config
            .set("group.id", &self.subscription.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("allow.auto.create.topics", "false");
        if kip_848 {
            config
                .set("group.protocol", "consumer")
                .set("group.remote.assignor", "range");
            // There these are the broker's, and librdkafka refuses them.
            config.remove("session.timeout.ms");
            config.remove("heartbeat.interval.ms");
        } else {
            config.set("partition.assignment.strategy", "range");
            if config.get("session.timeout.ms").is_none() {
                let session = self.settings.session_timeout_ms.max(1_000);
                config
                    .set("session.timeout.ms", session.to_string())
                    .set("heartbeat.interval.ms", (session / 4).to_string());
            }
        }
        Ok(config)
    }

    /// One client, from its making to its end.
    fn session(&self, kip_848: bool) -> Result<Exit, KafkaSetupError> {
        let context = GroupContext {
            assignment: Mutex::new(Assignment::new(
                self.subscription.clone(),
                Arc::clone(&self.host),
                Duration::from_millis(self.settings.claim_wait_ms),
            )),
            me: OnceLock::new(),
            status: Arc::clone(&self.status),
            joined: AtomicBool::new(false),
            told: Arc::new(AtomicBool::new(true)),
        };
        let mut client: BaseConsumer<GroupContext> =
            BaseConsumer::from_config_and_context(&self.config(kip_848)?, context)?;
        let (thread, told) = (std::thread::current(), Arc::clone(&client.context().told));
        client.set_nonempty_callback(move || {
            told.store(true, Ordering::Relaxed);
            thread.unpark();
        });
        let client = Arc::new(client);
        drop(client.context().me.set(Arc::downgrade(&client)));
        let names: Vec<&str> = self
            .subscription
            .topics
            .iter()
            .map(|t| t.log_name.as_str())
            .collect();
        client.subscribe(&names)?;
        // Whatever ends the loop, a panic too: the partitions are revoked, and their queues (which hold the client) go.
        let exit = catch_unwind(AssertUnwindSafe(|| self.poll(&client, kip_848)));
        let context = Arc::clone(client.context());
        let clean = matches!(exit, Ok(Exit::Shutdown));
        {
            let mut assignment = lock(&context.assignment);
            let last = if clean { assignment.report() } else { None };
            assignment.end_all(!clean);
            if let Some(list) = last {
                drop(client.commit(&list, CommitMode::Async));
            }
        }
        self.status.set_owned(Vec::new());
        // Leaves the group.
        drop(client);
        match exit {
            Ok(exit) => Ok(exit),
            Err(_) => Ok(Exit::Failed("the consumer's loop panicked".to_owned())),
        }
    }

    fn poll(&self, client: &Arc<BaseConsumer<GroupContext>>, kip_848: bool) -> Exit {
        let context = client.context();
        let begun = Instant::now();
        let (mut round, mut claims) = (begun, begun);
        let mut settled = !kip_848 || self.settings.protocol != GroupProtocol::Auto;
        loop {
            self.status.beat();
            loop {
                match self.orders.try_recv() {
                    Ok(Command::Pause(p)) => lock(&context.assignment).set_paused(&p, true),
                    Ok(Command::Resume(p)) => lock(&context.assignment).set_paused(&p, false),
                    Ok(Command::Shutdown) | Err(TryRecvError::Disconnected) => {
                        return Exit::Shutdown;
                    }
                    Err(TryRecvError::Empty) => break,
                }
            }
            // The group's queue: rebalances and errors. Records have queues of their own.
            let told = context.told.swap(false, Ordering::Relaxed);
            let heard = client.poll(if told { HEAR } else { Duration::ZERO });
            if heard.is_some() {
                context.told.store(true, Ordering::Relaxed);
            }
            match heard {
                None => {}
                Some(Ok(stray)) => {
                    lock(&context.assignment).stray(client, stray.topic(), stray.partition());
                }
                Some(Err(KafkaError::MessageConsumptionFatal(code))) => {
                    return match code {
                        RDKafkaErrorCode::UnsupportedVersion
                        | RDKafkaErrorCode::UnsupportedFeature
                            if kip_848 =>
                        {
                            Exit::NoSuchProtocol
                        }
                        _ => Exit::Failed(format!("Kafka's client failed for good: {code}")),
                    };
                }
                // Brokers come and go; librdkafka sees to it.
                Some(Err(error)) => tracing::debug!(%error, "kafka consumer: polling"),
            }
            let now = Instant::now();
            let mut assignment = lock(&context.assignment);
            if now >= claims {
                claims = now + CLAIMS;
                assignment.claim_due(client, now);
            }
            if now >= round {
                round = now + ROUND;
                assignment.ask_wanted(now);
                if let Some(list) = assignment.report() {
                    drop(client.commit(&list, CommitMode::Async));
                }
                if context.joined.load(Ordering::Relaxed) {
                    self.status.set_ill(assignment.panicked.clone());
                }
                if !settled {
                    settled = context.joined.load(Ordering::Relaxed);
                    if !settled && now.duration_since(begun) > NO_GROUP {
                        let reachable = client.fetch_metadata(None, ROUND).is_ok();
                        if reachable && !context.joined.load(Ordering::Relaxed) {
                            return Exit::NoSuchProtocol;
                        }
                    }
                }
            }
            let (moved, busy) = assignment.step(now);
            let owned = assignment.started();
            drop(assignment);
            {
                let mut known = lock(&self.status.owned);
                if *known != owned {
                    *known = owned;
                }
            }
            if !moved && !context.told.load(Ordering::Relaxed) {
                std::thread::park_timeout(if busy { SHORT_NAP } else { NAP });
            }
        }
    }
}
