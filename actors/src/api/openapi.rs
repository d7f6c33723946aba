//! The interface as an OpenAPI 3.1 document, generated from the registry. The committed copy is
//! `schemas/json/openapi.json`; a test holds them together.

use super::page::{COUNTED, DEFAULT_LIMIT, MAX_LIMIT};
use super::problem::CODES;
use super::registry::{EXEMPT, Method, Operation, Precondition, Registered, Tool, registry};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

static TEXT: LazyLock<String> = LazyLock::new(|| {
    let mut text = serde_json::to_string_pretty(&document()).unwrap_or_default();
    text.push('\n');
    text
});

/// The document as text.
#[must_use]
pub fn text() -> &'static str {
    &TEXT
}

/// The document.
#[must_use]
pub fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for registered in registry() {
        let op = &registered.operation;
        let path = paths.entry(op.path).or_insert_with(|| json!({}));
        if let Some(path) = path.as_object_mut() {
            path.insert(op.method.name().to_ascii_lowercase(), operation(registered));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Millrace",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Ids are opaque strings; times RFC 3339 UTC; money, offsets and 64-bit counts decimal strings; \
                fields always present, null when unknown. Unknown request fields are refused by name.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}
        },
        "security": [{"key": []}],
        "paths": paths,
        "x-exempt": EXEMPT.iter().map(|e| json!({
            "id": e.id, "path": e.path, "reason": e.reason.name(), "summary": e.summary,
            "methods": e.methods.iter().map(|m| m.name()).collect::<Vec<_>>()
        })).collect::<Vec<_>>(),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key, `rk_<id>.<secret>`."}},
            "responses": {"problem": {
                "description": "A refusal (RFC 9457).",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
            }},
            "schemas": {"Problem": problem_schema()}
        }
    })
}

fn problem_schema() -> Value {
    let codes: Vec<&str> = CODES.iter().map(|c| c.0).collect();
    let meanings: Vec<String> = CODES
        .iter()
        .map(|(code, status, title)| format!("{code} ({status}): {title}"))
        .collect();
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail", "code", "errors", "request_id"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "code": {"type": "string", "enum": codes, "description": meanings.join("\n")},
            "errors": {"type": "array", "items": super::schema::output::<super::faults::Fault>()},
            "request_id": {"type": "string"}
        }
    })
}

fn operation(registered: &Registered) -> Value {
    let op = &registered.operation;
    let mut out = Map::new();
    out.insert("operationId".into(), json!(op.id));
    out.insert("summary".into(), json!(op.summary));
    out.insert("parameters".into(), Value::Array(parameters(registered)));
    if let Some(body) = &registered.body {
        let (kind, schema) = if op.method == Method::Patch {
            ("application/merge-patch+json", patch_schema(&body.schema))
        } else {
            ("application/json", body.schema.clone())
        };
        out.insert(
            "requestBody".into(),
            json!({"required": true, "content": {kind: {"schema": schema}}}),
        );
    }
    let mut responses = Map::new();
    responses.insert(
        op.status.to_string(),
        json!({"description": "Done.", "content": {"application/json": {"schema": registered.output}}}),
    );
    responses.insert(
        "default".into(),
        json!({"$ref": "#/components/responses/problem"}),
    );
    out.insert("responses".into(), Value::Object(responses));
    out.insert("x-scope".into(), json!(op.scope));
    out.insert("x-effect".into(), json!(op.effect.name()));
    out.insert("x-step-up".into(), json!(op.step_up));
    match op.tool {
        Tool::Offered => out.insert("x-tool".into(), json!(op.id)),
        Tool::Exempt(reason) => out.insert("x-tool-exempt".into(), json!(reason.name())),
    };
    Value::Object(out)
}

/// Of a merge patch nothing is required, and everything may be cleared.
fn patch_schema(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(object) = schema.as_object_mut() {
        object.remove("required");
        object.insert(
            "description".into(),
            json!("A merge patch (RFC 7396): absent keeps, null clears; the merged result is checked as a whole."),
        );
    }
    schema
}

fn parameters(registered: &Registered) -> Vec<Value> {
    let op = &registered.operation;
    let mut out: Vec<Value> = op
        .params
        .iter()
        .map(|p| parameter(p.name, "path", true, p.summary, json!({"type": "string"})))
        .collect();
    let required: Vec<&str> = registered
        .query
        .schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, schema) in registered
        .query
        .schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let summary = schema
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default();
        out.push(parameter(
            name,
            "query",
            required.contains(&name.as_str()),
            summary,
            schema.clone(),
        ));
    }
    out.extend(plumbing(op));
    out
}

fn plumbing(op: &Operation) -> Vec<Value> {
    let mut out = Vec::new();
    let boolean = json!({"type": "boolean", "default": false});
    if op.list {
        let limit = json!({"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT});
        out.push(parameter(
            "limit",
            "query",
            false,
            "Rows of a page at most.",
            limit,
        ));
        out.push(parameter(
            "cursor",
            "query",
            false,
            "`next_cursor` of the page before.",
            json!({"type": "string"}),
        ));
        let summary = format!("Also count, to {COUNTED} at most.");
        out.push(parameter(
            "count",
            "query",
            false,
            &summary,
            boolean.clone(),
        ));
    }
    if op.writes() {
        let summary = "Authorise, validate, answer `would`, and do nothing else.";
        out.push(parameter("dry_run", "query", false, summary, boolean));
    }
    if op.writes() && op.method == Method::Post {
        let schema = json!({"type": "string", "minLength": 1, "maxLength": 255});
        let summary =
            "The same key within 24 hours answers the first answer again, without its secret.";
        out.push(parameter(
            "Idempotency-Key",
            "header",
            false,
            summary,
            schema,
        ));
    }
    if op.precondition != Precondition::None {
        let needed = op.precondition == Precondition::Required;
        let summary = "The version that is replaced, as \"3\".";
        out.push(parameter(
            "If-Match",
            "header",
            needed,
            summary,
            json!({"type": "string"}),
        ));
    }
    out
}

fn parameter(name: &str, place: &str, required: bool, summary: &str, schema: Value) -> Value {
    json!({"name": name, "in": place, "required": required, "description": summary, "schema": schema})
}

#[cfg(test)]
mod tests {
    /// `MILLRACE_WRITE_SCHEMAS=1` writes the file instead.
    #[test]
    fn the_committed_document_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../schemas/json/openapi.json");
        if std::env::var_os("MILLRACE_WRITE_SCHEMAS").is_some() {
            std::fs::write(path, super::text()).expect("written");
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == super::text(),
            "schemas/json/openapi.json has drifted; MILLRACE_WRITE_SCHEMAS=1 cargo test -p millrace writes it anew"
        );
    }
}
