//! What the devices of a user answered to a message that is tried again: kept on the message's own row, so that the next attempt,
//! whoever makes it, wakes only those that are still to be woken.
//!
//! Written in the transaction that ends the attempt, and only where some devices are settled and others are not; read only at a
//! later attempt. Devices are named by their subscription: an endpoint is a secret.

use crate::postgres::types::Tz;
use crate::runtime::session::Session;
use millrace_schemas::time::Micros;
use std::collections::BTreeMap;
use tokio_postgres::Error;
use uuid::Uuid;

/// Subscriptions that are settled: true, it took the push; false, it refused for good.
pub type Devices = BTreeMap<String, bool>;

/// What an attempt leaves to be remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The message.
    pub message: Uuid,
    /// Its partition in time.
    pub created_at: Micros,
    /// The devices that this attempt settled.
    pub devices: Devices,
}

/// Adds what an attempt settled, within the caller's transaction. A second time it changes nothing.
///
/// # Errors
/// The store's.
pub async fn remember(session: &Session, answered: &Answered) -> Result<(), Error> {
    let devices = serde_json::to_string(&answered.devices).unwrap_or_else(|_| "{}".to_owned());
    session
        .execute(
            "UPDATE outbox SET answered = coalesce(answered, '{}'::jsonb) || $3::text::jsonb
             WHERE outbox_id = $1 AND created_at = $2",
            &[&answered.message, &Tz(answered.created_at), &devices],
        )
        .await?;
    Ok(())
}

/// What earlier attempts of a message settled.
///
/// # Errors
/// The store's.
pub async fn recall(
    session: &Session,
    message: Uuid,
    created_at: Micros,
) -> Result<Devices, Error> {
    let rows = session
        .query(
            "SELECT e.key, e.value = 'true' FROM outbox o CROSS JOIN LATERAL jsonb_each_text(o.answered) AS e
             WHERE o.outbox_id = $1 AND o.created_at = $2",
            &[&message, &Tz(created_at)],
        )
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
