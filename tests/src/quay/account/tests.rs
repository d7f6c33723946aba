//! The account finds what differs, whatever it is, and nothing else.

use super::super::Size;
use super::super::seen::{Fired, Letter, Note, Wake};
use super::*;
use crate::generator::Rng;
use uuid::Uuid;

fn plan() -> Plan {
    let size = Size {
        storms: 40,
        ..Size::of(&[120, 60])
    };
    Plan::draw(&size, &mut Rng::new(7))
}

/// What a deployment without a fault makes of a plan: all firings in one partition, in the order of their names.
fn right(plan: &Plan) -> Seen {
    let mut seen = Seen::default();
    for (offset, key) in (0..).zip(plan.firings.keys()) {
        seen.noted.insert(key.clone(), 1);
        let fired = Fired {
            ids: BTreeSet::from([key.clone()]),
            at: (0, offset),
        };
        seen.fired.insert(key.clone(), fired);
    }
    // `quay.storm.passed` comes before `quay.storm.seen`: nothing is called off but what the test calls off.
    let mut rare = 0;
    for (told, right) in &plan.told {
        rare += usize::from(*right == Right::Rare);
        if *right == Right::Rare && rare > RARE {
            continue;
        }
        let id = Uuid::from_u128(seen.rows.len() as u128 + 1);
        tell(&mut seen, told, id);
    }
    // Pushes refer to rows of inboxes, which are told of after them here.
    let pushed: Vec<Told> = seen.rows.iter().map(|r| r.told.clone()).collect();
    for told in pushed.iter().filter(|t| t.channel == "push") {
        let found = seen
            .inbox
            .iter()
            .find(|n| n.user == told.user && n.key == told.key);
        seen.wakes.push(Wake {
            user: told.user.clone(),
            note: found.map(|n| n.id),
        });
    }
    seen
}

fn tell(seen: &mut Seen, told: &Told, id: Uuid) {
    seen.rows.push(Row {
        told: told.clone(),
        status: "sent".to_owned(),
        id,
        delivered: 1,
    });
    match told.channel.as_str() {
        "inapp" => seen.inbox.push(Note {
            id: seen.inbox.len() as i64,
            user: told.user.clone(),
            key: told.key.clone(),
        }),
        "email" => seen.letters.push(Letter {
            user: told.user.clone(),
            key: told.key.clone(),
            id: format!("<{}@quay.example>", id.simple()),
        }),
        _ => {}
    }
}

fn at(seen: &Seen, rule: &str, channel: &str) -> usize {
    let found = seen
        .rows
        .iter()
        .position(|r| r.told.rule == rule && r.told.channel == channel);
    found.expect("a row")
}

/// Findings of a deployment that differs from the right one.
fn after(change: impl FnOnce(&Plan, &mut Seen)) -> Vec<(Kind, String)> {
    let plan = plan();
    let mut seen = right(&plan);
    change(&plan, &mut seen);
    let found = account(&plan, &seen).into_iter();
    found.map(|f| (f.kind, f.what)).collect()
}

fn kinds(found: &[(Kind, String)]) -> Vec<Kind> {
    found.iter().map(|(kind, _)| *kind).collect()
}

#[test]
fn a_right_one_balances() {
    assert!(after(|_, _| {}).is_empty());
    // Every promise is there to be broken.
    let plan = plan();
    for rule in RULES
        .iter()
        .filter(|r| r.id != "qr_wide" && r.id != "qr_tolled")
    {
        for channel in rule.channels {
            let mut all = plan.told.keys();
            let there = all.any(|t| t.rule == rule.id && t.channel == *channel);
            assert!(there, "{} {channel}", rule.id);
        }
    }
    assert!(!plan.passed.is_empty());
    let rare = plan.told.values().filter(|r| **r == Right::Rare).count();
    assert!(rare > RARE, "{rare}");
}

#[test]
fn what_is_lost_is_missed() {
    for (rule, channel, what) in [
        ("qr_rung", "email", vec![Kind::Loss, Kind::Wrong]),
        ("qr_first", "email", vec![Kind::Loss, Kind::Wrong]),
        ("qr_fire", "inapp", vec![Kind::Loss, Kind::Wrong]),
        ("qr_rung", "push", vec![Kind::Loss, Kind::Wrong]),
        ("qr_storm", "email", vec![Kind::Loss, Kind::Wrong]),
        ("qr_rare", "inapp", vec![Kind::Loss, Kind::Wrong]),
    ] {
        let found = after(|_, seen| {
            let at = at(seen, rule, channel);
            seen.rows.remove(at);
        });
        assert_eq!(kinds(&found), what, "{rule} {channel}: {found:?}");
    }
    // The store says sent, and nobody has got it.
    let found = after(|_, seen| drop(seen.letters.pop()));
    assert_eq!(kinds(&found), [Kind::Loss], "{found:?}");
    let found = after(|_, seen| drop(seen.wakes.pop()));
    assert_eq!(kinds(&found), [Kind::Loss], "{found:?}");
    let found = after(|_, seen| {
        let at = seen.inbox.iter().position(|n| n.key.contains("fire"));
        seen.inbox.remove(at.expect("a fire"));
    });
    assert_eq!(kinds(&found), [Kind::Loss], "{found:?}");
    // A firing on its way, and one that came and was not noted.
    let found = after(|plan, seen| {
        let key = plan.passed.keys().next().expect("one");
        seen.fired.remove(key);
        seen.noted.remove(key);
    });
    assert_eq!(kinds(&found), [Kind::Loss, Kind::Loss], "{found:?}");
    let found = after(|_, seen| {
        let row = seen.rows.first_mut().expect("a row");
        row.status = "failed".to_owned();
    });
    assert!(kinds(&found).contains(&Kind::Loss), "{found:?}");
}

#[test]
fn what_comes_twice_is_noticed() {
    let found = after(|_, seen| {
        let row = seen.rows[at(seen, "qr_rung", "email")].clone();
        seen.rows.push(row);
    });
    assert_eq!(kinds(&found), [Kind::Double], "{found:?}");
    // Another Message-ID is another mail; the same one may come again.
    let found = after(|_, seen| {
        let mut letter = seen.letters[0].clone();
        seen.letters.push(letter.clone());
        letter.id = "<another@quay.example>".to_owned();
        seen.letters.push(letter);
    });
    assert_eq!(kinds(&found), [Kind::Double, Kind::Wrong], "{found:?}");
    let found = after(|_, seen| {
        let letter = seen.letters[0].clone();
        seen.letters.push(letter);
    });
    assert!(found.is_empty(), "{found:?}");
    let found = after(|_, seen| {
        let mut note = seen.inbox[0].clone();
        note.id = 99_999;
        seen.inbox.push(note);
    });
    assert_eq!(kinds(&found), [Kind::Double], "{found:?}");
    // The same bell again, by the rule that cools down.
    let found = after(|plan, seen| {
        let first = seen.rows[at(seen, "qr_first", "email")].told.clone();
        let again = plan.firings.keys().find(|k| {
            k.starts_with("quay.bell.first")
                && plan
                    .told
                    .keys()
                    .all(|t| t.rule != "qr_first" || t.key != **k)
        });
        let key = again.expect("a bell rung again").clone();
        tell(seen, &Told { key, ..first }, Uuid::from_u128(77_777));
    });
    assert_eq!(kinds(&found), [Kind::Double, Kind::Wrong], "{found:?}");
    let found = after(|_, seen| {
        let one = seen.fired.values_mut().next().expect("a firing");
        one.ids.insert("another".to_owned());
    });
    assert_eq!(kinds(&found), [Kind::Double], "{found:?}");
    let found = after(|_, seen| *seen.noted.values_mut().next().expect("a firing") = 2);
    assert_eq!(kinds(&found), [Kind::Double], "{found:?}");
}

#[test]
fn what_may_not_be_told_is_named() {
    // Outside its ceiling: the wide rule, and a player who hears of a fire.
    for (rule, of) in [("qr_wide", "quay.bell.rung"), ("qr_fire", "quay.fire.seen")] {
        let found = after(|plan, seen| {
            let key = plan.firings.keys().find(|k| k.starts_with(of));
            let told = Told {
                rule: rule.to_owned(),
                channel: "email".to_owned(),
                user: "u9".to_owned(),
                key: key.expect("one").clone(),
            };
            tell(seen, &told, Uuid::from_u128(88_888));
        });
        assert_eq!(kinds(&found), [Kind::Wrong, Kind::Wrong], "{found:?}");
    }
    // Called off in time, and sent all the same; or not.
    let call_off = |plan: &Plan, seen: &mut Seen, status: &str| {
        let mailed = plan.told.iter().filter(|(told, _)| told.channel == "email");
        let of = mailed.filter_map(|(_, right)| match right {
            Right::UnlessCalledOff { storm } => Some(storm),
            _ => None,
        });
        let of: Vec<&String> = of.collect();
        let passed = plan.passed.iter().find(|(_, storm)| of.contains(storm));
        let (key, storm) = passed.expect("a storm that was seen and has passed");
        let late = seen.fired.len() as i64 + 1;
        seen.fired.get_mut(key).expect("it fired").at = (0, late);
        let mut off = Vec::new();
        for row in &mut seen.rows {
            let right = plan.told.get(&row.told);
            if matches!(right, Some(Right::UnlessCalledOff { storm: of }) if of == storm) {
                row.status = status.to_owned();
                off.push((row.told.user.clone(), row.told.key.clone()));
            }
        }
        if status == "cancelled" {
            seen.inbox
                .retain(|n| !off.contains(&(n.user.clone(), n.key.clone())));
            seen.letters
                .retain(|n| !off.contains(&(n.user.clone(), n.key.clone())));
        }
    };
    let found = after(|plan, seen| call_off(plan, seen, "cancelled"));
    assert!(found.is_empty(), "{found:?}");
    let found = after(|plan, seen| call_off(plan, seen, "sent"));
    assert!(
        found.len() >= 4 && kinds(&found).iter().all(|k| *k == Kind::Wrong),
        "{found:?}"
    );
    // More than the hour has room for.
    let found = after(|plan, seen| {
        let more = plan
            .told
            .iter()
            .find(|(t, r)| **r == Right::Rare && seen.rows.iter().all(|row| row.told != **t));
        let told = more.expect("one held back").0.clone();
        tell(seen, &told, Uuid::from_u128(99_999));
    });
    assert_eq!(kinds(&found), [Kind::Wrong], "{found:?}");
    // A device woken of nothing.
    let found = after(|_, seen| {
        seen.wakes.push(Wake {
            user: "u1".to_owned(),
            note: None,
        });
    });
    assert_eq!(kinds(&found), [Kind::Wrong], "{found:?}");
}
