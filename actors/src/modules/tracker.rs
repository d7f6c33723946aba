//! What a mapping watches. What it saw last is kept by `thresholds`, one memory a (workspace, module, shard, mapping, key).
//!
//! No tracker but [`Tracker::Always`], and a [`Tracker::Transition`] with a `previous`, fires on first sight: what was so before
//! anybody looked is no news.

use super::field::Path;
use serde_json::Value;

/// Which way a number must cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From below to the threshold or above it.
    Rising,
    /// From above to the threshold or below it.
    Falling,
}

/// What happened to a roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RosterEvent {
    /// Somebody is on it who was not: one firing each.
    Joined,
    /// Somebody was on it who is not: one firing each.
    Left,
    /// The list as a whole is gone: one firing.
    Cleared,
}

/// A tracker.
#[derive(Clone, Debug)]
pub enum Tracker {
    /// Every frame fires. No memory.
    Always,
    /// The value changed and is now in the set; a move within the set fires too.
    Transition {
        /// The value watched.
        value: Path,
        /// The values that fire, as JSON compares them.
        set: Vec<Value>,
        /// Where the frame itself tells the value before: then it decides, in place of the memory, and first sight fires.
        previous: Option<Path>,
    },
    /// The value is another than before, and is there.
    Changed {
        /// The value watched.
        value: Path,
    },
    /// A bool rose from `false` to `true`.
    Edge {
        /// The value watched.
        value: Path,
    },
    /// A number crossed a threshold.
    Crossing {
        /// The value watched.
        value: Path,
        /// In ascending order, at least one. More than one crossed at once is one firing, of the furthest.
        thresholds: Vec<f64>,
        /// How far back over a threshold the number must go before it can cross it again; 0 or more.
        hysteresis: f64,
        /// Which way.
        direction: Direction,
    },
    /// The first entries of a list are others, or in another order.
    TopChanged {
        /// The list watched.
        value: Path,
        /// How many of its entries count.
        top: usize,
        /// What tells one entry from another, within the entry; `None`: the entry itself.
        identity: Option<Path>,
    },
    /// A roster changed.
    Roster {
        /// Which one, in [`super::Module::rosters`].
        roster: usize,
        /// What must have happened to it.
        event: RosterEvent,
    },
}

impl Tracker {
    /// Whether it remembers anything of its own (a roster's memory is the roster).
    #[must_use]
    pub const fn is_stateful(&self) -> bool {
        !matches!(self, Tracker::Always)
    }

    /// The value it watches.
    #[must_use]
    pub const fn value(&self) -> Option<&Path> {
        match self {
            Tracker::Always | Tracker::Roster { .. } => None,
            Tracker::Transition { value, .. }
            | Tracker::Changed { value }
            | Tracker::Edge { value }
            | Tracker::Crossing { value, .. }
            | Tracker::TopChanged { value, .. } => Some(value),
        }
    }

    /// Its word in manifests.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Tracker::Always => "always",
            Tracker::Transition { .. } => "transition",
            Tracker::Changed { .. } => "changed",
            Tracker::Edge { .. } => "edge",
            Tracker::Crossing { .. } => "crossing",
            Tracker::TopChanged { .. } => "top_changed",
            Tracker::Roster { .. } => "roster",
        }
    }
}
