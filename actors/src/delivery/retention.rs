//! Drops whole days of `outbox` and `send_log` once they are old enough; of `outbox` no day before the last of its messages has
//! ended. What makes a second message the same stands in undated tables and is not touched.

use crate::postgres::pool::{Database, DatabaseError};
use crate::postgres::types::Tz;
use crate::settings;
use millrace_schemas::time::{DAY_US, Micros};
use tokio_postgres::Client;

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    /// No connection.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The store failed.
    #[error("the store: {0}")]
    Store(#[from] tokio_postgres::Error),
}

/// Partitions of a table, those first whose dropping was interrupted; their names end in the day.
const DAYS: &str = "
SELECT c.relname, i.inhdetachpending, to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC'
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass($1) ORDER BY i.inhdetachpending DESC, c.relname";

/// Drops what is older than the settings keep; answers the partitions that are gone.
///
/// # Errors
/// The store is away or refuses; the next round goes on where this one stopped.
pub async fn once(
    database: &Database,
    settings: &settings::Delivery,
    wall: Micros,
) -> Result<Vec<String>, RetentionError> {
    let (client, _driver) = database.single().await?;
    // Nobody must wait behind us for long; there is another round in an hour.
    client
        .batch_execute("SET lock_timeout = '5s'; SET statement_timeout = '60s'")
        .await?;
    let mut gone = Vec::new();
    for (table, days) in [
        ("outbox", settings.outbox_retention_days),
        ("send_log", settings.send_log_retention_days),
    ] {
        if days == 0 {
            continue;
        }
        let keep_us = i64::from(days).saturating_mul(DAY_US);
        let before = Micros(wall.0.saturating_sub(keep_us));
        gone.extend(drop_days(&client, table, before).await?);
    }
    Ok(gone)
}

async fn drop_days(
    client: &Client,
    table: &str,
    before: Micros,
) -> Result<Vec<String>, tokio_postgres::Error> {
    let mut gone = Vec::new();
    for row in client.query(DAYS, &[&table]).await? {
        let (name, pending, day): (String, bool, Tz) = (row.get(0), row.get(1), row.get(2));
        let end = Micros(day.0.0 + DAY_US);
        if !pending {
            if end.0 > before.0 {
                continue;
            }
            if table == "outbox" && is_open(client, day.0, end).await? {
                tracing::warn!(
                    partition = name,
                    "kept: some of its messages have not ended"
                );
                continue;
            }
        }
        // Without the parent's exclusive lock, for which every batch would have to wait.
        let how = if pending { "FINALIZE" } else { "CONCURRENTLY" };
        client
            .batch_execute(&format!(
                "ALTER TABLE {table} DETACH PARTITION {name} {how}"
            ))
            .await?;
        client.batch_execute(&format!("DROP TABLE {name}")).await?;
        gone.push(name);
    }
    Ok(gone)
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
