//! Reading bodies and looking at raw JSON: size, depth, NUL characters.

use super::errors::Refusal;
use actix_web::web::{Bytes, BytesMut, Payload};
use futures::StreamExt;
use millrace_schemas::MAX_JSON_DEPTH;

/// Reads a body of at most `limit` bytes. A body that came in one piece is not copied.
///
/// # Errors
/// 413 above the limit, 400 if the connection broke off.
pub async fn read(payload: &mut Payload, limit: usize) -> Result<Bytes, Refusal> {
    let Some(first) = payload.next().await else {
        return Ok(Bytes::new());
    };
    let first = first.map_err(|_| broken())?;
    if first.len() > limit {
        return Err(Refusal::body_too_large(limit));
    }
    let Some(second) = payload.next().await else {
        return Ok(first);
    };
    let mut whole = BytesMut::with_capacity(first.len() * 2);
    whole.extend_from_slice(&first);
    let mut next = Some(second);
    while let Some(chunk) = next {
        let chunk = chunk.map_err(|_| broken())?;
        if whole.len() + chunk.len() > limit {
            return Err(Refusal::body_too_large(limit));
        }
        whole.extend_from_slice(&chunk);
        next = payload.next().await;
    }
    Ok(whole.freeze())
}

/// Reads a body of at most `limit` bytes and forgets it.
///
/// # Errors
/// As [`read`].
pub async fn discard(payload: &mut Payload, limit: usize) -> Result<(), Refusal> {
    let mut seen = 0usize;
    while let Some(chunk) = payload.next().await {
        seen = seen.saturating_add(chunk.map_err(|_| broken())?.len());
        if seen > limit {
            return Err(Refusal::body_too_large(limit));
        }
    }
    Ok(())
}

fn broken() -> Refusal {
    Refusal::bad("body_incomplete", "the body ended early")
}

/// What is wrong with the raw text of one JSON object, before it is parsed: no object, a NUL character (escaped; a raw one
/// is no JSON), nesting beyond [`MAX_JSON_DEPTH`].
///
/// # Errors
/// 400.
pub fn check_raw_object(text: &[u8]) -> Result<(), Refusal> {
    // A struct would be read from a JSON array as well.
    let first = text.iter().find(|b| !b.is_ascii_whitespace());
    if first.is_some_and(|b| *b != b'{')
        && serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
    {
        return Err(Refusal::bad("not_an_object", "the JSON value is no object"));
    }
    if has_nul_escape(text) {
        return Err(Refusal::nul());
    }
    if is_too_deep(text) {
        return Err(Refusal::bad(
            "too_deep",
            format!("nested deeper than {MAX_JSON_DEPTH}"),
        ));
    }
    Ok(())
}

/// Whether a JSON text escapes a NUL (`\u0000`) in any of its strings, member names included.
fn has_nul_escape(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let tail = rest.get(at + 1..).unwrap_or_default();
        if tail.starts_with(b"u0000") {
            return true;
        }
        rest = tail.get(1..).unwrap_or_default();
    }
    false
}

/// Whether a JSON text nests deeper than allowed. The exact look is taken only of a text with that many opening brackets.
fn is_too_deep(text: &[u8]) -> bool {
    let opening = text.iter().filter(|b| matches!(b, b'{' | b'[')).count();
    if opening <= MAX_JSON_DEPTH {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for b in text {
        if in_string {
            match b {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match b {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth > MAX_JSON_DEPTH {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// The refusal that a parser's complaint makes: `not_json` where it is no JSON at all, `invalid` where its members are
/// wrong.
#[must_use]
pub fn parse_refusal(error: &serde_json::Error) -> Refusal {
    use serde_json::error::Category;
    match error.classify() {
        Category::Data => Refusal::bad("invalid", complaint(error)),
        Category::Io | Category::Syntax | Category::Eof => {
            Refusal::bad("not_json", format!("the body is not JSON: {error}"))
        }
    }
}

/// What a parser says of members that are wrong, without the sender's own words, which may be a contact or a secret: what was
/// found and wanted, the names of ours, and where.
#[must_use]
pub fn complaint(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&place).unwrap_or(&text);
    // The wish comes last, so that whatever stands in the value cannot be taken for it.
    let wanted = text.rsplit_once(", expected ").map(|(_, wanted)| wanted);
    let found = ["invalid type: ", "invalid value: "]
        .iter()
        .find_map(|kind| text.strip_prefix(kind))
        .and_then(|rest| rest.split([' ', '`', '"', ',']).next());
    let said = match (found, wanted) {
        (Some(found), Some(wanted)) => format!("{found} found, expected {wanted}"),
        (None, Some(wanted)) if text.starts_with("unknown ") => {
            format!("unknown name, expected {wanted}")
        }
        _ if text.starts_with("missing field `") || text.starts_with("duplicate field `") => {
            text.to_owned()
        }
        _ => "a value is malformed".to_owned(),
    };
    format!("{said}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_nul_is_seen_and_an_escaped_backslash_is_not_taken_for_one() {
        assert!(has_nul_escape(br#"{"a":"x\u0000"}"#));
        assert!(has_nul_escape(br#"{"a\\\u0000":1}"#));
        assert!(!has_nul_escape(br#"{"a":"\\u0000"}"#));
        assert!(!has_nul_escape(br#"{"a":"\u0001\"}"#));
        assert!(!has_nul_escape(b"\\"));
    }

    #[test]
    fn a_complaint_repeats_nothing_that_was_sent() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "read for the complaints alone")]
        struct Line {
            stage: Option<u16>,
            kind: Option<millrace_schemas::click::Kind>,
            ip: Option<std::net::IpAddr>,
            id: String,
        }
        for (sent, said) in [
            (
                r#"{"stage":"jane@x.example, expected u16"}"#,
                "string found, expected u16",
            ),
            (r#"{"stage":-4915155501}"#, "integer found, expected u16"),
            (r#"{"stage":4915155501.5}"#, "floating found, expected u16"),
            (r#"{"stage":[1]}"#, "sequence found, expected u16"),
            (
                r#"{"kind":"jane@x.example"}"#,
                "unknown name, expected one of `visit`, `click`, `provider_click`",
            ),
            (
                r#"{"jane@x.example":1}"#,
                "unknown name, expected one of `stage`, `kind`, `ip`, `id`",
            ),
            (r#"{"ip":"jane@x.example"}"#, "a value is malformed"),
            (r#"{"stage":1,"stage":2}"#, "duplicate field `stage`"),
            ("{}", "missing field `id`"),
        ] {
            let error = serde_json::from_str::<Line>(sent).expect_err(sent);
            let got = complaint(&error);
            assert!(
                got.starts_with(&format!("{said} at line 1 column ")),
                "{sent}: {got}"
            );
        }
    }

    #[test]
    fn depth_is_counted_outside_strings() {
        let nested = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        assert!(!is_too_deep(nested(32).as_bytes()));
        assert!(is_too_deep(nested(33).as_bytes()));
        let quoted = format!(r#"{{"a":"\"{}"}}"#, "[".repeat(100));
        assert!(!is_too_deep(quoted.as_bytes()));
    }

    #[test]
    fn an_array_is_no_object_and_garbage_is_left_to_the_parser() {
        assert_eq!(
            check_raw_object(br#"["a","b"]"#).map_err(|r| r.code),
            Err("not_an_object")
        );
        assert_eq!(check_raw_object(b" {"), Ok(()));
        assert_eq!(check_raw_object(b"garbage"), Ok(()));
    }
}
