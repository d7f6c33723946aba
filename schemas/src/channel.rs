//! The channels by which people are told, and how each of them may be set.

use serde::{Deserialize, Serialize};

/// A channel that reaches people. Destinations of machines (`meta`, `webhook` …) are none of these.
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
pub enum Channel {
    /// The inbox of the application; first, so that a push can refer to the row it writes.
    Inapp,
    /// Mail.
    Email,
    /// A wake-up without content.
    Push,
}

/// What a person set for one id on one channel.
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
pub enum Mode {
    /// Never.
    Off,
    /// In the next digest; nothing is enqueued when it happens.
    Digest,
    /// When it happens.
    Instant,
}

impl Channel {
    /// Every channel, in the order in which one notice goes out.
    pub const ALL: [Channel; 3] = [Channel::Inapp, Channel::Email, Channel::Push];

    /// Its word on the wire, in manifests and in tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Channel::Inapp => "inapp",
            Channel::Email => "email",
            Channel::Push => "push",
        }
    }

    /// The channel of that word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Channel> {
        Channel::ALL.into_iter().find(|c| c.word() == word)
    }

    /// What holds where neither the person nor the trigger says otherwise: mail and push are asked for, the inbox is not.
    #[must_use]
    pub const fn default_mode(self) -> Mode {
        match self {
            Channel::Inapp => Mode::Instant,
            Channel::Email | Channel::Push => Mode::Off,
        }
    }
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 3] = [Mode::Off, Mode::Digest, Mode::Instant];

    /// Its word on the wire, in manifests and in tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Digest => "digest",
            Mode::Instant => "instant",
        }
    }

    /// The mode of that word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|m| m.word() == word)
    }
}

impl std::fmt::Display for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}
