//! `[delivery.stub]` of config/millrace.toml. A destination has no settings of its own: its reference is the URL.

use serde::{Deserialize, Serialize};

/// The channel `stub`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stub {
    /// Whether this channel is there at all.
    pub enabled: bool,
    /// How long one request may take in all, in milliseconds.
    pub timeout_ms: u64,
    /// Requests to one destination at once, at most.
    pub concurrency: usize,
}

impl Default for Stub {
    fn default() -> Stub {
        Stub {
            enabled: false,
            timeout_ms: 10_000,
            concurrency: 16,
        }
    }
}
