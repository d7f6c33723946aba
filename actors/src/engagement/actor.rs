//! What the partition-actor shell needs to run the gates of engagement.

use super::decide::{self, Gate, Verdict};
use super::rules::{self, Rule, Rules};
use super::{declared, store, wire};
use crate::directory::audience::{self, Ask, Reached, Whom};
use crate::directory::rules::Target;
use crate::modules::{Live, Modules};
use crate::recipients::facts::Configured;
use crate::recipients::keys;
use crate::runtime::books;
use crate::runtime::session::{Failure, Session};
use crate::runtime::vertical::{
    DecodeError, Decoded, Effects, Emit, Frontier, Item, Raw, Start, Vertical,
};
use hashbrown::HashMap;
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::Channel;
use millrace_schemas::emit::EmitSource;
use millrace_schemas::firing::{Firing, MAX_AUDIENCE};
use millrace_schemas::ids::RecordId;
use millrace_schemas::notice::FiringPos;
use millrace_schemas::notification::MAX_BODY_BYTES;
use millrace_schemas::outcome::{Outcome, reason};
use millrace_schemas::time::{Micros, Now};
use millrace_topics::catalogue::{self, GroupSpec};
use millrace_topics::contract::TopicRef;
use std::sync::Arc;
use uuid::Uuid;

/// Notices that one batch emits at most. One of several firings that would emit more is run in halves; of a firing alone, the rules
/// that would bring more are refused by name.
const NOTICES_AT_MOST: usize = 20_000;
/// Bytes of the notices that one batch emits at most, counted as [`weight`] does; what one audience holds goes at once in any case.
const BYTES_AT_MOST: usize = 64 << 20;
/// What a notice takes beside what comes of its firing's variables: names, ids, rules, a body's own words.
const NOTICE_BYTES: usize = 2_048;
// The largest audience with the largest bodies is within the bound: one rule alone is never refused for it.
const _: () = assert!(MAX_AUDIENCE * (NOTICE_BYTES + MAX_BODY_BYTES) <= BYTES_AT_MOST);

/// The gates of one partition's subjects.
#[derive(Debug)]
pub struct Engagement {
    live: Live,
    modules: Arc<Modules>,
    /// Number of the topic that notices go to.
    notices: i32,
    /// Channels that the settings let out.
    configured: Configured,
    partition: i32,
}

/// A firing on its way through the gates.
#[derive(Debug)]
struct Pending {
    id: RecordId,
    accepted_at: Micros,
    firing: Arc<Firing>,
    source: Option<EmitSource>,
    /// Not seen before.
    new: bool,
    /// Why it is rejected, or whom it may reach at most.
    kept: Result<Ceiling, &'static str>,
    rules: Vec<Rule>,
    gates: Vec<Gate>,
    verdict: Verdict,
}

/// Overlay and effects of one attempt.
#[derive(Debug, Default)]
pub struct Draft {
    pending: Vec<Pending>,
    marks: HashMap<Uuid, Uuid>,
}

impl Engagement {
    /// Without state yet: the shell resets it to its partition's. `notices`: the number of topic `notices`.
    #[must_use]
    pub fn new(live: Live, notices: i32) -> Engagement {
        Engagement {
            modules: live.now(),
            live,
            notices,
            configured: Configured::ALL,
            partition: 0,
        }
    }

    /// The same, where the settings let out these channels alone.
    #[must_use]
    pub fn only(mut self, configured: Configured) -> Engagement {
        self.configured = configured;
        self
    }

    /// Marks what a source has sent before. What came through a door, or again from among the dead, is new.
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

    /// Gate 0, and gates 1 to 5 as far as they need no users. Answers whom the users of are to be resolved.
    fn gates(&self, draft: &mut Draft, rules: &Rules) -> Vec<(usize, usize, Target)> {
        let mut asked = Vec::new();
        for (at, p) in draft.pending.iter_mut().enumerate() {
            let Some(ceiling) = p.kept.ok().filter(|_| p.new) else {
                continue;
            };
            let firing = Arc::clone(&p.firing);
            for rule in rules.called_off_by(firing.ws, &firing.trigger) {
                let key = keys::cancel(firing.ws, rule, &firing.shard, &firing.subject);
                let mark = draft.marks.entry(key).or_insert_with(Uuid::nil);
                *mark = (*mark).max(p.id.to_uuid());
            }
            let Some(trigger) = self.modules.trigger(&firing.trigger) else {
                continue;
            };
            p.rules = rules.of(firing.ws, &firing.trigger).to_vec();
            let here = rules.configured(firing.ws);
            for (n, rule) in p.rules.iter().enumerate() {
                let open = decide::gates_1_and_2(&self.modules, trigger, rule, &firing)
                    .and_then(|()| {
                        let target =
                            rule.stored
                                .target(&self.modules, trigger, rule.segment.as_ref());
                        target.map_err(|_| (3, decide::why::AUDIENCE_UNKNOWN))
                    })
                    .and_then(|target| decide::gate_4(ceiling, target.ceiling()).map(|()| target))
                    .and_then(|target| {
                        let channels = decide::channels(&self.modules, trigger, rule);
                        let is_configured = |c: Channel| here.has(c) && self.configured.has(c);
                        decide::gate_5(&channels, is_configured).map(|()| target)
                    });
                p.gates.push(match open {
                    Err((gate, reason)) => Gate::Refused(gate, reason),
                    Ok(target) => {
                        asked.push((at, n, target));
                        Gate::Open(Reached::default())
                    }
                });
            }
        }
        asked
    }
}

/// What a notice of a firing takes, in bytes, at most about: of the variables it carries its body alone, which is bounded.
fn weight(firing: &Firing) -> usize {
    NOTICE_BYTES.saturating_add(firing.vars_bytes().min(MAX_BODY_BYTES))
}

/// Users that a firing may reach by all its rules together, so that its notices, which one transaction emits, stay bounded.
fn users_at_most(firing: &Firing) -> usize {
    (BYTES_AT_MOST / weight(firing)).clamp(MAX_AUDIENCE, NOTICES_AT_MOST)
}

/// What a batch would emit, as it is summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    notices: usize,
    bytes: usize,
}

impl Load {
    /// Adds the notices of `users` users, of `weight` bytes each.
    fn add(&mut self, users: usize, weight: usize) {
        self.notices = self.notices.saturating_add(users);
        self.bytes = self.bytes.saturating_add(users.saturating_mul(weight));
    }

    /// Whether several firings may go together.
    const fn fits(self) -> bool {
        self.notices <= NOTICES_AT_MOST && self.bytes <= BYTES_AT_MOST
    }
}

/// The question of whom a firing reaches by a rule's target.
fn ask<'a>(firing: &'a Firing, target: &'a Target) -> Ask<'a> {
    let whom = match target {
        Target::Segment(segment, _) => Whom::Segment(segment),
        Target::Plain(plain) => Whom::of(
            *plain,
            &firing.trigger,
            firing.owner.as_deref(),
            firing.recipients.as_deref(),
        ),
    };
    Ask {
        ws: firing.ws,
        whom,
    }
}

impl Vertical for Engagement {
    const GROUP: GroupSpec = catalogue::ENGAGEMENT;
    type Record = Arc<Firing>;
    type Due = ();
    type Draft = Draft;

    fn reset(&mut self, start: &Start) {
        self.partition = start.partition;
    }

    fn begin(&mut self) {
        self.live.renew(&mut self.modules);
    }

    fn decode(&self, _: &TopicRef, payload: &[u8]) -> Result<Decoded<Arc<Firing>>, DecodeError> {
        let firing: Firing = wire::read(payload)?;
        Ok(Decoded {
            accepted_at: firing.accepted_at,
            workspace: firing.ws,
            replay: wire::first_coordinates(firing.replay),
            record: Arc::new(firing),
        })
    }

    async fn load(
        &mut self,
        _: &Session,
        _: &[Item<Arc<Firing>>],
        _: &[()],
    ) -> Result<(), Failure> {
        // Rules and users are read within the transaction.
        Ok(())
    }

    fn decide(
        &self,
        draft: &mut Draft,
        _: &mut Effects,
        item: &Item<Arc<Firing>>,
        _: &Raw<'_>,
        _: Now,
    ) {
        let kept = declared::check(&self.modules, &item.record);
        draft.pending.push(Pending {
            id: item.id,
            accepted_at: item.accepted_at,
            firing: Arc::clone(&item.record),
            source: (!item.replayed).then(|| item.record.emit.clone()).flatten(),
            new: true,
            kept: kept.map(|k| k.ceiling).map_err(|broken| broken.reason),
            rules: Vec::new(),
            gates: Vec::new(),
            verdict: Verdict::default(),
        });
    }

    fn decide_due(&self, _: &mut Draft, _: &mut Effects, (): &(), _: Now) {}

    async fn claim(&self, session: &Session, draft: &mut Draft) -> Result<(), Failure> {
        self.receive(session, draft).await?;
        let kept = draft.pending.iter().filter(|p| p.new && p.kept.is_ok());
        let triggers: Vec<(i32, &str)> = kept.map(|p| (p.firing.ws, &*p.firing.trigger)).collect();
        if triggers.is_empty() {
            return Ok(());
        }
        let rules = rules::read(session, triggers).await?;
        let asked = self.gates(draft, &rules);
        let weights: Vec<usize> = draft.pending.iter().map(|p| weight(&p.firing)).collect();
        let (asks, weights): (Vec<Ask<'_>>, Vec<usize>) = asked
            .iter()
            .filter_map(|(at, _, target)| {
                let firing = &draft.pending.get(*at)?.firing;
                Some((ask(firing, target), weights.get(*at).copied()?))
            })
            .unzip();
        let alone = draft.pending.len() <= 1;
        let mut load = Load::default();
        let reached =
            audience::resolve_while(session.client(), &self.modules, &asks, |i, users| {
                load.add(users, weights.get(i).copied().unwrap_or_default());
                alone || load.fits()
            });
        let reached = reached.await?;
        drop(asks);
        let Some(reached) = reached else {
            return Err(Failure::TooMuch(format!(
                "{} firings reach {} users or more with {} bytes",
                draft.pending.len(),
                load.notices,
                load.bytes
            )));
        };
        for ((at, n, _), reached) in asked.into_iter().zip(reached) {
            let gate = draft.pending.get_mut(at).and_then(|p| p.gates.get_mut(n));
            if let Some(gate) = gate {
                *gate = Gate::Open(reached);
            }
        }
        Ok(())
    }

    fn settle(&self, draft: &mut Draft, effects: &mut Effects, _: Now) {
        for p in &mut draft.pending {
            if !p.new {
                effects.tally.add(p.id, Outcome::Duplicate, reason::NONE, 1);
                continue;
            }
            let ceiling = match p.kept {
                Ok(ceiling) => ceiling,
                Err(why) => {
                    effects.tally.add(p.id, Outcome::Rejected, why, 1);
                    continue;
                }
            };
            p.verdict = decide::verdict(&p.gates, users_at_most(&p.firing));
            let Some(trigger) = self.modules.trigger(&p.firing.trigger) else {
                continue;
            };
            let notices = decide::notices(
                &self.modules,
                trigger,
                ceiling,
                &p.rules,
                &p.firing,
                FiringPos::from(p.id),
                &p.verdict,
            );
            let told = if notices.is_empty() {
                reason::NOBODY
            } else {
                reason::NONE
            };
            effects.tally.add(p.id, Outcome::Applied, told, 1);
            let emit = |(key, payload)| Emit {
                topic_no: self.notices,
                key,
                payload,
            };
            effects.emits.extend(notices.into_iter().map(emit));
        }
    }

    async fn write(
        &self,
        session: &Session,
        draft: &Draft,
        _: &[Item<Arc<Firing>>],
        now: Now,
    ) -> Result<(), Failure> {
        store::mark(session, &draft.marks, now.wall).await?;
        let fired = draft.pending.iter().filter(|p| p.new && p.kept.is_ok());
        let fired = fired.map(|p| store::Fired {
            pos: p.id,
            accepted_at: p.accepted_at,
            firing: &p.firing,
            rules: &p.rules,
            verdict: &p.verdict,
        });
        store::fired(session, fired).await?;
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
        store::FACT_TABLES
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_bounded_by_its_notices_and_by_their_bytes() {
        let mut many = Load::default();
        many.add(NOTICES_AT_MOST, NOTICE_BYTES);
        assert!(many.fits());
        many.add(1, NOTICE_BYTES);
        assert!(!many.fits(), "by their number");
        let mut heavy = Load::default();
        heavy.add(5_000, 64 << 10);
        assert!(!heavy.fits(), "by their bytes");
        heavy.add(usize::MAX, usize::MAX);
        assert_eq!((heavy.notices, heavy.bytes), (usize::MAX, usize::MAX));
    }

    #[test]
    fn a_notice_weighs_what_its_variables_do_as_far_as_a_body_goes() {
        let firing = |text: &str| -> Firing {
            serde_json::from_value(serde_json::json!({
                "v": 1, "ws": 1, "id": "3-0-7-0", "trigger": "g.lamp.warned", "module": "g", "vars": {"a": text},
                "dedupe": "s1:b:1", "at": 1, "accepted_at": 2
            }))
            .unwrap()
        };
        let (light, heavy) = (weight(&firing("")), weight(&firing(&"x".repeat(1_000))));
        assert_eq!(heavy - light, 1_000);
        let most = firing(&"x".repeat(30_000));
        assert_eq!(weight(&most), NOTICE_BYTES + MAX_BODY_BYTES);
        for one in [&firing(""), &most] {
            let users = users_at_most(one);
            assert!((MAX_AUDIENCE..=NOTICES_AT_MOST).contains(&users));
            assert!(users * weight(one) <= BYTES_AT_MOST);
        }
    }
}
