//! Cleans up after the dead: expired leases every few seconds, and what finished messages left in `outbox_due` whenever it is
//! worth a vacuum, so that the table stays as small as what is due.

use super::channel::Traits;
use super::lease::{self, Swept};
use crate::runtime::session::Session;
use millrace_schemas::time::Micros;
use std::time::Duration;

/// How often expired leases are looked for.
pub const EVERY: Duration = Duration::from_secs(2);
/// After so many ended messages the narrow table is vacuumed; PostgreSQL's own vacuum comes round once a minute, and a busy
/// channel ends half a million messages in one.
pub const VACUUM_AFTER: u64 = 10_000;
/// A vacuum reads the whole table: with much due it waits for one ended message in so many, so that a backlog is not read again
/// for every hundredth of it.
pub const VACUUM_SHARE: u64 = 5;

/// Sweeps a channel's expired leases to their end.
///
/// # Errors
/// The store's.
pub async fn sweep(
    session: &Session,
    channel: &str,
    traits: &Traits,
    wall: Micros,
) -> Result<Swept, tokio_postgres::Error> {
    let mut all = Swept::default();
    loop {
        let idempotent = traits.idempotent;
        let swept =
            match lease::sweep(session, channel, idempotent, traits.max_attempts, wall).await {
                Ok(swept) => swept,
                Err(error) => {
                    let _ = session.batch("ROLLBACK").await;
                    return Err(error);
                }
            };
        all.exhausted += swept.exhausted;
        all.unknown += swept.unknown;
        all.returned += swept.returned;
        if swept == Swept::default() {
            break;
        }
    }
    if all != Swept::default() {
        tracing::warn!(
            channel,
            exhausted = all.exhausted,
            unknown = all.unknown,
            returned = all.returned,
            "leases of a sender that is gone"
        );
    }
    Ok(all)
}

/// Whether so many ended messages are worth a vacuum: [`VACUUM_AFTER`], and one in [`VACUUM_SHARE`] of the narrow table's rows.
///
/// # Errors
/// The store's.
pub async fn is_worth_a_vacuum(
    session: &Session,
    ended: u64,
) -> Result<bool, tokio_postgres::Error> {
    if ended < VACUUM_AFTER {
        return Ok(false);
    }
    // As the last vacuum or analyse counted them.
    let rows = session
        .query(
            "SELECT greatest(reltuples, 0)::int8 FROM pg_class WHERE oid = 'outbox_due'::regclass",
            &[],
        )
        .await?;
    let rows: i64 = rows.first().map_or(0, |r| r.get(0));
    Ok(ended.saturating_mul(VACUUM_SHARE) >= rows.unsigned_abs())
}

/// Vacuums the narrow tables, unless somebody does already.
///
/// # Errors
/// The store's.
pub async fn vacuum(session: &Session) -> Result<(), tokio_postgres::Error> {
    session
        .batch("VACUUM (SKIP_LOCKED, TRUNCATE false) outbox_due")
        .await?;
    session
        .batch("VACUUM (SKIP_LOCKED, TRUNCATE false) outbox_leases")
        .await
}
