//! What Meta's answers mean. Pure.
//!
//! They are judged by `error.code`, not by the HTTP status: Meta says 400 for what will pass and 200 for what failed. Without an
//! `error` the status counts: 2xx with a receipt is a receipt, 429, 408 and 5xx come again, 413 was too much at once, everything
//! else is final. What may have arrived without a receipt is unsure.

use crate::delivery::redaction::redact;
use serde_json::Value;
use std::borrow::Cow;
use std::time::Duration;

/// What an answer means for the events of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// They arrived; so many, as Meta counts.
    Received(u64),
    /// Again later.
    Again {
        /// What failed.
        code: Cow<'static, str>,
        /// `Retry-After`.
        after: Option<Duration>,
        /// They may have arrived.
        unsure: bool,
        /// The receiver itself seems dead.
        dead: bool,
    },
    /// Nothing may be sent until a person looks, for this reason.
    Pause(&'static str),
    /// All were refused because of one of them: the one at the index, if it is named.
    OneIsBad {
        /// Of error and subcode.
        code: Cow<'static, str>,
        /// Which one, from 0.
        index: Option<usize>,
    },
    /// All were refused for good.
    Refused(Cow<'static, str>),
}

/// The token is expired, revoked or wrong.
pub const TOKEN_INVALID: &str = "meta_token_invalid";
/// The token may not do this.
pub const PERMISSION: &str = "meta_permission";
/// The dataset does not exist, or the token may not see it.
pub const OBJECT_MISSING: &str = "meta_object_missing";

/// The proof under the app secret is wrong, or the app asks for one.
pub const APP_SECRET_INVALID: &str = "meta_app_secret_invalid";

fn about_proof(error: &Value) -> bool {
    error
        .get("message")
        .and_then(Value::as_str)
        .is_some_and(|m| m.contains("appsecret_proof"))
}

/// Judges an answer; `after` is its `Retry-After`, `cut`: its body went on beyond what was read.
#[must_use]
pub fn judge(status: u16, body: &[u8], cut: bool, after: Option<Duration>) -> Meaning {
    let value: Option<Value> = serde_json::from_slice(body).ok();
    if let Some(error) = value.as_ref().and_then(error_of) {
        return by_code(status, error, after);
    }
    let again = |code: Cow<'static, str>, unsure| Meaning::Again {
        code,
        after,
        unsure,
        dead: status >= 500,
    };
    let received = value
        .as_ref()
        .and_then(|v| v.get("events_received"))
        .and_then(Value::as_u64);
    match (status, received) {
        (200..=299, Some(n)) => Meaning::Received(n),
        // What it says of itself lies beyond the bound: nothing final follows from half an answer.
        (300..=499, _) if cut => again("answer_too_long".into(), false),
        // A success without a receipt proves nothing.
        (200..=299, None) => again("no_receipt".into(), true),
        (408 | 429, _) => again(format!("http_{status}").into(), false),
        (500.., _) => again(format!("http_{status}").into(), true),
        (413, _) => Meaning::OneIsBad {
            code: "http_413".into(),
            index: None,
        },
        _ => Meaning::Refused(format!("http_{status}").into()),
    }
}

fn error_of(value: &Value) -> Option<&Value> {
    value.get("error").filter(|e| !e.is_null())
}

fn number(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::Number(n) => n.as_u64(),
        Value::String(s) => s.trim().parse().ok(),
        _ => None,
    }
}

fn by_code(status: u16, error: &Value, after: Option<Duration>) -> Meaning {
    let Some(code) = number(error.get("code")) else {
        // An error without a code is told apart by the status alone; with a success it is none that may be final.
        return match status {
            200..=299 | 408 | 429 | 500.. => Meaning::Again {
                code: format!("http_{status}_error").into(),
                after,
                unsure: false,
                dead: status >= 500,
            },
            _ => Meaning::Refused(format!("http_{status}").into()),
        };
    };
    let subcode = number(error.get("error_subcode"));
    let name = || -> Cow<'static, str> {
        match subcode {
            Some(sub) => format!("meta_{code}_{sub}").into(),
            None => format!("meta_{code}").into(),
        }
    };
    match (code, subcode) {
        (190, _) => Meaning::Pause(TOKEN_INVALID),
        (10 | 200, _) => Meaning::Pause(PERMISSION),
        (100, Some(33)) => Meaning::Pause(OBJECT_MISSING),
        // Said with the code of a bad parameter, and no fault of any event.
        (100, _) if about_proof(error) => Meaning::Pause(APP_SECRET_INVALID),
        (1 | 2 | 4 | 17 | 32 | 341 | 368 | 613 | 80_000..=80_014, _) => Meaning::Again {
            code: name(),
            after,
            unsure: false,
            dead: status >= 500,
        },
        // Some answers carry the subcode of a bad event in the code's place.
        (100 | 2_804_000..=2_804_999, _) => Meaning::OneIsBad {
            code: name(),
            index: event_index(error, 0),
        },
        (_, _) if status >= 500 || status == 429 => Meaning::Again {
            code: name(),
            after,
            unsure: false,
            dead: status >= 500,
        },
        _ => Meaning::Refused(name()),
    }
}

/// The index of the bad event, wherever the error names it: `event_index` at any depth, in JSON within a text, or in words.
fn event_index(value: &Value, depth: u8) -> Option<usize> {
    if depth > 6 {
        return None;
    }
    match value {
        Value::Object(map) => map
            .get("event_index")
            .and_then(|v| number(Some(v)))
            .and_then(|n| usize::try_from(n).ok())
            .or_else(|| map.values().find_map(|v| event_index(v, depth + 1))),
        Value::Array(items) => items.iter().find_map(|v| event_index(v, depth + 1)),
        Value::String(text) => in_words(text).or_else(|| {
            let inner: Value = text
                .trim_start()
                .starts_with(['{', '['])
                .then(|| serde_json::from_str(text).ok())??;
            event_index(&inner, depth + 1)
        }),
        _ => None,
    }
}

/// `data[14]`, `event_index: 14`, `"event_index":14`.
fn in_words(text: &str) -> Option<usize> {
    let after = |mark: &str| {
        let (_, rest) = text.split_once(mark)?;
        let rest = rest.trim_start_matches(['"', '\\', ':', '=', ' ', '[']);
        let end = rest.find(|c: char| !c.is_ascii_digit());
        rest.get(..end.unwrap_or(rest.len()))?.parse().ok()
    };
    after("event_index").or_else(|| after("data["))
}

/// What an answer says, for people: codes and the error's own words, or the body's beginning, with the secrets and everything
/// that looks like one or like a contact taken out.
#[must_use]
pub fn excerpt(body: &[u8], secrets: &[&str]) -> String {
    let value: Option<Value> = serde_json::from_slice(body).ok();
    let said = match value.as_ref().and_then(error_of) {
        Some(error) if error.is_object() => words(error, secrets),
        Some(error) => clean(&error.to_string(), secrets),
        None => {
            let text = String::from_utf8_lossy(body);
            clean(&text.chars().take(2_000).collect::<String>(), secrets)
        }
    };
    said.chars().take(500).collect()
}

fn words(error: &Value, secrets: &[&str]) -> String {
    // The order is of what helps most: a long text may be cut.
    const NUMBERS: [&str; 2] = ["code", "error_subcode"];
    const TEXTS: [&str; 6] = [
        "type",
        "message",
        "error_user_title",
        "error_user_msg",
        "error_data",
        "fbtrace_id",
    ];
    let numbers = NUMBERS.iter().filter_map(|key| {
        let n = number(error.get(*key))?;
        Some(format!("{key}={n}"))
    });
    let texts = TEXTS.iter().filter_map(|key| {
        let said = match error.get(*key)? {
            Value::Null => return None,
            Value::String(text) => clean(text, secrets),
            other => clean(&other.to_string(), secrets),
        };
        Some(format!("{key}={said}"))
    });
    numbers.chain(texts).collect::<Vec<_>>().join("; ")
}

/// Without the secrets, however they are escaped, and without what looks like one or like a contact.
fn clean(text: &str, secrets: &[&str]) -> String {
    let mut clean = text.to_owned();
    for secret in secrets.iter().filter(|s| !s.is_empty()) {
        let escaped = serde_json::to_string(secret).unwrap_or_default();
        let inner = escaped
            .strip_prefix('"')
            .and_then(|e| e.strip_suffix('"'))
            .unwrap_or(secret);
        let encoded =
            percent_encoding::utf8_percent_encode(secret, percent_encoding::NON_ALPHANUMERIC)
                .to_string();
        for form in [secret, inner, &encoded] {
            clean = clean.replace(form, "[redacted]");
        }
    }
    redact(&clean)
}

#[cfg(test)]
mod tests;
