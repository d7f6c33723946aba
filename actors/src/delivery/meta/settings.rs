//! `[delivery.meta]` of config/millrace.toml, and a pixel as the store knows it now. All SQL on `pixels` that delivery needs.

use crate::delivery::channel::Unready;
use crate::delivery::destination::Destination;
use crate::runtime::session::{Session, describe};
use crate::sealing::{SealError, Seals};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Codes with which a pixel's destination is paused or its messages end without a request.
pub mod code {
    /// The pixel is archived, or gone.
    pub const ARCHIVED: &str = "destination_archived";
    /// The pixel points to another dataset than when the message was frozen.
    pub const REPOINTED: &str = "destination_repointed";
    /// A sealed secret does not open under the keys of this process.
    pub const SECRET_UNREADABLE: &str = "secret_unreadable";
    /// The pixel has no access token.
    pub const CREDENTIAL_MISSING: &str = "credential_missing";
    /// The pixel's dataset id can be no part of a URL.
    pub const DATASET_INVALID: &str = "dataset_invalid";
}

/// The channel `meta`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Meta {
    /// Where the Graph API is.
    pub graph_url: String,
    /// Its version, as it stands in its URLs.
    pub version: String,
    /// How long one request may take in all, in milliseconds. Messages that were refused together and are tried in parts may
    /// take three times as long.
    pub timeout_ms: u64,
    /// How long connecting may take of it, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Events of one request at most; Meta takes 1 000.
    pub batch: usize,
    /// Requests to one dataset at once, at most.
    pub concurrency: usize,
    /// How long after the first failed attempt an event is tried again, in milliseconds; doubled with each of its eight attempts.
    pub retry_first_ms: u64,
    /// See `retry_first_ms`: at most.
    pub retry_most_ms: u64,
}

impl Default for Meta {
    fn default() -> Meta {
        Meta {
            graph_url: "https://graph.facebook.com".to_owned(),
            version: "v24.0".to_owned(),
            timeout_ms: 10_000,
            connect_timeout_ms: 3_000,
            batch: 1_000,
            concurrency: 8,
            retry_first_ms: 15_000,
            retry_most_ms: 3_600_000,
        }
    }
}

impl Meta {
    /// The bound of one request.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.max(1))
    }
}

/// What an access token is sealed for.
#[must_use]
pub fn token_purpose(pixel: &str) -> String {
    format!("pixel-access-token:{pixel}")
}

/// What an app secret is sealed for.
#[must_use]
pub fn app_secret_purpose(pixel: &str) -> String {
    format!("pixel-app-secret:{pixel}")
}

/// A pixel as it is now, with its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Pixel {
    /// The dataset that its events go to.
    pub dataset: String,
    /// Events go to the test view under this code.
    pub test_event_code: Option<String>,
    /// The access token.
    pub token: String,
    /// Proves that the token is used by the app that it was given to.
    pub app_secret: Option<String>,
}

impl std::fmt::Debug for Pixel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pixel")
            .field("dataset", &self.dataset)
            .field("test_event_code", &self.test_event_code)
            .finish_non_exhaustive()
    }
}

const CURRENT: &str = "
SELECT dataset_id, test_event_code, access_token_sealed, app_secret_sealed
FROM pixels WHERE pixel_id = $1 AND workspace_id = $2 AND platform = 'meta' AND status = 'active'";

/// Reads a destination's pixel as it is now.
///
/// # Errors
/// It may not be sent to, or the store failed.
pub async fn current(
    session: &Session,
    seals: &Seals,
    destination: &Destination,
) -> Result<Pixel, Unready> {
    let pixel = &destination.reference;
    let rows = session
        .query(CURRENT, &[pixel, &destination.workspace])
        .await
        .map_err(|e| Unready::Later(describe(&e)))?;
    let Some(row) = rows.first() else {
        return Err(Unready::Cancel(code::ARCHIVED));
    };
    let secret = |column: usize, what: &str, purpose: String| {
        let sealed: Option<&[u8]> = row.get(column);
        sealed
            .map(|blob| open(seals, what, &purpose, blob))
            .transpose()
            .map(|s| s.filter(|s| !s.is_empty()))
    };
    let Some(token) = secret(2, "access token", token_purpose(pixel))? else {
        return Err(Unready::Pause {
            code: code::CREDENTIAL_MISSING,
            reason: format!("{pixel} has no access token; give it one and resume"),
        });
    };
    let dataset: String = row.get(0);
    if !fits_a_url(&dataset) {
        return Err(Unready::Pause {
            code: code::DATASET_INVALID,
            reason: format!("the dataset of {pixel} is no id: letters, digits, `_` and `-` alone"),
        });
    }
    let test: Option<String> = row.get(1);
    Ok(Pixel {
        dataset,
        test_event_code: test.filter(|t| !t.trim().is_empty()),
        token,
        app_secret: secret(3, "app secret", app_secret_purpose(pixel))?,
    })
}

fn fits_a_url(dataset: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    !dataset.is_empty() && dataset.bytes().all(word)
}

fn open(seals: &Seals, what: &str, purpose: &str, blob: &[u8]) -> Result<String, Unready> {
    let unreadable = |why: &dyn std::fmt::Display| Unready::Pause {
        code: code::SECRET_UNREADABLE,
        reason: format!("the {what} cannot be opened: {why}"),
    };
    let bytes = seals
        .open(purpose, blob)
        .map_err(|e: SealError| unreadable(&e))?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it is no text"))?;
    Ok(text.trim().to_owned())
}
