//! `[delivery.webhook]` of config/millrace.toml, and an endpoint as the store knows it now. All SQL on `webhooks` that delivery needs.

use serde::{Deserialize, Serialize};

/// The channel `webhook`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Webhook {
    /// How long one request may take in all, in milliseconds.
    pub timeout_ms: u64,
    /// How long resolving, connecting and greeting may take of it, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Requests to one endpoint at once, at most; as many connections to it are kept open.
    pub concurrency: usize,
}

impl Default for Webhook {
    fn default() -> Webhook {
        Webhook {
            timeout_ms: 15_000,
            connect_timeout_ms: 5_000,
            concurrency: 64,
        }
    }
}
