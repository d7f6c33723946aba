//! Trackers at work: (what was remembered, what the frame says) → (what to remember, whether it fires). Pure.
//!
//! None but `always`, and `transition` with a frame's own word of what was before, fires on first sight: the first frame after a
//! mapping came into being says how things are, not that they changed. A value that a frame does not speak of leaves the memory
//! as it is, and so does one that it says is null, with one exception: where values are compared (`transition`, `changed`,
//! `top_changed`) and nothing was remembered, null is first sight as any value is, so that what comes behind it is a change. To an
//! `edge` or a `crossing` null is no boolean and no number.

use super::slice::Memory;
use crate::modules::condition::same;
use crate::modules::field::{Fields, Path};
use crate::modules::tracker::{Direction, Tracker};
use millrace_schemas::ids;
use serde_json::Value;

/// Longest memory that is kept as it is, in bytes; of a longer one a digest is.
const MAX_MEMORY: usize = 96;

/// The memory of a value that was null when it was first seen: its canonical text, which no other value has.
const NULL: &str = "null";

/// What came of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// What to remember from now on; None: as before.
    pub memory: Option<Memory>,
    /// Whether it fires.
    pub fires: bool,
}

impl Step {
    fn remember(before: Option<&str>, memory: Memory, fires: bool) -> Step {
        Step {
            memory: (before != Some(&*memory)).then_some(memory),
            fires,
        }
    }

    /// What a frame without the value leaves: one that says it is null is remembered where nothing was before.
    fn without(path: &Path, before: Option<&str>, fields: &impl Fields) -> Step {
        match (before, fields.said(path)) {
            (None, Some(Value::Null)) => Step {
                memory: Some(NULL.into()),
                fires: false,
            },
            _ => Step::default(),
        }
    }
}

/// Whether a tracker compares with what was remembered, so that its memory must be loaded.
#[must_use]
pub fn remembers(tracker: &Tracker) -> bool {
    match tracker {
        Tracker::Always | Tracker::Roster { .. } => false,
        Tracker::Transition { previous, .. } => previous.is_none(),
        Tracker::Changed { .. }
        | Tracker::Edge { .. }
        | Tracker::Crossing { .. }
        | Tracker::TopChanged { .. } => true,
    }
}

/// Takes a frame in. `before`: what was remembered, if anything ever was. A roster's tracker looks at rosters instead and never
/// fires here ([`super::roster`]).
#[must_use]
pub fn step(tracker: &Tracker, before: Option<&str>, fields: &impl Fields) -> Step {
    match tracker {
        Tracker::Always => Step {
            memory: None,
            fires: true,
        },
        Tracker::Transition {
            value,
            set,
            previous,
        } => transition((value, set.as_slice(), previous.as_ref()), before, fields),
        Tracker::Changed { value } => {
            let Some(now) = fields.field(value).map(canonical) else {
                return Step::without(value, before, fields);
            };
            let fires = before.is_some_and(|was| *was != *now);
            Step::remember(before, now, fires)
        }
        Tracker::Edge { value } => {
            // What is no boolean neither raises nor lowers it.
            let Some(up) = fields.field(value).and_then(Value::as_bool) else {
                return Step::default();
            };
            let fires = up && before == Some("false");
            Step::remember(before, if up { "true" } else { "false" }.into(), fires)
        }
        Tracker::Crossing {
            value,
            thresholds,
            hysteresis,
            direction,
        } => match fields.field(value).and_then(Value::as_f64) {
            Some(now) => crossing(now, thresholds, *hysteresis, *direction, before),
            None => Step::default(),
        },
        Tracker::TopChanged {
            value,
            top,
            identity,
        } => {
            let Some(Value::Array(entries)) = fields.field(value) else {
                return Step::without(value, before, fields);
            };
            let first: Vec<Memory> = entries
                .iter()
                .take(*top)
                .map(|entry| match identity {
                    Some(path) => path.get(entry).map_or_else(|| NULL.into(), canonical),
                    None => canonical(entry),
                })
                .collect();
            let now = bounded(format!("[{}]", first.join(",")));
            let fires = !first.is_empty() && before.is_some_and(|was| *was != *now);
            Step::remember(before, now, fires)
        }
        Tracker::Roster { .. } => Step::default(),
    }
}

fn transition(
    (value, set, previous): (&Path, &[Value], Option<&Path>),
    before: Option<&str>,
    fields: &impl Fields,
) -> Step {
    let Some(now) = fields.field(value) else {
        return match previous {
            Some(_) => Step::default(),
            None => Step::without(value, before, fields),
        };
    };
    let is_in = set.iter().any(|one| same(one, now));
    let Some(previous) = previous else {
        let now = canonical(now);
        let fires = is_in && before.is_some_and(|was| *was != *now);
        return Step::remember(before, now, fires);
    };
    let moved = is_in && fields.field(previous).is_none_or(|was| !same(was, now));
    Step {
        memory: None,
        fires: moved,
    }
}

/// The memory is how many thresholds, from the near side on, have been crossed and not been come back over.
fn crossing(
    now: f64,
    thresholds: &[f64],
    hysteresis: f64,
    direction: Direction,
    before: Option<&str>,
) -> Step {
    let over = |at: f64| match direction {
        Direction::Rising => now >= at,
        Direction::Falling => now <= at,
    };
    // Exactly at the threshold is over it, whatever the hysteresis is.
    let back = |at: f64| {
        !over(at)
            && match direction {
                Direction::Rising => now <= at - hysteresis,
                Direction::Falling => now >= at + hysteresis,
            }
    };
    let reached = thresholds.iter().filter(|at| over(**at)).count();
    let kept = thresholds.iter().filter(|at| !back(**at)).count();
    let held = before.and_then(|was| was.parse::<usize>().ok());
    let level = reached.max(held.unwrap_or(0).min(kept));
    // Several crossed at once are one firing.
    let fires = held.is_some_and(|held| reached > held);
    Step::remember(before, level.to_string().into(), fires)
}

/// A value as text that is equal exactly where the value is: members sorted, `2.0` as `2`. A long one is kept as its digest.
#[must_use]
pub fn canonical(value: &Value) -> Memory {
    let mut out = String::new();
    write(value, &mut out);
    bounded(out)
}

fn bounded(text: String) -> Memory {
    if text.len() <= MAX_MEMORY {
        return text.into();
    }
    let digest = ids::digest("memory", &[text.as_bytes()]);
    format!("#{}", ids::encode(digest)).into()
}

/// Integers a double can tell apart from their neighbours.
const EXACT: f64 = 9_007_199_254_740_992.0;

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Number(n) => match n.as_f64() {
            // Whole, and within the range of exact integers.
            Some(f) if n.is_f64() && f.fract() == 0.0 && f.abs() < EXACT => {
                out.push_str(&(f as i64).to_string());
            }
            _ => out.push_str(&n.to_string()),
        },
        Value::Array(all) => {
            out.push('[');
            for (at, one) in all.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write(one, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (at, (name, one)) in sorted.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write(&Value::String(name.clone()), out);
                out.push(':');
                write(one, out);
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests;
