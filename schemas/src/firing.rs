//! The wire record of topic `triggers`: a trigger fired. Thresholds emit them, and `POST /v1/events` produces them from outside.
//!
//! What its form alone shows wrong is said here ([`Firing::fault`]); whether it keeps its trigger's declaration is for whoever
//! knows the modules.

use crate::ceiling::Ceiling;
use crate::directory::{LONGEST, is_text};
use crate::emit::EmitSource;
use crate::ids::has_control;
use crate::postback::Replay;
use crate::time::Micros;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest name in a firing (its id, trigger, module, shard, subject, scope), in bytes. Users are named as the directory names them:
/// with up to [`LONGEST`] bytes.
pub const MAX_NAME_BYTES: usize = 190;
/// Longest dedupe text, in bytes: it is made by a template, and only its digest is kept.
pub const MAX_DEDUPE_BYTES: usize = 1_024;
/// Users that a firing may carry, and that any audience is resolved to, at most.
pub const MAX_AUDIENCE: usize = 5_000;
/// Variables of a firing at most.
pub const MAX_VARS: usize = 64;
/// Longest text of a variable, in bytes.
pub const MAX_VAR_BYTES: usize = 8_192;
/// All variables of a firing together, in bytes of JSON, at most: each firing is stored with all of them, and what is said of it to
/// each user it reaches comes of them.
pub const MAX_VARS_BYTES: usize = 32 * 1_024;

/// A record of topic `triggers`, keyed by [`Firing::log_key`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Firing {
    /// Wire version, [`crate::WIRE_VERSION`].
    pub v: u16,
    /// The workspace's number.
    pub ws: i32,
    /// Its id: the coordinates of the frame with a number behind them, or a minted one. The same firing never has two.
    pub id: String,
    /// The trigger's id, `<module>.<name>`.
    pub trigger: String,
    /// The module that declares the trigger.
    pub module: String,
    /// The shard it happened on; empty: on none.
    #[serde(default)]
    pub shard: String,
    /// What it is about: a stable id, qualified by the shard wherever it is kept. Empty: a cooldown counts per user.
    #[serde(default)]
    pub subject: String,
    /// The declared variables.
    #[serde(default)]
    pub vars: BTreeMap<String, Value>,
    /// The user it belongs to, where its account is linked to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The game account by whose link that user was found, where the link must still stand when a message leaves; none: it need not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The users it carries for the audience `members`; none of them need be active, at most [`MAX_AUDIENCE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipients: Option<Vec<String>>,
    /// Those users were found by links of accounts of its shard, of which each must still have one when a message leaves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_links: bool,
    /// What a preference and an unsubscribe are keyed by (`team:12`), stable; empty: the trigger alone.
    #[serde(default)]
    pub scope: String,
    /// Narrows the trigger's declared ceiling; never widens it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<Ceiling>,
    /// Names the event, so that two reports of it are one: the mapping's `dedupe`, else shard, boot and sequence.
    pub dedupe: String,
    /// When it happened: the frame's stream time.
    pub at: Micros,
    /// When a door accepted what it comes from.
    pub accepted_at: Micros,
    /// Who emitted it; none: it came through a door.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emit: Option<EmitSource>,
    /// Set by `dlq replay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
}

impl Firing {
    /// The key under which the log keeps it: all firings of one subject of one shard are in one partition.
    #[must_use]
    pub fn log_key(&self) -> String {
        log_key(self.ws, &self.shard, &self.subject)
    }

    /// What is wrong with its form: a name from a closed list.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        let named = |text: &str| text.len() <= MAX_NAME_BYTES && !has_control(text);
        let given = |text: &str| !text.is_empty() && named(text);
        let user = |text: &str| is_text(text, LONGEST);
        if !given(&self.id) {
            return Some("id_malformed");
        }
        if !given(&self.trigger) || !given(&self.module) {
            return Some("trigger_malformed");
        }
        if !named(&self.shard) || self.shard.contains(':') {
            return Some("shard_malformed");
        }
        if !named(&self.subject) {
            return Some("subject_malformed");
        }
        if !named(&self.scope) {
            return Some("scope_malformed");
        }
        if self.dedupe.is_empty()
            || self.dedupe.len() > MAX_DEDUPE_BYTES
            || has_control(&self.dedupe)
        {
            return Some("dedupe_malformed");
        }
        if self.owner.as_deref().is_some_and(|o| !user(o)) {
            return Some("owner_malformed");
        }
        if self.account.as_deref().is_some_and(has_control) {
            return Some("account_malformed");
        }
        if let Some(carried) = &self.recipients {
            if carried.len() > MAX_AUDIENCE {
                return Some("recipients_too_many");
            }
            if !carried.iter().all(|r| user(r)) {
                return Some("recipients_malformed");
            }
        }
        if self.vars.len() > MAX_VARS {
            return Some("variables_too_many");
        }
        let long = |v: &Value| match v {
            Value::String(text) => text.len() > MAX_VAR_BYTES || text.contains('\0'),
            Value::Array(_) | Value::Object(_) => {
                let text = v.to_string();
                text.len() > MAX_VAR_BYTES || text.contains("\\u0000")
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        };
        if self.vars.iter().any(|(k, v)| !given(k) || long(v)) {
            return Some("variable_malformed");
        }
        if self.vars_bytes() > MAX_VARS_BYTES {
            return Some("variables_too_large");
        }
        None
    }

    /// The length of its variables as JSON text, in bytes: what escapes add counts, since it is what the log and the store carry.
    #[must_use]
    pub fn vars_bytes(&self) -> usize {
        // Keys are text and values came out of JSON: it cannot fail.
        serde_json::to_vec(&self.vars).map_or(usize::MAX, |text| text.len())
    }
}

/// `{ws}:{shard}:{subject}`. A shard's id holds no colon, so that no two (shard, subject) share it.
#[must_use]
pub fn log_key(ws: i32, shard: &str, subject: &str) -> String {
    format!("{ws}:{shard}:{subject}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn firing() -> Firing {
        serde_json::from_value(json!({
            "v": 1, "ws": 1, "id": "3-0-7-0", "trigger": "g.lamp.warned", "module": "g", "shard": "s1", "subject": "0x40",
            "vars": {"stage": "late"}, "dedupe": "s1:b:1", "at": 1, "accepted_at": 2
        }))
        .unwrap()
    }

    #[test]
    fn the_form_is_judged_by_name() {
        assert_eq!(firing().fault(), None);
        let bad = |change: fn(&mut Firing), want| {
            let mut f = firing();
            change(&mut f);
            assert_eq!(f.fault(), Some(want));
        };
        bad(|f| f.id.clear(), "id_malformed");
        bad(|f| f.trigger = "a\nb".into(), "trigger_malformed");
        bad(|f| f.shard = "a:b".into(), "shard_malformed");
        bad(|f| f.subject = "x".repeat(191), "subject_malformed");
        bad(|f| f.scope = "\u{7}".into(), "scope_malformed");
        bad(|f| f.dedupe.clear(), "dedupe_malformed");
        bad(|f| f.owner = Some(String::new()), "owner_malformed");
        bad(|f| f.account = Some("a\nb".into()), "account_malformed");
        bad(
            |f| f.recipients = Some(vec!["u".into(); MAX_AUDIENCE + 1]),
            "recipients_too_many",
        );
        bad(
            |f| f.recipients = Some(vec![String::new()]),
            "recipients_malformed",
        );
        bad(
            |f| {
                f.vars.insert("n".into(), json!("a\0"));
            },
            "variable_malformed",
        );
        bad(
            |f| {
                f.vars.insert("n".into(), json!(["a\0"]));
            },
            "variable_malformed",
        );
    }

    #[test]
    fn every_user_that_the_directory_takes_may_be_named() {
        let mut f = firing();
        let most = "u".repeat(LONGEST);
        f.owner = Some(most.clone());
        f.recipients = Some(vec!["ann".into(), most]);
        assert_eq!(f.fault(), None);
        let more = "u".repeat(LONGEST + 1);
        f.recipients = Some(vec!["ann".into(), more.clone()]);
        assert_eq!(f.fault(), Some("recipients_malformed"));
        f.owner = Some(more);
        assert_eq!(f.fault(), Some("owner_malformed"));
    }

    #[test]
    fn variables_are_bounded_all_together() {
        let mut f = firing();
        f.vars.clear();
        assert_eq!(f.vars_bytes(), 2);
        for n in 0..3 {
            f.vars
                .insert(format!("v{n}"), json!("x".repeat(MAX_VAR_BYTES)));
        }
        assert_eq!(f.fault(), None);
        // `{"v0":"…","v1":"…","v2":"…","v3":"…"}`: 33 bytes around the texts.
        let rest = MAX_VARS_BYTES - 3 * MAX_VAR_BYTES - 33;
        f.vars.insert("v3".to_owned(), json!("x".repeat(rest)));
        assert_eq!(f.vars_bytes(), MAX_VARS_BYTES);
        assert_eq!(f.fault(), None);
        f.vars.insert("v3".to_owned(), json!("x".repeat(rest + 1)));
        assert_eq!(f.fault(), Some("variables_too_large"));
        // What a text takes when it is escaped counts, not what it takes in memory.
        f.vars.clear();
        f.vars
            .insert("v0".to_owned(), json!("\u{1}".repeat(MAX_VAR_BYTES)));
        assert_eq!(f.fault(), Some("variables_too_large"));
    }

    #[test]
    fn shard_and_subject_never_run_into_each_other() {
        assert_ne!(log_key(1, "a", "b:c"), log_key(1, "a.b", "c"));
        assert_eq!(firing().log_key(), "1:s1:0x40");
    }
}
