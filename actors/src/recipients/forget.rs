//! What the gates remember is forgotten once it can refuse nothing any more, in bounded steps: cooldowns after 30 days or the longest
//! one of a rule, sent keys after 45 days, marks once the longest delay is over and no message waits under their key. Once a day:
//! each is a walk over its table.

use crate::postgres::types::Tz;
use millrace_schemas::time::{DAY_US, Micros};
use tokio_postgres::{Client, Error};
use uuid::Uuid;

/// Rows that one statement deletes at most.
const STEP: i64 = 10_000;

/// Keys of marks that are looked up at once: some 15 MB while they are read.
const LOOKED_UP: i64 = 100_000;

/// A table, and what of it is old.
#[derive(Debug)]
pub struct Step {
    /// The table.
    pub table: &'static str,
    /// SQL: how many seconds are kept.
    keep: &'static str,
    forget: Forget,
}

#[derive(Debug)]
enum Forget {
    /// SQL that deletes at most `$2` rows of before `$1`.
    Rows(&'static str),
    /// SQL that finds at most `$2` keys of before `$1`, and one that deletes those of `$2` that are of before `$1` still. What the
    /// first asks costs the same for one key and for many.
    Keys(&'static str, &'static str),
}

/// All of them.
pub const STEPS: [Step; 3] = [
    Step {
        table: "cooldowns",
        keep: "SELECT greatest(30 * 86400, coalesce(max(cooldown_s), 0))::int8 FROM rules WHERE enabled",
        forget: Forget::Rows(
            "DELETE FROM cooldowns WHERE ctid = ANY (ARRAY (SELECT ctid FROM cooldowns WHERE fired_at < $1 LIMIT $2))",
        ),
    },
    Step {
        table: "sent_keys",
        keep: "SELECT (45 * 86400)::int8",
        forget: Forget::Rows(
            "DELETE FROM sent_keys WHERE ctid = ANY (ARRAY (SELECT ctid FROM sent_keys WHERE sent_at < $1 LIMIT $2))",
        ),
    },
    Step {
        table: "cancel_marks",
        // A week for what lags behind: a notice that is read that late is called off all the same. A message of a paused destination
        // may wait for longer than any delay: its mark waits with it. What waits is looked at before the marks go, and that is
        // enough: while a mark stands, gate 0 refuses what is older than it, so that no message that begins to wait in between
        // needs it.
        keep: "SELECT (7 * 86400 + greatest(30 * 86400, coalesce(max(delay_s), 0)))::int8 FROM rules",
        forget: Forget::Keys(
            "WITH waiting AS MATERIALIZED (
                 SELECT DISTINCT o.cancel_key FROM outbox_due d JOIN outbox o ON o.outbox_id = d.outbox_id AND o.created_at = d.created_at
                 WHERE o.cancel_key IS NOT NULL)
             SELECT c.key FROM cancel_marks c
             WHERE c.marked_at < $1 AND NOT EXISTS (SELECT FROM waiting w WHERE w.cancel_key = c.key) LIMIT $2",
            "DELETE FROM cancel_marks WHERE key = ANY($2) AND marked_at < $1",
        ),
    },
];

/// Whether this round of retention is the day's: the one in the first hour of the day.
#[must_use]
pub fn is_time(wall: Micros) -> bool {
    wall.0.rem_euclid(DAY_US) < DAY_US / 24
}

/// Forgets what is old of one table; answers how many rows are gone.
///
/// # Errors
/// The store's; the next round goes on where this one stopped.
pub async fn one(client: &Client, step: &Step, wall: Micros) -> Result<u64, Error> {
    let keep: i64 = client.query_one(step.keep, &[]).await?.get(0);
    let before = Tz(wall.plus_secs(-keep));
    let mut gone = 0;
    match &step.forget {
        Forget::Rows(delete) => loop {
            let n = client.execute(*delete, &[&before, &STEP]).await?;
            gone += n;
            if n < STEP.unsigned_abs() {
                return Ok(gone);
            }
        },
        Forget::Keys(find, delete) => loop {
            let rows = client.query(*find, &[&before, &LOOKED_UP]).await?;
            let keys: Vec<Uuid> = rows.iter().map(|r| r.get(0)).collect();
            for some in keys.chunks(usize::try_from(STEP).unwrap_or(1)) {
                gone += client.execute(*delete, &[&before, &some]).await?;
            }
            if i64::try_from(keys.len()).unwrap_or(0) < LOOKED_UP {
                return Ok(gone);
            }
        },
    }
}
