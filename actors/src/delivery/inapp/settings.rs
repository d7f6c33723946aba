//! `[delivery.inapp]` of config/millrace.toml.

use serde::{Deserialize, Serialize};

/// The channel `inapp`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Inapp {
    /// Rows of one statement, at most.
    pub batch: usize,
    /// How long one statement may take, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for Inapp {
    fn default() -> Inapp {
        Inapp {
            batch: 500,
            timeout_ms: 10_000,
        }
    }
}
