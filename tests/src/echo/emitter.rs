//! Emits what it reads.

use super::{EMITTER, Said, decode};
use millrace::runtime::session::{Failure, Session};
use millrace::runtime::vertical::{
    DecodeError, Decoded, Effects, Emit, Frontier, Item, Raw, Start, Vertical,
};
use millrace_schemas::outcome::Outcome;
use millrace_schemas::time::{Micros, Now};
use millrace_topics::catalogue::GroupSpec;
use millrace_topics::contract::TopicRef;

/// Keys of what is emitted.
const KEYS: i64 = 41;

/// The vertical of group `proving_echo`.
#[derive(Debug)]
pub struct Emitter {
    out: i32,
}

impl Emitter {
    /// Emits to the topic of this number.
    #[must_use]
    pub fn new(out: i32) -> Emitter {
        Emitter { out }
    }
}

impl Vertical for Emitter {
    const GROUP: GroupSpec = EMITTER;
    type Record = Said;
    type Due = ();
    type Draft = ();

    fn reset(&mut self, _: &Start) {}

    fn decode(&self, _: &TopicRef, payload: &[u8]) -> Result<Decoded<Said>, DecodeError> {
        decode(payload, |said: &Said| said.accepted_at)
    }

    async fn load(&mut self, _: &Session, _: &[Item<Said>], _: &[()]) -> Result<(), Failure> {
        Ok(())
    }

    fn decide(&self, (): &mut (), effects: &mut Effects, item: &Item<Said>, raw: &Raw<'_>, _: Now) {
        effects.tally.add(item.id, Outcome::Applied, "", 1);
        effects.emits.push(Emit {
            topic_no: self.out,
            key: format!("out-{}", item.record.n % KEYS).into_bytes(),
            payload: raw.payload(item.index).to_vec(),
        });
    }

    fn decide_due(&self, (): &mut (), _: &mut Effects, (): &(), _: Now) {}

    async fn claim(&self, _: &Session, (): &mut ()) -> Result<(), Failure> {
        Ok(())
    }

    fn settle(&self, (): &mut (), _: &mut Effects, _: Now) {}

    async fn write(&self, _: &Session, (): &(), _: &[Item<Said>], _: Now) -> Result<(), Failure> {
        Ok(())
    }

    fn merge(&mut self, (): ()) {}

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
