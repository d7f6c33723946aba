//! What the admin API does to links and preferences: the same decisions and statements as for records, at once, stamped later
//! than all that stands.

use super::decide::{self, Asked, Refused};
use super::sql::Sql;
use super::state::Stamp;
use super::store;
use millrace_schemas::directory::DirectoryRecord;
use millrace_schemas::ids::RecordId;
use millrace_schemas::time::Micros;
use tokio_postgres::Error;

/// Applies changes of one operator; answers the reason of the first that cannot be.
///
/// # Errors
/// The store's.
pub async fn apply(
    sql: &impl Sql,
    records: Vec<DirectoryRecord>,
    now: Micros,
    by: &str,
) -> Result<Result<(), &'static str>, Error> {
    let nowhere = RecordId {
        topic_no: 0,
        partition: 0,
        offset: 0,
    };
    let mut asked: Vec<Asked> = Vec::with_capacity(records.len());
    for record in records {
        if let Err(reason) = record.check() {
            return Ok(Err(reason));
        }
        asked.push(Asked {
            id: nowhere,
            stamp: Stamp::default(),
            record,
        });
    }
    let mut state = store::load(sql, &asked).await?;
    let stamp = Stamp {
        at: now.max(Micros(state.newest().0.saturating_add(1))),
        topic: 0,
        offset: 0,
    };
    for one in &mut asked {
        one.stamp = stamp;
        match decide::settle_one(&mut state, one) {
            // Of two alike in one call the first stands.
            Ok(()) | Err(Refused::Known | Refused::Older) => {}
            Err(Refused::Rejected(reason)) => return Ok(Err(reason)),
        }
    }
    store::write_state(sql, &state, by).await?;
    Ok(Ok(()))
}
