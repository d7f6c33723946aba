//! A model of the gates of recipients: notices in any order, delivered again, batches that crash before their commit, cancels at any
//! moment, and what must hold whatever happens. The model of all gates together is `engagement::actor::model`.

use super::decide::{self, Passed, Stamp};
use super::facts::{Facts, Person, Place, RuleNow};
use super::hour::Hour;
use super::ledger::Ledger;
use super::slice::Cooldowns;
use super::{keys, preference};
use hashbrown::{HashMap, HashSet};
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::{Channel, Mode};
use millrace_schemas::ids::RecordId;
use millrace_schemas::notice::{Elsewhere, FiringPos, Notice, NoticeRule};
use millrace_schemas::notification::GenericBody;
use millrace_schemas::time::Micros;
use proptest::prelude::*;
use std::collections::BTreeMap;
use uuid::Uuid;

const WS: i32 = 1;
const COOLDOWN_S: i64 = 600;
const CAP: i64 = 5;
const SECOND: i64 = 1_000_000;

/// What survives a crash.
#[derive(Clone, Default)]
struct Store {
    hours: HashMap<Uuid, Hour>,
    cooldowns: HashMap<Uuid, Micros>,
    sent: HashSet<Uuid>,
    marks: HashMap<Uuid, Uuid>,
}

/// A message as it was committed.
#[derive(Clone, Debug)]
struct Out {
    rule: String,
    user: String,
    subject: String,
    channel: Channel,
    dedupe: String,
    pos: Uuid,
    cancel: Uuid,
    stream: Micros,
    wall: Micros,
    id: Uuid,
}

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    /// A batch of notices; `true`: it dies before its commit and comes again.
    Batch(Vec<One>, bool),
    /// A firing calls off what is older.
    Cancel { subject: usize, offset: i64 },
    /// Time goes on.
    Pass(i64),
    /// The actor loses its slice.
    Restart,
}

#[derive(Clone, Debug)]
struct One {
    user: usize,
    subject: usize,
    event: u8,
    offset: i64,
    rules: Vec<usize>,
}

const USERS: [&str; 5] = ["plain", "staff", "left", "off", "dead"];
const SUBJECTS: [&str; 2] = ["a", "b"];
const RULES: [&str; 2] = ["r0", "r1"];

fn facts(marks: HashMap<Uuid, Uuid>) -> Facts {
    let person = |active, staff, off: bool| Person {
        active,
        staff,
        has_email: true,
        verified: true,
        has_device: true,
        said: [Channel::Email, Channel::Push]
            .into_iter()
            .map(|channel| preference::Said {
                stream: "".into(),
                channel,
                scope: "".into(),
                mode: if off { Mode::Off } else { Mode::Instant },
                at: Micros(1),
            })
            .collect(),
        ..Person::default()
    };
    let rule = |cooldown_s| RuleNow {
        ws: WS,
        enabled: true,
        channels: Channel::ALL.to_vec(),
        delay_s: 900,
        cooldown_s,
        hourly_cap: CAP,
    };
    let people = [
        person(true, false, false),
        person(true, true, false),
        person(false, true, false),
        person(true, false, true),
        Person {
            suppressed: true,
            ..person(true, false, false)
        },
    ];
    Facts {
        people: [(WS, USERS.iter().map(|u| (*u).into()).zip(people).collect())]
            .into_iter()
            .collect(),
        places: [(
            WS,
            Place {
                destinations: Channel::ALL.into_iter().zip(1..).collect(),
                verified_only: true,
            },
        )]
        .into_iter()
        .collect(),
        rules: RULES
            .iter()
            .map(|r| (*r).into())
            .zip([rule(COOLDOWN_S), rule(0)])
            .collect(),
        marks,
    }
}

fn notice(one: &One, ceiling: Ceiling) -> Notice {
    Notice {
        v: 1,
        ws: WS,
        user: USERS[one.user].to_owned(),
        firing: format!("f{}", one.event),
        firing_pos: FiringPos {
            generation: 1,
            partition: 0,
            offset: one.offset,
        },
        trigger: "t".to_owned(),
        module: "m".to_owned(),
        shard: "s".to_owned(),
        subject: SUBJECTS[one.subject].to_owned(),
        scope: String::new(),
        dedupe_key: format!("t:{}:{}", one.subject, one.event),
        vars: Elsewhere::default(),
        body: GenericBody::default(),
        at: Micros(0),
        accepted_at: Micros(0),
        max_age_s: None,
        default_modes: BTreeMap::new(),
        modes: Vec::new(),
        rules: one
            .rules
            .iter()
            .map(|at| NoticeRule {
                id: RULES[*at].to_owned(),
                version: 1,
                channels: Channel::ALL.to_vec(),
                delay_s: 900,
                cooldown_s: COOLDOWN_S,
                hourly_cap: 5,
            })
            .collect(),
        ceiling,
        linked_by: None,
        emit: None,
        replay: None,
    }
}

struct World {
    store: Store,
    slice: Cooldowns,
    stream: Micros,
    wall: Micros,
    next: i64,
    out: Vec<Out>,
    ceiling: Ceiling,
}

impl World {
    /// One attempt at a batch on what the store says; committed unless it dies.
    fn attempt(&mut self, batch: &[One], dies: bool) {
        let facts = facts(self.store.marks.clone());
        let notices: Vec<Notice> = batch.iter().map(|o| notice(o, self.ceiling)).collect();
        let mut firsts = Vec::new();
        for n in &notices {
            let (mut wanted, mut refused) = (Vec::new(), Vec::new());
            decide::first(&facts, n, &mut wanted, &mut refused);
            firsts.push(wanted);
        }
        let mut ledger = Ledger::default();
        let wanted = || firsts.iter().flatten();
        for key in ledger.warm(&self.slice, wanted().filter_map(|w| w.cooldown)) {
            if let Some(at) = self.store.cooldowns.get(&key) {
                ledger.cooldown_is(key, *at);
            }
        }
        for w in wanted() {
            if self.store.sent.contains(&w.sent) {
                ledger.is_sent(w.sent);
            }
            let hour = self.store.hours.get(&w.hour).cloned();
            ledger.hour_is(w.hour, hour.unwrap_or_else(|| Hour::empty(self.wall)));
        }
        let mut out = Vec::new();
        for (i, (n, wanted)) in notices.iter().zip(&firsts).enumerate() {
            let stamp = Stamp {
                cause: RecordId {
                    topic_no: 2,
                    partition: 0,
                    offset: self.next + i as i64,
                },
                stream: self.stream,
                wall: self.wall,
            };
            let (mut passed, mut refused): (Vec<Passed>, _) = (Vec::new(), Vec::new());
            decide::last(&mut ledger, n, wanted, stamp, &mut passed, &mut refused);
            assert_eq!(passed.len() + refused.len(), wanted.len());
            for p in passed {
                assert!(p.due_at >= self.stream.max(self.wall).plus_secs(900));
                if p.wanted.channel == Channel::Push && p.after.is_some() {
                    let inapp = out.iter().rev().find(|o: &&Out| Some(o.id) == p.after);
                    assert!(inapp.is_some_and(|o| o.channel == Channel::Inapp));
                }
                out.push(Out {
                    rule: n.rules[p.wanted.rule].id.clone(),
                    user: n.user.clone(),
                    subject: n.subject.clone(),
                    channel: p.wanted.channel,
                    dedupe: n.dedupe_key.clone(),
                    pos: RecordId::from(n.firing_pos).to_uuid(),
                    cancel: p.wanted.cancel,
                    stream: self.stream,
                    wall: self.wall,
                    id: p.id,
                });
            }
        }
        if dies {
            // Nothing of it is left, but what another actor may find: nothing.
            return;
        }
        for (key, hour) in ledger.changed_hours() {
            self.store.hours.insert(key, hour.clone());
        }
        for (key, at) in ledger.cooled() {
            self.store.cooldowns.insert(key, at);
            self.slice.put(key, at);
        }
        for (key, _) in ledger.told() {
            assert!(self.store.sent.insert(*key), "a sent key twice");
        }
        self.next += batch.len() as i64;
        self.out.extend(out);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Batch(batch, dies) => {
                if *dies {
                    self.attempt(batch, true);
                    self.slice = Cooldowns::new(3);
                }
                self.attempt(batch, false);
            }
            Step::Cancel { subject, offset } => {
                for rule in RULES {
                    let key = keys::cancel(WS, rule, "s", SUBJECTS[*subject]);
                    let pos = RecordId {
                        topic_no: 1,
                        partition: 0,
                        offset: *offset,
                    }
                    .to_uuid();
                    let mark = self.store.marks.entry(key).or_insert(pos);
                    *mark = (*mark).max(pos);
                }
            }
            Step::Pass(seconds) => {
                self.stream = self.stream.plus_secs(*seconds);
                self.wall = self.wall.plus_secs(*seconds);
            }
            Step::Restart => self.slice = Cooldowns::new(3),
        }
    }

    /// What is left to be sent: a message whose firing is older than its mark was called off, at the insert or at the lease.
    fn standing(&self) -> impl Iterator<Item = &Out> {
        let marks = &self.store.marks;
        self.out
            .iter()
            .filter(|o| marks.get(&o.cancel).is_none_or(|mark| *mark <= o.pos))
    }

    fn check(&self) {
        for o in &self.out {
            assert_ne!(o.user, "left", "an inactive user was told");
            if o.user == "off" {
                assert_eq!(o.channel, Channel::Inapp, "an unwilling user was told");
            }
            if o.user == "dead" {
                assert_ne!(o.channel, Channel::Email, "a dead address was told");
            }
            if self.ceiling == Ceiling::Staff {
                assert_eq!(o.user, "staff", "outside the ceiling");
            }
        }
        let key = |o: &Out| (o.rule.clone(), o.user.clone(), o.subject.clone(), o.channel);
        for (i, a) in self.out.iter().enumerate() {
            for b in &self.out[i + 1..] {
                let same_event = a.dedupe == b.dedupe && key(a) == key(b);
                assert!(!same_event, "told twice of one event");
                assert_ne!(a.id, b.id, "two messages of one id");
                if a.rule == "r0" && key(a) == key(b) {
                    let apart = b.stream.0 - a.stream.0;
                    assert!(apart >= COOLDOWN_S * SECOND, "inside the cooldown");
                }
            }
        }
        for rule in RULES {
            let times: Vec<i64> = self
                .out
                .iter()
                .filter(|o| o.rule == rule)
                .map(|o| o.wall.0)
                .collect();
            for from in &times {
                let hour = times
                    .iter()
                    .filter(|t| **t >= *from && **t < from + 3_600 * SECOND);
                assert!(hour.count() as i64 <= CAP, "over the cap");
            }
        }
    }
}

fn one() -> impl Strategy<Value = One> {
    let rules = prop_oneof![Just(vec![0]), Just(vec![1]), Just(vec![0, 1])];
    (0..USERS.len(), 0..SUBJECTS.len(), 0u8..4, 0i64..40, rules).prop_map(
        |(user, subject, event, offset, rules)| One {
            user,
            subject,
            event,
            offset,
            rules,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (proptest::collection::vec(one(), 1..6), any::<bool>()).prop_map(|(b, dies)| Step::Batch(b, dies)),
        2 => (0..SUBJECTS.len(), 0i64..40).prop_map(|(subject, offset)| Step::Cancel { subject, offset }),
        3 => (0i64..1_800).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ]
}

fn run(steps: &[Step], ceiling: Ceiling) -> World {
    let mut world = World {
        store: Store::default(),
        slice: Cooldowns::new(3),
        stream: Micros(1_764_500_000 * SECOND),
        wall: Micros(1_764_500_000 * SECOND),
        next: 0,
        out: Vec::new(),
        ceiling,
    };
    for step in steps {
        world.step(step);
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn nobody_is_told_twice_too_often_or_outside_the_ceiling(
        steps in proptest::collection::vec(step(), 1..40),
        staff in any::<bool>(),
    ) {
        let ceiling = if staff { Ceiling::Staff } else { Ceiling::Authenticated };
        run(&steps, ceiling).check();
    }

    /// A cancel that comes first and one that comes last leave the same messages standing of what they call off: none.
    #[test]
    fn a_cancel_is_one_whenever_it_comes(
        batches in proptest::collection::vec(proptest::collection::vec(one(), 1..6), 1..8),
        subject in 0..SUBJECTS.len(),
        offset in 0i64..40,
        at in 0usize..8,
    ) {
        let cancel = Step::Cancel { subject, offset };
        let mut steps: Vec<Step> = batches.into_iter().map(|b| Step::Batch(b, false)).collect();
        steps.insert(at.min(steps.len()), cancel);
        let world = run(&steps, Ceiling::Authenticated);
        world.check();
        let mark = RecordId { topic_no: 1, partition: 0, offset }.to_uuid();
        for o in world.standing().filter(|o| o.subject == SUBJECTS[subject]) {
            prop_assert!(o.pos >= mark, "older than what called it off");
        }
    }
}
