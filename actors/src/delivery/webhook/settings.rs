//! `[delivery.webhook]` of config/millrace.toml, and an endpoint as the store knows it. All SQL on `webhooks` that delivery needs.

use super::signature::Secret;
use crate::delivery::channel::Unready;
use crate::delivery::destination::Destination;
use crate::postgres::types::Tz;
use crate::runtime::session::{Session, describe};
use crate::sealing::Seals;
use millrace_schemas::time::Micros;
use serde::{Deserialize, Serialize};
use url::Url;

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

/// Why a message of a disabled endpoint ends.
pub const DISABLED: &str = "endpoint_disabled";

/// An endpoint that may be sent to.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// `wh_…`.
    pub id: String,
    /// Which of its versions this is.
    pub version: i64,
    /// Where to.
    pub url: Url,
    /// The same as it stands in the store, letter by letter.
    pub url_text: String,
    /// What signs.
    pub secret: Secret,
    /// What signs too, and until when: the secret before the last rotation.
    pub previous: Option<(Secret, Micros)>,
    /// Since when every delivery failed.
    pub failing_since: Option<Micros>,
}

impl Endpoint {
    /// The older secret, if it still signs at `wall`.
    #[must_use]
    pub fn previous_at(&self, wall: Micros) -> Option<&Secret> {
        let (secret, until) = self.previous.as_ref()?;
        (wall < *until).then_some(secret)
    }
}

/// What an endpoint's secrets are sealed for.
#[must_use]
pub fn seal_purpose(webhook_id: &str) -> String {
    format!("webhook-secret:{webhook_id}")
}

/// Reads the endpoint that a destination stands for, with its secrets opened.
///
/// # Errors
/// [`Unready::Cancel`] where it is archived or disabled, [`Unready::Pause`] where a secret that must sign does not open,
/// [`Unready::Later`] where the store fails.
pub async fn load(
    session: &Session,
    destination: &Destination,
    seals: &Seals,
    wall: Micros,
) -> Result<Endpoint, Unready> {
    let later = |e: tokio_postgres::Error| Unready::Later(describe(&e));
    let rows = session
        .query(
            "SELECT url, status, secret_sealed, previous_secret_sealed, previous_until, failing_since, version FROM webhooks
             WHERE webhook_id = $1 AND workspace_id = $2",
            &[&destination.reference, &destination.workspace],
        )
        .await
        .map_err(later)?;
    let row = rows
        .first()
        .ok_or(Unready::Cancel("destination_archived"))?;
    match row.try_get::<_, &str>(1).map_err(later)? {
        "active" => {}
        "disabled" => return Err(Unready::Cancel(DISABLED)),
        _ => return Err(Unready::Cancel("destination_archived")),
    }
    let url_text: String = row.try_get(0).map_err(later)?;
    let url = Url::parse(&url_text)
        .ok()
        .filter(|u| matches!(u.scheme(), "http" | "https"))
        .ok_or_else(|| Unready::Pause {
            code: "url_invalid",
            reason: "the endpoint's URL is none of http or https".to_owned(),
        })?;
    let id = destination.reference.clone();
    let sealed: Option<&[u8]> = row.try_get(2).map_err(later)?;
    let secret = open(seals, &id, sealed, "secret")?;
    let until: Option<Tz> = row.try_get(4).map_err(later)?;
    let older: Option<&[u8]> = row.try_get(3).map_err(later)?;
    let previous = match (older, until) {
        // One that need not sign any more need not open either.
        (Some(sealed), Some(Tz(until))) if wall < until => {
            Some((open(seals, &id, Some(sealed), "previous secret")?, until))
        }
        _ => None,
    };
    let failing_since: Option<Tz> = row.try_get(5).map_err(later)?;
    Ok(Endpoint {
        id,
        version: row.try_get(6).map_err(later)?,
        url,
        url_text,
        secret,
        previous,
        failing_since: failing_since.map(|t| t.0),
    })
}

fn open(seals: &Seals, id: &str, sealed: Option<&[u8]>, which: &str) -> Result<Secret, Unready> {
    let unreadable = |why: String| Unready::Pause {
        code: "secret_unreadable",
        reason: format!("the {which} of {id}: {why}"),
    };
    let sealed = sealed.ok_or_else(|| unreadable("there is none".to_owned()))?;
    let text = seals
        .open(&seal_purpose(id), sealed)
        .map_err(|e| unreadable(e.to_string()))?;
    std::str::from_utf8(&text)
        .ok()
        .and_then(Secret::parse)
        .ok_or_else(|| unreadable("it opens, and is no whsec_ secret".to_owned()))
}

/// Writes down since when every delivery to the endpoint fails, unless that is known already. A failure at another URL than the
/// endpoint has now says nothing of it.
///
/// # Errors
/// The store's.
pub async fn set_failing(
    session: &Session,
    endpoint: &Endpoint,
    since: Micros,
) -> Result<bool, tokio_postgres::Error> {
    let n = session
        .execute(
            "UPDATE webhooks SET failing_since = $3
             WHERE webhook_id = $1 AND url = $2 AND status = 'active' AND failing_since IS NULL",
            &[&endpoint.id, &endpoint.url_text, &Tz(since)],
        )
        .await?;
    Ok(n == 1)
}

/// A delivery succeeded at `at`: it does not fail since before then.
///
/// # Errors
/// The store's.
pub async fn clear_failing(
    session: &Session,
    endpoint: &Endpoint,
    at: Micros,
) -> Result<bool, tokio_postgres::Error> {
    let n = session
        .execute(
            "UPDATE webhooks SET failing_since = NULL WHERE webhook_id = $1 AND failing_since <= $2",
            &[&endpoint.id, &Tz(at)],
        )
        .await?;
    Ok(n == 1)
}

/// Disables an active endpoint for a reason; with `failing_before` only if it has failed since then or longer. True: it was not
/// disabled before.
///
/// # Errors
/// The store's.
pub async fn disable(
    session: &Session,
    endpoint: &Endpoint,
    failing_before: Option<Micros>,
    reason: &str,
) -> Result<bool, tokio_postgres::Error> {
    let n = session
        .execute(
            "UPDATE webhooks SET status = 'disabled', disabled_reason = $3, version = version + 1, updated_at = now(),
                    updated_by = 'millrace'
             WHERE webhook_id = $1 AND url = $2 AND status = 'active' AND ($4::timestamptz IS NULL OR failing_since <= $4)",
            &[
                &endpoint.id,
                &endpoint.url_text,
                &reason,
                &failing_before.map(Tz),
            ],
        )
        .await?;
    Ok(n == 1)
}
