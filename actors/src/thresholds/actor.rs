//! What the partition-actor shell needs to run thresholds.

use super::decide::{self, Deciding};
use super::draft::Draft;
use super::plan::Plan;
use super::slice::{Shard, ShardKey, ShardRef, Slice, StateKey, StateRef};
use super::{settle, store, tracker};
use crate::modules::Live;
use crate::runtime::session::{Failure, Session};
use crate::runtime::vertical::{
    DecodeError, Decoded, Effects, Frontier, Item, Raw, Start, Vertical,
};
use crate::settings;
use hashbrown::HashSet;
use millrace_schemas::frame::Frame;
use millrace_schemas::ids::RecordId;
use millrace_schemas::time::{Micros, Now};
use millrace_schemas::{WIRE_VERSION, wire_version};
use millrace_topics::catalogue::{self, GroupSpec};
use millrace_topics::contract::TopicRef;

/// The trackers of one partition.
#[derive(Debug)]
pub struct Thresholds {
    live: Live,
    plan: Plan,
    settings: settings::Thresholds,
    /// Number of topic `triggers`.
    triggers: i32,
    start: Start,
    slice: Slice,
}

/// What a batch needs and the slice lacks.
#[derive(Debug, Default)]
pub struct Cold {
    shards: HashSet<ShardKey>,
    memories: HashSet<StateKey>,
}

impl Cold {
    /// Whether the store need not be asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty() && self.memories.is_empty()
    }
}

impl Thresholds {
    /// Without state yet: the shell resets it to its partition's. `triggers`: the number of the topic that firings go to.
    #[must_use]
    pub fn new(live: Live, settings: settings::Thresholds, triggers: i32) -> Thresholds {
        Thresholds {
            plan: Plan::new(live.now()),
            live,
            settings,
            triggers,
            start: Start {
                partition: 0,
                partitions: 1,
                mark: 0,
            },
            slice: Slice::default(),
        }
    }

    /// Memories held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.slice.len()
    }

    /// What [`Vertical::load`] would ask the store.
    #[must_use]
    pub fn cold(&self, items: &[Item<Frame>]) -> Cold {
        let mut cold = Cold::default();
        for Item { record: frame, .. } in items {
            let shard = ShardRef {
                workspace: frame.ws,
                shard: &frame.shard,
            };
            if self.slice.shard(&shard).is_none() {
                cold.shards.insert(shard.owned());
            }
            for reads in self.plan.readers(&frame.kind) {
                for (_, number, mapping) in reads.mappings() {
                    if !tracker::remembers(&mapping.tracker) {
                        continue;
                    }
                    let key = StateRef {
                        mapping: number,
                        workspace: frame.ws,
                        shard: &frame.shard,
                        key: &frame.key,
                    };
                    if self.slice.memory(&key).is_none() {
                        cold.memories.insert(key.owned());
                    }
                }
            }
        }
        cold
    }

    /// Takes what is cold as unknown to the store, too: with it the pure core runs without a store, to be measured.
    pub fn learn_nothing(&mut self, cold: Cold) {
        for shard in cold.shards {
            self.slice.put_shard(shard, Shard::default());
        }
        for key in cold.memories {
            self.slice.remember(key, None);
        }
    }
}

fn unreadable(payload: &[u8], error: &serde_json::Error) -> DecodeError {
    match wire_version(payload) {
        Some(v) if v > u64::from(WIRE_VERSION) => DecodeError::Newer(v),
        // The category and place alone: the message could quote what a player wrote.
        _ => DecodeError::Undecodable(format!(
            "{:?} at column {}",
            error.classify(),
            error.column()
        )),
    }
}

impl Vertical for Thresholds {
    const GROUP: GroupSpec = catalogue::THRESHOLDS;
    type Record = Frame;
    type Due = ();
    type Draft = Draft;

    fn reset(&mut self, start: &Start) {
        self.start = start.clone();
        self.slice = Slice::new(self.settings.slice_keys);
    }

    fn begin(&mut self) {
        if let Some(plan) = self.plan.renewed(&self.live) {
            self.plan = plan;
            // They are known by the former plan's numbers; the store has them by their names, those of mappings that are gone too.
            self.slice.forget_memories();
        }
    }

    fn decode(&self, _: &TopicRef, payload: &[u8]) -> Result<Decoded<Frame>, DecodeError> {
        // One look at the whole is cheaper than one at each text of it. What is no UTF-8 may still be so where nothing is read.
        let read = match std::str::from_utf8(payload) {
            Ok(text) => serde_json::from_str(text),
            Err(_) => serde_json::from_slice(payload),
        };
        let frame: Frame = read.map_err(|e| unreadable(payload, &e))?;
        if frame.v > WIRE_VERSION {
            return Err(DecodeError::Newer(u64::from(frame.v)));
        }
        Ok(Decoded {
            accepted_at: frame.accepted_at,
            workspace: frame.ws,
            replay: frame.replay.map(|r| RecordId {
                topic_no: r.topic_no,
                partition: r.partition,
                offset: r.offset,
            }),
            record: frame,
        })
    }

    async fn load(
        &mut self,
        session: &Session,
        items: &[Item<Frame>],
        _: &[()],
    ) -> Result<(), Failure> {
        let cold = self.cold(items);
        if cold.is_empty() {
            return Ok(());
        }
        let (shards, memories) = (
            cold.shards.into_iter().collect(),
            cold.memories.into_iter().collect(),
        );
        let (slice, partition) = (&mut self.slice, self.start.partition);
        store::load_shards(slice, session, partition, shards).await?;
        store::load_memories(slice, session, &self.plan, memories).await
    }

    fn decide(
        &self,
        draft: &mut Draft,
        effects: &mut Effects,
        item: &Item<Frame>,
        _: &Raw<'_>,
        _: Now,
    ) {
        Deciding {
            partition: self.start.partition,
            plan: &self.plan,
            slice: &self.slice,
            draft,
            effects,
        }
        .frame(item);
    }

    fn set_aside(&self, draft: &mut Draft, item: &Item<Frame>) {
        decide::set_aside(&self.slice, draft, item);
    }

    fn decide_due(&self, _: &mut Draft, _: &mut Effects, (): &(), _: Now) {}

    async fn claim(&self, session: &Session, draft: &mut Draft) -> Result<(), Failure> {
        if draft.steps.is_empty() {
            return Ok(());
        }
        let needs = settle::needs(&self.plan, &draft.steps);
        let wanted: Vec<_> = needs.lists.iter().cloned().collect();
        draft.found.lists = store::read_lists(session, &wanted).await?;
        let accounts = settle::accounts(&self.plan, &draft.steps, &needs, &draft.found);
        draft.found.links = store::read_links(session, &accounts).await?;
        Ok(())
    }

    fn settle(&self, draft: &mut Draft, effects: &mut Effects, _: Now) {
        settle::settle(&self.plan, self.triggers, draft, effects);
    }

    async fn write(
        &self,
        session: &Session,
        draft: &Draft,
        _: &[Item<Frame>],
        now: Now,
    ) -> Result<(), Failure> {
        let partition = self.start.partition;
        store::write(session, &self.plan, partition, draft, now.wall).await
    }

    fn merge(&mut self, draft: Draft) {
        for (key, mut shard) in draft.shards {
            // The store says it now.
            shard.doubted = false;
            self.slice.put_shard(key, shard);
        }
        for (key, memory) in draft.memories {
            self.slice.remember(key, Some(memory));
        }
        self.slice.bound();
        if draft.long_names > 0 {
            metrics::counter!("roster_names_too_long_total").increment(draft.long_names);
        }
    }

    fn may_be_due(&self, _: Micros) -> bool {
        false
    }

    async fn due(&mut self, _: &Session, _: Micros, _: &Frontier) -> Result<Vec<()>, Failure> {
        Ok(Vec::new())
    }

    fn fact_tables(&self) -> &'static [&'static str] {
        &[]
    }
}
