//! What gates 0 and 5 ask of the store, as it stood in the batch's transaction. Read anew for every batch.

use super::preference::{self, Said};
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
    /// It is suppressed: no mail of a rule may go to it.
    pub suppressed: bool,
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
    /// Whether they are still within a ceiling of a trigger's firing, as far as a person alone shows it: what hangs on the event
    /// (its owner, the list it carries) was settled when it was passed on.
    #[must_use]
    pub fn is_within(&self, ceiling: Ceiling, trigger: &str) -> bool {
        match ceiling {
            Ceiling::Staff => self.staff,
            Ceiling::Admin => self.admin,
            Ceiling::Subscribers => preference::subscribes(&self.said, trigger),
            Ceiling::Everyone | Ceiling::Authenticated | Ceiling::Members | Ceiling::Owner => true,
        }
    }
}

/// Channels that this deployment's settings let go out at all; what a workspace adds comes on top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configured {
    /// A mail can offer an unsubscription: `http.public_url` is set.
    pub email: bool,
    /// There is an origin whose devices may be woken: `delivery.push.origins` lists one.
    pub push: bool,
}

impl Configured {
    /// Every channel.
    pub const ALL: Configured = Configured {
        email: true,
        push: true,
    };

    /// By `http.public_url` and `delivery.push.origins`.
    #[must_use]
    pub fn of(public_url: Option<&str>, push_origins: &[String]) -> Configured {
        Configured {
            email: public_url.is_some(),
            push: !push_origins.is_empty(),
        }
    }

    /// Whether a channel is. In-app needs no setting.
    #[must_use]
    pub const fn has(self, channel: Channel) -> bool {
        match channel {
            Channel::Inapp => true,
            Channel::Email => self.email,
            Channel::Push => self.push,
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
    /// Without the destinations of channels that the settings do not let out.
    #[must_use]
    pub fn only(mut self, configured: Configured) -> Place {
        self.destinations.retain(|(c, _)| configured.has(*c));
        self
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_schemas::channel::Mode;
    use millrace_schemas::time::Micros;

    #[test]
    fn a_channel_that_the_settings_do_not_let_out_has_no_destination() {
        let place = || Place {
            destinations: Channel::ALL.into_iter().zip(1..).collect(),
            verified_only: true,
        };
        let of = |configured: Configured| {
            let place = place().only(configured);
            Channel::ALL.map(|c| place.destination(c).is_some())
        };
        // In-app, mail, push.
        assert_eq!(of(Configured::ALL), [true, true, true]);
        let origins = ["https://ntfy.sh".to_owned()];
        let url = Some("https://t.example.com");
        assert_eq!(of(Configured::of(None, &origins)), [true, false, true]);
        assert_eq!(of(Configured::of(url, &[])), [true, true, false]);
        assert_eq!(of(Configured::of(None, &[])), [true, false, false]);
        assert_eq!(Configured::of(url, &origins), Configured::ALL);
    }

    #[test]
    fn whoever_wants_nothing_of_a_trigger_any_more_is_no_subscriber() {
        let said = |stream: &str, mode| Said {
            stream: stream.into(),
            channel: Channel::Push,
            scope: "team:1".into(),
            mode,
            at: Micros(1),
        };
        let is = |all: &[Said]| {
            let person = Person {
                said: all.to_vec(),
                ..Person::default()
            };
            person.is_within(Ceiling::Subscribers, "t")
        };
        assert!(!is(&[]));
        assert!(!is(&[said("t", Mode::Off)]));
        assert!(!is(&[said("", Mode::Instant), said("u", Mode::Instant)]));
        assert!(is(&[said("t", Mode::Off), said("t", Mode::Digest)]));
        assert!(Person::default().is_within(Ceiling::Owner, "t"));
    }
}
