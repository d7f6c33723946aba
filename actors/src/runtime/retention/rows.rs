//! Rows of tables without days, deleted in bounded steps once they are old enough. What a step deletes it counts, in one statement.

use crate::postgres::types::Tz;
use millrace_schemas::time::Micros;
use tokio_postgres::{Client, Error};
use uuid::Uuid;

/// Rows of one step.
const STEP: i64 = 10_000;

/// Notifications that were read before a moment, oldest first.
const INBOX: &str = "
WITH gone AS (
    DELETE FROM user_notifications WHERE notification_id = ANY (ARRAY (
        SELECT notification_id FROM user_notifications WHERE read_at < $1 ORDER BY read_at LIMIT $2))
    RETURNING (created_at AT TIME ZONE 'UTC')::date AS day),
counted AS (
    INSERT INTO dropped_facts (table_name, day, topic_no, partition, n)
    SELECT 'user_notifications', day, 0, 0, count(*) FROM gone GROUP BY day
    ON CONFLICT (table_name, day, topic_no, partition) DO UPDATE SET n = dropped_facts.n + excluded.n, dropped_at = now())
SELECT count(*) FROM gone";

/// Of the memories behind an id, those that changed last before a day. The whole table is walked once, in the order of its key:
/// nothing else about a memory is worth an index.
const TRACKERS: &str = "
WITH part AS MATERIALIZED (SELECT id FROM tracker_states WHERE id > $1 ORDER BY id LIMIT $3),
gone AS (
    DELETE FROM tracker_states t USING part WHERE t.id = part.id AND t.changed_on < ($2::timestamptz AT TIME ZONE 'UTC')::date
    RETURNING t.changed_on AS day),
counted AS (
    INSERT INTO dropped_facts (table_name, day, topic_no, partition, n)
    SELECT 'tracker_states', day, 0, 0, count(*) FROM gone GROUP BY day
    ON CONFLICT (table_name, day, topic_no, partition) DO UPDATE SET n = dropped_facts.n + excluded.n, dropped_at = now())
SELECT (SELECT id FROM part ORDER BY id DESC LIMIT 1), (SELECT count(*) FROM gone)";

/// Deletes notifications that were read before a moment; answers how many.
///
/// # Errors
/// The store's; the next round goes on where this one stopped.
pub(super) async fn inbox(client: &Client, before: Micros) -> Result<u64, Error> {
    let mut all = 0;
    loop {
        let row = client.query_one(INBOX, &[&Tz(before), &STEP]).await?;
        let gone: i64 = row.get(0);
        all += gone.unsigned_abs();
        if gone < STEP {
            return Ok(all);
        }
    }
}

/// Deletes what trackers remember of keys whose value has not changed since a moment; answers how much.
///
/// # Errors
/// The store's.
pub(super) async fn trackers(client: &Client, before: Micros) -> Result<u64, Error> {
    let (mut all, mut behind) = (0, Uuid::nil());
    loop {
        let row = client
            .query_one(TRACKERS, &[&behind, &Tz(before), &STEP])
            .await?;
        all += row.get::<_, i64>(1).unsigned_abs();
        match row.get(0) {
            Some(last) => behind = last,
            None => return Ok(all),
        }
    }
}
