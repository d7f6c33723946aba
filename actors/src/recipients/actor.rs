//! What the partition-actor shell needs to run the gates of recipients.

use super::decide::{self, Passed, Refusal, Stamp, Wanted};
use super::facts::{Configured, Facts};
use super::ledger::Ledger;
use super::slice::Cooldowns;
use super::{load, store};
use crate::delivery::outbox;
use crate::engagement::wire;
use crate::runtime::books;
use crate::runtime::session::{Failure, Session};
use crate::runtime::vertical::{
    DecodeError, Decoded, Effects, Frontier, Item, Raw, Start, Vertical,
};
use crate::settings;
use millrace_schemas::emit::EmitSource;
use millrace_schemas::ids::RecordId;
use millrace_schemas::notice::Notice;
use millrace_schemas::outcome::{Outcome, reason};
use millrace_schemas::time::{Micros, Now};
use millrace_topics::catalogue::{self, GroupSpec};
use millrace_topics::contract::TopicRef;
use std::sync::Arc;

/// The gates of one partition's users.
#[derive(Debug, Default)]
pub struct Recipients {
    partition: i32,
    settings: settings::Recipients,
    cooldowns: Cooldowns,
    configured: Configured,
}

/// A notice on its way through the gates.
#[derive(Debug)]
struct Pending {
    id: RecordId,
    stream: Micros,
    notice: Arc<Notice>,
    source: Option<EmitSource>,
    /// Not seen before.
    new: bool,
    wanted: Vec<Wanted>,
    refused: Vec<Refusal>,
    passed: Vec<Passed>,
}

/// Overlay and effects of one attempt.
#[derive(Debug, Default)]
pub struct Draft {
    pending: Vec<Pending>,
    ledger: Ledger,
    wall: Micros,
}

impl Recipients {
    /// Without state yet: the shell resets it to its partition's. `configured`: what the settings let out.
    #[must_use]
    pub fn new(configured: Configured) -> Recipients {
        Recipients {
            configured,
            ..Recipients::default()
        }
    }

    /// The same with these settings instead of the defaults.
    #[must_use]
    pub fn with(mut self, settings: settings::Recipients) -> Recipients {
        self.settings = settings;
        self
    }

    /// Marks what a source has sent before. What came through no emit, or again from among the dead, is new.
    async fn receive(&self, session: &Session, draft: &mut Draft) -> Result<(), Failure> {
        let sources: Vec<(i32, EmitSource)> = draft
            .pending
            .iter()
            .filter_map(|p| p.source.clone().map(|s| (p.id.topic_no, s)))
            .collect();
        let new = books::receive(session, Self::GROUP.name, self.partition, &sources).await?;
        let asked = draft.pending.iter_mut().filter(|p| p.source.is_some());
        for (pending, new) in asked.zip(new) {
            pending.new = new;
        }
        Ok(())
    }
}

impl Vertical for Recipients {
    const GROUP: GroupSpec = catalogue::RECIPIENTS;
    type Record = Arc<Notice>;
    type Due = ();
    type Draft = Draft;

    fn reset(&mut self, start: &Start) {
        self.partition = start.partition;
        self.cooldowns = Cooldowns::new(self.settings.slice_keys);
    }

    fn decode(&self, _: &TopicRef, payload: &[u8]) -> Result<Decoded<Arc<Notice>>, DecodeError> {
        let notice: Notice = wire::read(payload)?;
        Ok(Decoded {
            accepted_at: notice.accepted_at,
            workspace: notice.ws,
            replay: wire::first_coordinates(notice.replay),
            record: Arc::new(notice),
        })
    }

    async fn load(
        &mut self,
        _: &Session,
        _: &[Item<Arc<Notice>>],
        _: &[()],
    ) -> Result<(), Failure> {
        // Preferences, statuses and rules are read within the transaction.
        Ok(())
    }

    fn decide(
        &self,
        draft: &mut Draft,
        _: &mut Effects,
        item: &Item<Arc<Notice>>,
        _: &Raw<'_>,
        now: Now,
    ) {
        draft.wall = now.wall;
        draft.pending.push(Pending {
            id: item.id,
            stream: now.stream,
            notice: Arc::clone(&item.record),
            source: (!item.replayed).then(|| item.record.emit.clone()).flatten(),
            new: true,
            wanted: Vec::new(),
            refused: Vec::new(),
            passed: Vec::new(),
        });
    }

    fn decide_due(&self, _: &mut Draft, _: &mut Effects, (): &(), _: Now) {}

    async fn claim(&self, session: &Session, draft: &mut Draft) -> Result<(), Failure> {
        self.receive(session, draft).await?;
        let new: Vec<&Notice> = draft
            .pending
            .iter()
            .filter(|p| p.new)
            .map(|p| &*p.notice)
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let facts: Facts = load::facts(session, &new, self.configured).await?;
        for p in draft.pending.iter_mut().filter(|p| p.new) {
            decide::first(&facts, &p.notice, &mut p.wanted, &mut p.refused);
        }
        let wanted = draft.pending.iter().flat_map(|p| &p.wanted);
        draft.ledger = load::ledger(session, &self.cooldowns, wanted, draft.wall).await?;
        Ok(())
    }

    fn settle(&self, draft: &mut Draft, effects: &mut Effects, now: Now) {
        for p in &mut draft.pending {
            if !p.new {
                effects.tally.add(p.id, Outcome::Duplicate, reason::NONE, 1);
                continue;
            }
            let stamp = Stamp {
                cause: p.id,
                stream: p.stream,
                wall: now.wall,
            };
            decide::last(
                &mut draft.ledger,
                &p.notice,
                &p.wanted,
                stamp,
                &mut p.passed,
                &mut p.refused,
            );
            let told = if p.passed.is_empty() {
                reason::HELD_BACK
            } else {
                reason::NONE
            };
            effects.tally.add(p.id, Outcome::Applied, told, 1);
        }
    }

    async fn write(
        &self,
        session: &Session,
        draft: &Draft,
        _: &[Item<Arc<Notice>>],
        now: Now,
    ) -> Result<(), Failure> {
        store::claims(session, &draft.ledger, now.wall).await?;
        let messages = draft.pending.iter();
        let messages = messages.map(|p| (p.id, &*p.notice, p.passed.as_slice()));
        store::messages(session, messages, now.wall).await?;
        let refused = draft.pending.iter();
        let refused = refused.map(|p| (&*p.notice, p.refused.as_slice()));
        store::refusals(session, refused, now.wall).await?;
        Ok(())
    }

    fn merge(&mut self, draft: Draft) {
        for (key, at) in draft.ledger.cooled() {
            self.cooldowns.put(key, at);
        }
        for refusal in draft.pending.iter().flat_map(|p| &p.refused) {
            metrics::counter!("gate_refusals_total", "reason" => refusal.reason).increment(1);
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

    fn wall_tables(&self) -> &'static [&'static str] {
        WALL_TABLES
    }
}

/// The outbox's tables, and refusals.
const WALL_TABLES: &[&str] = &["outbox", "send_log", "refusals"];
const _: () = assert!(outbox::TABLES.len() == 2);
