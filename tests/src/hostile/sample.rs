//! A value that a JSON Schema allows, or nearly: names that mean something here stand where they may.

use crate::generator::Rng;
use serde_json::{Map, Value, json};

/// What may be named.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Ids of things that may be changed, deleted, revoked, and words that are none.
    pub ids: Vec<String>,
}

/// A value for a schema. `depth` bounds what nests.
pub fn sample(rng: &mut Rng, schema: &Value, known: &Known, depth: usize) -> Value {
    for word in ["anyOf", "oneOf", "allOf"] {
        if let Some(parts) = schema.get(word).and_then(Value::as_array)
            && !parts.is_empty()
        {
            let part = rng.pick(parts);
            return sample(rng, part, known, depth);
        }
    }
    if let Some(words) = schema.get("enum").and_then(Value::as_array)
        && !words.is_empty()
    {
        return rng.pick(words).clone();
    }
    let kinds: Vec<&str> = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => vec!["string", "object", "null"],
    };
    match *rng.pick(&kinds) {
        "object" if depth > 0 => object(rng, schema, known, depth),
        "array" if depth > 0 => {
            let any = json!({"type": "string"});
            let items = schema.get("items").unwrap_or(&any);
            let n = rng.below(4);
            (0..n)
                .map(|_| sample(rng, items, known, depth - 1))
                .collect()
        }
        "integer" => json!(rng.below(200)),
        "number" => json!(rng.below(20_000) as f64 / 100.0),
        "boolean" => json!(rng.one_in(2)),
        "null" => Value::Null,
        _ => text(rng, known),
    }
}

fn object(rng: &mut Rng, schema: &Value, known: &Known, depth: usize) -> Value {
    let mut out = Map::new();
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        if required.contains(&name.as_str()) || !rng.one_in(3) {
            out.insert(name.clone(), sample(rng, property, known, depth - 1));
        }
    }
    Value::Object(out)
}

fn text(rng: &mut Rng, known: &Known) -> Value {
    const WORDS: &[&str] = &[
        "spring",
        "Spring & Sale",
        "12.50",
        "0",
        "USD",
        "https://shop.example/?cid={click_id}",
        "https://shop.example/in",
        "conversion",
        "visit",
        "full",
        "ingest:write",
        "sale",
        "2026-01-01T00:00:00Z",
        "10.0.0.0/8",
        "1234567890",
        "approved",
        "a",
        "known-1",
        "",
    ];
    if !known.ids.is_empty() && rng.one_in(3) {
        return json!(rng.pick(&known.ids));
    }
    json!(rng.pick(WORDS))
}
