//! How values and texts are made wrong.

use crate::generator::Rng;
use serde_json::Value;

/// JSON of values that somebody did not think of.
const ODD: &[&str] = &[
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "-0.0",
    "1.5",
    "99999999999999999999",
    "9223372036854775807",
    "-9223372036854775808",
    "4294967296",
    "32768",
    "2147483648",
    "0.1e-400",
    "\"\"",
    "\" \"",
    "\"\\u0000\"",
    "\"a\\u0000b\"",
    "\"\\ud800\"",
    "\"\\udc00\\ud800\"",
    "\"\\u202e\"",
    "[]",
    "{}",
    "[[[[[[[[]]]]]]]]",
    "[null]",
    "{\"\":{\"\":{}}}",
    "\"'; DROP TABLE visits; --\"",
    "\"%00\"",
    "\"{click_id}\"",
    "\"${CLICK}\"",
    "\"NaN\"",
    "\"1e5\"",
    "\"-1\"",
    "\"1,50\"",
    "\"00012\"",
    "\"2026-13-45T00:00:00Z\"",
    "\"9999-12-31T23:59:59Z\"",
    "\"-009999-01-01T00:00:00Z\"",
    "\"1969-12-31T23:59:59.999999Z\"",
    "\"0001-01-01T00:00:00+14:00\"",
    "NaN",
    "Infinity",
    "'x'",
    "undefined",
    "01",
    "+1",
    ".5",
    "tru",
    "\"\\x\"",
    "\"unclosed",
    "\u{feff}1",
    "\"😀\"",
    "\"İ\"",
    "\"../../etc/passwd\"",
    "\"http://127.0.0.1:1/\"",
    "\"file:///etc/passwd\"",
    "\"*\"",
];

/// The text of a value, on the way made wrong here and there: about one node in `rate`.
pub fn render(rng: &mut Rng, value: &Value, rate: u64, out: &mut Vec<u8>) {
    if rng.one_in(rate) {
        odd(rng, out);
        return;
    }
    match value {
        Value::Array(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                render(rng, item, rate, out);
            }
            out.push(b']');
        }
        Value::Object(members) => {
            out.push(b'{');
            let mut first = true;
            for (name, member) in members {
                if rng.one_in(rate * 4) {
                    continue;
                }
                let times = if rng.one_in(rate * 4) { 2 } else { 1 };
                for _ in 0..times {
                    if !first {
                        out.push(b',');
                    }
                    first = false;
                    let name = if rng.one_in(rate * 4) {
                        odd_name(rng)
                    } else {
                        name.as_str()
                    };
                    out.extend_from_slice(Value::from(name).to_string().as_bytes());
                    out.push(b':');
                    render(rng, member, rate, out);
                }
            }
            out.push(b'}');
        }
        plain => out.extend_from_slice(plain.to_string().as_bytes()),
    }
}

const ODD_NAMES: &[&str] = &[
    "",
    "x",
    "id",
    "__proto__",
    "a\0b",
    "v",
    "emit",
    "workspace",
    "workspace_id",
    "é",
];

fn odd_name(rng: &mut Rng) -> &'static str {
    rng.pick::<&str>(ODD_NAMES)
}

fn odd(rng: &mut Rng, out: &mut Vec<u8>) {
    match rng.below(24) {
        0 => {
            let n = 20 + rng.below(200) as usize;
            out.extend(std::iter::repeat_n(b'[', n));
            out.extend(std::iter::repeat_n(b']', n));
        }
        1 => {
            let n = 20 + rng.below(100) as usize;
            (0..n).for_each(|_| out.extend_from_slice(b"{\"a\":"));
            out.push(b'1');
            out.extend(std::iter::repeat_n(b'}', n));
        }
        2 => {
            out.push(b'"');
            out.extend(std::iter::repeat_n(b'x', 1 << rng.below(13)));
            out.push(b'"');
        }
        3 => out.extend_from_slice(b"\"\xff\xfe\xc3\x28\""),
        4 => out.extend_from_slice(b"\"\x00\x07\x1b[31m\""),
        5 => out.extend(std::iter::repeat_n(b'9', 1 << rng.below(9))),
        _ => out.extend_from_slice(rng.pick(ODD).as_bytes()),
    }
}

/// Bytes of a text changed, cut, doubled.
pub fn garble(rng: &mut Rng, text: &mut Vec<u8>) {
    for _ in 0..=rng.below(3) {
        let n = text.len() as u64;
        let at = rng.below(n.max(1)) as usize;
        match rng.below(7) {
            0 => text.truncate(at),
            1 if n > 0 => text[at] = rng.below(256) as u8,
            2 => text.insert(at.min(text.len()), rng.below(256) as u8),
            3 if n > 0 => {
                text.remove(at);
            }
            4 => {
                let copy = text.clone();
                text.extend_from_slice(&copy);
                text.truncate(32 << 10);
            }
            5 => {
                drop(text.splice(0..0, *b"\xef\xbb\xbf"));
            }
            _ => text.push(*rng.pick(b"}]\"\n\r\0,{ ")),
        }
    }
}

/// A part of a query as it may stand in a request line: no blanks, no line ends.
pub fn query_part(rng: &mut Rng, plain: &str) -> String {
    match rng.below(12) {
        0 => (0..rng.below(24))
            .map(|_| format!("%{:02x}", rng.below(256)))
            .collect(),
        1 => "%".to_owned(),
        2 => "%zz%4".to_owned(),
        3 => "x".repeat(1 << rng.below(12)),
        4 => rng
            .pick(&[
                "{click_id}",
                "%7Bclick_id%7D",
                "%00",
                "+",
                "-1",
                "1e5",
                "NaN",
                "&&",
                "=",
                "%F0%9F%98%80",
            ])
            .to_string(),
        5 => (0..rng.below(20))
            .map(|_| char::from(33 + rng.below(94) as u8))
            .filter(|c| !"#\"<>".contains(*c))
            .collect(),
        _ => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_high_rate_changes_nothing_and_a_low_one_most() {
        let value = json!({"a": [1, {"b": "c"}], "d": null});
        let mut out = Vec::new();
        render(&mut Rng::new(1), &value, u64::MAX / 8, &mut out);
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), value);
        let mut wrong = 0;
        for seed in 0..100 {
            let mut out = Vec::new();
            render(&mut Rng::new(seed), &value, 4, &mut out);
            garble(&mut Rng::new(seed), &mut out);
            wrong += usize::from(serde_json::from_slice::<Value>(&out).ok() != Some(value.clone()));
        }
        assert!(wrong > 80, "{wrong}");
    }
}
