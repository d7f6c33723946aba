//! Leases whose holder is gone.

use crate::postgres::types::Tz;
use crate::runtime::failpoint;
use crate::runtime::session::Session;
use millrace_schemas::time::Micros;
use tokio_postgres::Error;
use uuid::Uuid;

/// What the dead left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Messages that had used all their attempts.
    pub exhausted: u64,
    /// Messages of a non-idempotent channel that may have been sent.
    pub unknown: u64,
    /// Messages that are due again.
    pub returned: u64,
}

/// Expired claims of a channel's destinations, with what is needed to find their messages.
const EXPIRED: &str = "
SELECT l.lease_token, l.destination_no, l.due_from, l.due_to
FROM outbox_leases l JOIN destinations t ON t.destination_no = l.destination_no
WHERE l.lease_until < clock_timestamp() AND t.channel = $1
ORDER BY l.lease_token LIMIT 1000";

/// `$5`: those alone that have had so many attempts.
const EXPIRE_FINAL: &str = "
WITH gone AS (
    DELETE FROM outbox_due d
    USING unnest($1::uuid[], $2::int4[], $3::timestamptz[], $4::timestamptz[]) AS l(token, destination_no, due_from, due_to)
    WHERE d.destination_no = l.destination_no AND d.due_at BETWEEN l.due_from AND l.due_to AND d.lease_token = l.token
      AND d.attempts >= $5
    RETURNING d.outbox_id, d.created_at, d.destination_no, d.attempts
), ended AS (
    UPDATE outbox o SET status = $6, status_reason = 'lease_expired', attempts = gone.attempts, ended_at = $7
    FROM gone WHERE o.outbox_id = gone.outbox_id AND o.created_at = gone.created_at
    RETURNING o.outbox_id, o.workspace_id, o.channel, o.destination_no, o.attempts
)
INSERT INTO send_log (sent_at, outbox_id, workspace_id, channel, destination_no, attempt, result, code)
SELECT $7, outbox_id, workspace_id, channel, destination_no, attempts, 'unknown', 'lease_expired' FROM ended";

const EXPIRE_BACK: &str = "
UPDATE outbox_due d SET lease_until = NULL, lease_token = NULL, unsure_since = coalesce(d.unsure_since, $5)
FROM unnest($1::uuid[], $2::int4[], $3::timestamptz[], $4::timestamptz[]) AS l(token, destination_no, due_from, due_to)
WHERE d.destination_no = l.destination_no AND d.due_at BETWEEN l.due_from AND l.due_to AND d.lease_token = l.token";

/// For a run that proves what leases are for: every one is over.
const EXPIRE_ALL: &str =
    "UPDATE outbox_leases SET lease_until = clock_timestamp() - interval '1 second'";

/// Deals with the expired leases of a channel: first ends what has used all its attempts (of a non-idempotent channel:
/// everything, as `unknown`), then gives the rest back.
///
/// # Errors
/// The store's; nothing was done.
pub async fn sweep(
    session: &Session,
    channel: &str,
    idempotent: bool,
    max_attempts: u16,
    wall: Micros,
) -> Result<Swept, Error> {
    // The safeguard of what must not be sent twice: a lease is its holder's until it has run out, and ends `unknown` then.
    let sabotaged = failpoint::sabotaged("lease");
    if sabotaged {
        session.execute(EXPIRE_ALL, &[]).await?;
    }
    let idempotent = idempotent || sabotaged;
    let expired = session.query(EXPIRED, &[&channel]).await?;
    let mut swept = Swept::default();
    if expired.is_empty() {
        return Ok(swept);
    }
    let tokens: Vec<Uuid> = expired.iter().map(|r| r.get(0)).collect();
    let destinations: Vec<i32> = expired.iter().map(|r| r.get(1)).collect();
    let from: Vec<Tz> = expired.iter().map(|r| r.get(2)).collect();
    let to: Vec<Tz> = expired.iter().map(|r| r.get(3)).collect();
    session.batch("BEGIN").await?;
    let at_least = if idempotent {
        max_attempts.cast_signed()
    } else {
        0
    };
    let status = if idempotent { "failed" } else { "unknown" };
    let ended = session
        .execute(
            EXPIRE_FINAL,
            &[
                &tokens,
                &destinations,
                &from,
                &to,
                &at_least,
                &status,
                &Tz(wall),
            ],
        )
        .await?;
    match idempotent {
        true => swept.exhausted = ended,
        false => swept.unknown = ended,
    }
    swept.returned = session
        .execute(
            EXPIRE_BACK,
            &[&tokens, &destinations, &from, &to, &Tz(wall)],
        )
        .await?;
    session
        .execute(
            "DELETE FROM outbox_leases WHERE lease_token = ANY($1) AND lease_until < clock_timestamp()",
            &[&tokens],
        )
        .await?;
    session.batch("COMMIT").await?;
    Ok(swept)
}
