//! Rules as stored: what an operator may save, whom a rule is meant for, and why one sleeps.

use super::audience;
use super::conditions::Conditions;
use super::segment::{NoCeiling, Segment};
use crate::api::faults::Faults;
use crate::modules::{Modules, Trigger};
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::Channel;
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest delay, in seconds: 30 days, for which the outbox keeps what waits.
pub const LONGEST_DELAY_S: i64 = 30 * 86_400;
/// Longest cooldown, in seconds: a year.
pub const LONGEST_COOLDOWN_S: i64 = 366 * 86_400;
/// The slot of template keys that is no channel.
pub const DIGEST_SLOT: &str = "digest";

/// A segment as a rule finds it.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedSegment {
    /// Its id.
    pub id: String,
    /// Its tree.
    pub expression: Value,
}

/// A rule, as stored or as it is to be saved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// What it answers.
    pub trigger_id: String,
    /// By which channels.
    pub channels: Vec<String>,
    /// When.
    pub conditions: Option<Value>,
    /// Whom: a plain audience's word; none: the trigger's own, or the segment's.
    pub audience: Option<String>,
    /// Whom: a saved audience's id.
    pub segment_id: Option<String>,
    /// Triggers that call off what still waits.
    pub cancel_on: Vec<String>,
    /// Template keys by channel and by [`DIGEST_SLOT`].
    pub template_keys: BTreeMap<String, String>,
}

/// Whom a rule is meant for.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// A plain audience.
    Plain(Ceiling),
    /// A saved one, with its ceiling as it is derived now, and without what would reach beyond that.
    Segment(Segment, Ceiling),
}

impl Target {
    /// What it may reach.
    #[must_use]
    pub const fn ceiling(&self) -> Ceiling {
        match self {
            Target::Plain(ceiling) | Target::Segment(_, ceiling) => *ceiling,
        }
    }
}

/// Why a rule reaches nobody whatever happens. It is listed and flagged, never deleted, and never sent to others instead.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Dormancy {
    /// A code: `unknown_trigger`, `unknown_channel`, `no_stream`, `unknown_audience`, `unknown_segment`, `dormant_segment`,
    /// `incomparable`, `wider_than_ceiling`.
    #[schemars(extend("x-class" = "open"))]
    pub code: String,
    /// The id that is meant.
    #[schemars(extend("x-class" = "open"))]
    pub id: String,
}

fn dormant(code: &str, id: impl Into<String>) -> Dormancy {
    Dormancy {
        code: code.to_owned(),
        id: id.into(),
    }
}

impl Rule {
    /// Whom it is meant for. `saved`: the segment of its id, if there is one.
    ///
    /// # Errors
    /// Why nobody.
    pub fn target(
        &self,
        modules: &Modules,
        trigger: &Trigger,
        saved: Option<&SavedSegment>,
    ) -> Result<Target, Dormancy> {
        let Some(id) = &self.segment_id else {
            return match &self.audience {
                None => Ok(Target::Plain(trigger.audience)),
                Some(word) => Ceiling::of_word(word)
                    .map(Target::Plain)
                    .ok_or_else(|| dormant("unknown_audience", word)),
            };
        };
        let Some(saved) = saved.filter(|s| s.id == *id) else {
            return Err(dormant("unknown_segment", id));
        };
        let Some(segment) = Segment::read(&saved.expression) else {
            return Err(dormant("dormant_segment", id));
        };
        match audience::ceiling(modules, &segment) {
            Ok(ceiling) => segment
                .within(ceiling, &|id: &str| audience::declared(modules, id))
                .map(|bounded| Target::Segment(bounded, ceiling))
                .ok_or_else(|| dormant("dormant_segment", id)),
            Err(NoCeiling::Dormant(_)) => Err(dormant("dormant_segment", id)),
            Err(NoCeiling::Incomparable(_)) => Err(dormant("incomparable", id)),
        }
    }

    /// Everything that makes it sleep, or one of its channels.
    #[must_use]
    pub fn dormancy(&self, modules: &Modules, saved: Option<&SavedSegment>) -> Vec<Dormancy> {
        let Some(trigger) = modules.trigger(&self.trigger_id) else {
            return vec![dormant("unknown_trigger", &self.trigger_id)];
        };
        let mut all: Vec<Dormancy> = self
            .channels
            .iter()
            .filter_map(|word| match Channel::of_word(word) {
                None => Some(dormant("unknown_channel", word)),
                Some(Channel::Push) if modules.stream(&trigger.id).is_none() => {
                    Some(dormant("no_stream", word))
                }
                Some(_) => None,
            })
            .collect();
        match self.target(modules, trigger, saved) {
            Ok(target) if !trigger.ceiling.permits(target.ceiling()) => {
                all.push(dormant("wider_than_ceiling", trigger.ceiling.word()));
            }
            Ok(_) => {}
            Err(why) => all.push(why),
        }
        all
    }

    /// Everything that is wrong with saving it.
    pub fn check(&self, modules: &Modules, saved: Option<&SavedSegment>, faults: &mut Faults) {
        let Some(trigger) = modules.trigger(&self.trigger_id) else {
            faults.add(
                "/trigger_id",
                "unknown_trigger",
                format!("no module declares `{}`", self.trigger_id),
            );
            return;
        };
        self.check_channels(modules, trigger, faults);
        self.check_audience(modules, trigger, saved, faults);
        if let Some(tree) = self.conditions.as_ref().filter(|t| !t.is_null()) {
            Conditions::check(tree, "/conditions", &trigger.variables, faults);
        }
        self.check_cancel_on(modules, trigger, faults);
        self.check_template_keys(faults);
    }

    fn check_channels(&self, modules: &Modules, trigger: &Trigger, faults: &mut Faults) {
        if self.channels.is_empty() {
            faults.add("/channels", "missing", "one channel at least");
        }
        for (i, word) in self.channels.iter().enumerate() {
            let at = format!("/channels/{i}");
            match Channel::of_word(word) {
                None => faults.add(
                    at,
                    "unknown_channel",
                    format!("one of {}", Channel::ALL.map(Channel::word).join(", ")),
                ),
                Some(_) if self.channels.iter().take(i).any(|w| w == word) => {
                    faults.add(at, "repeated", "it stands twice");
                }
                Some(Channel::Push) if modules.stream(&trigger.id).is_none() => faults.add(
                    at,
                    "no_stream",
                    format!("`{}` has no stream, and so no push", trigger.id),
                ),
                Some(_) => {}
            }
        }
    }

    fn check_audience(
        &self,
        modules: &Modules,
        trigger: &Trigger,
        saved: Option<&SavedSegment>,
        faults: &mut Faults,
    ) {
        let at = if self.segment_id.is_some() {
            "/segment_id"
        } else {
            "/audience"
        };
        if self.segment_id.is_some() && self.audience.is_some() {
            faults.add(
                at,
                "audience_and_segment",
                "one of `audience` and `segment_id`",
            );
            return;
        }
        match self.target(modules, trigger, saved) {
            Err(why) => {
                let said = match why.code.as_str() {
                    "unknown_segment" => "there is no segment of this id".to_owned(),
                    "unknown_audience" => {
                        format!("one of {}", Ceiling::ALL.map(Ceiling::word).join(", "))
                    }
                    "incomparable" => "its audiences have no ceiling in common".to_owned(),
                    _ => "an audience of the segment is declared by nobody any more".to_owned(),
                };
                faults.add(at, &why.code, said);
            }
            Ok(target) if !trigger.ceiling.permits(target.ceiling()) => faults.add(
                at,
                "wider_than_ceiling",
                format!(
                    "`{}` may reach `{}` at most, and this reaches `{}`",
                    trigger.id,
                    trigger.ceiling,
                    target.ceiling()
                ),
            ),
            Ok(_) => {}
        }
    }

    fn check_cancel_on(&self, modules: &Modules, trigger: &Trigger, faults: &mut Faults) {
        for (i, id) in self.cancel_on.iter().enumerate() {
            let at = format!("/cancel_on/{i}");
            match modules.trigger(id) {
                None => faults.add(at, "unknown_trigger", format!("no module declares `{id}`")),
                Some(other) if other.id == trigger.id => {
                    faults.add(at, "cancels_itself", "it would call off its own messages");
                }
                // They could never be about the same.
                Some(other)
                    if other.module != trigger.module
                        || other.subject_key() != trigger.subject_key() =>
                {
                    faults.add(
                        at,
                        "other_subject",
                        format!(
                            "`{id}` is about `{}`, `{}` about `{}`",
                            other.subject_key(),
                            trigger.id,
                            trigger.subject_key()
                        ),
                    );
                }
                Some(_) if self.cancel_on.iter().take(i).any(|c| c == id) => {
                    faults.add(at, "repeated", "it stands twice");
                }
                Some(_) => {}
            }
        }
    }

    fn check_template_keys(&self, faults: &mut Faults) {
        for (slot, key) in &self.template_keys {
            let at = format!("/template_keys/{slot}");
            if slot != DIGEST_SLOT && Channel::of_word(slot).is_none() {
                faults.add(
                    at,
                    "unknown_channel",
                    format!("a channel, or `{DIGEST_SLOT}`"),
                );
            } else if !is_template_key(key) {
                faults.add(
                    at,
                    "malformed",
                    "letters, digits, dots and dashes, at most 100",
                );
            }
        }
    }
}

/// Whether it is written as keys of templates are.
#[must_use]
pub fn is_template_key(key: &str) -> bool {
    (1..=100).contains(&key.len())
        && key
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-'))
        && key.starts_with(|c: char| c.is_ascii_alphanumeric())
}
