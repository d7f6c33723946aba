//! Wire types, ids and validation of Millrace. No I/O, no clock, no randomness but in [`ids::mint`].
//!
//! What lives here: whatever a record may say and what may be said of it without looking at state. What may not: SQL,
//! sockets, configuration. Dependencies run one way: `schemas <- topics <- actors <- tests <- loadtest`.

pub mod ceiling;
pub mod channel;
pub mod click;
pub mod directory;
pub mod emit;
pub mod firing;
pub mod frame;
pub mod ids;
pub mod journey;
pub mod json_schemas;
pub mod macros;
pub mod money;
pub mod notice;
pub mod notification;
pub mod outcome;
pub mod postback;
pub mod time;

/// The newest wire version this build writes and reads. A record with a greater `v` stops its partition; it is never a
/// dead letter, since a newer build can read it.
pub const WIRE_VERSION: u16 = 1;

/// The wire version that a record says it is of, whether or not the rest of it can be read; `None`: it says none.
#[must_use]
pub fn wire_version(payload: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Version {
        v: u64,
    }
    serde_json::from_slice::<Version>(payload).ok().map(|v| v.v)
}

/// Greatest nesting of any JSON that a door accepts.
pub const MAX_JSON_DEPTH: usize = 32;
