//! What the loop does with the partitions that run, between rebalances: steps, pauses, wishes of the host, reports.

use super::assignment::Assignment;
use super::partition::{State, Step};
use crate::contract::StoredPosition;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::ConsumerContext;
use rdkafka::topic_partition_list::Offset;
use std::sync::Arc;
use std::time::Instant;

impl<C: ConsumerContext + 'static> Assignment<C> {
    /// Asks the host which partitions it wants to claim again.
    pub(super) fn ask_wanted(&mut self, now: Instant) {
        let wanted = self
            .guarded("wants_reassignment", |host| host.wants_reassignment())
            .unwrap_or_default();
        for number in wanted {
            if let Some(p) = self.partitions.get_mut(&number)
                && p.state != State::Partial
            {
                p.discard();
                p.state = State::Waiting { at: now, tries: 0 };
            }
        }
    }

    /// Pauses or resumes by hand.
    pub(super) fn set_paused(&mut self, partitions: &[i32], paused: bool) {
        if partitions.is_empty() {
            self.paused_all = paused;
            self.paused.clear();
        } else if paused {
            self.paused.extend(partitions);
        } else {
            // All were paused: all but these still are.
            if std::mem::take(&mut self.paused_all) {
                let all = self.subscription.topics.iter().map(|t| t.partitions).max();
                self.paused.extend(0..all.unwrap_or(0));
            }
            self.paused.retain(|p| !partitions.contains(p));
        }
    }

    /// One step of every partition that runs: (whether something was handed over, whether something waits for an actor).
    pub(super) fn step(&mut self, now: Instant) -> (bool, bool) {
        let (mut moved, mut busy) = (false, false);
        if self.paused_all {
            return (false, false);
        }
        let mut faults = Vec::new();
        let host = Arc::clone(&self.host);
        let (topics, limits) = (&self.subscription.topics, &self.subscription.limits);
        for p in self.partitions.values_mut() {
            if p.state != State::Started || self.paused.contains(&p.number) {
                continue;
            }
            match p.step(host.as_ref(), topics, limits, now) {
                Step::Idle => {}
                Step::Busy => busy = true,
                Step::Moved => moved = true,
                Step::Fault(topic_no, reason) => {
                    p.discard();
                    p.state = State::Stopped;
                    faults.push((p.number, topic_no, reason));
                }
            }
        }
        for (number, topic_no, reason) in faults {
            let topic = self
                .subscription
                .topics
                .iter()
                .find(|t| t.no == topic_no)
                .map_or("", |t| t.log_name.as_str());
            let next = self
                .partitions
                .get(&number)
                .and_then(|p| p.streams.iter().find(|s| s.topic_no() == topic_no))
                .map_or(0, |s| s.next);
            let reason = format!("topic {topic}, partition {number}, at offset {next}: {reason}");
            tracing::error!(partition = number, reason, "kafka consumer: fault");
            self.guarded("fault", |host| host.fault(number, reason));
        }
        (moved, busy)
    }

    /// What the group is to be told of progress: only partitions that run here now, only what has changed.
    pub(super) fn report(&mut self) -> Option<TopicPartitionList> {
        let progress: Vec<(i32, StoredPosition)> =
            self.guarded("progress", |host| host.progress())?;
        let mut list = TopicPartitionList::new();
        for (number, stored) in progress {
            let runs = self
                .partitions
                .get(&number)
                .is_some_and(|p| p.state == State::Started);
            let Some(topic) = self
                .subscription
                .topics
                .iter()
                .position(|t| t.no == stored.topic_no)
            else {
                continue;
            };
            if !runs || self.reported.get(&(topic, number)) == Some(&stored.next_offset) {
                continue;
            }
            let offset = Offset::Offset(stored.next_offset);
            if list
                .add_partition_offset(self.log_name(topic), number, offset)
                .is_ok()
            {
                self.reported.insert((topic, number), stored.next_offset);
            }
        }
        (list.count() > 0).then_some(list)
    }
}
