//! Whom an event may be told to at most: a tree of sets of people, compared by containment and never by size.
//!
//! ```text
//! everyone                    anyone at all, signed in or not
//! └── authenticated           any user who is signed in
//!     ├── subscribers         users who opted into this id
//!     ├── members             the list that the event or its module names
//!     ├── staff               admins, editors, moderators
//!     │   └── admin           admins alone
//!     └── owner               the one user whom the event is about
//! ```
//!
//! The branches under `authenticated` are incomparable on purpose: an owner need not have subscribed, staff are no members.
//! Fewer people is not less exposure; under an order by size a warning meant for staff could be sent to whom it warns of.

use serde::{Deserialize, Serialize};

/// A set of people, widest first.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Ceiling {
    /// Anyone, signed in or not.
    Everyone,
    /// Any active user.
    Authenticated,
    /// Users with a stored preference for the id that is not off.
    Subscribers,
    /// The list that travels with the event, or a list that a module declares.
    Members,
    /// Admins, editors, moderators.
    Staff,
    /// Admins alone: the one true refinement among the leaves, since every admin is staff.
    Admin,
    /// The one user whom the event is about.
    Owner,
}

/// Two ceilings of which neither contains the other: they have no common bound, and what needs one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` and `{1}` are incomparable: neither contains the other, so there is no ceiling for both"
)]
pub struct Incomparable(pub Ceiling, pub Ceiling);

impl Ceiling {
    /// Every ceiling, widest first.
    pub const ALL: [Ceiling; 7] = [
        Ceiling::Everyone,
        Ceiling::Authenticated,
        Ceiling::Subscribers,
        Ceiling::Members,
        Ceiling::Staff,
        Ceiling::Admin,
        Ceiling::Owner,
    ];

    /// The next wider set; `None` for the widest.
    #[must_use]
    pub const fn parent(self) -> Option<Ceiling> {
        match self {
            Ceiling::Everyone => None,
            Ceiling::Authenticated => Some(Ceiling::Everyone),
            Ceiling::Subscribers | Ceiling::Members | Ceiling::Staff | Ceiling::Owner => {
                Some(Ceiling::Authenticated)
            }
            Ceiling::Admin => Some(Ceiling::Staff),
        }
    }

    /// Whether everybody whom `candidate` can reach is within this ceiling: walk up from `candidate` and see whether this is met.
    #[must_use]
    pub fn permits(self, candidate: Ceiling) -> bool {
        let mut at = Some(candidate);
        while let Some(ceiling) = at {
            if ceiling == self {
                return true;
            }
            at = ceiling.parent();
        }
        false
    }

    /// The narrower of two.
    ///
    /// # Errors
    /// Neither contains the other.
    pub fn meet(self, other: Ceiling) -> Result<Ceiling, Incomparable> {
        if self.permits(other) {
            Ok(other)
        } else if other.permits(self) {
            Ok(self)
        } else {
            Err(Incomparable(self, other))
        }
    }

    /// The narrowest of all. Nothing has no bound: `None`, which is not `everyone`.
    ///
    /// # Errors
    /// Two of them are incomparable.
    pub fn meet_all(
        ceilings: impl IntoIterator<Item = Ceiling>,
    ) -> Result<Option<Ceiling>, Incomparable> {
        let mut narrowest: Option<Ceiling> = None;
        for ceiling in ceilings {
            narrowest = Some(match narrowest {
                Some(so_far) => so_far.meet(ceiling)?,
                None => ceiling,
            });
        }
        Ok(narrowest)
    }

    /// Its word on the wire, in manifests and in tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Ceiling::Everyone => "everyone",
            Ceiling::Authenticated => "authenticated",
            Ceiling::Subscribers => "subscribers",
            Ceiling::Members => "members",
            Ceiling::Staff => "staff",
            Ceiling::Admin => "admin",
            Ceiling::Owner => "owner",
        }
    }

    /// The ceiling of that word; `None` for any other, which permits nothing and is permitted by nothing.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Ceiling> {
        Ceiling::ALL.into_iter().find(|c| c.word() == word)
    }
}

impl std::fmt::Display for Ceiling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::{Ceiling, Incomparable};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A small world: who each ceiling lets through. Containment of these sets is what `permits` must say.
    fn people(ceiling: Ceiling) -> BTreeSet<&'static str> {
        let of = |names: &[&'static str]| names.iter().copied().collect();
        match ceiling {
            Ceiling::Everyone => of(&[
                "guest",
                "plain",
                "subscriber",
                "member",
                "editor",
                "admin",
                "owner",
            ]),
            Ceiling::Authenticated => {
                of(&["plain", "subscriber", "member", "editor", "admin", "owner"])
            }
            Ceiling::Subscribers => of(&["subscriber"]),
            Ceiling::Members => of(&["member"]),
            Ceiling::Staff => of(&["editor", "admin"]),
            Ceiling::Admin => of(&["admin"]),
            Ceiling::Owner => of(&["owner"]),
        }
    }

    fn any() -> impl Strategy<Value = Ceiling> {
        proptest::sample::select(Ceiling::ALL.to_vec())
    }

    #[test]
    fn fewer_people_are_not_less_exposure() {
        assert!(!Ceiling::Staff.permits(Ceiling::Owner));
        assert!(!Ceiling::Members.permits(Ceiling::Owner));
        assert!(!Ceiling::Admin.permits(Ceiling::Staff));
        assert!(Ceiling::Staff.permits(Ceiling::Admin));
        assert_eq!(
            Ceiling::Owner.meet(Ceiling::Staff),
            Err(Incomparable(Ceiling::Owner, Ceiling::Staff))
        );
        assert_eq!(Ceiling::meet_all([]), Ok(None));
    }

    proptest! {
        #[test]
        fn permits_is_containment(a in any(), b in any()) {
            prop_assert_eq!(a.permits(b), people(b).is_subset(&people(a)));
        }

        #[test]
        fn permits_is_a_partial_order(a in any(), b in any(), c in any()) {
            prop_assert!(a.permits(a));
            prop_assert!(!(a.permits(b) && b.permits(a)) || a == b);
            prop_assert!(!(a.permits(b) && b.permits(c)) || a.permits(c));
        }

        #[test]
        fn meet_is_the_greatest_lower_bound_or_refused(a in any(), b in any()) {
            match a.meet(b) {
                Ok(m) => {
                    prop_assert!(a.permits(m) && b.permits(m));
                    for other in Ceiling::ALL {
                        prop_assert!(!(a.permits(other) && b.permits(other)) || m.permits(other));
                    }
                }
                Err(_) => prop_assert!(!Ceiling::ALL.iter().any(|c| a.permits(*c) && b.permits(*c))),
            }
            prop_assert_eq!(a.meet(b).ok(), b.meet(a).ok());
        }

        #[test]
        fn meet_all_never_widens_and_knows_no_order(mut all in proptest::collection::vec(any(), 0..6), seed in any()) {
            let met = Ceiling::meet_all(all.clone());
            if let Ok(Some(met)) = met {
                prop_assert!(all.iter().all(|c| c.permits(met)));
            }
            prop_assert_eq!(matches!(met, Ok(None)), all.is_empty());
            all.reverse();
            prop_assert_eq!(Ceiling::meet_all(all.clone()).ok(), met.ok());
            all.push(seed);
            if let (Ok(Some(before)), Ok(Some(after))) = (met, Ceiling::meet_all(all)) {
                prop_assert!(before.permits(after));
            }
        }

        #[test]
        fn words_are_read_back(a in any()) {
            prop_assert_eq!(Ceiling::of_word(a.word()), Some(a));
            prop_assert_eq!(serde_json::to_value(a).unwrap(), serde_json::json!(a.word()));
        }

        #[test]
        fn an_unknown_word_is_no_ceiling(word in "[a-z_]{0,14}") {
            prop_assert_eq!(Ceiling::of_word(&word).is_some(), Ceiling::ALL.iter().any(|c| c.word() == word));
        }
    }
}
