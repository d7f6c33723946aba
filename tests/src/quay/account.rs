//! What became of it beside what is right.

use super::plan::{Plan, Right, Told};
use super::rules::{RARE, RULES};
use super::seen::{Row, Seen};
use crate::recount::{Finding, Kind};
use std::collections::{BTreeMap, BTreeSet};

/// Everything that differs: a notice that is lost, told twice, told inside its cooldown, outside its ceiling or although it was called
/// off in time; a mail under two Message-IDs; a device woken for nothing. All notices were decided before any that waits was due.
#[must_use]
pub fn account(plan: &Plan, seen: &Seen) -> Vec<Finding> {
    let mut account = Account {
        plan,
        seen,
        found: Vec::new(),
    };
    account.firings();
    let sent = account.rows();
    account.inboxes(&sent);
    account.letters(&sent);
    account.wakes(&sent);
    account.found
}

struct Account<'a> {
    plan: &'a Plan,
    seen: &'a Seen,
    found: Vec<Finding>,
}

/// Messages that the outbox rightly calls sent.
type Sent<'a> = BTreeMap<&'a Told, &'a Row>;

impl<'a> Account<'a> {
    fn add(&mut self, kind: Kind, what: String) {
        self.found.push(Finding { kind, what });
    }

    /// `is` of `must`: a loss, a double, or nothing.
    fn times(&mut self, is: usize, what: impl Fn() -> String) {
        match is {
            0 => self.add(Kind::Loss, what()),
            1 => {}
            n => self.add(Kind::Double, format!("{}, {n} times", what())),
        }
    }

    fn firings(&mut self) {
        let (plan, seen) = (self.plan, self.seen);
        for (key, must) in &plan.firings {
            let noted = seen.noted.get(key).copied().unwrap_or(0);
            let noted = usize::try_from(noted).unwrap_or(0);
            let ids = seen.fired.get(key).map_or(0, |f| f.ids.len());
            if *must || ids > 0 {
                self.times(ids, || format!("triggers: firing {key}"));
            }
            if *must || ids > 0 || noted > 0 {
                self.times(noted, || format!("engagement: firing {key}"));
            }
        }
        let known = |key: &&String| plan.firings.contains_key(*key);
        let strange = seen.noted.keys().chain(seen.fired.keys());
        for key in strange.filter(|key| !known(key)) {
            self.add(Kind::Wrong, format!("nothing can have fired {key}"));
        }
    }

    /// Where each storm was called off last.
    fn called_off(&self) -> BTreeMap<&'a str, (i32, i64)> {
        let mut last = BTreeMap::new();
        for (key, storm) in &self.plan.passed {
            if let Some(fired) = self.seen.fired.get(key) {
                let at = last.entry(storm.as_str()).or_insert(fired.at);
                *at = fired.at.max(*at);
            }
        }
        last
    }

    fn rows(&mut self) -> Sent<'a> {
        let (plan, seen) = (self.plan, self.seen);
        let called_off = self.called_off();
        let mut by: BTreeMap<&Told, Vec<&Row>> = BTreeMap::new();
        for row in &seen.rows {
            by.entry(&row.told).or_default().push(row);
        }
        let mut sent = Sent::new();
        let (mut rare, mut candidates) = (0, 0);
        for (told, right) in &plan.told {
            let rows = by.remove(told).unwrap_or_default();
            let never = match right {
                Right::UnlessCalledOff { storm } => {
                    let seen_at = seen.fired.get(&told.key).map(|f| f.at);
                    called_off.get(storm.as_str()).copied() > seen_at
                }
                _ => false,
            };
            candidates += usize::from(*right == Right::Rare);
            let must = match right {
                Right::Must => true,
                Right::UnlessCalledOff { .. } => !never,
                Right::May | Right::Rare => false,
            };
            if must || rows.len() > 1 {
                self.times(rows.len(), || format!("outbox: {}", say(told)));
            }
            rare += if *right == Right::Rare { rows.len() } else { 0 };
            for row in rows {
                let ended = row.status.as_str();
                match (never, ended) {
                    (true, "cancelled") => {}
                    (true, _) => {
                        let what =
                            format!("{} was called off in time and ended {ended}", say(told));
                        self.add(Kind::Wrong, what);
                    }
                    (false, "sent") => {
                        sent.insert(told, row);
                        let delivered = usize::try_from(row.delivered).unwrap_or(0);
                        self.times(delivered, || format!("send_log: {}", say(told)));
                    }
                    (false, _) => self.add(Kind::Loss, format!("{} ended {ended}", say(told))),
                }
            }
        }
        let most = RARE.min(candidates);
        if rare != most {
            let kind = if rare < most { Kind::Loss } else { Kind::Wrong };
            let what = format!("{rare} told of a rule whose hour has room for {most}");
            self.add(kind, what);
        }
        for (told, rows) in by {
            let cools = RULES.iter().any(|r| r.id == told.rule && r.cooldown_s > 0);
            let (kind, why) = if cools && plan.firings.contains_key(&told.key) {
                (Kind::Double, "decided inside its cooldown")
            } else {
                (Kind::Wrong, "may not be told at all")
            };
            let what = format!("outbox: {} {why}, {} rows", say(told), rows.len());
            self.add(kind, what);
        }
        sent
    }

    fn inboxes(&mut self, sent: &Sent<'a>) {
        let mut notes: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for note in &self.seen.inbox {
            *notes
                .entry((note.user.as_str(), note.key.as_str()))
                .or_default() += 1;
        }
        for told in of(sent, "inapp") {
            let n = notes
                .remove(&(told.user.as_str(), told.key.as_str()))
                .unwrap_or(0);
            self.times(n, || format!("inbox: {}", say(told)));
        }
        for ((user, key), n) in notes {
            self.add(
                Kind::Wrong,
                format!("inbox: {user} has {n} of {key}, which nobody sent them"),
            );
        }
    }

    fn letters(&mut self, sent: &Sent<'a>) {
        let mut came: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
        for letter in &self.seen.letters {
            let ids = came
                .entry((letter.user.as_str(), letter.key.as_str()))
                .or_default();
            ids.insert(&letter.id);
        }
        for told in of(sent, "email") {
            let ids = came
                .remove(&(told.user.as_str(), told.key.as_str()))
                .unwrap_or_default();
            // The same Message-ID may come again; another one is another mail.
            self.times(ids.len(), || format!("mail: {} under {ids:?}", say(told)));
            let own = sent.get(told).map(|row| row.id.simple().to_string());
            let own = own.unwrap_or_default();
            if ids.iter().any(|id| !id.contains(&own)) {
                let what = format!("mail: {} came under {ids:?} instead of {own}", say(told));
                self.add(Kind::Wrong, what);
            }
        }
        for (user, key) in came.into_keys() {
            self.add(
                Kind::Wrong,
                format!("mail: {user} was sent {key}, and nobody may"),
            );
        }
    }

    fn wakes(&mut self, sent: &Sent<'a>) {
        let note = |told: &Told| {
            let mut all = self.seen.inbox.iter();
            let found = all.find(|n| n.user == told.user && n.key == told.key);
            found.map(|n| n.id)
        };
        let mut came: BTreeSet<(&str, Option<i64>)> = BTreeSet::new();
        for wake in &self.seen.wakes {
            came.insert((wake.user.as_str(), wake.note));
        }
        let mut missing = Vec::new();
        for told in of(sent, "push") {
            if !came.remove(&(told.user.as_str(), note(told))) {
                missing.push(format!("push: {}", say(told)));
            }
        }
        for what in missing {
            self.add(Kind::Loss, what);
        }
        for (user, note) in came {
            self.add(
                Kind::Wrong,
                format!("push: {user} was woken for {note:?}, and nobody may"),
            );
        }
    }
}

fn of<'a>(sent: &Sent<'a>, channel: &str) -> Vec<&'a Told> {
    let all = sent.keys().copied();
    all.filter(|told| told.channel == channel).collect()
}

fn say(told: &Told) -> String {
    format!(
        "{} to {} by {} of {}",
        told.channel, told.user, told.rule, told.key
    )
}

#[cfg(test)]
mod tests;
