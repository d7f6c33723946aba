//! What gates 0 and 5 ask of the store, as it stood in the batch's transaction. Read anew for every batch.

use super::preference::Said;
use hashbrown::HashMap;
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::Channel;
use uuid::Uuid;

/// A user.
#[derive(Clone, Debug, Default)]
pub struct Person {
    /// Only the active are told anything.
    pub active: bool,
    /// There is an address.
    pub has_email: bool,
    /// It is known to be theirs.
    pub verified: bool,
    /// Of the staff, admins included.
    pub staff: bool,
    /// Of the admins.
    pub admin: bool,
    /// A device can be woken.
    pub has_device: bool,
    /// What they have said.
    pub said: Vec<Said>,
}

impl Person {
    /// Whether they are still within a ceiling, as far as a person alone shows it: what hangs on the event (its owner, the list it
    /// carries) was settled when it was passed on.
    #[must_use]
    pub fn is_within(&self, ceiling: Ceiling) -> bool {
        match ceiling {
            Ceiling::Staff => self.staff,
            Ceiling::Admin => self.admin,
            Ceiling::Everyone
            | Ceiling::Authenticated
            | Ceiling::Subscribers
            | Ceiling::Members
            | Ceiling::Owner => true,
        }
    }
}

/// A workspace.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Destinations of the channels that are configured.
    pub destinations: Vec<(Channel, i32)>,
    /// Mail goes to verified addresses alone.
    pub verified_only: bool,
}

impl Place {
    /// The destination of a channel; none: it is not configured.
    #[must_use]
    pub fn destination(&self, channel: Channel) -> Option<i32> {
        let found = self.destinations.iter().find(|(c, _)| *c == channel);
        found.map(|(_, no)| *no)
    }
}

/// A rule as it stands now: a notice tells how it stood when it was passed on.
#[derive(Clone, Debug)]
pub struct RuleNow {
    /// Its workspace.
    pub ws: i32,
    /// Switched on.
    pub enabled: bool,
    /// Channels.
    pub channels: Vec<Channel>,
    /// Seconds after the event.
    pub delay_s: i64,
    /// Seconds between two messages of one subject to one user on one channel.
    pub cooldown_s: i64,
    /// Messages in a rolling hour at most.
    pub hourly_cap: i64,
}

/// All that was read.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Users by workspace and id.
    pub people: HashMap<i32, HashMap<Box<str>, Person>>,
    /// Workspaces.
    pub places: HashMap<i32, Place>,
    /// Rules by id.
    pub rules: HashMap<Box<str>, RuleNow>,
    /// Cancel marks: key to the position of the firing that called off what is older.
    pub marks: HashMap<Uuid, Uuid>,
}

impl Facts {
    /// A user.
    #[must_use]
    pub fn person(&self, ws: i32, user: &str) -> Option<&Person> {
        self.people.get(&ws)?.get(user)
    }

    /// Whether what a firing at `pos` wants told has been called off.
    #[must_use]
    pub fn is_called_off(&self, key: Uuid, pos: Uuid) -> bool {
        self.marks.get(&key).is_some_and(|mark| *mark > pos)
    }
}
