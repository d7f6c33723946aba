//! A manifest as it is written: `config/modules/<id>.toml`. Nothing is checked here but types and the names of keys.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One module.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The first word of every id it declares; also the name of its file.
    pub id: String,
    /// For people.
    pub label: String,
    /// For people.
    pub description: String,
    /// The version of its shards' protocol; a feed's hello of another is refused.
    pub protocol: u32,
    /// Ids without its prefix that it holds all the same, from before the rule.
    #[serde(default)]
    pub legacy_ids: Vec<String>,
    /// The kinds of frames that it reads. Any other kind is counted and kept for nothing.
    #[serde(default, rename = "frame")]
    pub frames: Vec<FrameKind>,
    /// What may be pushed. An id without a stream has no push.
    #[serde(default, rename = "stream")]
    pub streams: Vec<StreamEntry>,
    /// Contracts of what happens.
    #[serde(default, rename = "trigger")]
    pub triggers: Vec<TriggerEntry>,
    /// Lists of accounts, kept from frames.
    #[serde(default, rename = "roster")]
    pub rosters: Vec<RosterEntry>,
    /// Sets of people that an operator may point a rule or a segment at.
    #[serde(default, rename = "audience")]
    pub audiences: Vec<AudienceEntry>,
    /// From frames to triggers.
    #[serde(default, rename = "mapping")]
    pub mappings: Vec<MappingEntry>,
    /// Keys of message bodies that it brings.
    #[serde(default, rename = "template")]
    pub templates: Vec<TemplateEntry>,
    /// Rules that a workspace begins with, each group once, all of them disabled.
    #[serde(default, rename = "rule_group")]
    pub rule_groups: Vec<RuleGroupEntry>,
}

/// One kind of frame.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameKind {
    /// As the shard spells it.
    pub kind: String,
    /// Path of the value by which its frames are partitioned; unset: the shard as a whole.
    pub key: Option<String>,
}

/// One stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamEntry {
    /// In the one namespace of streams and triggers.
    pub id: String,
    /// For people.
    pub label: String,
    /// For people.
    pub description: String,
    /// Only for the person whom it is about.
    #[serde(default)]
    pub personal: bool,
    /// Makes no sense without a linked account.
    #[serde(default)]
    pub requires_linked_account: bool,
}

/// One trigger. Optional where the loader itself says what is missing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerEntry {
    /// `<module>.<…>`.
    pub id: String,
    /// For people.
    pub label: String,
    /// For people.
    pub description: String,
    /// `event` or `scheduled`.
    #[serde(default = "event")]
    pub kind: String,
    /// Which of its variables names what it is about.
    pub subject_key: Option<String>,
    /// The audience that a rule begins with.
    pub audience: Option<String>,
    /// The widest audience that a rule may ever have.
    pub ceiling: Option<String>,
    /// Raised when a variable is renamed or changes its type.
    pub version: Option<u32>,
    /// How old a firing may be when it is sent, in seconds; unset: of any age.
    pub max_age_s: Option<u64>,
    /// By channel, what holds where nobody said otherwise.
    #[serde(default)]
    pub default_modes: BTreeMap<String, String>,
    /// Which modes may be chosen; unset: all.
    pub modes: Option<Vec<String>>,
    /// What every firing says.
    #[serde(default)]
    pub variables: Vec<VariableEntry>,
}

fn event() -> String {
    "event".to_owned()
}

/// One variable of a trigger.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariableEntry {
    /// Letters, digits and underscores.
    pub name: String,
    /// `string|int|number|bool|datetime|url|list`.
    #[serde(rename = "type")]
    pub of: String,
    /// A firing without it is rejected.
    #[serde(default)]
    pub required: bool,
    /// What previews and trial sends show. Always there.
    pub example: Option<serde_json::Value>,
}

/// One roster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RosterEntry {
    /// `<module>.<…>`, in a space of its own.
    pub id: String,
    /// What tells one list of it from another; unset: there is one a shard.
    pub param: Option<String>,
    /// Which frames change it, and how.
    #[serde(default)]
    pub feeds: Vec<RosterFeedEntry>,
}

/// How one kind of frame changes a roster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RosterFeedEntry {
    /// The kind.
    pub frame: String,
    /// `replace` (the frame lists all), `add`, `remove`, `seat` (the frame's key is a seat that one account holds), `clear`.
    pub change: String,
    /// Path of the parameter's value; must be the kind's key path.
    pub param: Option<String>,
    /// `replace`: path of the list.
    pub members: Option<String>,
    /// Path of the account; with `members`, within one member.
    pub account: Option<String>,
    /// Path of what a member is known by, where that is not the account; with `members`, within one member.
    pub slot: Option<String>,
}

/// One audience.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AudienceEntry {
    /// `<module>.<…>`, in the audiences' own space of ids.
    pub id: String,
    /// For people.
    pub label: String,
    /// For people.
    pub description: String,
    /// The widest set that it can ever be.
    pub ceiling: Option<String>,
    /// The roster that answers it.
    pub roster: Option<String>,
    /// Or: everybody with a linked account of this module's shards.
    #[serde(default)]
    pub linked: bool,
    /// What an operator fills in.
    #[serde(default)]
    pub params: Vec<ParamEntry>,
}

/// One parameter of an audience.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParamEntry {
    /// Its name.
    pub id: String,
    /// `string` or `int`.
    #[serde(rename = "type")]
    pub of: String,
    /// Whether it may be left out.
    #[serde(default)]
    pub required: bool,
}

/// One mapping.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MappingEntry {
    /// Its name within the module: what its trackers are stored under. Renaming it forgets what they saw.
    pub id: String,
    /// One or more kinds.
    pub frames: Vec<String>,
    /// What it fires.
    pub trigger: String,
    /// What must hold of the body, all of it.
    #[serde(default)]
    pub when: Vec<ConditionEntry>,
    /// `always|transition|changed|edge|crossing|top_changed|roster`.
    pub tracker: String,
    /// Path of the value that the tracker watches.
    pub value: Option<String>,
    /// The key that the tracker is kept by; only the kinds' own key path is allowed.
    pub key: Option<String>,
    /// `transition`: the values that fire.
    pub set: Option<Vec<serde_json::Value>>,
    /// `transition`: path of the value before, as the frame itself tells it.
    pub previous: Option<String>,
    /// `crossing`: the thresholds.
    pub thresholds: Option<Vec<f64>>,
    /// `crossing`: how far back over a threshold the number must go before it can cross again.
    pub hysteresis: Option<f64>,
    /// `crossing`: `rising` or `falling`.
    pub direction: Option<String>,
    /// `top_changed`: how many from the top.
    pub top: Option<usize>,
    /// `top_changed`: path of an entry's identity within the entry; unset: the entry itself.
    pub identity: Option<String>,
    /// `roster`: which one; `members` audience: whose members travel with the firing.
    pub roster: Option<String>,
    /// `roster`: `joined`, `left` or `cleared`.
    pub change: Option<String>,
    /// Path of the game account whom it is about.
    pub owner: Option<String>,
    /// Where nobody has that account any more, whoever had it last is the owner.
    #[serde(default)]
    pub former_owner: bool,
    /// Take the recipients from `roster`, as it was before this frame.
    #[serde(default)]
    pub recipients: bool,
    /// Narrows the trigger's ceiling.
    pub ceiling: Option<String>,
    /// Joins frames that report one fact; unset: shard, boot and sequence.
    pub dedupe: Option<String>,
    /// What a preference and an unsubscribe of it are kept by, beside the trigger (`guild:12`); unset: the trigger alone.
    pub scope: Option<String>,
    /// Variable to path, or to a text with `{{ … }}`.
    #[serde(default)]
    pub vars: BTreeMap<String, String>,
}

/// One condition on a frame's body. Exactly one comparison beside the path.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConditionEntry {
    /// Path of the value.
    pub path: String,
    /// Equals this.
    pub eq: Option<serde_json::Value>,
    /// Is there and does not equal this.
    pub ne: Option<serde_json::Value>,
    /// Is one of these.
    #[serde(rename = "in")]
    pub one_of: Option<Vec<serde_json::Value>>,
    /// Is at least this.
    pub gte: Option<f64>,
    /// Is at most this.
    pub lte: Option<f64>,
    /// Is there and not null (`true`), or is not (`false`).
    pub present: Option<bool>,
    /// Equals what stands at this other path.
    pub same_as: Option<String>,
}

/// One message body: its key alone, for now.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateEntry {
    /// Letters, digits, dots and dashes.
    pub key: String,
    /// The channel it is for.
    pub channel: String,
    /// The trigger whose variables it may use.
    pub trigger: String,
    /// Raised when the shipped body is bettered.
    pub seed_version: u32,
}

/// Rules that are seeded together, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleGroupEntry {
    /// `<module>.<…>`, in a space of its own. A rule that must reach workspaces that have the group already takes a new one.
    pub id: String,
    /// The rules, in order.
    #[serde(default, rename = "rule")]
    pub rules: Vec<RuleEntry>,
}

/// One rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleEntry {
    /// Unique among all seeded rules.
    pub id: String,
    /// For people.
    pub label: String,
    /// For people: also what it needs of a shard.
    #[serde(default)]
    pub description: String,
    /// What it answers.
    pub trigger: String,
    /// A seeded rule is disabled; the key is known so that `true` can be refused by name.
    pub enabled: Option<bool>,
    /// By which channels.
    #[serde(default)]
    pub channels: Vec<String>,
    /// Unset: the trigger's.
    pub audience: Option<String>,
    /// A tree over the trigger's variables.
    pub conditions: Option<serde_json::Value>,
    /// How long a message waits, in seconds.
    #[serde(default)]
    pub delay_s: u32,
    /// How long one person is not told again of one subject on one channel, in seconds.
    #[serde(default)]
    pub cooldown_s: u32,
    /// How many messages an hour at most.
    pub hourly_cap: Option<u32>,
    /// Triggers that cancel what still waits.
    #[serde(default)]
    pub cancel_on: Vec<String>,
    /// Template keys by channel, and by `digest`, which is a slot and no channel.
    #[serde(default)]
    pub template_keys: BTreeMap<String, String>,
}
