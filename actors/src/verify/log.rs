//! The Postgres log has no hole: chunks follow one another from the first bound to the head.

use super::report::{Checked, Kind};
use super::snapshot::Snapshot;
use std::collections::{BTreeMap, HashMap};
use tokio_postgres::Error;

/// Its own locks are given back at its end: whoever drops a consumed segment would wait for them, and all appends for him.
const BEGIN: &str = "SAVEPOINT log";
const END: &str = "ROLLBACK TO SAVEPOINT log; RELEASE SAVEPOINT log";

/// What is still there once the tables are held. A segment may have been dropped since the snapshot was taken.
const SEGMENTS: &str = "
SELECT segment_no FROM log_segments WHERE to_regclass('log_chunks_' || segment_no) IS NOT NULL AND opened_at IS NOT NULL
ORDER BY 1";

const CHUNKS: &str = "
SELECT topic_no, partition, segment_no, min(first), max(last_offset), sum(n)::bigint, count(*),
       count(*) FILTER (WHERE first <> before + 1 OR n < 1), min(first) FILTER (WHERE first <> before + 1 OR n < 1)
FROM (
    SELECT topic_no, partition, segment_no, last_offset, n, last_offset - n + 1 AS first,
           lag(last_offset) OVER (PARTITION BY topic_no, partition ORDER BY last_offset) AS before
    FROM log_chunks
) AS c GROUP BY 1, 2, 3";

/// What one segment holds of one partition.
struct Part {
    first: i64,
    last: i64,
    records: i64,
    breaks: i64,
    broken_at: Option<i64>,
}

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    s.batch(BEGIN).await?;
    // Planned over every segment, it holds them all.
    s.query("SELECT FROM log_chunks LIMIT 0", &[]).await?;
    let segments: Vec<i32> = s
        .query(SEGMENTS, &[])
        .await?
        .iter()
        .map(|r| r.get(0))
        .collect();
    let mut parts: BTreeMap<(i32, i32), BTreeMap<i32, Part>> = BTreeMap::new();
    for row in s.query(CHUNKS, &[]).await? {
        let part = Part {
            first: row.get(3),
            last: row.get(4),
            records: row.get(5),
            breaks: row.get(7),
            broken_at: row.get(8),
        };
        found.rows += row.get::<_, i64>(6);
        parts
            .entry((row.get(0), row.get(1)))
            .or_default()
            .insert(row.get(2), part);
    }
    let bounds: HashMap<(i32, i32, i32), i64> = s
        .query(
            "SELECT topic_no, partition, segment_no, first_offset FROM log_bounds",
            &[],
        )
        .await?
        .iter()
        .map(|r| ((r.get(0), r.get(1), r.get(2)), r.get(3)))
        .collect();
    let heads = s
        .query(
            "SELECT topic_no, partition, next_offset, segment_no FROM log_heads",
            &[],
        )
        .await?;
    s.batch(END).await?;
    for (a, b) in segments.iter().zip(segments.iter().skip(1)) {
        if *b != a + 1 {
            let what = format!("the next one kept is {b}");
            found.add(Kind::Lost, format!("segment {a}"), what);
        }
    }
    for row in &heads {
        let (topic_no, partition, head, open): (i32, i32, i64, i32) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let at = s.place(topic_no, partition);
        if segments.last() != Some(&open) {
            found.add(
                Kind::Wrong,
                &at,
                format!("appends go to segment {open}, which is not the open one"),
            );
        }
        let own = parts.remove(&(topic_no, partition)).unwrap_or_default();
        let mut next: Option<i64> = None;
        for segment in &segments {
            let bound = bounds.get(&(topic_no, partition, *segment)).copied();
            if let (Some(next), Some(bound)) = (next, bound)
                && next != bound
            {
                let what = format!("segment {segment} begins at {bound}, where {next} follows");
                found.add_many(Kind::Lost, bound.abs_diff(next), &at, what);
            }
            let begins = bound.or(next);
            next = match own.get(segment) {
                Some(part) => {
                    within(found, &at, *segment, begins, part);
                    Some(part.last + 1)
                }
                None => begins,
            };
        }
        if let Some(next) = next
            && next != head
        {
            let what = format!(
                "the head stands at {head}, the last record kept is {}",
                next - 1
            );
            let kind = if next < head { Kind::Lost } else { Kind::Wrong };
            found.add_many(kind, next.abs_diff(head), &at, what);
        }
    }
    for (topic_no, partition) in parts.keys() {
        let at = s.place(*topic_no, *partition);
        found.add(Kind::Wrong, at, "records lie here, and there is no head");
    }
    Ok(())
}

/// One segment's chunks: from its bound on, each after the other.
fn within(found: &mut Checked, at: &str, segment: i32, begins: Option<i64>, part: &Part) {
    if let Some(begins) = begins
        && begins != part.first
    {
        let what = format!(
            "segment {segment} begins at {begins}, its first record is {}",
            part.first
        );
        found.add_many(Kind::Lost, part.first.abs_diff(begins), at, what);
    }
    let span = part.last - part.first + 1;
    if part.breaks > 0 || part.records != span {
        let what = format!(
            "segment {segment} spans {span} offsets and holds {} records, broken {} times, first at {}",
            part.records,
            part.breaks,
            part.broken_at.unwrap_or(part.first)
        );
        let kind = if part.records > span {
            Kind::Doubled
        } else {
            Kind::Lost
        };
        found.add_many(kind, span.abs_diff(part.records).max(1), at, what);
    }
}
