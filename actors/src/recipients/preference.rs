//! How a user wants to be told of something on a channel: the one function that says it, at the gates and again at the lease.

use millrace_schemas::channel::{Channel, Mode};
use millrace_schemas::time::Micros;

/// What a user has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Of which stream or trigger; empty: of every one.
    pub stream: Box<str>,
    /// Of which channel.
    pub channel: Channel,
    /// Of which scope; empty: of every one.
    pub scope: Box<str>,
    /// How.
    pub mode: Mode,
    /// When.
    pub at: Micros,
}

/// The mode that holds: what was said of the scope before what was said of all, of the trigger before what was said of every one;
/// else the trigger's default, else the channel's. A later `off` said of more is meant for all that it holds: somebody who turns a
/// channel off does not hear of what they once asked for by name.
#[must_use]
pub fn mode(
    said: &[Said],
    trigger: &str,
    scope: &str,
    channel: Channel,
    default: Option<Mode>,
) -> Mode {
    let holds = |s: &&Said| {
        s.channel == channel
            && (s.stream.is_empty() || *s.stream == *trigger)
            && (s.scope.is_empty() || *s.scope == *scope)
    };
    // Greater: said of less.
    let rank = |s: &Said| (!s.scope.is_empty(), !s.stream.is_empty());
    let Some(nearest) = said.iter().filter(holds).max_by_key(|s| (rank(s), s.at)) else {
        return default.unwrap_or(channel.default_mode());
    };
    let called_off = said
        .iter()
        .filter(holds)
        .any(|s| s.mode == Mode::Off && s.at > nearest.at && contains(s, nearest));
    if called_off { Mode::Off } else { nearest.mode }
}

/// Whether they are a subscriber of a trigger: something that they said of it by name, on any channel and of any scope, is not off.
#[must_use]
pub fn subscribes(said: &[Said], trigger: &str) -> bool {
    said.iter()
        .any(|s| *s.stream == *trigger && s.mode != Mode::Off)
}

/// Whether all that `b` is said of, `a` is said of.
fn contains(a: &Said, b: &Said) -> bool {
    (a.stream.is_empty() || a.stream == b.stream) && (a.scope.is_empty() || a.scope == b.scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(stream: &str, scope: &str, mode: Mode, at: i64) -> Said {
        Said {
            stream: stream.into(),
            channel: Channel::Email,
            scope: scope.into(),
            mode,
            at: Micros(at),
        }
    }

    #[test]
    fn the_nearest_word_holds() {
        use Mode::{Digest, Instant, Off};
        let of = |all: &[Said], scope| mode(all, "t", scope, Channel::Email, None);
        assert_eq!(of(&[], ""), Off, "mail is asked for");
        assert_eq!(mode(&[], "t", "", Channel::Inapp, None), Instant);
        assert_eq!(mode(&[], "t", "", Channel::Inapp, Some(Off)), Off);
        assert_eq!(of(&[said("t", "", Instant, 1)], ""), Instant);
        assert_eq!(of(&[said("u", "", Instant, 1)], ""), Off);
        assert_eq!(of(&[said("", "", Instant, 1)], ""), Instant);
        let scoped = [said("t", "", Instant, 1), said("t", "team:1", Digest, 1)];
        assert_eq!(of(&scoped, "team:1"), Digest);
        assert_eq!(of(&scoped, "team:2"), Instant);
        let muted = [said("t", "", Instant, 5), said("", "team:1", Off, 1)];
        assert_eq!(of(&muted, "team:1"), Off, "the scope comes first");
    }

    #[test]
    fn a_later_off_of_everything_is_meant_for_everything() {
        use Mode::{Instant, Off};
        let of = |all: &[Said]| mode(all, "t", "team:1", Channel::Email, None);
        let asked = said("t", "", Instant, 1);
        assert_eq!(of(&[asked.clone(), said("", "", Off, 2)]), Off);
        assert_eq!(
            of(&[said("", "", Off, 2), said("t", "", Instant, 3)]),
            Instant
        );
        let scoped = said("t", "team:1", Instant, 1);
        assert_eq!(of(&[scoped.clone(), said("", "", Off, 2)]), Off);
        assert_eq!(of(&[scoped, said("t", "", Off, 2)]), Off);
    }
}
