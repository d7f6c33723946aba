//! Receives what was emitted: each once.

use super::{SINK, decode};
use millrace::runtime::books;
use millrace::runtime::session::{Failure, Session};
use millrace::runtime::vertical::{
    DecodeError, Decoded, Effects, Frontier, Item, Raw, Start, Vertical,
};
use millrace_schemas::emit::EmitSource;
use millrace_schemas::ids::RecordId;
use millrace_schemas::outcome::Outcome;
use millrace_schemas::time::{Micros, Now};
use millrace_topics::catalogue::GroupSpec;
use millrace_topics::contract::TopicRef;
use serde::Deserialize;

/// What arrives.
#[derive(Clone, Debug, Deserialize)]
pub struct Heard {
    accepted_at: Micros,
    n: i64,
    emit: EmitSource,
}

/// What one attempt makes of it.
#[derive(Debug, Default)]
pub struct Draft {
    arrived: Vec<(RecordId, i64)>,
    sources: Vec<(i32, EmitSource)>,
    /// Of each that arrived, once it was asked for.
    new: Vec<bool>,
}

/// The vertical of group `proving_sink`.
#[derive(Debug, Default)]
pub struct Sink {
    partition: i32,
}

impl Vertical for Sink {
    const GROUP: GroupSpec = SINK;
    type Record = Heard;
    type Due = ();
    type Draft = Draft;

    fn reset(&mut self, start: &Start) {
        self.partition = start.partition;
    }

    fn decode(&self, _: &TopicRef, payload: &[u8]) -> Result<Decoded<Heard>, DecodeError> {
        decode(payload, |heard: &Heard| heard.accepted_at)
    }

    async fn load(&mut self, _: &Session, _: &[Item<Heard>], _: &[()]) -> Result<(), Failure> {
        Ok(())
    }

    fn decide(&self, draft: &mut Draft, _: &mut Effects, item: &Item<Heard>, _: &Raw<'_>, _: Now) {
        let source = item.record.emit.clone();
        draft.arrived.push((item.id, item.record.n));
        draft.sources.push((item.id.topic_no, source));
    }

    fn decide_due(&self, _: &mut Draft, _: &mut Effects, (): &(), _: Now) {}

    async fn claim(&self, session: &Session, draft: &mut Draft) -> Result<(), Failure> {
        draft.new = books::receive(session, SINK.name, self.partition, &draft.sources).await?;
        Ok(())
    }

    fn settle(&self, draft: &mut Draft, effects: &mut Effects, _: Now) {
        for ((id, _), new) in draft.arrived.iter().zip(&draft.new) {
            let outcome = if *new {
                Outcome::Applied
            } else {
                Outcome::Duplicate
            };
            effects.tally.add(*id, outcome, "", 1);
        }
    }

    async fn write(
        &self,
        session: &Session,
        draft: &Draft,
        _: &[Item<Heard>],
        _: Now,
    ) -> Result<(), Failure> {
        let (mut numbers, mut offsets) = (Vec::new(), Vec::new());
        let (mut partitions, mut seqs) = (Vec::new(), Vec::new());
        let all = draft.arrived.iter().zip(&draft.sources).zip(&draft.new);
        for (((id, n), (_, source)), _) in all.filter(|(_, new)| **new) {
            numbers.push(*n);
            offsets.push(id.offset);
            partitions.push(source.partition);
            seqs.push(source.seq);
        }
        session
            .execute(
                "INSERT INTO proving_seen (n, partition, \"offset\", source_partition, seq)
                 SELECT n, $1, at, source, seq
                 FROM unnest($2::int8[], $3::int8[], $4::int4[], $5::int8[]) AS r(n, at, source, seq)",
                &[&self.partition, &numbers, &offsets, &partitions, &seqs],
            )
            .await?;
        Ok(())
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
