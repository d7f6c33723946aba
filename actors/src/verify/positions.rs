//! Positions are owned and within the log.

use super::LogEnd;
use super::report::{Checked, Kind};
use super::snapshot::Snapshot;
use std::collections::HashMap;
use tokio_postgres::Error;

/// Where the Postgres log begins and ends is part of the snapshot.
const POSITIONS: &str = "
SELECT p.group_name, p.topic_no, p.partition, p.next_offset, o.epoch IS NULL, t.partitions, h.next_offset, b.low
FROM positions p
JOIN topics t USING (topic_no)
LEFT JOIN ownership o USING (group_name, partition)
LEFT JOIN log_heads h USING (topic_no, partition)
LEFT JOIN (SELECT topic_no, partition, min(first_offset) AS low FROM log_bounds GROUP BY 1, 2) b USING (topic_no, partition)";

const STOPPED: &str = "
SELECT group_name, partition, stopped_reason FROM ownership WHERE stopped_reason IS NOT NULL ORDER BY 1, 2";

pub(super) async fn check(
    s: &Snapshot<'_>,
    ends: &[LogEnd],
    found: &mut Checked,
) -> Result<(), Error> {
    let ends: HashMap<(i32, i32), i64> = ends
        .iter()
        .map(|e| ((e.topic_no, e.partition), e.high))
        .collect();
    let mut unasked = false;
    for row in s.query(POSITIONS, &[]).await? {
        found.rows += 1;
        let (group, topic_no, partition): (String, i32, i32) = (row.get(0), row.get(1), row.get(2));
        let next: i64 = row.get(3);
        let at = format!("{group}, {}", s.place(topic_no, partition));
        if row.get(4) {
            found.add(
                Kind::Wrong,
                &at,
                "a position that no ownership row stands for: nothing fences it",
            );
        }
        let partitions: i32 = row.get(5);
        if !(0..partitions).contains(&partition) || next < 0 {
            let what = format!("a position {next}, where the topic has {partitions} partitions");
            found.add(Kind::Wrong, &at, what);
        }
        let topic = s.topics.get(&topic_no);
        let head = match row.get::<_, Option<i64>>(6) {
            Some(head) => Some(head),
            None => ends.get(&(topic_no, partition)).copied(),
        };
        match head {
            Some(head) if next > head => {
                let what = format!("stands at {next}, and the log ends at {head}");
                found.add(Kind::Wrong, &at, what);
            }
            Some(_) => {}
            None => unasked |= topic.is_some_and(|t| !t.retired),
        }
        if let Some(low) = row.get::<_, Option<i64>>(7)
            && next < low
        {
            let what = format!("stands at {next}, and the log begins at {low}: dropped unread");
            found.add_many(Kind::Lost, low.abs_diff(next), &at, what);
        }
    }
    if unasked {
        found.note("the ends of topics outside the store were not asked: --log asks them");
    }
    for row in s.query(STOPPED, &[]).await? {
        let (group, partition, reason): (String, i32, String) =
            (row.get(0), row.get(1), row.get(2));
        found.note(format!(
            "{group} partition {partition} is stopped: {reason}"
        ));
    }
    Ok(())
}
