//! One process a group: a session's advisory lock.

use sha2::{Digest, Sha256};
use tokio_postgres::Client;

/// Takes the group for this session; `Some`: who holds it.
pub(super) async fn take_group(
    client: &Client,
    group: &str,
) -> Result<Option<String>, tokio_postgres::Error> {
    let digest = Sha256::digest(format!("millrace log group {group}").as_bytes());
    let key = digest
        .iter()
        .take(8)
        .fold(0_i64, |k, b| (k << 8) | i64::from(*b));
    let taken = client
        .query_one("SELECT pg_try_advisory_lock($1)", &[&key])
        .await?;
    if taken.get(0) {
        return Ok(None);
    }
    let holder = client
        .query_opt(
            "SELECT a.application_name || ', server process ' || a.pid || coalesce(', from ' || host(a.client_addr), '')
             FROM pg_locks l JOIN pg_stat_activity a USING (pid)
             WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
               AND (l.classid::int8 << 32 | l.objid::int8) = $1
               AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            &[&key],
        )
        .await?;
    Ok(Some(holder.map_or_else(
        || "it has just ended".to_owned(),
        |row| row.get(0),
    )))
}
