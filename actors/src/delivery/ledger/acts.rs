//! Called off and released, by a person.
//!
//! Whoever changes a message takes its row in `outbox_due` first and its body second, as the finisher does; so no two wait for
//! each other in a circle. A message that is under a lease is its holder's: nobody else ends it.

use super::{COLUMNS, Delivery, FROM, delivery};
use crate::postgres::types::Tz;
use millrace_schemas::time::Micros;
use tokio_postgres::{Error, Transaction};
use uuid::Uuid;

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There is no such message.
    #[error("there is no such message")]
    NotFound,
    /// A sender holds it.
    #[error("it is being sent; its end is known in a moment")]
    BeingSent,
    /// It has ended already.
    #[error("it has ended already: {0}")]
    Ended(String),
    /// It has not ended, or arrived, or may not be sent.
    #[error("it is {0}: only what failed, was cancelled or is unknown can be released")]
    NotReleasable(String),
    /// It may have arrived, and its receiver cannot tell a second one from the first.
    #[error("it may have arrived, and its receiver cannot tell a second one from the first")]
    MayRepeat,
    /// The store failed.
    #[error("the store: {0}")]
    Store(#[from] Error),
}

/// Calls a message off. Within the caller's transaction; `wall` is when.
///
/// # Errors
/// [`Refused`].
pub async fn cancel(
    tx: &Transaction<'_>,
    workspace: Option<i32>,
    id: Uuid,
    wall: Micros,
) -> Result<(), Refused> {
    let found = body(tx, workspace, id, "").await?;
    let due = tx
        .query_opt(
            "SELECT ctid::text, attempts, lease_token IS NOT NULL, coalesce(lease_until > clock_timestamp(), false) FROM outbox_due
             WHERE destination_no = $1 AND due_at >= $2 AND outbox_id = $3 FOR UPDATE",
            &[&found.destination_no, &Tz(found.created_at), &id],
        )
        .await?;
    let Some(due) = due else {
        // It ended before this transaction came to look, or while it waited.
        let now = body(tx, workspace, id, "").await?;
        return Err(Refused::Ended(now.status));
    };
    let (leased, live): (bool, bool) = (due.try_get(2)?, due.try_get(3)?);
    // A lease that ran out leaves open whether it was sent; of such a channel that is the janitor's to say.
    if live || (leased && !found.idempotent()) {
        return Err(Refused::BeingSent);
    }
    let attempts: i16 = due.try_get(1)?;
    let place: String = due.try_get(0)?;
    tx.execute(
        "DELETE FROM outbox_due WHERE ctid = $1::text::tid",
        &[&place],
    )
    .await?;
    tx.execute(
        "UPDATE outbox SET status = 'cancelled', status_reason = 'by_hand', attempts = $3, ended_at = $4
         WHERE outbox_id = $1 AND created_at = $2",
        &[&id, &Tz(found.created_at), &attempts, &Tz(wall)],
    )
    .await?;
    tx.execute(
        "INSERT INTO send_log (sent_at, outbox_id, workspace_id, channel, destination_no, attempt, result, code)
         VALUES ($1, $2, $3, $4, $5, 0, 'cancelled', 'by_hand')",
        &[&Tz(wall), &id, &found.workspace, &found.channel, &found.destination_no],
    )
    .await?;
    Ok(())
}

/// Makes a message due now that failed, was cancelled or is unknown, with all its attempts before it. Within the caller's
/// transaction. What may have arrived keeps the moment since when, so that receivers' windows of recognition still count.
///
/// # Errors
/// [`Refused`].
pub async fn release(
    tx: &Transaction<'_>,
    workspace: Option<i32>,
    id: Uuid,
    may_repeat: bool,
    wall: Micros,
) -> Result<(), Refused> {
    let found = body(tx, workspace, id, "FOR UPDATE").await?;
    match found.status.as_str() {
        "failed" | "cancelled" => {}
        "unknown" if found.idempotent() || may_repeat => {}
        "unknown" => return Err(Refused::MayRepeat),
        other => return Err(Refused::NotReleasable(other.to_owned())),
    }
    tx.execute(
        "UPDATE outbox SET status = 'scheduled', status_reason = NULL, attempts = 0, ended_at = NULL, answered = NULL
         WHERE outbox_id = $1 AND created_at = $2",
        &[&id, &Tz(found.created_at)],
    )
    .await?;
    tx.execute(
        "INSERT INTO outbox_due (outbox_id, created_at, destination_no, due_at, unsure_since)
         VALUES ($1, $2, $3, greatest($4::timestamptz, $2::timestamptz), CASE WHEN $5::bool THEN (SELECT min(sent_at) FROM send_log
                WHERE outbox_id = $1 AND sent_at >= $2::timestamptz - interval '1 day' AND result IN ('retry', 'unknown')) END)",
        &[
            &id,
            &Tz(found.created_at),
            &found.destination_no,
            &Tz(wall),
            &found.idempotent(),
        ],
    )
    .await?;
    Ok(())
}

async fn body(
    tx: &Transaction<'_>,
    workspace: Option<i32>,
    id: Uuid,
    lock: &str,
) -> Result<Delivery, Refused> {
    let lock = match lock {
        "" => String::new(),
        lock => format!("{lock} OF o"),
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM {FROM} WHERE o.outbox_id = $1 AND ($2::int IS NULL OR o.workspace_id = $2) {lock}"
    );
    let row = tx.query_opt(&sql, &[&id, &workspace]).await?;
    Ok(delivery(&row.ok_or(Refused::NotFound)?)?)
}
