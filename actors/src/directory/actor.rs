//! What the partition-actor shell needs to run the directory. It keeps no slice: the admin API writes the same rows, so that
//! whatever is decided is decided on what the batch's own transaction has read and locked.

use super::decide::{self, Draft};
use super::store;
use crate::runtime::session::{Failure, Session};
use crate::runtime::vertical::{
    DecodeError, Decoded, Effects, Frontier, Item, Raw, Start, Vertical,
};
use millrace_schemas::directory::DirectoryRecord;
use millrace_schemas::ids::RecordId;
use millrace_schemas::time::{Micros, Now};
use millrace_schemas::{WIRE_VERSION, wire_version};
use millrace_topics::catalogue::{self, GroupSpec};
use millrace_topics::contract::TopicRef;

/// The directory of one partition.
#[derive(Debug, Default)]
pub struct Directory;

impl Vertical for Directory {
    const GROUP: GroupSpec = catalogue::DIRECTORY;
    type Record = DirectoryRecord;
    type Due = ();
    type Draft = Draft;

    fn reset(&mut self, _: &Start) {}

    fn decode(
        &self,
        _: &TopicRef,
        payload: &[u8],
    ) -> Result<Decoded<DirectoryRecord>, DecodeError> {
        let record: DirectoryRecord =
            serde_json::from_slice(payload).map_err(|e| match wire_version(payload) {
                Some(v) if v > u64::from(WIRE_VERSION) => DecodeError::Newer(v),
                // The category and place alone: the message could quote an address.
                _ => {
                    DecodeError::Undecodable(format!("{:?} at column {}", e.classify(), e.column()))
                }
            })?;
        if record.v > WIRE_VERSION {
            return Err(DecodeError::Newer(u64::from(record.v)));
        }
        Ok(Decoded {
            accepted_at: record.accepted_at,
            workspace: record.ws,
            replay: record.replay.map(|r| RecordId {
                topic_no: r.topic_no,
                partition: r.partition,
                offset: r.offset,
            }),
            record,
        })
    }

    async fn load(
        &mut self,
        _: &Session,
        _: &[Item<DirectoryRecord>],
        _: &[()],
    ) -> Result<(), Failure> {
        Ok(())
    }

    fn decide(
        &self,
        draft: &mut Draft,
        effects: &mut Effects,
        item: &Item<DirectoryRecord>,
        _: &Raw<'_>,
        _: Now,
    ) {
        decide::record(draft, effects, item);
    }

    fn decide_due(&self, _: &mut Draft, _: &mut Effects, (): &(), _: Now) {}

    async fn claim(&self, session: &Session, draft: &mut Draft) -> Result<(), Failure> {
        draft.state = store::load(session, &draft.asked).await?;
        Ok(())
    }

    fn settle(&self, draft: &mut Draft, effects: &mut Effects, _: Now) {
        decide::settle(draft, effects);
    }

    async fn write(
        &self,
        session: &Session,
        draft: &Draft,
        _: &[Item<DirectoryRecord>],
        _: Now,
    ) -> Result<(), Failure> {
        store::write(session, draft).await
    }

    fn merge(&mut self, _: Draft) {}

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
