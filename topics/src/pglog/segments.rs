//! The life of segments: closed by size and age, dropped whole.

use super::Connector;
use super::describe;
use crate::catalogue::{GROUPS, GroupSpec};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_postgres::Client;

/// When segments are closed and dropped.
#[derive(Clone, Copy, Debug)]
pub struct SegmentOptions {
    /// Close the open segment at this size, in bytes.
    pub max_bytes: i64,
    /// Close the open segment, if anything is in it, at this age.
    pub max_age: Duration,
    /// A spare must have been attached for so long before it is opened; longer than any statement may take.
    pub spare_age: Duration,
    /// Keep closed segments for so long, though everybody has passed them.
    pub retention: Duration,
    /// Groups that must have passed a segment before it goes.
    pub groups: &'static [GroupSpec],
}

impl SegmentOptions {
    /// 128 MiB or an hour (a quarter of the retention if that is shorter), the catalogue's groups.
    #[must_use]
    pub fn with_retention(retention: Duration) -> SegmentOptions {
        SegmentOptions {
            max_bytes: 128 << 20,
            max_age: (retention / 4).clamp(Duration::from_secs(60), Duration::from_secs(3_600)),
            spare_age: Duration::from_secs(60),
            retention,
            groups: GROUPS,
        }
    }
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// The segment that was opened.
    pub opened: Option<i32>,
    /// Segments that were dropped.
    pub dropped: Vec<i32>,
}

/// Does what is due, once. Safe beside writers, readers and other keepers.
///
/// # Errors
/// The store failed, or a lock could not be had in half a second: nothing is lost, try again later.
pub async fn maintain(
    client: &mut Client,
    options: &SegmentOptions,
) -> Result<Upkeep, tokio_postgres::Error> {
    Ok(Upkeep {
        opened: roll(client, options).await?,
        dropped: drop_passed(client, options).await?,
    })
}

/// Does what is due, again and again, until the future is dropped. Runs on any runtime.
pub async fn keep(connector: Connector, options: SegmentOptions) {
    let deaf = Arc::new(Notify::new());
    let every = Duration::from_secs(10).min(options.max_age / 2);
    loop {
        tokio::time::sleep(every).await;
        let result = match connector.open(&deaf).await {
            Ok(mut client) => maintain(&mut client, &options).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(upkeep) if upkeep != Upkeep::default() => {
                tracing::info!(opened = ?upkeep.opened, dropped = ?upkeep.dropped, "segments of the log");
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(reason = %describe(&error), "segments of the log wait");
            }
        }
    }
}

async fn roll(
    client: &mut Client,
    options: &SegmentOptions,
) -> Result<Option<i32>, tokio_postgres::Error> {
    let tx = client.transaction().await?;
    tx.batch_execute("SET LOCAL lock_timeout = '500ms'").await?;
    // The size of the open table is that of its file: no row is counted.
    let due = tx
        .query_one(
            "WITH open AS (
                 SELECT s.segment_no, s.opened_at, pg_total_relation_size(to_regclass('log_chunks_' || s.segment_no)) AS bytes
                 FROM log_segments s WHERE s.opened_at IS NOT NULL AND s.closed_at IS NULL
                 ORDER BY s.segment_no DESC LIMIT 1)
             SELECT coalesce(bool_or(
                 (o.bytes >= $1 OR (o.opened_at < now() - $2 * interval '1 second' AND EXISTS (
                     SELECT 1 FROM log_heads h JOIN log_bounds b USING (topic_no, partition)
                     WHERE b.segment_no = o.segment_no AND h.next_offset > b.first_offset)))
                 AND s.created_at <= now() - $3 * interval '1 second'), false)
             FROM open o JOIN log_segments s ON s.segment_no = o.segment_no + 1
             WHERE pg_try_advisory_xact_lock(hashtextextended('millrace log segments', 0))",
            &[
                &options.max_bytes,
                &options.max_age.as_secs_f64(),
                &options.spare_age.as_secs_f64(),
            ],
        )
        .await?;
    if !due.get::<_, bool>(0) {
        return Ok(None);
    }
    let opened = tx.query_one("SELECT log_roll()", &[]).await?.get(0);
    tx.commit().await?;
    Ok(Some(opened))
}

/// Drops closed segments, the oldest first, up to the first that somebody may still want: retention is not over, or a group
/// has a partition whose position (none counts as never read) lies before the segment's end.
async fn drop_passed(
    client: &mut Client,
    options: &SegmentOptions,
) -> Result<Vec<i32>, tokio_postgres::Error> {
    let (groups, topics): (Vec<&str>, Vec<&str>) = options
        .groups
        .iter()
        .flat_map(|g| g.topics.iter().map(|t| (g.name, *t)))
        .unzip();
    let rows = client
        .query(
            "SELECT s.segment_no, s.closed_at < now() - $1 * interval '1 second' AND NOT EXISTS (
                 SELECT 1
                 FROM log_bounds b
                 JOIN log_bounds e ON e.segment_no = s.segment_no + 1
                     AND e.topic_no = b.topic_no AND e.partition = b.partition
                 JOIN topics t ON t.topic_no = b.topic_no
                 JOIN unnest($2::text[], $3::text[]) AS g (group_name, topic) ON g.topic = t.name
                 LEFT JOIN positions p ON p.group_name = g.group_name
                     AND p.topic_no = b.topic_no AND p.partition = b.partition
                 WHERE b.segment_no = s.segment_no AND e.first_offset > b.first_offset
                     AND coalesce(p.next_offset, -1) < e.first_offset)
             FROM log_segments s WHERE s.closed_at IS NOT NULL ORDER BY s.segment_no",
            &[&options.retention.as_secs_f64(), &groups, &topics],
        )
        .await?;
    let mut dropped = Vec::new();
    for segment in rows
        .iter()
        .take_while(|r| r.get::<_, bool>(1))
        .map(|r| r.get::<_, i32>(0))
    {
        let tx = client.transaction().await?;
        tx.batch_execute(&format!(
            "SET LOCAL lock_timeout = '500ms'; DROP TABLE IF EXISTS log_chunks_{segment}"
        ))
        .await?;
        // Its bounds go with it.
        tx.execute(
            "DELETE FROM log_segments WHERE segment_no = $1",
            &[&segment],
        )
        .await?;
        tx.commit().await?;
        dropped.push(segment);
    }
    Ok(dropped)
}
