//! The frames of the shards, drawn from a seed, and what is right for each: which firings there must be, and whom they must be told
//! to, on which channel, by which rule ([`RULES`]).

use super::people::{self, LINKED, Person};
use super::rules::RULES;
use super::{PROTOCOL, SHARDS};
use crate::generator::Rng;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const BELLS: u64 = 12;
const STORMS: u64 = 30;
const CREWS: u64 = 4;

/// A message to somebody.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Told {
    /// By which rule.
    pub rule: String,
    /// How.
    pub channel: String,
    /// Whom.
    pub user: String,
    /// Of what: the firing's name.
    pub key: String,
}

/// What is right for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    /// It must be told, once.
    Must,
    /// It may be told, once: the manifest changed meanwhile.
    May,
    /// Of all these [`RARE`](super::rules::RARE) are told, each at most once.
    Rare,
    /// It must be told, once, unless a later firing called the storm off: then never.
    UnlessCalledOff {
        /// The storm with its shard.
        storm: String,
    },
}

/// How much there is to be of it.
#[derive(Clone, Debug)]
pub struct Size {
    /// Frames of each shard, by part; each part is a run of the shard of its own.
    pub parts: Vec<usize>,
    /// How many of a hundred tell of storms.
    pub storms: u64,
    /// The part during which the manifest changes.
    pub changes_in: Option<usize>,
}

impl Size {
    /// With these parts, a few storms, and one manifest.
    #[must_use]
    pub fn of(parts: &[usize]) -> Size {
        Size {
            parts: parts.to_vec(),
            storms: 12,
            changes_in: None,
        }
    }
}

/// What is sent and what is right.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// By part and shard: the lines of a sidecar's session, the hello first.
    pub sessions: Vec<Vec<Vec<String>>>,
    /// Firings by name; whether each must be (or only may).
    pub firings: BTreeMap<String, bool>,
    /// Messages.
    pub told: BTreeMap<Told, Right>,
    /// Firings that call a storm off, by name: the storm with its shard.
    pub passed: BTreeMap<String, String>,
    /// How many users the firings that must be reach, at least: as many notices are decided.
    pub notices: usize,
}

/// What holds of a frame, by when its part was sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manifest {
    Old,
    Either,
    New,
}

/// One shard while its frames are drawn.
struct Drawing<'a> {
    plan: &'a mut Plan,
    people: &'a [Person],
    shard: usize,
    boot: String,
    seq: usize,
    manifest: Manifest,
    rung: &'a mut BTreeSet<u64>,
    crews: &'a mut BTreeMap<u64, BTreeSet<usize>>,
}

impl Plan {
    /// Draws one.
    #[must_use]
    pub fn draw(size: &Size, rng: &mut Rng) -> Plan {
        let people = people::all();
        let mut plan = Plan::default();
        let mut rung = vec![BTreeSet::new(); SHARDS.len()];
        let mut crews = vec![BTreeMap::new(); SHARDS.len()];
        for (part, frames) in size.parts.iter().enumerate() {
            let mut sessions = Vec::new();
            for shard in 0..SHARDS.len() {
                let mut drawing = Drawing {
                    plan: &mut plan,
                    people: &people,
                    shard,
                    boot: format!("b{}", part + 1),
                    seq: 0,
                    manifest: match size.changes_in {
                        Some(at) if part == at => Manifest::Either,
                        Some(at) if part > at => Manifest::New,
                        _ => Manifest::Old,
                    },
                    rung: &mut rung[shard],
                    crews: &mut crews[shard],
                };
                let hello = json!({"type": "hello", "protocol": PROTOCOL, "boot": drawing.boot});
                let mut lines = vec![hello.to_string()];
                lines.extend((0..*frames).map(|_| drawing.frame(size.storms, rng)));
                sessions.push(lines);
            }
            plan.sessions.push(sessions);
        }
        plan
    }

    /// Frames of all.
    #[must_use]
    pub fn frames(&self) -> usize {
        let of = self.sessions.iter().flatten();
        of.map(|lines| lines.len().saturating_sub(1)).sum()
    }

    /// Frames of all shards in a part.
    #[must_use]
    pub fn frames_in(&self, part: usize) -> usize {
        let of = self.sessions.get(part).into_iter().flatten();
        of.map(|lines| lines.len().saturating_sub(1)).sum()
    }

    /// Firings that must be.
    #[must_use]
    pub fn must_fire(&self) -> usize {
        self.firings.values().filter(|must| **must).count()
    }
}

impl Drawing<'_> {
    fn frame(&mut self, storms: u64, rng: &mut Rng) -> String {
        self.seq += 1;
        if rng.below(100) < storms {
            let storm = rng.below(STORMS);
            return if rng.below(5) < 3 {
                self.storm_seen(storm)
            } else {
                self.storm_passed(storm)
            };
        }
        match rng.below(20) {
            0 => self.fire(rng.below(5)),
            1 => {
                let some = 1 + rng.below(5);
                let on = (0..some).map(|_| rng.below(LINKED as u64 + 1) as usize);
                let on = on.collect();
                self.crew_list(rng.below(CREWS), on)
            }
            2 | 3 => self.crew_called(rng.below(CREWS)),
            4 => self.posted(rng.below(3)),
            _ => self.bell(rng.below(BELLS)),
        }
    }

    fn line(&self, kind: &str, body: &Value) -> String {
        json!({"seq": self.seq, "kind": kind, "body": body}).to_string()
    }

    /// A firing of this frame; its name.
    fn fires(&mut self, trigger: &str, must: bool) -> String {
        let key = format!(
            "{trigger}:{}:{}:{}",
            SHARDS[self.shard], self.boot, self.seq
        );
        self.plan.firings.insert(key.clone(), must);
        key
    }

    /// A rule tells somebody of a firing, on those of its channels that they are told on.
    fn tells(&mut self, rule: &str, person: &Person, key: &str, right: &Right) {
        let Some(rule) = RULES.iter().find(|r| r.id == rule) else {
            return;
        };
        for channel in rule.channels {
            let on = match *channel {
                "email" => person.mail,
                "push" => person.push && person.device,
                _ => true,
            };
            if on {
                let told = Told {
                    rule: rule.id.to_owned(),
                    channel: (*channel).to_owned(),
                    user: person.id.clone(),
                    key: key.to_owned(),
                };
                self.plan.told.insert(told, right.clone());
            }
        }
    }

    fn owner(&self, account: usize) -> Option<Person> {
        let at = people::owner(self.shard, account)?;
        self.people.get(at).cloned()
    }

    fn bell(&mut self, bell: u64) -> String {
        let account = bell as usize % (LINKED + 1);
        let line = self.line(
            "bell.rung",
            &json!({"bell": format!("bell-{bell}"), "keeper": format!("a{account}")}),
        );
        let rung = self.fires("quay.bell.rung", true);
        let first = self.fires("quay.bell.first", true);
        let rare = self.fires("quay.bell.rare", true);
        let tolled = match self.manifest {
            Manifest::Old => None,
            Manifest::Either => Some((self.fires("quay.bell.tolled", false), Right::May)),
            Manifest::New => Some((self.fires("quay.bell.tolled", true), Right::Must)),
        };
        let is_first = self.rung.insert(bell);
        let Some(person) = self.owner(account) else {
            return line;
        };
        self.plan.notices += 3;
        self.tells("qr_rung", &person, &rung, &Right::Must);
        if is_first {
            self.tells("qr_first", &person, &first, &Right::Must);
        }
        self.tells("qr_rare", &person, &rare, &Right::Rare);
        if let Some((key, right)) = tolled {
            self.plan.notices += usize::from(right == Right::Must);
            self.tells("qr_tolled", &person, &key, &right);
        }
        line
    }

    /// A storm's name with its shard.
    fn storm(&self, storm: u64) -> String {
        format!("{}:storm-{storm}", SHARDS[self.shard])
    }

    fn storm_seen(&mut self, storm: u64) -> String {
        let account = storm as usize % (LINKED + 1);
        let key = self.fires("quay.storm.seen", true);
        if let Some(person) = self.owner(account) {
            let storm = self.storm(storm);
            self.plan.notices += 1;
            let right = Right::UnlessCalledOff { storm };
            self.tells("qr_storm", &person, &key, &right);
        }
        let body = json!({"storm": format!("storm-{storm}"), "keeper": format!("a{account}")});
        self.line("storm.seen", &body)
    }

    fn storm_passed(&mut self, storm: u64) -> String {
        let key = self.fires("quay.storm.passed", true);
        let of = self.storm(storm);
        self.plan.passed.insert(key, of);
        let order = format!("order-{}-{}", self.boot, self.seq);
        let body = json!({"storm": format!("storm-{storm}"), "order": order});
        self.line("storm.passed", &body)
    }

    fn fire(&mut self, ward: u64) -> String {
        let key = self.fires("quay.fire.seen", true);
        let people = self.people;
        for person in people.iter().filter(|p| p.staff()) {
            self.plan.notices += 1;
            self.tells("qr_fire", person, &key, &Right::Must);
        }
        self.line("fire.seen", &json!({"ward": format!("ward-{ward}")}))
    }

    fn crew_list(&mut self, crew: u64, on: BTreeSet<usize>) -> String {
        let members: Vec<Value> = on
            .iter()
            .map(|account| json!({"acct": format!("a{account}")}))
            .collect();
        self.crews.insert(crew, on);
        let body = json!({"crew": format!("crew-{crew}"), "members": members});
        self.line("crew.list", &body)
    }

    fn crew_called(&mut self, crew: u64) -> String {
        let key = self.fires("quay.crew.called", true);
        let on = self.crews.get(&crew).cloned().unwrap_or_default();
        for account in on {
            if let Some(person) = self.owner(account) {
                self.plan.notices += 1;
                self.tells("qr_crew", &person, &key, &Right::Must);
            }
        }
        self.line("crew.called", &json!({"crew": format!("crew-{crew}")}))
    }

    fn posted(&mut self, board: u64) -> String {
        let key = self.fires("quay.notice.posted", true);
        let right = match self.manifest {
            Manifest::Old => Some(Right::Must),
            Manifest::Either => Some(Right::May),
            // Everybody is more than the staff: the rule tells nobody any more.
            Manifest::New => None,
        };
        let people = self.people;
        if let Some(right) = right {
            for person in people {
                self.plan.notices += usize::from(right == Right::Must);
                self.tells("qr_posted", person, &key, &right);
            }
        }
        self.line("notice.posted", &json!({"board": format!("board-{board}")}))
    }
}
