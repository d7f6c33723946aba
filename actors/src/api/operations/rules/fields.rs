//! What can be written of a rule, and what is shown beside it.

use crate::directory::rules::{Dormancy, LONGEST_COOLDOWN_S, LONGEST_DELAY_S, Rule, SavedSegment};
use millrace_schemas::ceiling::Ceiling;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// What can be written of a rule. Channels and audiences are texts: what a build does not know it shows as dormant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// What it answers; for ever.
    #[schemars(length(min = 1, max = 200), extend("x-class" = "open"))]
    pub trigger_id: String,
    /// Its name.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub name: String,
    /// By which channels: `inapp`, `email`, `push`.
    #[schemars(length(min = 1, max = 10), inner(length(max = 100)), extend("x-class" = "open"))]
    pub channels: Vec<String>,
    /// When: `{"var", "cmp", "value"}`, or `{"op": "and" | "or" | "not", "nodes": […]}` over the trigger's variables; absent: always.
    #[serde(default)]
    #[schemars(extend("x-class" = "open", "x-free-because" = "a comparison or a group of them, by its own grammar"))]
    pub conditions: Option<Value>,
    /// Whom: `owner`, `subscribers`, `members`, `staff`, `admin`, `authenticated`, `everyone`; absent: the trigger's own.
    #[serde(default)]
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub audience: Option<String>,
    /// Whom: a saved audience instead.
    #[serde(default)]
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub segment_id: Option<String>,
    /// How long a message waits, in seconds; within that time `cancel_on` calls it off.
    #[serde(default)]
    #[schemars(range(min = 0, max = LONGEST_DELAY_S), extend("x-class" = "open"))]
    pub delay_s: i64,
    /// How long one person is not told again of one subject on one channel, in seconds; 0: no cooldown.
    #[serde(default)]
    #[schemars(range(min = 0, max = LONGEST_COOLDOWN_S), extend("x-class" = "open"))]
    pub cooldown_s: i64,
    /// How many messages within any hour at most.
    #[serde(default = "hundred")]
    #[schemars(range(min = 0, max = 1_000_000), extend("x-class" = "open"))]
    pub hourly_cap: i32,
    /// Triggers that call off what still waits; of the same subject.
    #[serde(default)]
    #[schemars(length(max = 20), inner(length(min = 1, max = 200)), extend("x-class" = "open"))]
    pub cancel_on: Vec<String>,
    /// Template keys by channel, and by `digest`.
    #[serde(default)]
    #[schemars(length(max = 10), extend("x-class" = "open"))]
    pub template_keys: BTreeMap<String, String>,
}

fn hundred() -> i32 {
    100
}

impl Fields {
    /// As the directory knows it.
    pub(super) fn rule(&self) -> Rule {
        Rule {
            trigger_id: self.trigger_id.clone(),
            channels: self.channels.clone(),
            conditions: self.conditions.clone(),
            audience: self.audience.clone(),
            segment_id: self.segment_id.clone(),
            cancel_on: self.cancel_on.clone(),
            template_keys: self.template_keys.clone(),
        }
    }
}

/// What is shown of a rule beside that.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Standing {
    /// Whether it is switched on.
    #[schemars(extend("x-class" = "open"))]
    pub(super) enabled: bool,
    /// Why it reaches nobody whatever happens, or not on one of its channels; empty: nothing stands in its way.
    #[schemars(extend("x-class" = "open"))]
    pub(super) dormant: Vec<Dormancy>,
    /// The ceiling of whom it is meant for.
    #[schemars(extend("x-class" = "open"))]
    pub(super) ceiling: Option<Ceiling>,
    /// Its place among the rules of its trigger: of two the lower one takes the hour's messages first.
    #[schemars(extend("x-class" = "open"))]
    pub(super) position: i64,
    /// The module's group that it was seeded from.
    #[schemars(extend("x-class" = "open"))]
    pub(super) seeded_from: Option<String>,
    #[serde(skip)]
    pub(super) saved: Option<SavedSegment>,
}
