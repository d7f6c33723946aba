//! Rosters: who stands on a list that frames keep, and what a frame's change of it means. Pure.

use crate::modules::RosterChange;
use crate::modules::field::{Fields, as_key};
use millrace_schemas::directory::LONGEST;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One list: a roster of a module, on one shard, for one value of its parameter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListKey {
    /// The workspace's number.
    pub workspace: i32,
    /// The module's id.
    pub module: Arc<str>,
    /// The roster's id.
    pub roster: Arc<str>,
    /// The shard's id.
    pub shard: Arc<str>,
    /// The parameter's value; empty where the roster has none.
    pub param: Arc<str>,
}

/// Who stands on a list: accounts by slot. A slot is the account itself, or what a member is known by, or a seat.
pub type Members = BTreeMap<Box<str>, Box<str>>;

/// A member by slot and account.
pub type Member = (Box<str>, Box<str>);

/// What a frame's list says: accounts by slot, where it names them.
pub type Listed = BTreeMap<Box<str>, Option<Box<str>>>;

/// What a frame does to a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// These are all. A slot whose account the frame does not name keeps the one that is known.
    Replace(Listed),
    /// One more.
    Add(Member),
    /// One less, by slot.
    Remove(Box<str>),
    /// The seat is this account's, and nobody else's; None: nobody's.
    Seat(Box<str>, Option<Box<str>>),
    /// Nobody is left: the list is gone.
    Clear,
}

/// What became of a list. Who joins and leaves a list goes by slot: that a slot has another account by now is neither. A seat's
/// account is who holds it, and another one has left it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moved {
    /// Who is on it and was not.
    pub joined: Vec<Member>,
    /// Who was on it and is not.
    pub left: Vec<Member>,
    /// It was cleared, whoever was on it.
    pub cleared: bool,
}

/// What a frame does to a roster, by the roster's own declaration; None: the frame does not speak of it.
///
/// A slot or account of more than [`LONGEST`] bytes stands on no list, and is counted in `long`: no account of that length can be
/// linked to anybody, and a slot stands in the index of the lists, which takes no text of any length.
#[must_use]
pub fn change_of(
    change: &RosterChange,
    key: &str,
    fields: &impl Fields,
    long: &mut u64,
) -> Option<Change> {
    match change {
        RosterChange::Replace {
            members,
            account,
            slot,
        } => {
            let Some(Value::Array(all)) = fields.field(members) else {
                return None;
            };
            let mut listed = Listed::new();
            for entry in all {
                let account = name(account.get(entry), long);
                let slot = match slot {
                    Some(path) => name(path.get(entry), long),
                    None => account.clone(),
                };
                let Some(slot) = slot else {
                    continue;
                };
                let held = listed.entry(slot).or_default();
                if account.is_some() {
                    *held = account;
                }
            }
            Some(Change::Replace(listed))
        }
        RosterChange::Add { account, slot } => {
            let account = name(fields.field(account), long)?;
            let slot = match slot {
                Some(path) => name(fields.field(path), long)?,
                None => account.clone(),
            };
            Some(Change::Add((slot, account)))
        }
        RosterChange::Remove { slot } => name(fields.field(slot), long).map(Change::Remove),
        RosterChange::Seat { account } => {
            // A frame that says nothing of the seat leaves it as it is; one that says null empties it.
            fields.said(account)?;
            Some(Change::Seat(key.into(), name(fields.field(account), long)))
        }
        RosterChange::Clear => Some(Change::Clear),
    }
}

fn name(value: Option<&Value>, long: &mut u64) -> Option<Box<str>> {
    let text = value.and_then(as_key)?;
    if text.len() > LONGEST {
        *long += 1;
        return None;
    }
    Some(Box::from(&*text))
}

/// Changes a list.
pub fn apply(list: &mut Members, change: &Change) -> Moved {
    let mut moved = Moved::default();
    match change {
        Change::Replace(all) => {
            list.retain(|slot, account| {
                let stays = all.contains_key(slot);
                if !stays {
                    moved.left.push((slot.clone(), account.clone()));
                }
                stays
            });
            for (slot, account) in all {
                // Who has no account that is known cannot be told anything, and is no member yet.
                if let Some(account) = account {
                    add(list, slot, account, &mut moved);
                }
            }
        }
        Change::Add((slot, account)) => add(list, slot, account, &mut moved),
        Change::Remove(slot) => {
            if let Some((slot, account)) = list.remove_entry(slot) {
                moved.left.push((slot, account));
            }
        }
        Change::Seat(slot, account) => seat(list, slot, account.as_deref(), &mut moved),
        Change::Clear => {
            moved.left = std::mem::take(list).into_iter().collect();
            moved.cleared = true;
        }
    }
    moved
}

fn add(list: &mut Members, slot: &str, account: &str, moved: &mut Moved) {
    if list.insert(slot.into(), account.into()).is_none() {
        moved.joined.push((slot.into(), account.into()));
    }
}

fn seat(list: &mut Members, slot: &str, account: Option<&str>, moved: &mut Moved) {
    let before = list.get(slot).map(|held| &**held);
    if before == account {
        return;
    }
    if let Some(before) = before {
        moved.left.push((slot.into(), before.into()));
    }
    match account {
        Some(account) => {
            list.insert(slot.into(), account.into());
            moved.joined.push((slot.into(), account.into()));
        }
        None => {
            list.remove(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::field::Path;
    use proptest::prelude::*;

    fn member() -> impl Strategy<Value = Member> {
        ("[a-d]", "[x-z]").prop_map(|(slot, account)| (slot.into(), account.into()))
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            prop::collection::vec(("[a-d]", prop::option::of("[x-z]")), 0..4).prop_map(|all| {
                let listed =
                    |(slot, account): (String, Option<String>)| -> (Box<str>, Option<Box<str>>) {
                        (slot.into(), account.map(Into::into))
                    };
                Change::Replace(all.into_iter().map(listed).collect())
            }),
            member().prop_map(Change::Add),
            "[a-d]".prop_map(|slot| Change::Remove(slot.into())),
            ("[a-d]", prop::option::of("[x-z]"))
                .prop_map(|(slot, account)| Change::Seat(slot.into(), account.map(Into::into))),
            Just(Change::Clear),
        ]
    }

    proptest! {
        /// Whatever is done to it: the slots that were there, less those that left, and those that joined, are there; a seat's
        /// account is who was told of.
        #[test]
        fn who_left_and_who_joined_is_all_that_happened(changes in prop::collection::vec(change(), 0..12)) {
            let mut list = Members::new();
            for change in changes {
                let before = list.clone();
                let moved = apply(&mut list, &change);
                let mut want = before;
                for (slot, account) in &moved.left {
                    prop_assert_eq!(want.remove(slot), Some(account.clone()));
                }
                for (slot, account) in &moved.joined {
                    prop_assert_eq!(want.insert(slot.clone(), account.clone()), None);
                }
                prop_assert!(list.keys().eq(want.keys()));
                if matches!(change, Change::Seat(..)) {
                    prop_assert_eq!(&list, &want);
                }
                prop_assert_eq!(moved.cleared, change == Change::Clear);
                prop_assert!(!moved.cleared || list.is_empty());
            }
        }
    }

    #[test]
    fn nobody_leaves_whose_account_is_not_named_or_is_another_one() {
        let replace = RosterChange::Replace {
            members: Path::parse("members").unwrap(),
            account: Path::parse("acct").unwrap(),
            slot: Path::parse("serial"),
        };
        let mut list = Members::new();
        let mut take = |members: serde_json::Value| {
            let body = serde_json::json!({ "members": members });
            let moved = apply(&mut list, &change_of(&replace, "7", &body, &mut 0).unwrap());
            (moved, list.clone())
        };
        let (_, before) = take(serde_json::json!([
            {"serial": "1", "acct": "ann"}, {"serial": "2", "acct": "bob"}
        ]));
        let (moved, after) = take(serde_json::json!([
            {"serial": "1", "acct": null}, {"serial": "2"}, {"serial": "3", "acct": null}
        ]));
        assert_eq!((moved, &after), (Moved::default(), &before));
        let (moved, after) = take(serde_json::json!([
            {"serial": "1", "acct": "eve"}, {"serial": "2", "acct": null}
        ]));
        assert_eq!(moved, Moved::default());
        assert_eq!(after.get("1").map(|a| &**a), Some("eve"));
        let (moved, after) = take(serde_json::json!([{"serial": "1", "acct": null}]));
        let bob: Member = ("2".into(), "bob".into());
        assert_eq!(moved.left, vec![bob]);
        assert_eq!((moved.joined.len(), after.len()), (0, 1));
    }

    #[test]
    fn a_frame_that_does_not_speak_of_the_seat_leaves_it() {
        let seat = RosterChange::Seat {
            account: Path::parse("governor.acct").unwrap(),
        };
        let of = |body: serde_json::Value| change_of(&seat, "town", &body, &mut 0);
        let sits = |who: Option<&str>| Some(Change::Seat("town".into(), who.map(Into::into)));
        for silent in [
            serde_json::json!({"city": "town"}),
            serde_json::json!({"governor": {"name": "Ann"}}),
        ] {
            assert_eq!(of(silent), None);
        }
        for empty in [
            serde_json::json!({"governor": null}),
            serde_json::json!({"governor": {"acct": null}}),
        ] {
            assert_eq!(of(empty), sits(None));
        }
        let taken = serde_json::json!({"governor": {"acct": "ann"}});
        assert_eq!(of(taken), sits(Some("ann")));
    }

    #[test]
    fn a_seat_is_one_account_s() {
        let mut list = Members::new();
        let sit = |list: &mut Members, who: Option<&str>| {
            apply(list, &Change::Seat("town".into(), who.map(Into::into)))
        };
        assert_eq!(sit(&mut list, Some("ann")).joined.len(), 1);
        let moved = sit(&mut list, Some("bob"));
        assert_eq!(
            (moved.left.len(), moved.joined.len(), list.len()),
            (1, 1, 1)
        );
        assert_eq!(sit(&mut list, Some("bob")), Moved::default());
        assert_eq!(sit(&mut list, None).left.len(), 1);
        assert!(list.is_empty());
    }

    #[test]
    fn what_is_too_long_to_be_anybody_s_stands_on_no_list_and_is_counted() {
        let path = |text: &str| Path::parse(text).unwrap();
        let long = "x".repeat(LONGEST + 1);
        let most = "y".repeat(LONGEST);
        let whole = RosterChange::Replace {
            members: path("all"),
            account: path("acct"),
            slot: Some(path("serial")),
        };
        let body = serde_json::json!({"all": [
            {"acct": "ann", "serial": most},
            {"acct": "bob", "serial": long},
            {"acct": long, "serial": "0x1"},
            {"serial": "0x2"},
        ]});
        let mut n = 0;
        // Whose account is too long is listed as whose account nobody names.
        let kept: Listed = [
            (Box::from(most.as_str()), Some(Box::from("ann"))),
            (Box::from("0x1"), None),
            (Box::from("0x2"), None),
        ]
        .into();
        assert_eq!(
            change_of(&whole, "k", &body, &mut n),
            Some(Change::Replace(kept))
        );
        assert_eq!(n, 2);
        let body = serde_json::json!({"acct": "ann", "serial": long, "long": long});
        let (account, slot) = (path("acct"), path("serial"));
        for (change, wanted) in [
            (
                RosterChange::Add {
                    account,
                    slot: Some(slot.clone()),
                },
                None,
            ),
            (RosterChange::Remove { slot }, None),
            // Whoever sat there does no more.
            (
                RosterChange::Seat {
                    account: path("long"),
                },
                Some(Change::Seat("k".into(), None)),
            ),
        ] {
            assert_eq!(change_of(&change, "k", &body, &mut n), wanted);
        }
        assert_eq!(n, 5);
    }
}
