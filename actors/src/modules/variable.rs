//! A trigger's variables: their types, and whether a value is of one.

use serde_json::Value;

/// Longest text of a variable, in bytes: what a message can show.
pub const MAX_TEXT: usize = 2_000;
/// Most entries of a list.
pub const MAX_LIST: usize = 100;

/// What a variable's value must be.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum VariableType {
    /// Text.
    String,
    /// A whole number.
    Int,
    /// A number.
    Number,
    /// `true` or `false`.
    Bool,
    /// RFC 3339 with an offset.
    Datetime,
    /// Site-relative: it ends up in a link.
    Url,
    /// A list of texts, numbers, or flat objects of those.
    List,
}

impl VariableType {
    /// Every type.
    pub const ALL: [VariableType; 7] = [
        VariableType::String,
        VariableType::Int,
        VariableType::Number,
        VariableType::Bool,
        VariableType::Datetime,
        VariableType::Url,
        VariableType::List,
    ];

    /// Its word in manifests.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            VariableType::String => "string",
            VariableType::Int => "int",
            VariableType::Number => "number",
            VariableType::Bool => "bool",
            VariableType::Datetime => "datetime",
            VariableType::Url => "url",
            VariableType::List => "list",
        }
    }

    /// The type of that word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<VariableType> {
        VariableType::ALL.into_iter().find(|t| t.word() == word)
    }

    /// Whether `value` is of this type.
    #[must_use]
    pub fn admits(self, value: &Value) -> bool {
        match (self, value) {
            (VariableType::String, Value::String(text)) => fits(text),
            (VariableType::Int, Value::Number(n)) => n.is_i64(),
            (VariableType::Number, Value::Number(_)) | (VariableType::Bool, Value::Bool(_)) => true,
            (VariableType::Datetime, Value::String(text)) => {
                millrace_schemas::time::Micros::parse_rfc3339(text).is_ok()
            }
            (VariableType::Url, Value::String(text)) => fits(text) && is_site_relative(text),
            (VariableType::List, Value::Array(entries)) => {
                entries.len() <= MAX_LIST && entries.iter().all(is_entry)
            }
            _ => false,
        }
    }
}

/// NUL is refused everywhere: the store's JSON cannot hold it.
fn fits(text: &str) -> bool {
    text.len() <= MAX_TEXT && !text.contains('\0')
}

fn is_scalar(value: &Value) -> bool {
    match value {
        Value::String(text) => fits(text),
        Value::Number(_) | Value::Bool(_) => true,
        _ => false,
    }
}

fn is_entry(value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            fields.len() <= 16 && fields.iter().all(|(k, v)| fits(k) && is_scalar(v))
        }
        other => is_scalar(other),
    }
}

/// Whether a link stays on the site: one slash first, nothing that a browser reads as another host (`//host`, `/\host`), no
/// blanks or control characters.
#[must_use]
pub fn is_site_relative(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first() == Some(&b'/')
        && !matches!(bytes.get(1), Some(b'/'))
        && !text.contains('\\')
        && !text.chars().any(|c| c.is_control() || c.is_whitespace())
}

/// One variable.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name.
    pub name: Box<str>,
    /// Its type.
    pub of: VariableType,
    /// A firing without it is rejected.
    pub required: bool,
    /// What previews and trial sends show.
    pub example: Value,
}

#[cfg(test)]
mod tests {
    use super::{VariableType, is_site_relative};
    use serde_json::json;

    #[test]
    fn a_link_never_leaves_the_site() {
        for good in ["/", "/uo/houses", "/uo/houses?id=1#x"] {
            assert!(is_site_relative(good), "{good}");
        }
        for bad in [
            "",
            "uo",
            "//evil.test/x",
            "/\\evil.test",
            "https://x",
            "/a b",
            "/a\tb",
            "/\u{a0}x",
        ] {
            assert!(!is_site_relative(bad), "{bad:?}");
        }
    }

    #[test]
    fn each_type_admits_its_own() {
        let samples = [
            (VariableType::String, json!("x")),
            (VariableType::Int, json!(7)),
            (VariableType::Number, json!(7.5)),
            (VariableType::Bool, json!(true)),
            (VariableType::Datetime, json!("2026-08-30T04:00:00Z")),
            (VariableType::Url, json!("/x")),
            (VariableType::List, json!(["a", 1, {"a": "b"}])),
        ];
        for (of, good) in &samples {
            assert!(of.admits(good), "{of:?}");
            assert!(!of.admits(&json!(null)));
        }
        assert!(!VariableType::Int.admits(&json!(7.5)));
        assert!(!VariableType::Int.admits(&json!(u64::MAX)));
        assert!(!VariableType::Datetime.admits(&json!("2026-08-30")));
        assert!(!VariableType::String.admits(&json!("a\0")));
        assert!(!VariableType::List.admits(&json!([["deep"]])));
        assert!(!VariableType::List.admits(&json!([{"a": {"b": 1}}])));
    }
}
