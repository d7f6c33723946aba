//! Reading records that other streams emitted.

use crate::runtime::vertical::DecodeError;
use millrace_schemas::firing::Firing;
use millrace_schemas::ids::RecordId;
use millrace_schemas::notice::Notice;
use millrace_schemas::postback::Replay;
use millrace_schemas::{WIRE_VERSION, wire_version};
use serde::de::DeserializeOwned;

/// A record that says of which wire version it is.
pub trait Versioned: DeserializeOwned {
    /// The version.
    fn version(&self) -> u16;
}

impl Versioned for Firing {
    fn version(&self) -> u16 {
        self.v
    }
}

impl Versioned for Notice {
    fn version(&self) -> u16 {
        self.v
    }
}

/// Reads a record.
///
/// # Errors
/// It never will be one, or a newer build reads it.
pub fn read<R: Versioned>(payload: &[u8]) -> Result<R, DecodeError> {
    match serde_json::from_slice::<R>(payload) {
        Ok(record) if record.version() > WIRE_VERSION => {
            Err(DecodeError::Newer(record.version().into()))
        }
        Ok(record) => Ok(record),
        // However far ahead it is, a newer build's record is no dead letter.
        Err(error) => Err(match wire_version(payload) {
            Some(v) if v > u64::from(WIRE_VERSION) => DecodeError::Newer(v),
            // The category and place alone: the message could quote a name.
            _ => DecodeError::Undecodable(format!(
                "{:?} at column {}",
                error.classify(),
                error.column()
            )),
        }),
    }
}

/// The first coordinates of a record that was a dead letter.
#[must_use]
pub fn first_coordinates(replay: Option<Replay>) -> Option<RecordId> {
    replay.map(|r| RecordId {
        topic_no: r.topic_no,
        partition: r.partition,
        offset: r.offset,
    })
}
