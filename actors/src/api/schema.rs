//! JSON Schemas of inputs and answers, inputs checked by them, and the class of every field of an answer.
//!
//! Classes stand in the schema itself (`x-class`): `open`, `identity` (needs `reports:identity`), `url` (its query is identity)
//! or `secret` (never leaves but where an operation is there to show it once). Redaction happens here and nowhere else.

use super::faults::Faults;
use super::json::pointer_part;
use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The schema of what is read, without references.
#[must_use]
pub fn input<T: JsonSchema>() -> Value {
    of::<T>(SchemaSettings::draft2020_12().for_deserialize())
}

/// The schema of what is answered, without references.
#[must_use]
pub fn output<T: JsonSchema>() -> Value {
    of::<T>(SchemaSettings::draft2020_12().for_serialize())
}

fn of<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let mut schema = settings
        .with(|s| {
            s.inline_subschemas = true;
            s.meta_schema = None;
        })
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    if let Some(object) = schema.as_object_mut() {
        object.remove("title");
    }
    schema
}

/// A schema, compiled.
pub struct Checked {
    /// The schema.
    pub schema: Value,
    validator: Validator,
}

impl Checked {
    /// Compiles a schema of ours.
    ///
    /// # Errors
    /// The compiler's complaint: a fault of this program.
    pub fn new(schema: Value) -> Result<Checked, String> {
        let validator = jsonschema::validator_for(&schema).map_err(|e| e.to_string())?;
        Ok(Checked { schema, validator })
    }

    /// Adds every fault of the value. `at` stands before each path.
    pub fn faults(&self, value: &Value, at: &str, faults: &mut Faults) {
        for error in self.validator.iter_errors(value) {
            let path = format!("{at}{}", error.instance_path().as_str());
            match error.kind() {
                ValidationErrorKind::AdditionalProperties { unexpected }
                | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                    for name in unexpected {
                        faults.add(
                            format!("{path}/{}", pointer_part(name)),
                            "unknown_field",
                            format!("there is no field `{name}` here"),
                        );
                    }
                }
                ValidationErrorKind::Required { property } => {
                    let name = property.as_str().unwrap_or_default();
                    faults.add(
                        format!("{path}/{}", pointer_part(name)),
                        "required",
                        format!("`{name}` is missing"),
                    );
                }
                kind => faults.add(path, code_of(kind.keyword()), error.masked().to_string()),
            }
        }
    }
}

fn code_of(keyword: &str) -> &'static str {
    match keyword {
        "type" => "wrong_type",
        "enum" | "const" | "anyOf" | "oneOf" => "not_one_of",
        "pattern" | "format" => "malformed",
        "minLength" | "minItems" | "minProperties" => "too_short",
        "maxLength" | "maxItems" | "maxProperties" => "too_long",
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => "out_of_range",
        "uniqueItems" => "repeated",
        _ => "invalid",
    }
}

/// What a reader may see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Holds `reports:identity`.
    pub identity: bool,
    /// The operation shows a secret.
    pub secrets: bool,
}

/// Takes out of an answer what its reader may not see: such a field is null; of an object with `x-open-keys` those
/// members stay.
pub fn redact(value: &mut Value, schema: &Value, sight: Sight) {
    match value {
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                let Some(property) = property(schema, name) else {
                    // A map of values of one kind, classed as a whole by its holder.
                    continue;
                };
                match class(property) {
                    Some("open") => redact(member, property, sight),
                    Some("identity") if sight.identity => redact(member, property, sight),
                    Some("identity") => keep_open_keys(member, property),
                    Some("url") if sight.identity => {}
                    Some("url") => hide_query(member),
                    Some("secret") if sight.secrets => {}
                    // Unclassed cannot be (a test walks every schema); were it, it would not leave.
                    _ => *member = Value::Null,
                }
            }
        }
        Value::Array(items) => {
            for branch in branches(schema) {
                if let Some(of) = branch.get("items") {
                    items.iter_mut().for_each(|i| redact(i, of, sight));
                }
            }
        }
        _ => {}
    }
}

/// What stands in place of a URL's query for whoever may not see it; no URL ends so.
pub const HIDDEN_QUERY: &str = "?…";

fn hide_query(member: &mut Value) {
    if let Some((page, _)) = member.as_str().and_then(|url| url.split_once('?')) {
        *member = Value::String(format!("{page}{HIDDEN_QUERY}"));
    }
}

fn keep_open_keys(member: &mut Value, property: &Value) {
    let open = property.get("x-open-keys").and_then(Value::as_array);
    match (member.as_object_mut(), open) {
        (Some(object), Some(open)) => {
            object.retain(|name, _| open.iter().any(|k| k.as_str() == Some(name)));
        }
        _ => *member = Value::Null,
    }
}

fn class(property: &Value) -> Option<&str> {
    property.get("x-class").and_then(Value::as_str)
}

/// The schema itself and what it is composed of.
fn branches(schema: &Value) -> Vec<&Value> {
    let mut out = vec![schema];
    for word in ["anyOf", "oneOf", "allOf"] {
        if let Some(parts) = schema.get(word).and_then(Value::as_array) {
            out.extend(parts.iter().flat_map(branches));
        }
    }
    out
}

fn property<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    branches(schema)
        .into_iter()
        .find_map(|b| b.get("properties")?.get(name))
}

/// Where an answer's schema has a field without a class, or free JSON that is called open without saying why.
#[must_use]
pub fn unclassed(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    look(schema, String::new(), &mut found);
    found
}

fn look(schema: &Value, path: String, found: &mut Vec<String>) {
    for branch in branches(schema) {
        if let Some(properties) = branch.get("properties").and_then(Value::as_object) {
            for (name, property) in properties {
                let path = format!("{path}/{name}");
                match class(property) {
                    Some("open")
                        if is_free(property) && property.get("x-free-because").is_none() =>
                    {
                        found.push(format!("{path}: free JSON is identity"));
                    }
                    Some("open" | "identity" | "secret" | "url") => {}
                    _ => found.push(path.clone()),
                }
                look(property, path, found);
            }
        }
        if let Some(items) = branch.get("items") {
            look(items, format!("{path}[]"), found);
        }
    }
}

/// Whether anything at all may stand there.
fn is_free(schema: &Value) -> bool {
    let any = |s: &Value| {
        *s == json!(true)
            || s.as_object()
                .is_some_and(|o| !o.keys().any(|k| SHAPING.contains(&k.as_str())))
    };
    branches(schema).into_iter().any(|b| {
        (any(b) && branches(b).len() == 1)
            || b.get("items")
                .is_some_and(|i| any(i) && branches(i).len() == 1)
            || b.get("additionalProperties")
                .is_some_and(|a| *a != json!(false) && any(a))
    })
}

const SHAPING: &[&str] = &[
    "type",
    "enum",
    "const",
    "properties",
    "items",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
];

/// Query text as JSON by the schema of its parameters; what cannot be read, comes twice or holds NUL is a fault.
pub fn query_to_json(pairs: &[(String, String)], schema: &Value, faults: &mut Faults) -> Value {
    let mut out = Map::new();
    for (name, text) in pairs {
        let at = format!("?{name}");
        if text.contains('\0') {
            faults.add(at, "nul_character", "NUL characters are not kept");
            continue;
        }
        let Some(property) = property(schema, name) else {
            faults.add(
                at,
                "unknown_parameter",
                format!("there is no parameter `{name}` here"),
            );
            continue;
        };
        let value = match type_of(property) {
            "integer" => text.parse::<i64>().ok().map(Value::from),
            "boolean" => text.parse::<bool>().ok().map(Value::from),
            _ => Some(Value::from(text.as_str())),
        };
        match value {
            None => faults.add(
                at,
                "wrong_type",
                // What was sent is not said again: it may be anything, a contact too.
                match type_of(property) {
                    "integer" => "want a whole number",
                    _ => "want `true` or `false`",
                },
            ),
            Some(_) if out.contains_key(name) => {
                faults.add(at, "repeated", format!("`{name}` stands twice"));
            }
            Some(value) => {
                out.insert(name.clone(), value);
            }
        }
    }
    Value::Object(out)
}

fn type_of(property: &Value) -> &str {
    match property.get("type") {
        Some(Value::String(one)) => one,
        Some(Value::Array(several)) => several
            .iter()
            .filter_map(Value::as_str)
            .find(|t| *t != "null")
            .unwrap_or("string"),
        _ => "string",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[schemars(extend("x-class" = "secret"))]
        key: String,
        #[schemars(extend("x-class" = "open"))]
        name: Option<String>,
    }

    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[schemars(extend("x-class" = "open"))]
        list: Vec<Inner>,
        #[schemars(extend("x-class" = "identity"))]
        contact: Option<String>,
        #[schemars(extend("x-class" = "identity", "x-open-keys" = ["utm_source"]))]
        params: Option<Value>,
        #[schemars(extend("x-class" = "url"))]
        url: Option<String>,
        #[schemars(extend("x-class" = "open"))]
        one: Option<Inner>,
        #[schemars(range(min = 1, max = 5), extend("x-class" = "open"))]
        n: i64,
    }

    fn sample() -> Value {
        json!({"list": [{"key": "k", "name": "n"}], "contact": "c", "params": {"utm_source": "a", "x": 1},
               "url": "https://x.example/hook?key=1", "one": {"key": "k", "name": null}, "n": 3})
    }

    #[test]
    fn redaction_follows_the_classes() {
        let schema = output::<Outer>();
        let mut low = sample();
        redact(&mut low, &schema, Sight::default());
        assert_eq!(
            low,
            json!({"list": [{"key": null, "name": "n"}], "contact": null, "params": {"utm_source": "a"},
                   "url": "https://x.example/hook?…", "one": {"key": null, "name": null}, "n": 3})
        );
        let mut high = sample();
        redact(
            &mut high,
            &schema,
            Sight {
                identity: true,
                secrets: true,
            },
        );
        assert_eq!(high, sample());
    }

    #[test]
    fn an_unclassed_field_is_found() {
        #[derive(Serialize, JsonSchema)]
        struct Bad {
            #[schemars(extend("x-class" = "open"))]
            good: Vec<Worse>,
            #[schemars(extend("x-class" = "open"))]
            free: Value,
            bare: String,
        }
        #[derive(Serialize, JsonSchema)]
        struct Worse {
            bare: Option<i32>,
        }
        assert_eq!(
            unclassed(&output::<Bad>()),
            ["/bare", "/free: free JSON is identity", "/good[]/bare"]
        );
        assert!(unclassed(&output::<Outer>()).is_empty());
    }

    #[test]
    fn every_fault_of_a_body_is_named() {
        let checked = Checked::new(input::<Outer>()).expect("compiles");
        let mut faults = Faults::new();
        checked.faults(
            &json!({"list": [{"key": 1, "extra": true}], "n": 9, "other": 1}),
            "",
            &mut faults,
        );
        let mut got: Vec<_> = faults
            .into_vec()
            .into_iter()
            .map(|f| (f.path, f.code))
            .collect();
        got.sort();
        assert_eq!(
            got,
            [
                ("/list/0/extra".to_owned(), "unknown_field".to_owned()),
                ("/list/0/key".to_owned(), "wrong_type".to_owned()),
                ("/n".to_owned(), "out_of_range".to_owned()),
                ("/other".to_owned(), "unknown_field".to_owned()),
            ]
        );
    }
}
