//! Drops whole days of facts, of the outbox and of its log once they are old enough; of the outbox no day before the last of its
//! messages has ended. What makes a second message or a second conversion the same stands in undated tables and is not touched.
//! What a dropped day held stays counted in `dropped_facts`, and so do rows of tables without days (`rows`). A step that fails is
//! named and keeps none of the others from being done; the round fails at its end.

mod rows;

use crate::postgres::pool::{Database, DatabaseError, chain};
use crate::postgres::types::Tz;
use crate::recipients::forget;
use crate::settings::Settings;
use millrace_schemas::time::{DAY_US, Micros};
use std::time::Duration;
use tokio_postgres::Client;

/// How long counting or detaching one day may take: it is far from every batch's way, but a day may be large.
const PATIENCE: Duration = Duration::from_secs(600);

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    /// No connection.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The store failed.
    #[error("the store: {0}")]
    Store(#[from] tokio_postgres::Error),
    /// Steps failed, each of them named by a warning; the others were done.
    #[error("{failed} of its steps failed, the last one: {}", chain(.last))]
    Steps {
        /// How many.
        failed: u32,
        /// What the store said of the last one.
        last: tokio_postgres::Error,
    },
}

/// What of a round has failed so far.
#[derive(Default)]
struct Failed {
    steps: u32,
    last: Option<tokio_postgres::Error>,
}

impl Failed {
    /// What a step has done; none: it failed, and was named.
    fn unless<T>(&mut self, step: &str, done: Result<T, tokio_postgres::Error>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(error) => {
                tracing::warn!(
                    step,
                    error = chain(&error),
                    "a step of retention failed, the others go on"
                );
                self.steps += 1;
                self.last = Some(error);
                None
            }
        }
    }
}

/// A table partitioned by day, how long its days are kept, and the record that a row of it came from.
struct Kept {
    table: &'static str,
    days: u16,
    /// The column with the record's id, if there is one.
    record: Option<&'static str>,
}

fn kept(settings: &Settings) -> [Kept; 10] {
    let of = |table, days, record| Kept {
        table,
        days,
        record,
    };
    let facts = &settings.retention;
    [
        of("visits", facts.visits_days, Some("record_id")),
        of("clicks", facts.visits_days, Some("record_id")),
        of("conversions", facts.conversions_days, Some("conversion_id")),
        of("postback_log", facts.postbacks_days, Some("record_id")),
        of("rejects", facts.postbacks_days, Some("record_id")),
        of(
            "outbox",
            settings.delivery.outbox_retention_days,
            Some("cause"),
        ),
        of("send_log", settings.delivery.send_log_retention_days, None),
        // As long as the messages that they explain.
        of(
            "firings",
            settings.delivery.outbox_retention_days,
            Some("firing_pos"),
        ),
        of(
            "firing_rules",
            settings.delivery.outbox_retention_days,
            Some("firing_pos"),
        ),
        of(
            "refusals",
            settings.delivery.outbox_retention_days,
            Some("firing_pos"),
        ),
    ]
}

/// Says on a table that this is what is being done with it, so that a round that was cut short is finished by the next, and a day
/// that an operator has detached for an archive is left alone.
const GOING: &str = "millrace: going";

/// Partitions of a table, and what was one until a round was cut short; their names end in the day.
const DAYS: &str = "
SELECT c.relname, i.inhrelid IS NOT NULL, coalesce(i.inhdetachpending, false),
       to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC'
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = to_regclass($1)
WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($1)) AND c.relkind = 'r'
  AND c.relname ~ ('^' || $1 || '_[0-9]{8}$')
  AND (i.inhrelid IS NOT NULL OR coalesce(obj_description(c.oid, 'pg_class'), '') = $2)
ORDER BY i.inhdetachpending DESC NULLS FIRST, c.relname";

/// One round at a time in the deployment.
const ONE_AT_A_TIME: &str =
    "SELECT pg_try_advisory_lock(hashtextextended('millrace retention', 0))";
/// Ends a round.
const DONE: &str = "SELECT pg_advisory_unlock(hashtextextended('millrace retention', 0))";

/// Drops what is older than the settings keep; answers the partitions that are gone.
///
/// # Errors
/// The store is away or refuses; the next round goes on where this one stopped. Steps after one that failed are done all the same.
pub async fn once(
    database: &Database,
    settings: &Settings,
    wall: Micros,
) -> Result<Vec<String>, RetentionError> {
    let (mut client, _driver) = database.single().await?;
    // Nobody must wait behind us for long; there is another round in an hour.
    client
        .batch_execute(&format!(
            "SET lock_timeout = '5s'; SET statement_timeout = '{}s'",
            PATIENCE.as_secs()
        ))
        .await?;
    let mut gone = Vec::new();
    // A round that fails lets the lock go with its session, which may outlast this call by a moment.
    if !client
        .query_one(ONE_AT_A_TIME, &[])
        .await?
        .get::<_, bool>(0)
    {
        return Ok(gone);
    }
    let mut failed = Failed::default();
    for kept in kept(settings) {
        if let Some(before) = before(kept.days, wall) {
            let done = drop_days(&mut client, &kept, before, &mut gone).await;
            failed.unless(kept.table, done);
        }
    }
    if forget::is_time(wall) {
        for step in &forget::STEPS {
            let done = forget::one(&client, step, wall).await;
            if let Some(forgotten) = failed.unless(step.table, done) {
                tracing::debug!(forgotten, table = step.table, "what the gates remembered");
            }
        }
    }
    if let Some(before) = before(settings.retention.read_inbox_days, wall) {
        let done = rows::inbox(&client, before).await;
        if let Some(forgotten) = failed.unless("user_notifications", done) {
            tracing::debug!(forgotten, "notifications that were read");
        }
    }
    if forget::is_time(wall)
        && let Some(before) = before(settings.retention.tracker_states_days, wall)
    {
        let done = rows::trackers(&client, before).await;
        if let Some(forgotten) = failed.unless("tracker_states", done) {
            tracing::debug!(forgotten, "what trackers remembered");
        }
    }
    if let Some(before) = before(settings.retention.dead_letters_days, wall) {
        // Open ones stay until a person has replayed or discarded them.
        let done = client
            .execute(
                "DELETE FROM dead_letters WHERE status <> 'open' AND coalesce(changed_at, dead_at) < $1",
                &[&Tz(before)],
            )
            .await;
        failed.unless("dead_letters", done);
    }
    failed.unless("the lock", client.query_one(DONE, &[]).await);
    match failed.last {
        None => Ok(gone),
        Some(last) => {
            if !gone.is_empty() {
                tracing::info!(partitions = gone.join(", "), "dropped");
            }
            Err(RetentionError::Steps {
                failed: failed.steps,
                last,
            })
        }
    }
}

/// The moment before which nothing is kept; `None`: everything is.
fn before(days: u16, wall: Micros) -> Option<Micros> {
    let keep_us = i64::from(days).saturating_mul(DAY_US);
    (days > 0).then(|| Micros(wall.0.saturating_sub(keep_us)))
}

/// Drops the days of a table; each that is gone is named in `gone`, whatever becomes of the next.
async fn drop_days(
    client: &mut Client,
    kept: &Kept,
    before: Micros,
    gone: &mut Vec<String>,
) -> Result<(), tokio_postgres::Error> {
    let table = kept.table;
    for row in client.query(DAYS, &[&table, &GOING]).await? {
        let name: String = row.get(0);
        let (attached, pending): (bool, bool) = (row.get(1), row.get(2));
        let day = row.get::<_, Tz>(3).0;
        let end = Micros(day.0 + DAY_US);
        if attached && !pending {
            if end.0 > before.0 {
                continue;
            }
            if table == "outbox" && is_open(client, day, end).await? {
                tracing::warn!(
                    partition = name,
                    "kept: some of its messages have not ended"
                );
                continue;
            }
        }
        if attached {
            // Without the parent's exclusive lock, for which every batch would have to wait.
            let how = if pending { "FINALIZE" } else { "CONCURRENTLY" };
            client
                .batch_execute(&format!("COMMENT ON TABLE {name} IS '{GOING}'"))
                .await?;
            client
                .batch_execute(&format!(
                    "ALTER TABLE {table} DETACH PARTITION {name} {how}"
                ))
                .await?;
        }
        count_and_drop(client, kept, &name, day).await?;
        gone.push(name);
    }
    Ok(())
}

/// In one transaction: what is counted as dropped is dropped.
async fn count_and_drop(
    client: &mut Client,
    kept: &Kept,
    name: &str,
    day: Micros,
) -> Result<(), tokio_postgres::Error> {
    let table = kept.table;
    let (topic, partition) = match kept.record {
        Some(id) => (
            format!("record_topic({id})"),
            format!("record_partition({id})"),
        ),
        None => ("0".to_owned(), "0".to_owned()),
    };
    let tx = client.transaction().await?;
    tx.execute(
        &format!(
            "INSERT INTO dropped_facts (table_name, day, topic_no, partition, n)
             SELECT $1, ($2::timestamptz AT TIME ZONE 'UTC')::date, {topic}, {partition}, count(*) FROM {name} GROUP BY 3, 4
             ON CONFLICT (table_name, day, topic_no, partition)
             DO UPDATE SET n = dropped_facts.n + excluded.n, dropped_at = now()"
        ),
        &[&table, &Tz(day)],
    )
    .await?;
    if table == "conversions" {
        // What changed of them is nobody's any more.
        tx.execute(
            &format!(
                "DELETE FROM conversion_history h USING {name} c WHERE h.conversion_id = c.conversion_id"
            ),
            &[],
        )
        .await?;
    }
    tx.batch_execute(&format!("DROP TABLE {name}")).await?;
    tx.commit().await
}

async fn is_open(client: &Client, from: Micros, to: Micros) -> Result<bool, tokio_postgres::Error> {
    let open = client
        .query_one(
            "SELECT EXISTS (SELECT FROM outbox_due WHERE created_at >= $1 AND created_at < $2)",
            &[&Tz(from), &Tz(to)],
        )
        .await?;
    Ok(open.get(0))
}
