//! Daily partitions of fact tables, made before the first row of a day.

use super::session::{Failure, Session};

/// Days that can be meant: 2000-01-01 to 2199-12-31. What lies outside is a broken clock, not a fact.
pub const DAYS: std::ops::Range<i64> = 10_957..84_006;

/// Makes the partitions of these days (since 1970) for these tables; those that exist stay as they are.
///
/// # Errors
/// The store's.
pub async fn make(session: &Session, tables: &[&str], days: &[i64]) -> Result<(), Failure> {
    let mut sql = format!(
        "BEGIN; SELECT pg_advisory_xact_lock({});",
        crate::postgres::DAYS_LOCK
    );
    for day in days.iter().filter(|d| DAYS.contains(d)) {
        for table in tables {
            sql.push_str(&format!(
                "SELECT make_daily_partitions('{table}', date '1970-01-01' + {day}, date '1970-01-01' + {day});"
            ));
        }
    }
    sql.push_str("COMMIT;");
    session.batch(&sql).await?;
    Ok(())
}
