//! Rosters: who stands on a list that frames keep, and what a frame's change of it means. Pure.

use crate::modules::RosterChange;
use crate::modules::field::{Fields, Path, as_key};
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

/// What a frame does to a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// These are all.
    Replace(Members),
    /// One more.
    Add(Member),
    /// One less, by slot.
    Remove(Box<str>),
    /// The seat is this account's, and nobody else's; None: nobody's.
    Seat(Box<str>, Option<Box<str>>),
    /// Nobody is left: the list is gone.
    Clear,
}

/// What became of a list.
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
            let of = |entry: &Value| member(entry, account, slot.as_ref(), long);
            Some(Change::Replace(all.iter().filter_map(of).collect()))
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
            Some(Change::Seat(key.into(), name(fields.field(account), long)))
        }
        RosterChange::Clear => Some(Change::Clear),
    }
}

/// A member of a list that is told whole. One without an account cannot be told anything, and is none.
fn member(entry: &Value, account: &Path, slot: Option<&Path>, long: &mut u64) -> Option<Member> {
    let account = name(account.get(entry), long)?;
    let slot = match slot {
        Some(path) => name(path.get(entry), long)?,
        None => account.clone(),
    };
    Some((slot, account))
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
            for (slot, account) in list.iter() {
                if all.get(slot) != Some(account) {
                    moved.left.push((slot.clone(), account.clone()));
                }
            }
            for (slot, account) in all {
                if list.get(slot) != Some(account) {
                    moved.joined.push((slot.clone(), account.clone()));
                }
            }
            list.clone_from(all);
        }
        Change::Add((slot, account)) => seat(list, slot, Some(&**account), &mut moved),
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
    use proptest::prelude::*;

    fn member() -> impl Strategy<Value = Member> {
        ("[a-d]", "[x-z]").prop_map(|(slot, account)| (slot.into(), account.into()))
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            prop::collection::vec(member(), 0..4)
                .prop_map(|all| Change::Replace(all.into_iter().collect())),
            member().prop_map(Change::Add),
            "[a-d]".prop_map(|slot| Change::Remove(slot.into())),
            ("[a-d]", prop::option::of("[x-z]"))
                .prop_map(|(slot, account)| Change::Seat(slot.into(), account.map(Into::into))),
            Just(Change::Clear),
        ]
    }

    proptest! {
        /// Whatever is done to it: what was there, less who left, and who joined, is what is there.
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
                prop_assert_eq!(&list, &want);
                prop_assert_eq!(moved.cleared, change == Change::Clear);
                prop_assert!(!moved.cleared || list.is_empty());
            }
        }
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
        let kept: Members = [(Box::from(most.as_str()), Box::from("ann"))].into();
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
