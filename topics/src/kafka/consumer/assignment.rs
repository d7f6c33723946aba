//! What the group has given to this member, and the answers to its rebalances.
//!
//! Partitions of topics come and go one by one; a partition of the GROUP starts when all its topics are here, at the positions
//! that the host answers, and ends when the first of them goes. Until it starts, its topics are assigned at their ends and
//! left unread.

use super::partition::{Partition, State};
use crate::contract::{ClaimError, PartitionHost, Subscription};
use rdkafka::TopicPartitionList;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::topic_partition_list::Offset;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A claim refused for now is tried again after this long, doubled up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// How long a claim from the poll loop may hold up the other partitions.
const RETRY_WAIT: Duration = Duration::from_millis(500);
/// How long librdkafka may take to move to another offset.
const SEEK: Duration = Duration::from_secs(2);

/// A client with context `C`, as the callbacks see it.
type Client<C> = BaseConsumer<C>;

/// The member's part of the group.
pub(super) struct Assignment<C: ConsumerContext + 'static> {
    pub subscription: Subscription,
    pub(super) host: Arc<dyn PartitionHost>,
    claim_wait: Duration,
    pub(super) partitions: BTreeMap<i32, Partition<PartitionQueue<C>>>,
    /// Paused by hand: these, or all.
    pub(super) paused: BTreeSet<i32>,
    pub(super) paused_all: bool,
    /// Last reported position by (topic index, partition).
    pub(super) reported: BTreeMap<(usize, i32), i64>,
    /// A callback of the host panicked: what it said.
    pub panicked: Option<String>,
}

impl<C: ConsumerContext + 'static> Assignment<C> {
    pub(super) fn new(
        subscription: Subscription,
        host: Arc<dyn PartitionHost>,
        claim_wait: Duration,
    ) -> Assignment<C> {
        Assignment {
            subscription,
            host,
            claim_wait,
            partitions: BTreeMap::new(),
            paused: BTreeSet::new(),
            paused_all: false,
            reported: BTreeMap::new(),
            panicked: None,
        }
    }

    /// Partitions that run.
    pub(super) fn started(&self) -> Vec<i32> {
        self.partitions
            .values()
            .filter(|p| p.state == State::Started)
            .map(|p| p.number)
            .collect()
    }

    fn topic_index(&self, log_name: &str) -> Option<usize> {
        self.subscription
            .topics
            .iter()
            .position(|t| t.log_name == log_name)
    }

    pub(super) fn log_name(&self, topic: usize) -> &str {
        self.subscription
            .topics
            .get(topic)
            .map_or("", |t| t.log_name.as_str())
    }

    /// A call of the host whose panic must not unwind through the client.
    pub(super) fn guarded<T>(
        &mut self,
        what: &str,
        call: impl FnOnce(&dyn PartitionHost) -> T,
    ) -> Option<T> {
        let host = Arc::clone(&self.host);
        match catch_unwind(AssertUnwindSafe(|| call(host.as_ref()))) {
            Ok(answer) => Some(answer),
            Err(panic) => {
                let why = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                    .unwrap_or_default();
                tracing::error!(what, why, "kafka consumer: the host panicked");
                self.panicked = Some(format!("{what} panicked: {why}"));
                None
            }
        }
    }

    /// The group gives topics' partitions.
    pub(super) fn assign(
        &mut self,
        client: &Client<C>,
        me: &Weak<Client<C>>,
        list: &TopicPartitionList,
    ) {
        let given: Vec<(usize, i32)> = list
            .elements()
            .iter()
            .filter_map(|e| Some((self.topic_index(e.topic())?, e.partition())))
            .collect();
        let topics = self.subscription.topics.clone();
        let mut whole = BTreeSet::new();
        for &(topic, number) in &given {
            // The queue is split before the assignment, so that not one record goes the way of the group's queue.
            let queue = me
                .upgrade()
                .and_then(|me| me.split_partition_queue(self.log_name(topic), number));
            let p = self
                .partitions
                .entry(number)
                .or_insert_with(|| Partition::new(number, &topics));
            if let Some(stream) = p.streams.get_mut(topic) {
                stream.source = queue.map(|mut q| {
                    let thread = std::thread::current();
                    q.set_nonempty_callback(move || thread.unpark());
                    q
                });
            }
            if p.is_whole() && p.state == State::Partial {
                p.state = State::Waiting {
                    at: Instant::now(),
                    tries: 0,
                };
                whole.insert(number);
            }
        }
        let started = self.claim(&whole.into_iter().collect::<Vec<_>>(), self.claim_wait);
        let mut to = TopicPartitionList::with_capacity(given.len());
        for &(topic, number) in &given {
            let offset = self
                .partitions
                .get(&number)
                .filter(|p| p.state == State::Started)
                .and_then(|p| p.streams.get(topic))
                .map_or(Offset::End, |s| Offset::Offset(s.next));
            if let Err(error) = to.add_partition_offset(self.log_name(topic), number, offset) {
                tracing::warn!(%error, "kafka consumer: position");
            }
        }
        let assigned = match client.rebalance_protocol() {
            RebalanceProtocol::Cooperative => client.incremental_assign(&to),
            _ => client.assign(&to),
        };
        if let Err(error) = assigned {
            tracing::warn!(%error, "kafka consumer: the assignment was withdrawn");
        }
        // Topics of a partition that were here before the last one came stand at their ends.
        let earlier: Vec<(usize, i32)> = started
            .iter()
            .flat_map(|&number| (0..topics.len()).map(move |topic| (topic, number)))
            .filter(|tp| !given.contains(tp))
            .collect();
        self.seek(client, &earlier);
        let fresh: Vec<(usize, i32)> = given.iter().chain(&earlier).copied().collect();
        self.rouse(client, &fresh);
        tracing::info!(group = self.subscription.group, topics_partitions = given.len(), started = ?self.started(), "kafka consumer: assigned");
    }

    /// The group takes topics' partitions; `lost`: it has given them to somebody else already.
    pub(super) fn revoke(&mut self, client: &Client<C>, list: &TopicPartitionList, lost: bool) {
        let taken: Vec<(usize, i32)> = list
            .elements()
            .iter()
            .filter_map(|e| Some((self.topic_index(e.topic())?, e.partition())))
            .collect();
        self.end(&taken, lost);
        let unassigned = match client.rebalance_protocol() {
            RebalanceProtocol::Cooperative => client.incremental_unassign(list),
            _ => client.unassign(),
        };
        if let Err(error) = unassigned {
            tracing::warn!(%error, "kafka consumer: giving up partitions");
        }
        self.rouse(client, &taken);
        tracing::info!(group = self.subscription.group, topics_partitions = taken.len(), lost, left = ?self.started(), "kafka consumer: revoked");
    }

    /// Sets those going that a rebalance does not concern. librdkafka fetches nothing while a rebalance waits for its answer; after
    /// it, the thread of a broker that fetches nothing finds out by itself, which takes it up to a second. A move to where they
    /// stand wakes it. (Under the eager protocol all partitions are assigned anew.)
    fn rouse(&mut self, client: &Client<C>, but: &[(usize, i32)]) {
        if !matches!(client.rebalance_protocol(), RebalanceProtocol::Cooperative) {
            return;
        }
        let topics = self.subscription.topics.len();
        let rest: Vec<(usize, i32)> = self
            .started()
            .into_iter()
            .flat_map(|number| (0..topics).map(move |topic| (topic, number)))
            .filter(|tp| !but.contains(tp))
            .collect();
        self.seek(client, &rest);
    }

    /// Ends everything that is still here (the client is about to close, or is gone).
    pub(super) fn end_all(&mut self, lost: bool) {
        let all: Vec<(usize, i32)> = self
            .partitions
            .keys()
            .flat_map(|&n| (0..self.subscription.topics.len()).map(move |t| (t, n)))
            .collect();
        self.end(&all, lost);
    }

    fn end(&mut self, taken: &[(usize, i32)], lost: bool) {
        let numbers: BTreeSet<i32> = taken.iter().map(|t| t.1).collect();
        let mut gone = Vec::new();
        for number in numbers {
            self.reported.retain(|k, _| k.1 != number);
            if let Some(p) = self.partitions.get_mut(&number) {
                p.discard();
                // A claim that waits may be under way in the host: it is told too.
                if p.state != State::Partial {
                    p.state = State::Partial;
                    gone.push(number);
                }
            }
        }
        if !gone.is_empty() {
            self.guarded("revoked", |host| host.revoked(&gone, lost));
        }
        for &(topic, number) in taken {
            if let Some(stream) = self
                .partitions
                .get_mut(&number)
                .and_then(|p| p.streams.get_mut(topic))
            {
                stream.source = None;
                stream.restart(0);
            }
        }
        self.partitions.retain(|_, p| !p.is_empty());
    }

    /// Claims partitions at the host; answers those that began. Their streams' `next` hold the positions.
    fn claim(&mut self, numbers: &[i32], wait: Duration) -> Vec<i32> {
        if numbers.is_empty() {
            return Vec::new();
        }
        let answers = self
            .guarded("assigned", |host| host.assigned(numbers, wait))
            .unwrap_or_default();
        let topics = self.subscription.topics.clone();
        let mut begun = Vec::new();
        for &number in numbers {
            let answer = answers.iter().find(|a| a.0 == number).map(|a| &a.1);
            let Some(p) = self.partitions.get_mut(&number) else {
                continue;
            };
            let tries = match p.state {
                State::Waiting { tries, .. } => tries,
                _ => 0,
            };
            let later = State::Waiting {
                at: Instant::now() + RETRY.0.saturating_mul(1 << tries.min(8)).min(RETRY.1),
                tries: tries + 1,
            };
            match answer {
                Some(Ok(positions)) => {
                    if p.begin(&topics, positions).is_some() {
                        begun.push(number);
                    } else {
                        p.state = State::Stopped;
                        let reason = "the store holds no position for one of its topics";
                        self.guarded("fault", |host| host.fault(number, reason.to_owned()));
                    }
                }
                Some(Err(ClaimError::Stopped(reason))) => {
                    tracing::warn!(partition = number, reason, "kafka consumer: stopped");
                    p.state = State::Stopped;
                }
                Some(Err(ClaimError::Later(reason))) => {
                    tracing::info!(partition = number, reason, "kafka consumer: claim later");
                    p.state = later;
                }
                None => p.state = later,
            }
        }
        begun
    }

    /// Claims what is due, and moves what was claimed to its positions.
    pub(super) fn claim_due(&mut self, client: &Client<C>, now: Instant) {
        let due: Vec<i32> = self
            .partitions
            .values()
            .filter(|p| matches!(p.state, State::Waiting { at, .. } if at <= now))
            .map(|p| p.number)
            .collect();
        let begun = self.claim(&due, RETRY_WAIT);
        let all: Vec<(usize, i32)> = begun
            .iter()
            .flat_map(|&n| (0..self.subscription.topics.len()).map(move |t| (t, n)))
            .collect();
        self.seek(client, &all);
    }

    /// Moves topics' partitions that are assigned already to their streams' `next`.
    fn seek(&mut self, client: &Client<C>, what: &[(usize, i32)]) {
        if what.is_empty() {
            return;
        }
        for &(topic, number) in what {
            if let Some(stream) = self
                .partitions
                .get_mut(&number)
                .and_then(|p| p.streams.get_mut(topic))
            {
                stream.drain();
            }
        }
        // A partition that had failed (out of range) cannot be moved, only assigned anew.
        let stuck: Vec<(usize, i32)> = match client.seek_partitions(self.at_next(what), SEEK) {
            Ok(moved) => moved
                .elements()
                .iter()
                .filter(|e| e.error().is_err())
                .filter_map(|e| Some((self.topic_index(e.topic())?, e.partition())))
                .collect(),
            Err(error) => {
                tracing::debug!(%error, "kafka consumer: seek");
                what.to_vec()
            }
        };
        if stuck.is_empty() {
            return;
        }
        let again = match client.rebalance_protocol() {
            RebalanceProtocol::Cooperative => {
                let list = self.at_next(&stuck);
                client
                    .incremental_unassign(&list)
                    .and_then(|()| client.incremental_assign(&list))
            }
            _ => {
                let all: Vec<(usize, i32)> = self
                    .partitions
                    .values()
                    .flat_map(|p| {
                        p.streams
                            .iter()
                            .enumerate()
                            .filter(|(_, s)| s.source.is_some())
                            .map(|(topic, _)| (topic, p.number))
                    })
                    .collect();
                client.assign(&self.at_next(&all))
            }
        };
        if let Err(error) = again {
            tracing::warn!(%error, "kafka consumer: assigning anew");
            let at = Instant::now() + RETRY.1;
            for (_, number) in stuck {
                if let Some(p) = self.partitions.get_mut(&number) {
                    p.discard();
                    p.state = State::Waiting { at, tries: 0 };
                }
            }
        }
    }

    fn at_next(&self, what: &[(usize, i32)]) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(what.len());
        for &(topic, number) in what {
            let offset = self
                .partitions
                .get(&number)
                .filter(|p| p.state == State::Started)
                .and_then(|p| p.streams.get(topic))
                .map_or(Offset::End, |s| Offset::Offset(s.next));
            if let Err(error) = list.add_partition_offset(self.log_name(topic), number, offset) {
                tracing::warn!(%error, "kafka consumer: position");
            }
        }
        list
    }

    /// A record that came by the group's queue all the same: its topic is read again from where it stands.
    pub(super) fn stray(&mut self, client: &Client<C>, log_name: &str, number: i32) {
        if let Some(topic) = self.topic_index(log_name)
            && let Some(p) = self.partitions.get(&number)
            && p.state == State::Started
        {
            tracing::warn!(
                topic = log_name,
                partition = number,
                "kafka consumer: a stray record"
            );
            self.seek(client, &[(topic, number)]);
        }
    }
}
