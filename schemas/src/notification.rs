//! What an outbox row of the channels `email`, `inapp` and `push` holds: whom a notice is for and what it says, frozen when it was
//! decided. Never an address or an endpoint: those are read from the directory when it is sent.

use crate::time::Micros;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The payload of a row. Unknown members are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notification {
    /// Wire version, [`crate::WIRE_VERSION`].
    pub v: u16,
    /// The user, as the directory knows them.
    pub user: String,
    /// The trigger's id.
    pub trigger: String,
    /// The rule's id; none: no rule sends it (a test send, an account's own mail).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The firing's id.
    #[serde(default)]
    pub firing: String,
    /// What a scoped preference and an unsubscription are keyed on: a stable id such as `team:12`, or nothing.
    #[serde(default)]
    pub scope: String,
    /// What makes a second one the same for this user.
    pub dedupe_key: String,
    /// Stream time of the event.
    pub at: Micros,
    /// An older one is not sent any more (`suppressed(stale)`): seconds since `at`; none: it never is too old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_s: Option<u32>,
    /// Mail that its user has asked for (a reset, an invitation, a test): neither suppression nor preference hold it back, and it
    /// offers no unsubscription.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transactional: bool,
    /// What it says.
    #[serde(default)]
    pub body: GenericBody,
    /// The ceiling that held when it was decided, by its word: what of it can be asked of one user is asked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<String>,
    /// The link that puts the user within that ceiling, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linked: Option<Linked>,
    /// What holds for this trigger and channel where the user has said nothing, if the trigger says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_mode: Option<String>,
    /// Push: the stream whose devices are woken; the trigger's id where none is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// Push: the in-app row that must have ended before; its notification is what the push refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Uuid>,
    /// A test send alone: the address, sealed for this message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_sealed: Option<String>,
}

/// A link of a user to a game account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Linked {
    /// The module.
    pub module: String,
    /// The shard.
    pub shard: String,
    /// The account; empty: any of the user's on the shard.
    #[serde(default)]
    pub account: String,
}

impl Notification {
    /// What it says; a body without a title is titled by its trigger.
    #[must_use]
    pub fn said(&self) -> GenericBody {
        let mut body = self.body.clone();
        if body.title.trim().is_empty() {
            body.title.clone_from(&self.trigger);
        }
        body
    }
}

/// The generic bodies' four parts. A trigger's own variables of these names win; what they leave out is filled from its
/// declaration ([`project`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenericBody {
    /// The heading, and a mail's subject.
    pub title: String,
    /// Text under it; lines are kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub intro: String,
    /// A list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<Item>,
    /// A button.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
}

/// The longest body of a notice, in bytes of its JSON, names and brackets not counted: each user that a firing reaches gets one of
/// their own, so that five thousand of them are what one transaction takes.
pub const MAX_BODY_BYTES: usize = 8 * 1_024;
/// The longest title, and the longest label of a button, in bytes of JSON.
const MAX_TITLE_BYTES: usize = 512;
/// The longest intro, in bytes of JSON.
const MAX_INTRO_BYTES: usize = 5 * 1_024;
/// The longest text of an item, in bytes of JSON.
const MAX_ITEM_BYTES: usize = 512;
/// The longest address, in bytes of JSON: a longer one is left out, since half of it leads nowhere.
const MAX_URL_BYTES: usize = 1_024;
/// What an item takes beside its text and address, in bytes of JSON.
const ITEM_BYTES: usize = 24;
/// What stands where something was cut off.
const CUT: char = '…';

impl GenericBody {
    /// The same within [`MAX_BODY_BYTES`]: texts that are too long end in `…`, and so does a list.
    #[must_use]
    pub fn bounded(mut self) -> GenericBody {
        cut(&mut self.title, MAX_TITLE_BYTES);
        cut(&mut self.intro, MAX_INTRO_BYTES);
        self.action = self
            .action
            .filter(|action| weight(&action.url) <= MAX_URL_BYTES);
        let mut left = MAX_BODY_BYTES
            .saturating_sub(weight(&self.title))
            .saturating_sub(weight(&self.intro));
        if let Some(action) = &mut self.action {
            cut(&mut action.label, MAX_TITLE_BYTES);
            left = left
                .saturating_sub(weight(&action.label))
                .saturating_sub(weight(&action.url));
        }
        // Room for the item that says that there are more.
        left = left.saturating_sub(ITEM_BYTES + CUT.len_utf8());
        let all = std::mem::take(&mut self.items);
        for mut item in all {
            cut(&mut item.text, MAX_ITEM_BYTES);
            item.url = item.url.filter(|url| weight(url) <= MAX_URL_BYTES);
            let takes = ITEM_BYTES + weight(&item.text) + item.url.as_deref().map_or(0, weight);
            let Some(rest) = left.checked_sub(takes) else {
                self.items.push(Item {
                    text: CUT.to_string(),
                    url: None,
                });
                break;
            };
            left = rest;
            self.items.push(item);
        }
        self
    }
}

/// What a text takes as JSON, without its quotes, in bytes.
fn weight(text: &str) -> usize {
    text.chars().map(escaped).sum()
}

/// What a character takes within a text of JSON, in bytes.
fn escaped(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        c if c < ' ' => 6,
        c => c.len_utf8(),
    }
}

/// Cuts a text to `most` bytes of JSON, between characters.
fn cut(text: &mut String, most: usize) {
    if weight(text) <= most {
        return;
    }
    let room = most.saturating_sub(CUT.len_utf8());
    let mut taken = 0;
    let end = text.char_indices().find_map(|(at, c)| {
        taken += escaped(c);
        (taken > room).then_some(at)
    });
    text.truncate(end.unwrap_or(0));
    text.push(CUT);
}

/// An item of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Its text.
    pub text: String,
    /// Where it leads: site-relative, or whole (https).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// A button.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// What stands on it.
    pub label: String,
    /// Where it leads: site-relative, or whole (https).
    pub url: String,
}

/// What stands on a button that nobody has named.
pub const OPEN: &str = "Open";

/// The generic body of a firing: what its variables say under the names `title`, `intro`, `items` and `actionUrl` stands as emitted;
/// only what they do not say is filled: the title with the trigger's label, the intro with its description, the link with the first
/// variable that is declared as a URL (`urls`, in the order of their declaration) and has a value.
#[must_use]
pub fn project(
    label: &str,
    description: &str,
    urls: &[&str],
    vars: &serde_json::Map<String, serde_json::Value>,
) -> GenericBody {
    let text = |name: &str| vars.get(name).and_then(said);
    let url = text("actionUrl").or_else(|| urls.iter().find_map(|name| text(name)));
    let items = match vars.get("items") {
        Some(serde_json::Value::Array(all)) => all.iter().filter_map(item).collect(),
        _ => Vec::new(),
    };
    GenericBody {
        title: text("title").unwrap_or_else(|| label.to_owned()),
        intro: text("intro").unwrap_or_else(|| description.to_owned()),
        items,
        action: url.map(|url| Action {
            label: text("actionLabel").unwrap_or_else(|| OPEN.to_owned()),
            url,
        }),
    }
}

/// A value as text; none where it says nothing.
fn said(value: &serde_json::Value) -> Option<String> {
    let text = match value {
        serde_json::Value::String(text) => text.trim().to_owned(),
        serde_json::Value::Number(number) => number.to_string(),
        serde_json::Value::Bool(flag) => flag.to_string(),
        _ => return None,
    };
    (!text.is_empty()).then_some(text)
}

fn item(value: &serde_json::Value) -> Option<Item> {
    if let Some(text) = said(value) {
        return Some(Item { text, url: None });
    }
    let text = ["text", "title", "label", "name"];
    let text = text
        .iter()
        .find_map(|name| value.get(name).and_then(said))?;
    let url = value.get("url").and_then(said);
    Some(Item { text, url })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_payload_says_wins_and_the_declaration_fills_the_rest() {
        let vars = json!({"title": "A headline", "n": 3, "threadUrl": "/t/1", "empty": ""});
        let vars = vars.as_object().expect("an object");
        let body = project("Label", "What it is", &["empty", "threadUrl"], vars);
        assert_eq!(body.title, "A headline");
        assert_eq!(body.intro, "What it is");
        let action = body.action.expect("a link");
        assert_eq!((action.label.as_str(), action.url.as_str()), (OPEN, "/t/1"));
        let none = project(
            "Label",
            "What it is",
            &["threadUrl"],
            &serde_json::Map::new(),
        );
        assert_eq!(none.title, "Label");
        assert_eq!((none.items, none.action), (Vec::new(), None));
    }

    #[test]
    fn a_body_is_bounded_and_a_short_one_is_as_it_was() {
        let item = |text: &str, url: Option<String>| Item {
            text: text.to_owned(),
            url,
        };
        let short = GenericBody {
            title: "T".to_owned(),
            intro: "Two\nlines".to_owned(),
            items: vec![item("one", Some("/1".to_owned())), item("two", None)],
            action: Some(Action {
                label: OPEN.to_owned(),
                url: "/x".to_owned(),
            }),
        };
        assert_eq!(short.clone().bounded(), short);
        // What escapes most, and what takes most bytes a character.
        for c in ["\u{1}", "é", "🏰", "\"", "x"] {
            let long = c.repeat(9_000);
            let body = GenericBody {
                title: long.clone(),
                intro: long.clone(),
                items: vec![item(&long, Some(format!("/{long}"))); 100],
                action: Some(Action {
                    label: long.clone(),
                    url: format!("/{}", "y".repeat(1_000)),
                }),
            };
            let body = body.bounded();
            let bytes = serde_json::to_vec(&body).expect("JSON").len();
            assert!(bytes <= MAX_BODY_BYTES + 128, "{c:?}: {bytes}");
            assert!(body.title.ends_with(CUT) && body.intro.ends_with(CUT));
            assert_eq!(body.items.last().map(|i| &*i.text), Some("…"));
            assert!(body.items.len() > 1 && body.items.iter().all(|i| i.url.is_none()));
            assert!(body.action.is_some());
        }
    }

    #[test]
    fn items_are_texts_numbers_or_objects_that_name_themselves() {
        let vars =
            json!({"items": ["one", 2, {"title": "three", "url": "/3"}, {"x": 1}, null, ""]});
        let body = project("L", "", &[], vars.as_object().expect("an object"));
        let texts: Vec<&str> = body.items.iter().map(|i| i.text.as_str()).collect();
        assert_eq!(texts, ["one", "2", "three"]);
        assert_eq!(body.items.last().and_then(|i| i.url.as_deref()), Some("/3"));
    }

    #[test]
    fn a_row_s_payload_reads_back_and_may_say_more() {
        let text = r#"{"v":1,"user":"u1","trigger":"core.x","dedupe_key":"k","at":"2026-01-01T00:00:00Z","body":{"title":"T"},"vars":{"a":1}}"#;
        let read: Result<Notification, _> = serde_json::from_str(text);
        // Times on the wire are whatever `Micros` says they are.
        if let Ok(read) = read {
            assert_eq!(read.user, "u1");
        }
        let one = Notification {
            v: 1,
            user: "u".to_owned(),
            body: GenericBody {
                title: "T".to_owned(),
                ..GenericBody::default()
            },
            ..Notification::default()
        };
        let back: Notification =
            serde_json::from_str(&serde_json::to_string(&one).expect("text")).expect("it reads");
        assert_eq!(back, one);
    }
}
