//! The store that the model keeps, and the actors over it.

mod people;

use super::super::{Draft, Engagement};
use super::scenery::{MODULES, PARTITIONS, RULES, SECOND, START, SUBJECTS, USERS, WS, trigger};
use super::{Aim, Fate, Shot, Step};
use crate::engagement::decide::Gate;
use crate::recipients::decide::{self, Passed, Stamp, Wanted};
use crate::recipients::hour::Hour;
use crate::recipients::ledger::Ledger;
use crate::recipients::preference::Said;
use crate::recipients::slice::Cooldowns;
use crate::runtime::vertical::{Effects, Item, Raw, Vertical};
use hashbrown::{HashMap, HashSet};
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::{Channel, Mode};
use millrace_schemas::firing::Firing;
use millrace_schemas::ids::RecordId;
use millrace_schemas::notice::Notice;
use millrace_schemas::time::{Micros, Now};
use millrace_topics::contract::Batch;
use millrace_topics::partitioner::partition;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use uuid::Uuid;

pub struct Someone {
    active: bool,
    role: &'static str,
    suppressed: bool,
    said: Vec<Said>,
}

pub struct Ruled {
    enabled: bool,
    aim: Aim,
    cooldown_s: i64,
    version: i64,
}

/// Whom a firing may be told to at most, as it stood when it was passed on; no ceiling: it must reach nobody.
pub struct Bound {
    ceiling: Option<Ceiling>,
    users: BTreeSet<String>,
}

/// A message as it was committed.
pub struct Out {
    id: Uuid,
    rule: usize,
    user: String,
    pub subject: String,
    channel: Channel,
    dedupe: String,
    trigger: String,
    stream: Micros,
    cooldown_s: i64,
}

pub struct World {
    people: Vec<Someone>,
    rules: Vec<Ruled>,
    words: i64,
    doors: Micros,
    wall: Micros,
    // The log, and how far its groups have committed.
    fired: [Vec<Arc<Firing>>; PARTITIONS],
    engaged: [usize; PARTITIONS],
    told: [Vec<Arc<Notice>>; PARTITIONS],
    decided: [usize; PARTITIONS],
    stream: [Micros; PARTITIONS],
    // What the gates have stored.
    marks: HashMap<Uuid, Uuid>,
    hours: HashMap<Uuid, Hour>,
    cooldowns: HashMap<Uuid, Micros>,
    sent: HashSet<Uuid>,
    pub out: Vec<Out>,
    // What the actors hold.
    engagement: Engagement,
    slices: [Cooldowns; PARTITIONS],
    // What the test knows.
    bounds: HashMap<String, Bound>,
}

impl World {
    pub fn new() -> World {
        let someone = |role, active| Someone {
            active,
            role,
            suppressed: false,
            said: Vec::new(),
        };
        let mut world = World {
            people: vec![
                someone("user", true),
                someone("moderator", true),
                someone("user", true),
                someone("admin", true),
                someone("user", false),
            ],
            rules: RULES
                .iter()
                .map(|_| Ruled {
                    enabled: true,
                    aim: Aim::Audience(None),
                    cooldown_s: 600,
                    version: 1,
                })
                .collect(),
            words: 0,
            doors: START,
            wall: START,
            fired: Default::default(),
            engaged: [0; PARTITIONS],
            told: Default::default(),
            decided: [0; PARTITIONS],
            stream: [Micros(0); PARTITIONS],
            marks: HashMap::new(),
            hours: HashMap::new(),
            cooldowns: HashMap::new(),
            sent: HashSet::new(),
            out: Vec::new(),
            engagement: Engagement::new(Arc::clone(&MODULES).into(), 9),
            slices: [Cooldowns::new(3), Cooldowns::new(3)],
            bounds: HashMap::new(),
        };
        world.says(0, Some(2), Channel::Inapp, Mode::Instant);
        world.says(0, Some(3), Channel::Inapp, Mode::Instant);
        world.says(2, None, Channel::Email, Mode::Instant);
        world
    }

    fn says(&mut self, user: usize, of: Option<usize>, channel: Channel, mode: Mode) {
        let stream = of.map_or_else(String::new, trigger);
        self.words += 1;
        let at = Micros(self.words);
        let said = &mut self.people[user].said;
        said.retain(|s| *s.stream != *stream || s.channel != channel);
        said.push(Said {
            stream: stream.into(),
            channel,
            scope: "".into(),
            mode,
            at,
        });
    }

    pub fn fire(&mut self, shot: &Shot) {
        let n: usize = self.fired.iter().map(Vec::len).sum();
        let at = self.doors.plus_secs(-shot.late).0;
        let subject = SUBJECTS[shot.subject];
        let list = shot.list.as_ref();
        let list: Option<Vec<&str>> = list.map(|l| l.iter().map(|u| USERS[*u]).collect());
        let firing: Firing = serde_json::from_value(json!({
            "v": 1, "ws": WS, "id": format!("f{n}"), "trigger": trigger(shot.trigger), "module": "g", "shard": "s",
            "subject": subject, "vars": {"thing": subject}, "owner": shot.owner.map(|u| USERS[u]), "recipients": list,
            "ceiling": shot.ceiling, "dedupe": format!("e{}", shot.event), "at": at, "accepted_at": at
        }))
        .expect("a firing");
        let of = of_key(firing.log_key().as_bytes());
        self.fired[of].push(Arc::new(firing));
    }

    /// A partition of engagement takes a batch.
    fn engage(&mut self, at: usize, n: usize, fate: Fate) {
        let from = self.engaged[at];
        let to = self.fired[at].len().min(from + n);
        let batch = Batch::new(0);
        let raw = Raw::of(&batch);
        let now = Now {
            stream: self.doors,
            wall: self.wall,
        };
        let (mut draft, mut effects) = (Draft::default(), Effects::default());
        let mut bounds = HashMap::new();
        for (index, firing) in self.fired[at][from..to].iter().enumerate() {
            let item = Item {
                id: place(1, at, from + index),
                index,
                accepted_at: firing.accepted_at,
                stream: firing.accepted_at,
                replayed: false,
                record: Arc::clone(firing),
            };
            self.engagement
                .decide(&mut draft, &mut effects, &item, &raw, now);
            bounds.insert(firing.id.clone(), self.bound(firing));
        }
        let rules = self.rules_now();
        for (firing, rule, target) in self.engagement.gates(&mut draft, &rules) {
            let reached = self.reach(&draft.pending[firing].firing, &target);
            draft.pending[firing].gates[rule] = Gate::Open(reached);
        }
        self.engagement.settle(&mut draft, &mut effects, now);
        let read = |payload: &[u8]| serde_json::from_slice::<Notice>(payload).expect("a notice");
        let notices: Vec<Notice> = effects.emits.iter().map(|e| read(&e.payload)).collect();
        for notice in &notices {
            let bound = &bounds[&notice.firing];
            assert_eq!(Some(notice.ceiling), bound.ceiling, "{notice:?}");
            assert!(bound.users.contains(&notice.user), "outside: {notice:?}");
            for rule in &notice.rules {
                assert!(self.rules[number(&rule.id)].enabled, "{notice:?}");
            }
        }
        if fate == Fate::DiesBefore {
            return;
        }
        for (key, pos) in draft.marks {
            let mark = self.marks.entry(key).or_insert(pos);
            *mark = (*mark).max(pos);
        }
        self.bounds.extend(bounds);
        self.engaged[at] = to;
        for notice in notices {
            let of = of_key(notice.log_key().as_bytes());
            self.told[of].push(Arc::new(notice));
        }
    }

    /// A partition of recipients takes a batch.
    fn decide(&mut self, at: usize, n: usize, fate: Fate) {
        let from = self.decided[at];
        let to = self.told[at].len().min(from + n);
        let batch = self.told[at][from..to].to_vec();
        let facts = self.facts();
        // No two machines have one clock.
        let wall = self.wall.plus_secs(if at == 0 { 0 } else { -90 });
        let mut firsts: Vec<Vec<Wanted>> = Vec::new();
        for notice in &batch {
            let (mut wanted, mut refused) = (Vec::new(), Vec::new());
            decide::first(&facts, notice, &mut wanted, &mut refused);
            firsts.push(wanted);
        }
        let mut ledger = Ledger::default();
        let wanted = || firsts.iter().flatten();
        for key in ledger.warm(&self.slices[at], wanted().filter_map(|w| w.cooldown)) {
            if let Some(last) = self.cooldowns.get(&key) {
                ledger.cooldown_is(key, *last);
            }
        }
        for w in wanted() {
            if self.sent.contains(&w.sent) {
                ledger.is_sent(w.sent);
            }
            let hour = self.hours.get(&w.hour).cloned();
            ledger.hour_is(w.hour, hour.unwrap_or_else(|| Hour::empty(wall)));
        }
        let mut stream = self.stream[at];
        let mut out = Vec::new();
        for (i, (notice, wanted)) in batch.iter().zip(&firsts).enumerate() {
            stream = stream.max(notice.accepted_at);
            let stamp = Stamp {
                cause: place(2, at, from + i),
                stream,
                wall,
            };
            let (mut passed, mut refused): (Vec<Passed>, _) = (Vec::new(), Vec::new());
            decide::last(
                &mut ledger,
                notice,
                wanted,
                stamp,
                &mut passed,
                &mut refused,
            );
            assert_eq!(passed.len() + refused.len(), wanted.len());
            for p in passed {
                assert!(p.due_at >= stream.max(wall).plus_secs(900));
                let rule = number(&notice.rules[p.wanted.rule].id);
                self.may_be_told(notice, rule, &p.wanted);
                out.push(Out {
                    id: p.id,
                    rule,
                    user: notice.user.clone(),
                    subject: notice.subject.clone(),
                    channel: p.wanted.channel,
                    dedupe: notice.dedupe_key.clone(),
                    trigger: notice.trigger.clone(),
                    stream,
                    cooldown_s: self.rules[rule].cooldown_s,
                });
            }
        }
        if fate != Fate::DiesBefore {
            for (key, hour) in ledger.changed_hours() {
                self.hours.insert(key, hour.clone());
            }
            for (key, last) in ledger.cooled() {
                self.cooldowns.insert(key, last);
                self.slices[at].put(key, last);
            }
            for (key, _) in ledger.told() {
                assert!(self.sent.insert(*key), "a sent key twice");
            }
            self.out.extend(out);
            self.decided[at] = to;
            self.stream[at] = stream;
        }
        if fate != Fate::Lives {
            // Whoever comes next has the store alone.
            self.slices[at] = Cooldowns::new(3);
        }
    }

    /// A message that passed every gate: by whom the firing might reach then, and by how everything stands now.
    fn may_be_told(&self, notice: &Notice, rule: usize, wanted: &Wanted) {
        let bound = &self.bounds[&notice.firing];
        assert!(bound.users.contains(&notice.user), "outside: {notice:?}");
        let who = self.someone(&notice.user);
        assert!(who.active, "inactive: {notice:?}");
        let dead = who.suppressed && wanted.channel == Channel::Email;
        assert!(!dead, "to a suppressed address: {notice:?}");
        let still = match bound.ceiling.expect("a ceiling") {
            Ceiling::Staff => who.role != "user",
            Ceiling::Admin => who.role == "admin",
            Ceiling::Subscribers => {
                let of_it = |s: &Said| *s.stream == *notice.trigger && s.mode != Mode::Off;
                who.said.iter().any(of_it)
            }
            _ => true,
        };
        assert!(still, "outside by now: {notice:?}");
        assert!(self.rules[rule].enabled, "switched off: {notice:?}");
        let pos = RecordId::from(notice.firing_pos).to_uuid();
        let mark = self.marks.get(&wanted.cancel);
        assert!(
            mark.is_none_or(|mark| *mark <= pos),
            "called off: {notice:?}"
        );
    }

    pub fn step(&mut self, step: &Step) {
        match step {
            Step::Fire(shot) => self.fire(shot),
            Step::Engage(at, n, fate) => self.engage(*at, *n, *fate),
            Step::Decide(at, n, fate) => self.decide(*at, *n, *fate),
            Step::Role(user, role) => self.people[*user].role = *role,
            Step::Active(user, active) => self.people[*user].active = *active,
            Step::Suppressed(user, dead) => self.people[*user].suppressed = *dead,
            Step::Says(user, of, channel, mode) => self.says(*user, *of, *channel, *mode),
            Step::Switch(rule, on) => self.rules[*rule].enabled = *on,
            Step::Aim(rule, aim) => {
                self.rules[*rule].aim = aim.clone();
                self.rules[*rule].version += 1;
            }
            Step::Cool(rule, seconds) => {
                self.rules[*rule].cooldown_s = *seconds;
                self.rules[*rule].version += 1;
            }
            Step::Doors(seconds) => self.doors = self.doors.plus_secs(*seconds),
            Step::Wall(seconds) => self.wall = self.wall.plus_secs(*seconds),
        }
    }

    /// Everything that has fired is decided.
    pub fn drain(&mut self) {
        for at in 0..PARTITIONS {
            self.engage(at, usize::MAX / 2, Fate::Lives);
        }
        for at in 0..PARTITIONS {
            self.decide(at, usize::MAX / 2, Fate::Lives);
        }
    }

    pub fn check(&self) {
        for (i, a) in self.out.iter().enumerate() {
            let of = |o: &Out| (o.rule, o.user.clone(), o.channel);
            for b in self.out[i + 1..].iter().filter(|b| of(b) == of(a)) {
                assert_ne!(a.id, b.id, "two messages of one id");
                assert_ne!(a.dedupe, b.dedupe, "told twice of one event");
                // A rule that had no cooldown when it told began none.
                if a.subject == b.subject && a.cooldown_s > 0 && b.cooldown_s > 0 {
                    let apart = b.stream.0 - a.stream.0;
                    assert!(apart >= b.cooldown_s * SECOND, "inside the cooldown");
                }
            }
        }
    }

    /// Who was told of a trigger.
    pub fn told_of(&self, at: usize) -> Vec<&str> {
        let of = self.out.iter().filter(|o| o.trigger == trigger(at));
        let all: BTreeSet<&str> = of.map(|o| &*o.user).collect();
        all.into_iter().collect()
    }
}

fn of_key(key: &[u8]) -> usize {
    let of = partition(key, i32::try_from(PARTITIONS).expect("two"));
    usize::try_from(of).expect("a partition")
}

fn place(topic_no: i32, partition: usize, offset: usize) -> RecordId {
    RecordId {
        topic_no,
        partition: i32::try_from(partition).expect("a partition"),
        offset: i64::try_from(offset).expect("an offset"),
    }
}

/// A rule's place by its id.
fn number(rule: &str) -> usize {
    let digits = rule.strip_prefix('r').expect("a rule");
    digits.parse().expect("a rule")
}
