//! What the gates remember is forgotten once it can refuse nothing any more, in bounded steps: cooldowns after 30 days or the longest
//! one of a rule, sent keys after 45 days, marks once the longest delay is over and no message waits under their key. Once a day:
//! each is a walk over its table.

use crate::postgres::types::Tz;
use millrace_schemas::time::{DAY_US, Micros};
use tokio_postgres::{Client, Error};

/// Rows of one step.
const STEP: i64 = 10_000;

/// Each with its moment before which nothing is kept, in seconds before now.
const FORGET: [(&str, &str); 3] = [
    (
        "SELECT greatest(30 * 86400, coalesce(max(cooldown_s), 0))::int8 FROM rules WHERE enabled",
        "DELETE FROM cooldowns WHERE ctid = ANY (ARRAY (SELECT ctid FROM cooldowns WHERE fired_at < $1 LIMIT $2))",
    ),
    (
        "SELECT (45 * 86400)::int8",
        "DELETE FROM sent_keys WHERE ctid = ANY (ARRAY (SELECT ctid FROM sent_keys WHERE sent_at < $1 LIMIT $2))",
    ),
    (
        // A week for what lags behind: a notice that is read that late is called off all the same. A message of a paused destination
        // may wait for longer than any delay: its mark waits with it.
        "SELECT (7 * 86400 + greatest(30 * 86400, coalesce(max(delay_s), 0)))::int8 FROM rules",
        "WITH waiting AS MATERIALIZED (
             SELECT DISTINCT o.cancel_key FROM outbox_due d JOIN outbox o ON o.outbox_id = d.outbox_id AND o.created_at = d.created_at
             WHERE o.cancel_key IS NOT NULL)
         DELETE FROM cancel_marks WHERE ctid = ANY (ARRAY (
             SELECT c.ctid FROM cancel_marks c
             WHERE c.marked_at < $1 AND NOT EXISTS (SELECT FROM waiting w WHERE w.cancel_key = c.key) LIMIT $2))",
    ),
];

/// Whether this round of retention is the day's: the one in the first hour of the day.
#[must_use]
pub fn is_time(wall: Micros) -> bool {
    wall.0.rem_euclid(DAY_US) < DAY_US / 24
}

/// Forgets what is old; answers how many rows are gone.
///
/// # Errors
/// The store's; the next round goes on where this one stopped.
pub async fn once(client: &Client, wall: Micros) -> Result<u64, Error> {
    let mut gone = 0;
    for (keep, forget) in FORGET {
        let keep: i64 = client.query_one(keep, &[]).await?.get(0);
        let before = Tz(wall.plus_secs(-keep));
        loop {
            let n = client.execute(forget, &[&before, &STEP]).await?;
            gone += n;
            if n < STEP.unsigned_abs() {
                break;
            }
        }
    }
    Ok(gone)
}
