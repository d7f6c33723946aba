//! What a batch names of the directory: as the store had it when the batch's transaction locked it, and as its records change
//! it. Every fact carries the stamp of what set it; the newer stamp wins.

use millrace_schemas::channel::Mode;
use millrace_schemas::directory::{Role, UserStatus};
use millrace_schemas::ids::RecordId;
use millrace_schemas::time::Micros;
use std::collections::BTreeMap;

/// When something was said, and where: of two the greater one is the newer. What the admin API says has no place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The acceptance.
    pub at: Micros,
    /// The topic's number, 0: the admin API.
    pub topic: i32,
    /// The offset.
    pub offset: i64,
}

impl Stamp {
    /// Of a record.
    #[must_use]
    pub fn of(id: RecordId, accepted_at: Micros) -> Stamp {
        Stamp {
            at: accepted_at,
            topic: id.topic_no,
            offset: id.offset,
        }
    }
}

/// (workspace, user).
pub type UserKey = (i32, String);

/// A user as a record tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserFacts {
    /// For people.
    pub name: Option<String>,
    /// As written.
    pub email: Option<String>,
    /// Whether it is the user's.
    pub email_verified: bool,
    /// Whether anything is told.
    pub status: UserStatus,
    /// The role.
    pub role: Role,
    /// The zone.
    pub zone: Option<String>,
}

/// A user as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// What set it.
    pub stamp: Stamp,
    /// The address, folded as the store folds it.
    pub folded: Option<String>,
    /// The newest login.
    pub last_login: Option<Micros>,
    /// What a record of this batch says; none: it stands as it stood.
    pub said: Option<UserFacts>,
    /// A record of this batch brought a newer login.
    pub logged_in: bool,
    /// The address that it had in the store, where another takes its place.
    pub gives_up: bool,
}

/// (workspace, module, shard, account).
pub type AccountKey = (i32, String, String, String);

/// The pair of an account and a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// The newest link; the least stamp: never.
    pub linked: Option<Stamp>,
    /// The newest unlink.
    pub unlinked: Option<Stamp>,
    /// Whether the store says that the account is the user's.
    pub live: bool,
    /// Whether a record of this batch changed it.
    pub changed: bool,
}

/// Whose an account is: the user with the newest link of all, unless that user unlinked it later. What orders of arrival there
/// may be, all of them end with the same answer.
#[must_use]
pub fn live_user(pairs: &BTreeMap<String, Pair>) -> Option<&str> {
    let (user, pair) = pairs
        .iter()
        .filter(|(_, p)| p.linked.is_some())
        .max_by_key(|(_, p)| p.linked)?;
    (pair.linked > pair.unlinked).then_some(user.as_str())
}

/// (workspace, user, stream or trigger, channel, scope).
pub type PreferenceKey = (i32, String, String, String, String);

/// A preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    /// What set it.
    pub stamp: Stamp,
    /// How.
    pub mode: Mode,
    /// Whether a record of this batch set it.
    pub changed: bool,
}

/// What a batch names.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Workspaces that there are, of those named.
    pub workspaces: std::collections::BTreeSet<i32>,
    /// Users.
    pub users: BTreeMap<UserKey, User>,
    /// By (workspace, address as written): as the store folds it.
    pub folding: BTreeMap<(i32, String), String>,
    /// By (workspace, folded address): whose it is.
    pub owners: BTreeMap<(i32, String), String>,
    /// By account: its pairs by user.
    pub accounts: BTreeMap<AccountKey, BTreeMap<String, Pair>>,
    /// Preferences.
    pub preferences: BTreeMap<PreferenceKey, Preference>,
}

impl State {
    /// The newest acceptance of all that it holds; what an operator says is later.
    #[must_use]
    pub fn newest(&self) -> Micros {
        let users = self.users.values().map(|u| u.stamp);
        let pairs = self.accounts.values().flat_map(BTreeMap::values);
        let links = pairs.flat_map(|p| [p.linked, p.unlinked]).flatten();
        let preferences = self.preferences.values().map(|p| p.stamp);
        let all = users.chain(links).chain(preferences);
        all.map(|s| s.at).max().unwrap_or_default()
    }
}
