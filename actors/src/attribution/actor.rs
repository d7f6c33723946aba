//! What the partition-actor shell needs to run attribution.

use super::decide::{Deciding, Due, Origin, Record};
use super::draft::Draft;
use super::slice::Slice;
use super::{load, sets_off, settle, store};
use crate::delivery::outbox;
use crate::delivery::triggers::Audience;
use crate::runtime::session::{Failure, Session};
use crate::runtime::vertical::{
    DecodeError, Decoded, Effects, Frontier, Item, Raw, Start, Vertical,
};
use crate::settings;
use millrace_schemas::click::ClickRecord;
use millrace_schemas::ids::{ClickKey, RecordId};
use millrace_schemas::postback::{PostbackRecord, Replay, click_id_of};
use millrace_schemas::time::{Micros, Now};
use millrace_schemas::{WIRE_VERSION, wire_version};
use millrace_topics::catalogue::{self, GroupSpec};
use millrace_topics::contract::TopicRef;

/// The attribution of one partition.
#[derive(Debug)]
pub struct Attribution {
    settings: settings::Attribution,
    start: Start,
    slice: Slice,
    /// Earliest deadline of what waits here; None: the store must be asked.
    next_deadline: Option<Micros>,
    /// Who hears of what happens.
    audience: Audience,
}

impl Attribution {
    /// Without state yet: the shell resets it to its partition's.
    #[must_use]
    pub fn new(settings: settings::Attribution) -> Attribution {
        Attribution {
            settings,
            start: Start {
                partition: 0,
                partitions: 1,
                mark: 0,
            },
            slice: Slice::default(),
            next_deadline: None,
            audience: Audience::default(),
        }
    }

    /// Clicks held in memory.
    #[must_use]
    pub fn held(&self) -> usize {
        self.slice.len()
    }

    /// What [`Vertical::load`] does before it asks the store: how many clicks it would ask for. With it the pure core runs
    /// without a store, to be measured.
    pub fn learn(&mut self, items: &[Item<Record>]) -> usize {
        load::learn(&mut self.slice, items).len()
    }

    fn deadline(&self, from: Micros) -> Micros {
        from.plus_secs(i64::try_from(self.settings.park_for_s).unwrap_or(i64::MAX))
    }
}

fn unreadable(payload: &[u8], error: &serde_json::Error) -> DecodeError {
    // However far ahead it is, a newer build's record is no dead letter.
    match wire_version(payload) {
        Some(v) if v > u64::from(WIRE_VERSION) => DecodeError::Newer(v),
        // The category and place alone: the message could quote a contact.
        _ => DecodeError::Undecodable(format!(
            "{:?} at column {}",
            error.classify(),
            error.column()
        )),
    }
}

fn first_coordinates(replay: Option<Replay>) -> Option<RecordId> {
    replay.map(|r| RecordId {
        topic_no: r.topic_no,
        partition: r.partition,
        offset: r.offset,
    })
}

impl Vertical for Attribution {
    const GROUP: GroupSpec = catalogue::ATTRIBUTION;
    type Record = Record;
    type Due = Due;
    type Draft = Draft;

    fn reset(&mut self, start: &Start) {
        self.start = start.clone();
        self.slice = Slice::new(self.settings.slice_clicks, start.mark);
        self.next_deadline = None;
    }

    fn decode(&self, topic: &TopicRef, payload: &[u8]) -> Result<Decoded<Record>, DecodeError> {
        if topic.name == catalogue::POSTBACKS {
            let record: PostbackRecord =
                serde_json::from_slice(payload).map_err(|e| unreadable(payload, &e))?;
            if record.v > WIRE_VERSION {
                return Err(DecodeError::Newer(u64::from(record.v)));
            }
            let click_id = click_id_of(&record.query);
            let key = (!click_id.is_empty()).then(|| ClickKey::new(record.workspace, &click_id));
            return Ok(Decoded {
                accepted_at: record.accepted_at,
                workspace: record.workspace,
                replay: first_coordinates(record.replay),
                record: Record::Postback(Box::new(record), key),
            });
        }
        let record: ClickRecord =
            serde_json::from_slice(payload).map_err(|e| unreadable(payload, &e))?;
        if record.v > WIRE_VERSION {
            return Err(DecodeError::Newer(u64::from(record.v)));
        }
        let key = record.key();
        Ok(Decoded {
            accepted_at: record.accepted_at,
            workspace: record.workspace,
            replay: first_coordinates(record.replay),
            record: Record::Click(Box::new(record), key),
        })
    }

    async fn load(
        &mut self,
        session: &Session,
        items: &[Item<Record>],
        due: &[Due],
    ) -> Result<(), Failure> {
        self.audience.refresh(session).await?;
        load::load(&mut self.slice, session, items, due).await
    }

    fn decide(
        &self,
        draft: &mut Draft,
        effects: &mut Effects,
        item: &Item<Record>,
        raw: &Raw<'_>,
        now: Now,
    ) {
        // What comes again waits from when it came; stream time may stand where the last record left it.
        let waits_from = if item.replayed {
            now.stream.max(now.wall)
        } else {
            item.accepted_at
        };
        let from = Origin {
            id: item.id,
            index: item.index,
            accepted_at: item.accepted_at,
            deadline: self.deadline(waits_from),
            payload: raw.payload(item.index),
            woken: false,
        };
        Deciding {
            slice: &self.slice,
            draft,
            effects,
        }
        .record(&item.record, &from);
    }

    fn decide_due(&self, draft: &mut Draft, effects: &mut Effects, due: &Due, _: Now) {
        Deciding {
            slice: &self.slice,
            draft,
            effects,
        }
        .due(due);
    }

    async fn claim(&self, session: &Session, draft: &mut Draft) -> Result<(), Failure> {
        store::claim(session, draft).await
    }

    fn settle(&self, draft: &mut Draft, effects: &mut Effects, _: Now) {
        settle::settle(draft, effects);
    }

    async fn write(
        &self,
        session: &Session,
        draft: &Draft,
        items: &[Item<Record>],
        now: Now,
    ) -> Result<(), Failure> {
        store::write(session, draft, items, now).await?;
        sets_off::write(session, &self.audience, draft, items, now).await
    }

    fn merge(&mut self, draft: Draft) {
        for (_, waiting) in &draft.parked {
            self.next_deadline = self.next_deadline.map(|d| d.min(waiting.deadline));
        }
        for (key, click) in draft.overlay {
            self.slice.put(key, click);
        }
        self.slice.bound();
    }

    fn may_be_due(&self, stream: Micros) -> bool {
        self.next_deadline.is_none_or(|deadline| deadline <= stream)
    }

    async fn due(
        &mut self,
        session: &Session,
        stream: Micros,
        frontier: &Frontier,
    ) -> Result<Vec<Due>, Failure> {
        let (partitions, partition) = (self.start.partitions, self.start.partition);
        // A visit that this partition has not read yet must not be missed: expire no further than the clicks were read.
        let readable = match frontier.topics.first() {
            Some((_, true)) | None => stream,
            Some((clicks, false)) => stream.min(*clicks),
        };
        let due = load::due(session, readable, partitions, partition).await?;
        if due.is_empty() {
            let next = load::next_deadline(session, partitions, partition).await?;
            // What is due by stream time but not yet by the clicks read so far is looked at again with the next batch.
            self.next_deadline = Some(next.unwrap_or(Micros(i64::MAX)).max(readable.plus_secs(1)));
        }
        Ok(due)
    }

    fn fact_tables(&self) -> &'static [&'static str] {
        store::FACT_TABLES
    }

    fn wall_tables(&self) -> &'static [&'static str] {
        outbox::TABLES
    }
}
