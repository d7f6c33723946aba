//! What must happen daily without anybody asking: partitions of the fact tables ahead of time, old days of facts, of the
//! outbox and of its log dropped, answers of old idempotency keys deleted, segments of the Postgres log closed and dropped. Any number of processes may run it.

use super::retention;
use crate::postgres::migrate::{ensure_partitions, window};
use crate::postgres::pool::{Database, DatabaseError, chain};
use crate::runtime::clock::SharedClock;
use crate::settings::Settings;
use millrace_topics::pglog::{Connector, segments};
use std::time::Duration;

/// How often the days ahead are looked at; many chances before one is needed.
const EVERY: Duration = Duration::from_secs(3_600);
/// After a failure.
const AGAIN: Duration = Duration::from_secs(60);

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    /// No connection.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The store failed.
    #[error("the store: {}", chain(.0))]
    Store(#[from] tokio_postgres::Error),
}

/// What one round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Daily partitions made.
    pub partitions: i64,
    /// Idempotency keys deleted.
    pub idempotency_keys: u64,
}

/// Does the daily work once.
///
/// # Errors
/// The store is away or refuses; nothing is lost by trying again.
pub async fn once(database: &Database, clock: &SharedClock) -> Result<Round, MaintenanceError> {
    let (mut client, _driver) = database.single().await?;
    // An attach waits for no batch, but must not make batches wait behind it either.
    client.batch_execute("SET lock_timeout = '5s'").await?;
    let (from, to) = window(clock.wall());
    let partitions = ensure_partitions(&mut client, from, to).await?;
    let idempotency_keys = client
        .execute(
            "DELETE FROM idempotency_keys WHERE created_at < now() - interval '24 hours'",
            &[],
        )
        .await?;
    Ok(Round {
        partitions,
        idempotency_keys,
    })
}

/// Does the daily work again and again, and keeps the Postgres log's segments if `log_retention` says how long consumed ones
/// stay. Ends when dropped.
pub async fn keep(
    database: Database,
    clock: SharedClock,
    settings: Settings,
    log_retention: Option<Duration>,
) {
    let database = database.for_role("maintenance");
    let daily = async {
        loop {
            let pause = match once(&database, &clock).await {
                Ok(round) => {
                    if round != Round::default() {
                        tracing::info!(
                            partitions = round.partitions,
                            idempotency_keys = round.idempotency_keys,
                            "daily maintenance"
                        );
                    }
                    EVERY
                }
                Err(error) => {
                    tracing::warn!(%error, "daily maintenance failed, it is tried again in a minute");
                    AGAIN
                }
            };
            match retention::once(&database, &settings, clock.wall()).await {
                Ok(gone) if gone.is_empty() => {}
                Ok(gone) => tracing::info!(partitions = gone.join(", "), "dropped"),
                Err(error) => tracing::warn!(%error, "not all that is old could be dropped"),
            }
            tokio::time::sleep(pause).await;
        }
    };
    match log_retention {
        None => daily.await,
        Some(retention) => {
            let connector = Connector::new(database.config().clone(), database.tls());
            let options = segments::SegmentOptions::with_retention(retention);
            futures::join!(daily, segments::keep(connector, options));
        }
    }
}
