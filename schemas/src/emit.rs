//! Where a record that another stream emitted comes from: the member `emit` of its JSON object.
//!
//! A relay may send a record more than once. Its source numbers what it emits; a receiver keeps the greatest number it has
//! seen of each source and drops what is not greater (`topics::relay`).

use serde::{Deserialize, Serialize};

/// The source of an emitted record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EmitSource {
    /// The consumer group that emitted it.
    pub group: String,
    /// The partition of that group.
    pub partition: i32,
    /// Its number there: ascending, in the order of the emitting transactions.
    pub seq: i64,
}

/// A payload that cannot carry its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an emitted record must be a JSON object")]
pub struct NotAnObject;

#[derive(Deserialize)]
struct Carrier {
    emit: Option<EmitSource>,
}

impl EmitSource {
    /// The payload, a JSON object without a member `emit`, with this source as its last member. Nothing else of it changes.
    ///
    /// # Errors
    /// The payload does not begin and end as an object does.
    pub fn stamp(&self, payload: &[u8]) -> Result<Vec<u8>, NotAnObject> {
        let inner = members(payload).ok_or(NotAnObject)?;
        let source = serde_json::to_vec(self).map_err(|_| NotAnObject)?;
        let mut out = Vec::with_capacity(payload.len() + source.len() + 9);
        out.push(b'{');
        out.extend_from_slice(inner);
        if !inner.trim_ascii().is_empty() {
            out.push(b',');
        }
        out.extend_from_slice(b"\"emit\":");
        out.extend_from_slice(&source);
        out.push(b'}');
        Ok(out)
    }

    /// The source that a payload carries, if it is an object with one.
    #[must_use]
    pub fn of(payload: &[u8]) -> Option<EmitSource> {
        serde_json::from_slice::<Carrier>(payload).ok()?.emit
    }
}

/// Whether a payload can be stamped ([`EmitSource::stamp`]).
#[must_use]
pub fn can_carry(payload: &[u8]) -> bool {
    members(payload).is_some()
}

/// What stands between an object's braces.
fn members(payload: &[u8]) -> Option<&[u8]> {
    payload.trim_ascii().strip_prefix(b"{")?.strip_suffix(b"}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_changes_nothing_else() {
        let source = EmitSource {
            group: "a\"b".to_owned(),
            partition: 3,
            seq: 9,
        };
        for (payload, want) in [
            ("{}", r#"{"emit":{"group":"a\"b","partition":3,"seq":9}}"#),
            (
                " { \"v\": 1.10 } \n",
                r#"{ "v": 1.10 ,"emit":{"group":"a\"b","partition":3,"seq":9}}"#,
            ),
        ] {
            let stamped = source.stamp(payload.as_bytes()).unwrap();
            assert_eq!(String::from_utf8_lossy(&stamped), want);
            assert_eq!(EmitSource::of(&stamped), Some(source.clone()));
        }
        for payload in ["", "{", "[1]", "null"] {
            assert_eq!(source.stamp(payload.as_bytes()), Err(NotAnObject));
            assert!(!can_carry(payload.as_bytes()));
        }
        assert_eq!(EmitSource::of(b"{\"v\":1}"), None);
        assert_eq!(EmitSource::of(b"nonsense"), None);
    }
}
