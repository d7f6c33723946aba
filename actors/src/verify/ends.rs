//! No record has two ends: over all tables in which a record can end, each record stands once.

use super::report::{Checked, Kind};
use super::snapshot::{Snapshot, at};
use tokio_postgres::Error;
use uuid::Uuid;

/// Where a record can end, by the bit that the question gives it.
const ENDS: [(i32, &str); 9] = [
    (1, "a visit"),
    (2, "a click"),
    (4, "a provider click"),
    (8, "parked"),
    (16, "rejected"),
    (32, "a dead letter"),
    (64, "an applied postback"),
    (128, "a duplicate postback"),
    (256, "a rejected postback"),
];

/// A direct visit is the click too. What was replayed has left its letter for its new end.
const TWICE: &str = "
SELECT record_id, bit_or(kind), count(*) FROM (
    SELECT record_id, 1 AS kind FROM visits WHERE accepted_at >= $1
    UNION ALL SELECT record_id, 2 FROM clicks WHERE accepted_at >= $1
    UNION ALL SELECT record_id, 4 FROM provider_clicks WHERE accepted_at >= $1
    UNION ALL SELECT record_id, 8 FROM parked WHERE accepted_at >= $1
    UNION ALL SELECT record_id, 16 FROM rejects WHERE accepted_at >= $1
    UNION ALL SELECT record_id, 32 FROM dead_letters
              WHERE group_name = 'attribution' AND status <> 'replayed' AND coalesce(accepted_at, dead_at) >= $1
    UNION ALL SELECT record_id, CASE outcome WHEN 0 THEN 64 WHEN 1 THEN 128 ELSE 256 END FROM postback_log
              WHERE outcome IN (0, 1, 3) AND accepted_at >= $1
) AS e GROUP BY record_id HAVING count(*) > 1 AND NOT (count(*) = 2 AND bit_or(kind) = 3)";

const TABLES: [&str; 7] = [
    "visits",
    "clicks",
    "provider_clicks",
    "parked",
    "rejects",
    "dead_letters",
    "postback_log",
];

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    found.rows += s.rows(&TABLES).await?;
    let mut again = 0_u64;
    s.each(TWICE, &[&s.kept.from(&[])], |row| {
        let record: Uuid = row.get(0);
        if s.decided_again(record) {
            again += 1;
            return;
        }
        let (kinds, n): (i32, i64) = (row.get(1), row.get(2));
        let names: Vec<&str> = ENDS
            .iter()
            .filter(|(bit, _)| kinds & bit != 0)
            .map(|(_, name)| *name)
            .collect();
        let what = format!("ended {n} times: {}", names.join(", "));
        found.add(Kind::Doubled, at(record), what);
    })
    .await?;
    if again > 0 {
        found.note(format!(
            "{again} records were decided again by an operator's word (`positions set --again`) and stand twice"
        ));
    }
    Ok(())
}
