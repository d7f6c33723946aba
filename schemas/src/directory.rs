//! The wire record of topic `directory`: what is said of users, of their links to accounts in games, of their preferences. One
//! flat struct; its key in the log is `{ws}:{user}`, so that all about one user is in order.
//!
//! A `user` change is the whole user: what is absent is nothing. Of two that differ the newer one wins, by acceptance, then by
//! place in the log; the same holds for each link, preference and login by itself, so that any order of arrival
//! ends alike (but for a login that comes before its user: it is rejected).

use crate::channel::Mode;
use crate::outcome::reason;
use crate::postback::Replay;
use crate::time::Micros;
use serde::{Deserialize, Serialize};

/// What a record changes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The user as a whole.
    #[default]
    User,
    /// The user logged in, at `at` or else at the acceptance.
    Login,
    /// An account is the user's.
    Link,
    /// It no longer is.
    Unlink,
    /// How the user wants to hear of something.
    Preference,
}

/// Whether a user is told anything.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum UserStatus {
    /// Yes.
    #[default]
    Active,
    /// No, for now.
    Disabled,
    /// Never again; the address is free.
    Deleted,
}

/// What a user is in the deployment.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Nobody in particular.
    #[default]
    User,
    /// Of the staff.
    Moderator,
    /// Of the staff.
    Editor,
    /// Of the staff, and of the admins.
    Admin,
}

macro_rules! names {
    ($($type:ident { $($variant:ident = $name:literal),+ })+) => {$(
        impl $type {
            /// All of them.
            pub const ALL: &'static [$type] = &[$($type::$variant),+];

            /// As stored and in records.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name),+ }
            }

            /// By its name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<$type> {
                match name { $($name => Some($type::$variant),)+ _ => None }
            }
        }
    )+};
}

names! {
    UserStatus { Active = "active", Disabled = "disabled", Deleted = "deleted" }
    Role { User = "user", Moderator = "moderator", Editor = "editor", Admin = "admin" }
}

impl Role {
    /// Whether it is of the staff.
    #[must_use]
    pub const fn is_staff(self) -> bool {
        !matches!(self, Role::User)
    }
}

/// A record of topic `directory`. Absent members are `None`; unknown ones are ignored, so that an older build reads a newer
/// record of the same version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DirectoryRecord {
    /// Wire version, [`crate::WIRE_VERSION`].
    pub v: u16,
    /// The workspace's number.
    pub ws: i32,
    /// When a door accepted it: stream time, and what decides which of two is the newer.
    pub accepted_at: Micros,
    /// What it changes.
    pub change: Change,
    /// The user's id, opaque.
    pub user: String,
    /// `user`: a name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `user`: the address; unique in the workspace, case folded, accents not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// `user`: whether the address is known to be the user's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub email_verified: bool,
    /// `user`: whether anything is told.
    #[serde(default)]
    pub status: UserStatus,
    /// `user`: the role.
    #[serde(default)]
    pub role: Role,
    /// `user`: the IANA zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// `login`: when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Micros>,
    /// `link`, `unlink`: the game's module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// `link`, `unlink`: the shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    /// `link`, `unlink`: the account there, opaque.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// `preference`: a stream's or trigger's id; absent: every one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `preference`: the channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// `preference`: the scope it is meant for; absent: every one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// `preference`: how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Set by `dlq replay`: the record's first coordinates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
}

/// Longest id, name, account or scope, in bytes.
pub const LONGEST: usize = 200;

/// Longest address, in bytes (RFC 5321, 4.5.3.1.3).
pub const LONGEST_EMAIL: usize = 254;

impl DirectoryRecord {
    /// The key under which it stands in the log.
    #[must_use]
    pub fn log_key(&self) -> String {
        log_key(self.ws, &self.user)
    }

    /// What can be said of the record without state.
    ///
    /// # Errors
    /// The reason code with which it is rejected.
    pub fn check(&self) -> Result<(), &'static str> {
        let bounded = |text: &Option<String>| text.as_deref().is_none_or(|t| is_text(t, LONGEST));
        let named = |text: &Option<String>| text.as_deref().is_some_and(|t| is_text(t, LONGEST));
        if !is_text(&self.user, LONGEST) {
            return Err(reason::USER_ID_MALFORMED);
        }
        let sound = match self.change {
            Change::User => {
                if self.email.as_deref().is_some_and(|e| !is_email(e)) {
                    return Err(reason::EMAIL_MALFORMED);
                }
                bounded(&self.name) && self.zone.as_deref().is_none_or(is_zone)
            }
            Change::Login => true,
            Change::Link | Change::Unlink => {
                named(&self.module) && named(&self.shard) && named(&self.account)
            }
            Change::Preference => {
                bounded(&self.id)
                    && named(&self.channel)
                    && bounded(&self.scope)
                    && self.mode.is_some()
            }
        };
        if sound {
            Ok(())
        } else {
            Err(reason::FIELD_MALFORMED)
        }
    }
}

/// The key under which all about a user stands in the log.
#[must_use]
pub fn log_key(ws: i32, user: &str) -> String {
    format!("{ws}:{user}")
}

/// Whether it is some text within bounds, without control characters.
#[must_use]
pub fn is_text(text: &str, longest: usize) -> bool {
    !text.is_empty() && text.len() <= longest && !text.chars().any(char::is_control)
}

/// Whether mail could go to it: one `@` with something on both sides, no blanks, no control characters, no angle brackets.
#[must_use]
pub fn is_email(text: &str) -> bool {
    let refused =
        |c: char| c.is_whitespace() || c.is_control() || matches!(c, '<' | '>' | ',' | ';');
    text.len() <= LONGEST_EMAIL
        && !text.contains(refused)
        && text
            .rsplit_once('@')
            .is_some_and(|(local, host)| !local.is_empty() && local.len() <= 64 && is_host(host))
}

fn is_host(host: &str) -> bool {
    host.split('.').all(|label| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c == '-' || c.is_alphanumeric())
    })
}

/// Whether it is written as zones of the IANA database are: `Europe/Berlin`, `UTC`, `Etc/GMT+3`.
#[must_use]
pub fn is_zone(name: &str) -> bool {
    name.len() <= 64
        && name.split('/').all(|part| {
            !part.is_empty()
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+'))
        })
}

/// The id of the pair of an account and a user: `ln_` and a digest.
#[must_use]
pub fn link_id(ws: i32, module: &str, shard: &str, account: &str, user: &str) -> String {
    let ws = ws.to_be_bytes();
    let parts = [
        &ws[..],
        module.as_bytes(),
        shard.as_bytes(),
        account.as_bytes(),
        user.as_bytes(),
    ];
    format!(
        "ln_{}",
        crate::ids::encode(crate::ids::digest("link", &parts))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_or_refused_by_their_form() {
        for email in [
            "a@b",
            "Foo@x.com",
            "josé@x.com",
            "a+b@sub.x-y.com",
            "\"a@b\"@x.com",
        ] {
            assert!(is_email(email), "{email}");
        }
        let long = format!("{}@x.com", "a".repeat(65));
        for email in [
            "",
            "a",
            "@x.com",
            "a@",
            "a b@x.com",
            "a@x..com",
            "a@-x.com",
            "a@x.com\n",
            "<a@x.com>",
            "a@x.com,b@x.com",
            &long,
        ] {
            assert!(!is_email(email), "{email}");
        }
    }

    #[test]
    fn zones_are_written_as_zones_are() {
        for zone in [
            "UTC",
            "Europe/Berlin",
            "America/Argentina/Ushuaia",
            "Etc/GMT+3",
        ] {
            assert!(is_zone(zone), "{zone}");
        }
        for zone in ["", "Europe/", "../etc/passwd", "Europe Berlin"] {
            assert!(!is_zone(zone), "{zone}");
        }
    }

    #[test]
    fn what_a_change_needs_is_asked_of_it() {
        let mut r = DirectoryRecord {
            user: "u".to_owned(),
            change: Change::Link,
            ..DirectoryRecord::default()
        };
        assert_eq!(r.check(), Err(reason::FIELD_MALFORMED));
        r.module = Some("m".to_owned());
        r.shard = Some("s".to_owned());
        r.account = Some("7".to_owned());
        assert_eq!(r.check(), Ok(()));
        r.change = Change::Preference;
        assert_eq!(r.check(), Err(reason::FIELD_MALFORMED));
        r.channel = Some("email".to_owned());
        r.mode = Some(Mode::Off);
        assert_eq!(r.check(), Ok(()));
        r.change = Change::User;
        r.email = Some("nobody".to_owned());
        assert_eq!(r.check(), Err(reason::EMAIL_MALFORMED));
        r.user = String::new();
        assert_eq!(r.check(), Err(reason::USER_ID_MALFORMED));
    }

    #[test]
    fn a_pair_has_an_id_of_its_own() {
        assert_ne!(
            link_id(1, "m", "s", "ab", "c"),
            link_id(1, "m", "s", "a", "bc")
        );
    }
}
