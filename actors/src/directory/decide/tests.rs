use super::{Asked, Draft, Refused, settle, settle_one};
use crate::directory::state::{Stamp, State, live_user};
use crate::runtime::vertical::Effects;
use millrace_schemas::channel::Mode;
use millrace_schemas::directory::{Change, DirectoryRecord, UserStatus};
use millrace_schemas::ids::RecordId;
use millrace_schemas::outcome::{Outcome, reason};
use millrace_schemas::time::Micros;
use proptest::prelude::*;

const WS: i32 = 1;

fn asked(at: i64, offset: i64, record: DirectoryRecord) -> Asked {
    let id = RecordId {
        topic_no: 7,
        partition: 0,
        offset,
    };
    Asked {
        id,
        stamp: Stamp::of(id, Micros(at)),
        record: DirectoryRecord {
            ws: WS,
            accepted_at: Micros(at),
            ..record
        },
    }
}

fn user(id: &str, email: Option<&str>) -> DirectoryRecord {
    DirectoryRecord {
        user: id.to_owned(),
        email: email.map(str::to_owned),
        ..DirectoryRecord::default()
    }
}

fn account(change: Change, user: &str) -> DirectoryRecord {
    let some = |text: &str| Some(text.to_owned());
    DirectoryRecord {
        change,
        user: user.to_owned(),
        module: some("m"),
        shard: some("s"),
        account: some("1"),
        ..DirectoryRecord::default()
    }
}

/// A state that folds these addresses as the store would.
fn folding(emails: &[&str]) -> State {
    let mut state = State::default();
    state.workspaces.insert(WS);
    for email in emails {
        state
            .folding
            .insert((WS, (*email).to_owned()), email.to_lowercase());
    }
    state
}

fn key(id: &str) -> (i32, String) {
    (WS, id.to_owned())
}

#[test]
fn the_newer_user_stands_whatever_came_first() {
    let mut state = folding(&["a@x.com", "b@x.com"]);
    let newer = asked(5, 9, user("u", Some("b@x.com")));
    let older = asked(5, 8, user("u", Some("a@x.com")));
    assert_eq!(settle_one(&mut state, &newer), Ok(()));
    assert_eq!(settle_one(&mut state, &older), Err(Refused::Older));
    assert_eq!(settle_one(&mut state, &newer), Err(Refused::Known));
    let stands = &state.users[&key("u")];
    assert_eq!(stands.folded.as_deref(), Some("b@x.com"));
    assert!(!stands.gives_up, "it had none in the store");
}

#[test]
fn an_address_is_one_users_case_folded_and_accents_kept() {
    let mut state = folding(&[
        "Foo@x.com",
        "foo@X.com",
        "josé@x.com",
        "JOSÉ@x.com",
        "jose@x.com",
    ]);
    let taken = Err(Refused::Rejected(reason::EMAIL_TAKEN));
    for (n, (id, email, want)) in [
        ("a", "Foo@x.com", Ok(())),
        ("b", "foo@X.com", taken),
        ("c", "josé@x.com", Ok(())),
        ("d", "jose@x.com", Ok(())),
        ("e", "JOSÉ@x.com", taken),
        // One's own, written otherwise.
        ("a", "foo@X.com", Ok(())),
    ]
    .into_iter()
    .enumerate()
    {
        let n = i64::try_from(n).unwrap();
        assert_eq!(
            settle_one(&mut state, &asked(n, n, user(id, Some(email)))),
            want,
            "{id} {email}"
        );
    }
    assert!(!state.users.contains_key(&key("b")), "refused whole");
    // Given up, or of somebody deleted, it is free.
    assert_eq!(
        settle_one(&mut state, &asked(10, 10, user("c", None))),
        Ok(())
    );
    assert_eq!(
        settle_one(&mut state, &asked(11, 11, user("e", Some("JOSÉ@x.com")))),
        Ok(())
    );
    let gone = DirectoryRecord {
        status: UserStatus::Deleted,
        ..user("a", Some("Foo@x.com"))
    };
    assert_eq!(settle_one(&mut state, &asked(12, 12, gone)), Ok(()));
    assert_eq!(state.users[&key("a")].said.as_ref().unwrap().email, None);
    assert_eq!(
        settle_one(&mut state, &asked(13, 13, user("b", Some("Foo@x.com")))),
        Ok(())
    );
}

#[test]
fn a_login_never_goes_back_and_never_ahead_of_its_acceptance() {
    let mut state = folding(&[]);
    let login = |at: i64, offset: i64, said: i64| {
        let record = DirectoryRecord {
            change: Change::Login,
            at: Some(Micros(said)),
            ..user("u", None)
        };
        asked(at, offset, record)
    };
    assert_eq!(
        settle_one(&mut state, &login(1, 0, 1)),
        Err(Refused::Rejected(reason::USER_UNKNOWN))
    );
    assert_eq!(
        settle_one(&mut state, &asked(2, 1, user("u", None))),
        Ok(())
    );
    assert_eq!(settle_one(&mut state, &login(10, 2, 99)), Ok(()));
    assert_eq!(state.users[&key("u")].last_login, Some(Micros(10)));
    assert_eq!(
        settle_one(&mut state, &login(11, 3, 4)),
        Err(Refused::Older)
    );
    assert_eq!(
        settle_one(&mut state, &login(12, 4, 10)),
        Err(Refused::Known)
    );
    // A later user record keeps it.
    assert_eq!(
        settle_one(&mut state, &asked(13, 5, user("u", None))),
        Ok(())
    );
    assert_eq!(state.users[&key("u")].last_login, Some(Micros(10)));
}

#[test]
fn outcomes_are_counted_and_refusals_kept() {
    let mut draft = Draft {
        state: folding(&[]),
        ..Draft::default()
    };
    let mut effects = Effects::default();
    let mute = DirectoryRecord {
        change: Change::Preference,
        channel: Some("email".to_owned()),
        mode: Some(Mode::Off),
        ..user("u", None)
    };
    let elsewhere = Asked {
        record: DirectoryRecord {
            ws: 9,
            ..mute.clone()
        },
        ..asked(1, 3, mute.clone())
    };
    draft.asked = vec![
        asked(1, 0, mute.clone()),
        asked(1, 0, mute.clone()),
        asked(0, 1, mute),
        elsewhere,
    ];
    settle(&mut draft, &mut effects);
    let counted: Vec<_> = effects
        .tally
        .changes()
        .map(|(_, _, o, r, n)| (o, r.to_owned(), n))
        .collect();
    assert_eq!(
        counted,
        [
            (Outcome::Applied, String::new(), 1),
            (Outcome::Duplicate, String::new(), 1),
            (Outcome::Duplicate, reason::SUPERSEDED.to_owned(), 1),
            (Outcome::Rejected, reason::WORKSPACE_UNKNOWN.to_owned(), 1),
        ]
    );
    assert_eq!(draft.rejects.len(), 1);
    assert!(draft.asked.is_empty());
}

/// Who has the account and who is remembered, after these events in this order.
fn ends(events: &[Asked]) -> (Option<String>, Vec<String>) {
    let mut state = folding(&[]);
    for event in events {
        let _ = settle_one(&mut state, event);
    }
    let pairs = state.accounts.into_values().next().unwrap_or_default();
    let live: Vec<&String> = pairs
        .iter()
        .filter(|(_, p)| p.live)
        .map(|(u, _)| u)
        .collect();
    assert!(live.len() <= 1, "two have it: {live:?}");
    assert_eq!(live_user(&pairs), live.first().map(|u| u.as_str()));
    (
        live.first().map(|u| (*u).clone()),
        pairs.keys().cloned().collect(),
    )
}

#[test]
fn an_unlink_leaves_a_tombstone_in_either_order() {
    let link = asked(1, 0, account(Change::Link, "a"));
    let unlink = asked(2, 1, account(Change::Unlink, "a"));
    let a = vec!["a".to_owned()];
    assert_eq!(
        ends(std::slice::from_ref(&link)),
        (Some("a".to_owned()), a.clone())
    );
    assert_eq!(ends(&[link.clone(), unlink.clone()]), (None, a.clone()));
    assert_eq!(ends(&[unlink.clone(), link]), (None, a.clone()));
    // The same moment: the place in the log decides.
    let again = asked(2, 2, account(Change::Link, "a"));
    assert_eq!(
        ends(&[again.clone(), unlink.clone()]),
        (Some("a".to_owned()), a.clone())
    );
    assert_eq!(ends(&[unlink, again]), (Some("a".to_owned()), a));
}

#[test]
fn an_account_that_changed_hands_does_not_come_back() {
    let events = [
        asked(1, 0, account(Change::Link, "a")),
        asked(2, 1, account(Change::Link, "b")),
        asked(3, 2, account(Change::Unlink, "b")),
    ];
    assert_eq!(ends(&events[..2]).0.as_deref(), Some("b"));
    assert_eq!(ends(&events).0, None);
    // Another's late unlink ends nothing.
    let late = asked(9, 3, account(Change::Unlink, "a"));
    assert_eq!(
        ends(&[events[0].clone(), events[1].clone(), late])
            .0
            .as_deref(),
        Some("b")
    );
}

proptest! {
    /// Links and unlinks of three users end alike in every order, told twice or once.
    #[test]
    fn every_order_ends_alike(
        told in proptest::collection::vec((0..4i64, 0..3usize, proptest::bool::ANY), 1..7),
        shuffled in any::<u64>(),
    ) {
        let events: Vec<Asked> = told.iter().zip(0..).map(|((at, who, link), offset)| {
            let change = if *link { Change::Link } else { Change::Unlink };
            asked(*at, offset, account(change, ["a", "b", "c"][*who]))
        }).collect();
        let want = ends(&events);
        let mut other = events.clone();
        other.extend(events.iter().take(2).cloned());
        let mut seed = shuffled;
        for i in (1..other.len()).rev() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            other.swap(i, usize::try_from(seed >> 33).unwrap() % (i + 1));
        }
        prop_assert_eq!(ends(&other), want);
    }
}
