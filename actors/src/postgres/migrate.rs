//! Migrations, under a lock, and the daily partitions of the fact tables.

use super::pool::{Database, DatabaseError};
use super::types::Tz;
use millrace_schemas::time::{DAY_US, Micros};
use std::time::Duration;
use tokio_postgres::Client;

// The generated code unwraps names that the macro itself has just checked.
#[allow(clippy::unwrap_used, missing_docs)]
mod embedded {
    refinery::embed_migrations!("../migrations");
}

/// Fact tables partitioned by day of `accepted_at`.
pub const DAILY: &[&str] = &[
    "visits",
    "clicks",
    "conversions",
    "postback_log",
    "rejects",
    "outbox",
    "send_log",
];

/// Days kept made before today: late records and replays carry their first `accepted_at`.
pub const DAYS_BEHIND: i64 = 8;
/// Days kept made ahead of today.
pub const DAYS_AHEAD: i64 = 3;

/// Advisory lock of migrations, for the session: "mill".
const MIGRATE_LOCK: i64 = 0x6d69_6c6c;

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Migrations applied now, as `V001 spine`.
    pub applied: Vec<String>,
    /// The schema's version now.
    pub version: i32,
    /// Partitions made now.
    pub partitions: i64,
}

/// Why the schema cannot be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// No connection.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The store refused a statement of ours.
    #[error("the store: {}", super::pool::chain(.0))]
    Store(#[from] tokio_postgres::Error),
    /// A migration failed; the schema stays at the last good one.
    #[error("migrations: {}", super::pool::chain(.0))]
    Failed(refinery::Error),
    /// A migration that both know is not the same in the schema and here.
    #[error("the schema is not this program's: {}", super::pool::chain(.0))]
    Foreign(refinery::Error),
    /// A newer program has taken away what this one needs.
    #[error(
        "the schema is at version {version}, which programs older than version {floor} cannot run on; this one is of version {own}: \
         use a newer Millrace"
    )]
    TooOld {
        /// The schema's version.
        version: i32,
        /// The oldest program's that may run on it.
        floor: i32,
        /// This program's.
        own: i32,
    },
}

impl From<refinery::Error> for MigrateError {
    fn from(error: refinery::Error) -> MigrateError {
        use refinery::error::Kind;
        match error.kind() {
            Kind::DivergentVersion(..) | Kind::MissingVersion(_) => MigrateError::Foreign(error),
            _ => MigrateError::Failed(error),
        }
    }
}

/// The migrations this program carries: (version, name), ascending.
#[must_use]
pub fn known() -> Vec<(i32, String)> {
    let mut all: Vec<(i32, String)> = embedded::migrations::runner()
        .get_migrations()
        .iter()
        .map(|m| (m.version(), m.name().to_owned()))
        .collect();
    all.sort();
    all
}

/// Brings the schema up to date and makes the partitions around today (by the database's clock). Safe to run from many
/// processes at once: one works, the others wait and find nothing left to do. A schema that a newer program has added to is
/// left as it is: old and new run side by side during an upgrade.
///
/// # Errors
/// No connection; a migration failed (the schema stays at the last good one); a newer program has taken away what this one needs.
pub async fn migrate(database: &Database) -> Result<Report, MigrateError> {
    let unbounded = database
        .for_role("migrate")
        .with_statement_timeout(Duration::ZERO);
    let (mut client, connection) = unbounded.single().await?;
    client
        .execute("SELECT pg_advisory_lock($1)", &[&MIGRATE_LOCK])
        .await?;
    let own = known().last().map_or(0, |(v, _)| *v);
    let (newest, floor) = standing(&client).await?;
    let applied: Vec<String> = if newest <= own {
        let done = embedded::migrations::runner()
            .run_async(&mut client)
            .await?;
        done.applied_migrations()
            .iter()
            .map(|m| format!("V{:03} {}", m.version(), m.name()))
            .collect()
    } else if floor <= own {
        Vec::new()
    } else {
        return Err(MigrateError::TooOld {
            version: newest,
            floor,
            own,
        });
    };
    let now = now(&client).await?;
    let (from, to) = window(now);
    let partitions = ensure_partitions(&mut client, from, to).await?;
    // Closing the session lets the lock go, whatever happened in between.
    drop(client);
    drop(connection.await);
    Ok(Report {
        applied,
        version: newest.max(own),
        partitions,
    })
}

/// The schema's version (0: none yet), and the oldest program's that may run on it.
///
/// # Errors
/// The store failed.
pub async fn standing(client: &Client) -> Result<(i32, i32), tokio_postgres::Error> {
    let newest = applied(client).await?.last().copied().unwrap_or(0);
    let there = client
        .query_one("SELECT to_regclass('schema_floor') IS NOT NULL", &[])
        .await?;
    if !there.get::<_, bool>(0) {
        return Ok((newest, 0));
    }
    let row = client
        .query_one("SELECT coalesce(max(version), 0) FROM schema_floor", &[])
        .await?;
    Ok((newest, row.get(0)))
}

/// The database's clock.
async fn now(client: &Client) -> Result<Micros, tokio_postgres::Error> {
    let row = client.query_one("SELECT now()", &[]).await?;
    Ok(row.get::<_, Tz>(0).0)
}

/// Makes whatever daily partitions (UTC days) are missing from the day of `from` to the day of `to`, in every table of
/// [`DAILY`]; answers how many. Idempotent, and safe beside writers and other makers: call it OUTSIDE a transaction that has
/// written facts.
///
/// # Errors
/// The store failed; nothing was made.
pub async fn ensure_partitions(
    client: &mut Client,
    from: Micros,
    to: Micros,
) -> Result<i64, tokio_postgres::Error> {
    let tx = client.transaction().await?;
    tx.execute("SELECT pg_advisory_xact_lock($1)", &[&super::DAYS_LOCK])
        .await?;
    // A statement of its own: its view of the catalogue must be younger than the lock.
    let row = tx
        .query_one(
            "SELECT coalesce(sum(make_daily_partitions(t, ($2::timestamptz AT TIME ZONE 'UTC')::date,
                                                          ($3::timestamptz AT TIME ZONE 'UTC')::date)), 0)
             FROM unnest($1::text[]) AS t",
            &[&DAILY, &Tz(from), &Tz(to)],
        )
        .await?;
    let made: i64 = row.get(0);
    tx.commit().await?;
    Ok(made)
}

/// Days from `from` to `to` for which a table of [`DAILY`] has no partition, as `visits 2026-01-31`.
///
/// # Errors
/// The store failed.
pub async fn missing_partitions(
    client: &Client,
    from: Micros,
    to: Micros,
) -> Result<Vec<String>, tokio_postgres::Error> {
    let rows = client
        .query(
            "SELECT t || ' ' || to_char(d, 'YYYY-MM-DD')
             FROM unnest($1::text[]) AS t,
                  generate_series(($2::timestamptz AT TIME ZONE 'UTC')::date, ($3::timestamptz AT TIME ZONE 'UTC')::date,
                                  interval '1 day') AS d
             WHERE to_regclass(t || '_' || to_char(d, 'YYYYMMDD')) IS NULL ORDER BY 1",
            &[&DAILY, &Tz(from), &Tz(to)],
        )
        .await?;
    Ok(rows.iter().map(|r| r.get(0)).collect())
}

/// The window that [`migrate`] and the daily maintenance keep made around `now`.
#[must_use]
pub fn window(now: Micros) -> (Micros, Micros) {
    (
        Micros(now.0.saturating_sub(DAYS_BEHIND * DAY_US)),
        Micros(now.0.saturating_add(DAYS_AHEAD * DAY_US)),
    )
}

/// Versions applied to the schema, ascending; empty if there is none.
///
/// # Errors
/// The store failed.
pub async fn applied(client: &Client) -> Result<Vec<i32>, tokio_postgres::Error> {
    let there = client
        .query_one(
            "SELECT to_regclass('refinery_schema_history') IS NOT NULL",
            &[],
        )
        .await?;
    if !there.get::<_, bool>(0) {
        return Ok(Vec::new());
    }
    let rows = client
        .query(
            "SELECT version FROM refinery_schema_history ORDER BY version",
            &[],
        )
        .await?;
    Ok(rows.iter().map(|r| r.get(0)).collect())
}
