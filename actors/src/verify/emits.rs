//! Emitted records are numbered as they were given out. That rows are missing between two numbers is right: each is deleted once
//! the log has it, partition by partition.

use super::report::{Checked, Kind};
use super::snapshot::Snapshot;
use tokio_postgres::Error;

const UNNUMBERED: &str = "
SELECT e.group_name, e.source_partition, e.seq, h.next_seq
FROM emits e LEFT JOIN emit_heads h USING (group_name, source_partition)
WHERE h.next_seq IS NULL OR e.seq >= h.next_seq OR e.seq < 0";

const NOWHERE: &str = "
SELECT e.group_name, e.source_partition, e.seq, e.topic_no
FROM emits e LEFT JOIN topics t ON t.topic_no = e.topic_no AND t.retired_at IS NULL WHERE t.topic_no IS NULL";

const AHEAD: &str = "
SELECT r.group_name, r.partition, r.topic_no, r.source_group, r.source_partition, r.last_seq, h.next_seq
FROM emit_receipts r
LEFT JOIN emit_heads h ON h.group_name = r.source_group AND h.source_partition = r.source_partition
WHERE h.next_seq IS NULL OR r.last_seq >= h.next_seq";

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    let waiting = s.rows(&["emits"]).await?;
    found.rows += waiting + s.rows(&["emit_heads", "emit_receipts"]).await?;
    let source = |row: &tokio_postgres::Row, group: usize| {
        let (group, partition): (String, i32) = (row.get(group), row.get(group + 1));
        format!("{group} partition {partition}")
    };
    let ended = |next: Option<i64>| match next {
        Some(next) => format!("the next to be given out is {next}"),
        None => "its source has given out none".to_owned(),
    };
    s.each(UNNUMBERED, &[], |row| {
        let seq: i64 = row.get(2);
        let what = format!("number {seq} waits, and {}", ended(row.get(3)));
        found.add(Kind::Wrong, source(row, 0), what);
    })
    .await?;
    s.each(NOWHERE, &[], |row| {
        let (seq, topic_no): (i64, i32) = (row.get(2), row.get(3));
        let what = format!(
            "number {seq} is for topic number {topic_no}, which is not live: it cannot be relayed"
        );
        found.add(Kind::Lost, source(row, 0), what);
    })
    .await?;
    s.each(AHEAD, &[], |row| {
        let last: i64 = row.get(5);
        let by = format!(
            "{} of {}",
            s.place(row.get(2), row.get(1)),
            row.get::<_, String>(0)
        );
        let what = format!("{by} has seen number {last}, and {}", ended(row.get(6)));
        found.add(Kind::Wrong, source(row, 3), what);
    })
    .await?;
    if waiting > 0 {
        found.note(format!("{waiting} wait for the relay"));
    }
    Ok(())
}
