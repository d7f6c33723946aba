//! Macros that a sender left unsubstituted, and macros of ours to fill.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Whether the WHOLE value is an unsubstituted macro: `{x}` `${x}` `[X]` `#x#` `%X%` `<x>` `{{x}}`, plain or still
/// percent-encoded (once or twice). Only letters, digits, `_`, `-`, `.`, `:` and blanks make a macro's name, so that JSON,
/// a bracketed list or `<a@b>` is none.
#[must_use]
pub fn is_unsubstituted(value: &str) -> bool {
    let value = value.trim();
    if is_plain_macro(value) {
        return true;
    }
    if !value.contains('%') || value.len() > 400 {
        return false;
    }
    let mut text = value.to_owned();
    for _ in 0..2 {
        let decoded = percent_encoding::percent_decode_str(&text)
            .decode_utf8_lossy()
            .into_owned();
        if decoded == text {
            return false;
        }
        if is_plain_macro(decoded.trim()) {
            return true;
        }
        text = decoded;
    }
    false
}

fn is_plain_macro(v: &str) -> bool {
    [
        ("${", "}"),
        ("{{", "}}"),
        ("{", "}"),
        ("[", "]"),
        ("<", ">"),
        ("#", "#"),
        ("%", "%"),
    ]
    .iter()
    .any(|(open, close)| {
        v.strip_prefix(open)
            .and_then(|v| v.strip_suffix(close))
            .is_some_and(is_macro_name)
    })
}

fn is_macro_name(name: &str) -> bool {
    let name = name.trim();
    !name.is_empty()
        && name.len() <= 64
        && name.chars().any(|c| c.is_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | ' '))
}

const QUERY: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'&')
    .add(b'\'')
    .add(b'+')
    .add(b'<')
    .add(b'=')
    .add(b'>')
    .add(b'?')
    .add(b'/')
    .add(b'\\')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'[')
    .add(b']')
    .add(b'^')
    .add(b'|')
    .add(b'@')
    .add(b':')
    .add(b';')
    .add(b',')
    .add(b'$')
    .add(b'!')
    .add(b'*')
    .add(b'(')
    .add(b')');

/// A value as it may stand in a query.
#[must_use]
pub fn encode_query_value(value: &str) -> String {
    utf8_percent_encode(value, QUERY).to_string()
}

/// Fills `{name}` placeholders of an offer's URL template; values are percent-encoded, unknown names stay as they are (a
/// network's own macros look alike).
pub fn fill<'a>(
    template: &str,
    value_of: impl Fn(&str) -> Option<std::borrow::Cow<'a, str>>,
) -> String {
    let mut out = String::with_capacity(template.len() + 64);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        match after.split_once('}') {
            Some((name, tail)) if !name.contains('{') => {
                match value_of(name) {
                    Some(value) => out.push_str(&encode_query_value(&value)),
                    None => {
                        out.push('{');
                        out.push_str(name);
                        out.push('}');
                    }
                }
                rest = tail;
            }
            _ => {
                out.push('{');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_forms_are_seen() {
        for m in [
            "{x}",
            "${x}",
            "[X]",
            "#x#",
            "%X%",
            "<x>",
            "{{x}}",
            "{payout_amount}",
            "{{campaign.id}}",
            "%7Bclick_id%7D",
            "%257Bx%257D",
            " {x} ",
            "%5BTXID%5D",
        ] {
            assert!(is_unsubstituted(m), "{m}");
        }
    }

    #[test]
    fn other_values_are_not() {
        for m in [
            "",
            "x",
            "{",
            "{}",
            "a{x}",
            "{x}b",
            "{\"a\":1}",
            "[1,2]",
            "<a@b.c>",
            "100%",
            "%",
            "%%",
            "#",
            "##",
            "%41",
            "50%25",
        ] {
            assert!(!is_unsubstituted(m), "{m}");
        }
    }

    #[test]
    fn templates_are_filled_and_encoded() {
        let got = fill(
            "https://x.example/?c={click_id}&r={ref}&o={theirs}&{",
            |n| match n {
                "click_id" => Some("a&b".into()),
                "ref" => Some("".into()),
                _ => None,
            },
        );
        assert_eq!(got, "https://x.example/?c=a%26b&r=&o={theirs}&{");
    }
}
