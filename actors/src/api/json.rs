//! Bodies as strict JSON: bounded depth, no NUL, no member twice, every such fault at once.

use super::faults::Faults;
use millrace_schemas::MAX_JSON_DEPTH;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::RefCell;

/// Why a body is none.
#[derive(Debug)]
pub enum Unreadable {
    /// The parser's complaint.
    Syntax(String),
    /// JSON, with faults.
    Faulty(Faults),
}

/// Reads a body.
///
/// # Errors
/// [`Unreadable`].
pub fn parse(bytes: &[u8]) -> Result<Value, Unreadable> {
    let faults = RefCell::new(Faults::new());
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let seed = Strict {
        faults: &faults,
        at: None,
        depth: 0,
    };
    let value = seed
        .deserialize(&mut reader)
        .and_then(|v| reader.end().map(|()| v))
        .map_err(|e| Unreadable::Syntax(e.to_string()))?;
    let faults = faults.into_inner();
    if faults.is_empty() {
        Ok(value)
    } else {
        Err(Unreadable::Faulty(faults))
    }
}

/// A member's name as a part of a JSON pointer.
#[must_use]
pub fn pointer_part(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// A step on the way into a value. The way is written out only where something is wrong: copied at every step, a long name
/// over many items would cost its length for each of them.
struct Step<'p> {
    above: Option<&'p Step<'p>>,
    part: Part<'p>,
}

enum Part<'p> {
    Index(usize),
    Name(&'p str),
}

/// The JSON pointer of a place.
fn path(at: Option<&Step<'_>>) -> String {
    let mut steps: Vec<&Step<'_>> = std::iter::successors(at, |step| step.above).collect();
    steps.reverse();
    let mut out = String::new();
    for step in steps {
        out.push('/');
        match step.part {
            Part::Index(n) => out.push_str(&n.to_string()),
            Part::Name(name) => out.push_str(&pointer_part(name)),
        }
    }
    out
}

struct Strict<'f> {
    faults: &'f RefCell<Faults>,
    at: Option<&'f Step<'f>>,
    depth: usize,
}

impl Strict<'_> {
    fn fault(&self, at: Option<&Step<'_>>, code: &str, message: String) {
        // Once there are as many as are told, ways need not be written out either.
        if !self.faults.borrow().is_full() {
            self.faults.borrow_mut().add(path(at), code, message);
        }
    }

    fn text(&self, at: Option<&Step<'_>>, text: &str) {
        if text.contains('\0') {
            self.fault(
                at,
                "nul_character",
                "NUL characters are not kept".to_owned(),
            );
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E: Error>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E: Error>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E: Error>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, v: &str) -> Result<Value, E> {
        self.text(self.at, v);
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E: Error>(self, v: String) -> Result<Value, E> {
        self.text(self.at, &v);
        Ok(Value::String(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        check_depth(self.depth)?;
        let mut out = Vec::new();
        loop {
            let step = Step {
                above: self.at,
                part: Part::Index(out.len()),
            };
            let below = Strict {
                faults: self.faults,
                at: Some(&step),
                depth: self.depth + 1,
            };
            match seq.next_element_seed(below)? {
                Some(value) => out.push(value),
                None => break,
            }
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        check_depth(self.depth)?;
        let mut out = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let step = Step {
                above: self.at,
                part: Part::Name(&name),
            };
            self.text(Some(&step), &name);
            if out.contains_key(&name) {
                let message = format!("`{}` stands twice", name.escape_debug());
                self.fault(Some(&step), "repeated_field", message);
            }
            let value = map.next_value_seed(Strict {
                faults: self.faults,
                at: Some(&step),
                depth: self.depth + 1,
            })?;
            out.insert(name, value);
        }
        Ok(Value::Object(out))
    }
}

fn check_depth<E: Error>(depth: usize) -> Result<(), E> {
    if depth >= MAX_JSON_DEPTH {
        return Err(E::custom(format!("nested deeper than {MAX_JSON_DEPTH}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::faults::MOST_TOLD;

    fn faults(text: &str) -> Vec<(String, String)> {
        match parse(text.as_bytes()) {
            Err(Unreadable::Faulty(f)) => {
                f.into_vec().into_iter().map(|f| (f.path, f.code)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_faults_are_named_at_once() {
        assert_eq!(
            faults(r#"{"a":1,"a":2,"b":["x","\u0000"],"c/d":{"e\u0000":1}}"#),
            [
                ("/a".to_owned(), "repeated_field".to_owned()),
                ("/b/1".to_owned(), "nul_character".to_owned()),
                ("/c~1d/e\0".to_owned(), "nul_character".to_owned()),
            ]
        );
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(nested(MAX_JSON_DEPTH).as_bytes()).is_ok());
        assert!(matches!(
            parse(nested(MAX_JSON_DEPTH + 1).as_bytes()),
            Err(Unreadable::Syntax(_))
        ));
        assert!(matches!(
            parse(nested(100_000).as_bytes()),
            Err(Unreadable::Syntax(_))
        ));
    }

    #[test]
    fn many_faults_under_a_long_name_cost_no_more_than_what_is_told_of_them() {
        // Every way written out would be 5 GB.
        let name = "n".repeat(200_000);
        let items = vec![r#""\u0000""#; 25_000].join(",");
        let Err(Unreadable::Faulty(faults)) =
            parse(format!(r#"{{"{name}":[{items}]}}"#).as_bytes())
        else {
            panic!("faulty");
        };
        let faults = faults.into_vec();
        assert_eq!(faults.len(), MOST_TOLD);
        assert!(faults.iter().all(|f| f.path.len() <= 500));
    }

    #[test]
    fn what_is_no_json_is_said_so() {
        for bad in ["", "{", "{}x", "nul", "\u{feff}{}", "{'a':1}"] {
            assert!(
                matches!(parse(bad.as_bytes()), Err(Unreadable::Syntax(_))),
                "{bad}"
            );
        }
        assert_eq!(
            parse(b" {\"a\": [1, 2.5, null]} ").expect("JSON"),
            serde_json::json!({"a": [1, 2.5, null]})
        );
    }
}
