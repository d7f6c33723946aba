//! The wire record of topic `notices`: a firing, for one user, by the rules whose audience holds them.

use crate::ceiling::Ceiling;
use crate::channel::{Channel, Mode};
use crate::emit::EmitSource;
use crate::ids::RecordId;
use crate::notification::GenericBody;
use crate::postback::Replay;
use crate::time::Micros;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a firing stands in topic `triggers`: what a cancel mark is compared with. Firings of one subject share a partition, so
/// that of two the later one is greater; a topic made anew or grown has a greater generation.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
pub struct FiringPos {
    /// The topic's number: stands for (name, generation).
    pub generation: i32,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
}

impl From<RecordId> for FiringPos {
    fn from(id: RecordId) -> FiringPos {
        FiringPos {
            generation: id.topic_no,
            partition: id.partition,
            offset: id.offset,
        }
    }
}

impl From<FiringPos> for RecordId {
    fn from(pos: FiringPos) -> RecordId {
        RecordId {
            topic_no: pos.generation,
            partition: pos.partition,
            offset: pos.offset,
        }
    }
}

/// A rule that wants the user told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NoticeRule {
    /// Its id.
    pub id: String,
    /// Its version when it was read.
    pub version: i64,
    /// Channels.
    pub channels: Vec<Channel>,
    /// How long after the event it is due, in seconds.
    pub delay_s: i64,
    /// Seconds within which the same user hears of the same subject once a channel; 0: no cooldown.
    pub cooldown_s: i64,
    /// Messages of the rule in a rolling hour at most.
    pub hourly_cap: i32,
}

/// Members that a notice carried once and does not any more. Written as an empty object, since earlier builds want one; whatever
/// they wrote there is passed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {}

/// A record of topic `notices`, keyed by [`Notice::log_key`].
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Notice {
    /// Wire version, [`crate::WIRE_VERSION`].
    pub v: u16,
    /// The workspace's number.
    pub ws: i32,
    /// The user.
    pub user: String,
    /// The firing's id.
    pub firing: String,
    /// Where the firing stands.
    pub firing_pos: FiringPos,
    /// The trigger.
    pub trigger: String,
    /// Its module.
    pub module: String,
    /// The shard.
    #[serde(default)]
    pub shard: String,
    /// The subject, to be read with the shard.
    #[serde(default)]
    pub subject: String,
    /// What a scoped preference is keyed by.
    #[serde(default)]
    pub scope: String,
    /// The trigger's id, a colon, the firing's dedupe text.
    pub dedupe_key: String,
    /// Empty: the variables stand with the firing, once, and whoever wants them finds it by `firing_pos`.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub vars: Elsewhere,
    /// What a generic message says of it, bounded.
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub body: GenericBody,
    /// When it happened.
    pub at: Micros,
    /// When what it comes from was accepted.
    pub accepted_at: Micros,
    /// Seconds after which it is stale and not sent any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_s: Option<i64>,
    /// The trigger's own default by channel, for users who have said nothing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub default_modes: BTreeMap<Channel, Mode>,
    /// The modes that the trigger allows; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<Mode>,
    /// The rules, in rule order, each once.
    pub rules: Vec<NoticeRule>,
    /// Whom the firing may reach at most.
    pub ceiling: Ceiling,
    /// The link that puts the user within that ceiling, if one does: a game account of the shard, or, empty, any of theirs there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linked_by: Option<String>,
    /// Who emitted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emit: Option<EmitSource>,
    /// Set by `dlq replay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
}

impl Notice {
    /// The key under which the log keeps it: all notices of one user are in one partition.
    #[must_use]
    pub fn log_key(&self) -> String {
        log_key(self.ws, &self.user)
    }
}

/// `{ws}:{user}`.
#[must_use]
pub fn log_key(ws: i32, user: &str) -> String {
    format!("{ws}:{user}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notices of earlier builds carried the variables; what comes of them now is an empty object, which those builds read too.
    #[test]
    fn the_variables_of_an_earlier_build_are_passed_by() {
        let text = include_str!("../examples/notice/good-two-channels.json");
        let said: serde_json::Value = serde_json::from_str(text).expect("JSON");
        assert!(said.pointer("/vars/stage").is_some());
        let notice: Notice = serde_json::from_str(text).expect("a notice");
        let written = serde_json::to_value(&notice).expect("JSON");
        assert_eq!(written.get("vars"), Some(&serde_json::json!({})));
    }

    #[test]
    fn positions_are_ordered_within_a_partition() {
        let at = |generation, offset| FiringPos {
            generation,
            partition: 3,
            offset,
        };
        assert!(at(5, 9) < at(5, 10) && at(5, 10) < at(6, 0));
        let uuid = |p: FiringPos| RecordId::from(p).to_uuid();
        assert!(uuid(at(5, 9)) < uuid(at(5, 10)) && uuid(at(5, 10)) < uuid(at(6, 0)));
        assert_eq!(FiringPos::from(RecordId::from(at(5, 9))), at(5, 9));
    }
}
