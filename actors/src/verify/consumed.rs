//! Outcomes add up to the records consumed, and those to the offsets passed.

use super::report::{Checked, Kind};
use super::snapshot::Snapshot;
use tokio_postgres::Error;

const SUMS: &str = "
SELECT group_name, topic_no, partition, coalesce(p.consumed, 0), coalesce(o.n, 0), o.least, p.consumed IS NULL
FROM positions p FULL JOIN (
    SELECT group_name, topic_no, partition, sum(n)::bigint AS n, min(n) AS least FROM outcomes GROUP BY 1, 2, 3
) o USING (group_name, topic_no, partition)";

/// Moves by hand are taken out: what lies between the first offset and the next one was read, record by record.
const PASSED: &str = "
SELECT p.group_name, p.topic_no, p.partition, p.next_offset - p.first_offset - coalesce(m.moved, 0), p.consumed + p.replayed
FROM positions p LEFT JOIN (
    SELECT group_name, topic_no, partition, sum(new_offset - old_offset)::bigint AS moved
    FROM position_changes WHERE old_offset IS NOT NULL GROUP BY 1, 2, 3
) m USING (group_name, topic_no, partition)";

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    for row in s.query(SUMS, &[]).await? {
        let (group, topic_no, partition): (String, i32, i32) = (row.get(0), row.get(1), row.get(2));
        let (consumed, counted): (i64, i64) = (row.get(3), row.get(4));
        found.rows += 1;
        let at = format!("{group}, {}", s.place(topic_no, partition));
        if row.get(6) {
            let what = format!("{counted} outcomes are counted, and there is no position");
            found.add(Kind::Wrong, at, what);
            continue;
        }
        if row.get::<_, Option<i64>>(5).is_some_and(|least| least < 0) {
            found.add(Kind::Wrong, &at, "an outcome is counted below zero");
        }
        let what = format!("{consumed} records consumed, {counted} outcomes counted");
        match counted - consumed {
            0 => {}
            n if n < 0 => found.add_many(Kind::Lost, n.unsigned_abs(), at, what),
            n => found.add_many(Kind::Doubled, n.unsigned_abs(), at, what),
        }
    }
    let mut holes = 0;
    for row in s.query(PASSED, &[]).await? {
        let (group, topic_no, partition): (String, i32, i32) = (row.get(0), row.get(1), row.get(2));
        let (passed, taken): (i64, i64) = (row.get(3), row.get(4));
        let at = format!("{group}, {}", s.place(topic_no, partition));
        let what = format!("{passed} offsets passed, {taken} records taken");
        let here = s.topics.get(&topic_no).is_some_and(|t| t.here);
        match taken - passed {
            0 => {}
            n if n > 0 => found.add_many(Kind::Doubled, n.unsigned_abs(), at, what),
            n if here => found.add_many(Kind::Lost, n.unsigned_abs(), at, what),
            // Kafka may number what is no record.
            n => holes -= n,
        }
    }
    if holes > 0 {
        found.note(format!(
            "{holes} offsets of Kafka were passed that held no record for us; only transactions and compaction make such"
        ));
    }
    Ok(())
}
