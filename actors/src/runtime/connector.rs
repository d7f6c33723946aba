//! Connections as actors need them.

use super::session::Connect;
use crate::postgres::pool::{Database, chain};
use std::sync::Arc;
use std::time::Duration;

/// A [`Connect`] to this database. `lock_timeout` bounds the wait for a former owner's rows.
///
/// Actors reach their tables by key alone, and a partition made today has no statistics yet: sequential scans and the joins
/// that would need one are off. Each statement is planned once; a plan made while a day's table was small would else read it
/// whole ever after, however it grew.
#[must_use]
pub fn connector(database: &Database, lock_timeout: Duration) -> Connect {
    let database = database.clone();
    let settings = format!(
        "SET lock_timeout = {}; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
         SET plan_cache_mode = force_generic_plan",
        lock_timeout.as_millis()
    );
    Arc::new(move || {
        let (database, settings) = (database.clone(), settings.clone());
        Box::pin(async move {
            let (client, _driver) = database.single().await.map_err(|e| chain(&e))?;
            client
                .batch_execute(&settings)
                .await
                .map_err(|e| chain(&e))?;
            Ok(client)
        })
    })
}
