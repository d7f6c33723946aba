//! What the admin API reads before it does anything.

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use millrace::api::faults::Faults;
use millrace::api::json;
use millrace::api::keys::{ApiKey, is_key_id};
use millrace::api::page::{CursorKey, MAX_LIMIT};
use millrace::api::registry::{Registered, registry};
use millrace::api::request;
use millrace::api::schema::query_to_json;
use millrace_schemas::MAX_JSON_DEPTH;
use millrace_schemas::time::Micros;
use serde_json::Value;

fn operation(n: usize) -> &'static Registered {
    let all = registry();
    &all[n % all.len()]
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Whether a NUL stands in any text of it, names included. The text of a value cannot tell: in `\\u0000` a backslash stands before
/// five letters.
fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(members) => members.iter().any(|(n, v)| n.contains('\0') || has_nul(v)),
        _ => false,
    }
}

/// A body for some operation.
pub(super) fn body(data: &[u8]) {
    let (n, data) = super::choice(data, 256);
    let Ok(value) = json::parse(data) else {
        return;
    };
    assert!(depth(&value) <= MAX_JSON_DEPTH);
    let text = value.to_string();
    assert!(!has_nul(&value), "{text}");
    let again = json::parse(text.as_bytes());
    assert_eq!(again.ok().as_ref(), Some(&value), "{text}");
    let with_bodies: Vec<_> = registry().iter().filter_map(|r| r.body.as_ref()).collect();
    let mut faults = Faults::new();
    with_bodies[n % with_bodies.len()].faults(&value, "", &mut faults);
    for fault in faults.into_vec() {
        assert!(
            !fault.code.is_empty() && !fault.message.is_empty(),
            "{fault:?}"
        );
    }
}

/// A query of some operation.
pub(super) fn query(data: &[u8]) {
    let (n, data) = super::choice(data, 256);
    let registered = operation(n);
    let pairs = request::query_pairs(&String::from_utf8_lossy(data));
    if request::refuse_credential_in_url(&pairs).is_err() {
        return;
    }
    let mut faults = Faults::new();
    let plumbing = request::plumbing(pairs, &registered.operation, &mut faults);
    assert!((1..=MAX_LIMIT).contains(&plumbing.page.limit));
    let query = query_to_json(&plumbing.own, &registered.query.schema, &mut faults);
    registered.query.faults(&query, "?", &mut faults);
    assert!(query.is_object() && !has_nul(&query));
}

/// Headers, one a line.
pub(super) fn headers(data: &[u8]) {
    let (n, data) = super::choice(data, 256);
    let operation = &operation(n).operation;
    let mut headers = HeaderMap::new();
    for line in data.split(|b| *b == b'\n').take(20) {
        let mut parts = line.splitn(2, |b| *b == b':');
        let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(parts.next().unwrap_or_default()),
            HeaderValue::from_bytes(parts.next().unwrap_or_default()),
        ) else {
            return;
        };
        headers.append(name, value);
    }
    if let Some(id) = request::request_id(&headers) {
        assert!((8..=64).contains(&id.len()) && id.is_ascii());
    }
    if let Ok(token) = request::bearer(&headers) {
        let _ = ApiKey::parse(token);
    }
    let _ = request::if_match(&headers, operation);
    if let Ok(Some(key)) = request::idempotency_key(&headers, operation) {
        assert!((1..=255).contains(&key.len()) && key.is_ascii());
    }
}

/// A key: what is read is what was written, and its debug form tells nothing.
pub(super) fn key(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(key) = ApiKey::parse(&text) {
        assert_eq!(key.reveal(), text);
        assert!(is_key_id(key.id()));
        let (_, secret) = text.split_once('.').expect("two parts");
        assert!(!format!("{key:?}").contains(secret));
    }
}

/// A cursor: nobody but the deployment makes one, and one of another list does not open.
pub(super) fn cursor(data: &[u8]) {
    let key = CursorKey::new(&[7; 32]).expect("32 bytes");
    let text = String::from_utf8_lossy(data);
    assert!(
        key.open("list_keys|1||{}", &text).is_none(),
        "forged: {text}"
    );
    let raw = URL_SAFE_NO_PAD.encode(data);
    assert!(key.open("list_keys|1||{}", &raw).is_none(), "forged: {raw}");
    let time = Micros(i64::try_from(data.len()).unwrap_or(0) - 100);
    let Ok(sealed) = key.seal("a", time, &text) else {
        panic!("a cursor could not be sealed");
    };
    assert_eq!(key.open("a", &sealed), Some((time, text.into_owned())));
    assert_eq!(key.open("b", &sealed), None);
    // Any one letter changed.
    let at = data.first().map_or(0, |b| usize::from(*b)) % sealed.len();
    let mut bytes = sealed.clone().into_bytes();
    bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(bytes).expect("ASCII");
    assert!(changed == sealed || key.open("a", &changed).is_none());
}
