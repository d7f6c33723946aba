//! Who is who, as the statements over users, preferences, segments and rules would select them.

use super::super::scenery::{PLAYERS, RULES, SAVED, TRIGGERS, USERS, WS, tree, trigger};
use super::{Aim, Bound, Ruled, Someone, World};
use crate::directory::audience::{Reached, Unreached};
use crate::directory::rules::{self as directory, SavedSegment, Target};
use crate::directory::segment::Leaf;
use crate::engagement::rules::{Rule, Rules};
use crate::recipients::facts::{Facts, Person, Place, RuleNow};
use crate::recipients::preference::Said;
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::{Channel, Mode};
use millrace_schemas::firing::Firing;
use std::collections::BTreeSet;

impl World {
    pub fn someone(&self, id: &str) -> &Someone {
        let at = USERS.iter().position(|u| *u == id);
        &self.people[at.expect("one of the users")]
    }

    fn those(&self, are: impl Fn(&Someone) -> bool) -> BTreeSet<String> {
        let all = USERS.iter().zip(&self.people);
        let found = all.filter(|(_, someone)| are(someone));
        found.map(|(id, _)| (*id).to_owned()).collect()
    }

    /// The users of a plain audience of a firing, active or not.
    fn audience(&self, of: Ceiling, firing: &Firing) -> BTreeSet<String> {
        match of {
            Ceiling::Owner => firing.owner.iter().cloned().collect(),
            Ceiling::Members => firing.recipients.iter().flatten().cloned().collect(),
            Ceiling::Subscribers => self.those(|who| {
                let of_it = |s: &Said| *s.stream == *firing.trigger && s.mode != Mode::Off;
                who.said.iter().any(of_it)
            }),
            Ceiling::Staff => self.those(|who| who.role != "user"),
            Ceiling::Admin => self.those(|who| who.role == "admin"),
            Ceiling::Authenticated | Ceiling::Everyone => self.those(|_| true),
        }
    }

    /// The users of an audience of a segment.
    fn leaf(&self, leaf: &Leaf) -> BTreeSet<String> {
        match leaf.audience.as_str() {
            "staff" => self.those(|who| who.role != "user"),
            "admin" => self.those(|who| who.role == "admin"),
            "g.players" => PLAYERS.iter().map(|p| (*p).to_owned()).collect(),
            _ => self.those(|_| true),
        }
    }

    /// As `directory::audience` answers.
    pub fn reach(&self, firing: &Firing, target: &Target) -> Reached {
        let nobody = |reason| Reached {
            reason: Some(reason),
            ..Reached::default()
        };
        let users = match target {
            Target::Plain(Ceiling::Owner) if firing.owner.is_none() => {
                return nobody(Unreached::NoOwner);
            }
            Target::Plain(Ceiling::Members) if firing.recipients.is_none() => {
                return nobody(Unreached::NoList);
            }
            Target::Plain(plain) => self.audience(*plain, firing),
            Target::Segment(segment, _) => segment.members(&|leaf: &Leaf| self.leaf(leaf)),
        };
        let active = users.into_iter().filter(|user| self.someone(user).active);
        Reached {
            users: active.collect::<Vec<String>>().into(),
            capped: false,
            reason: None,
        }
    }

    /// Whom a firing may be told to: by the declaration and its own word, where one holds the other, and by who is who.
    pub fn bound(&self, firing: &Firing) -> Bound {
        let at = (0..TRIGGERS.len()).find(|at| trigger(*at) == firing.trigger);
        let (_, _, declared) = TRIGGERS[at.expect("declared")];
        let ceiling = match firing.ceiling {
            None => Some(declared),
            Some(own) if declared.permits(own) => Some(own),
            Some(own) => own.permits(declared).then_some(declared),
        };
        let mut users = ceiling.map_or_else(BTreeSet::new, |c| self.audience(c, firing));
        if ceiling == Some(Ceiling::Members) {
            // Or a list that a module declares.
            users.extend(PLAYERS.iter().map(|p| (*p).to_owned()));
        }
        Bound { ceiling, users }
    }

    pub fn rules_now(&self) -> Rules {
        let mut rules = Rules::default();
        for (at, of) in RULES.into_iter().enumerate() {
            let ruled = &self.rules[at];
            let (audience, segment) = match &ruled.aim {
                Aim::Audience(word) => (word.map(str::to_owned), None),
                Aim::Segment(n) => (None, Some(*n)),
            };
            let segment_id = segment.map(|n| format!("s{n}"));
            let saved = segment_id.clone().zip(segment.and_then(tree));
            let rule = Rule {
                id: format!("r{at}"),
                ws: WS,
                version: ruled.version,
                enabled: ruled.enabled,
                channels: Channel::ALL.to_vec(),
                unknown_channel: false,
                stored: directory::Rule {
                    trigger_id: trigger(of),
                    audience,
                    segment_id,
                    ..directory::Rule::default()
                },
                segment: saved.map(|(id, expression)| SavedSegment { id, expression }),
                delay_s: 900,
                cooldown_s: ruled.cooldown_s,
                hourly_cap: 100_000,
            };
            rules.add(&trigger(of), rule);
        }
        for called_off in ["r0", "r1"] {
            rules.calls_off(WS, &trigger(SAVED), called_off);
        }
        rules
    }

    pub fn facts(&self) -> Facts {
        let person = |who: &Someone| Person {
            active: who.active,
            has_email: true,
            verified: true,
            suppressed: who.suppressed,
            staff: who.role != "user",
            admin: who.role == "admin",
            has_device: false,
            said: who.said.clone(),
        };
        let people = USERS.iter().zip(&self.people);
        let people = people
            .map(|(id, who)| ((*id).into(), person(who)))
            .collect();
        let place = Place {
            destinations: Channel::ALL.into_iter().zip(1..).collect(),
            verified_only: true,
        };
        let rule = |ruled: &Ruled| RuleNow {
            ws: WS,
            enabled: ruled.enabled,
            channels: Channel::ALL.to_vec(),
            delay_s: 900,
            cooldown_s: ruled.cooldown_s,
            hourly_cap: 100_000,
        };
        let rules = self.rules.iter().enumerate();
        let rules = rules.map(|(at, ruled)| (format!("r{at}").into(), rule(ruled)));
        Facts {
            people: [(WS, people)].into_iter().collect(),
            places: [(WS, place)].into_iter().collect(),
            rules: rules.collect(),
            marks: self.marks.clone(),
        }
    }
}
