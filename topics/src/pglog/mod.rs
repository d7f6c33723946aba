//! The Postgres log: topics of one machine as tables (migration V003 says how they are laid out).
//!
//! - [`append`]: one statement locks the heads in (topic, partition) order, moves them and inserts; the lock orders commits,
//!   so that no reader skips. [`append::append_in`] does it within somebody else's transaction.
//! - [`producer`]: one appender a process, batching by time, number and bytes.
//! - [`consumer`]: one thread a group; one process a group, kept so by an advisory lock.
//! - [`segments`]: segments are closed by size and age, and dropped once every group has passed them and their retention is
//!   over. Nothing unread is ever dropped.
//! - [`connect`]: connections of their own: a pool's connections belong to the runtime that opened them.

pub mod append;
pub mod chunk;
pub mod connect;
pub mod consumer;
pub mod producer;
mod reader;
pub mod segments;

pub use append::append_in;
pub use connect::Connector;
pub use consumer::{ConsumerOptions, PgLogConsumer};
pub use producer::{PgLogProducer, ProducerOptions};

use crate::contract::TopicRef;
use tokio_postgres::GenericClient;

/// The channel of the hint that something was appended.
pub const CHANNEL: &str = "millrace_log";

/// Where a partition of the log begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// The topic's number.
    pub topic_no: i32,
    /// The partition.
    pub partition: i32,
    /// The first offset still kept.
    pub low: i64,
    /// The offset of the next record.
    pub high: i64,
}

/// Gives a registered topic ([`crate::catalogue::register`], or a new generation of it) its partitions in the log; does
/// nothing to those that exist.
///
/// # Errors
/// The store failed.
pub async fn create_topic(
    client: &impl GenericClient,
    topic: &TopicRef,
) -> Result<(), tokio_postgres::Error> {
    client
        .execute(
            "SELECT log_create_topic($1, $2)",
            &[&topic.no, &topic.partitions],
        )
        .await?;
    Ok(())
}

/// Beginning and end of every partition of these topics, in (topic, partition) order.
///
/// # Errors
/// The store failed.
pub async fn watermarks(
    client: &impl GenericClient,
    topics: &[TopicRef],
) -> Result<Vec<Watermarks>, tokio_postgres::Error> {
    let numbers: Vec<i32> = topics.iter().map(|t| t.no).collect();
    let rows = client
        .query(
            "SELECT h.topic_no, h.partition, min(b.first_offset), h.next_offset
             FROM log_heads h JOIN log_bounds b USING (topic_no, partition)
             WHERE h.topic_no = ANY($1)
             GROUP BY h.topic_no, h.partition ORDER BY h.topic_no, h.partition",
            &[&numbers],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|r| Watermarks {
            topic_no: r.get(0),
            partition: r.get(1),
            low: r.get(2),
            high: r.get(3),
        })
        .collect())
}

/// Key and payload of one record, if the log still has it (for people at a terminal).
///
/// # Errors
/// The store failed.
pub async fn record_at(
    client: &impl GenericClient,
    topic_no: i32,
    partition: i32,
    offset: i64,
) -> Result<Option<(Vec<u8>, Vec<u8>)>, tokio_postgres::Error> {
    let row = client
        .query_opt(
            "SELECT last_offset - n + 1, records FROM log_chunks
             WHERE topic_no = $1 AND partition = $2 AND last_offset >= $3 ORDER BY last_offset LIMIT 1",
            &[&topic_no, &partition, &offset],
        )
        .await?;
    Ok(row.and_then(|row| {
        let (first, bytes): (i64, &[u8]) = (row.get(0), row.get(1));
        let skip = usize::try_from(offset.checked_sub(first)?).ok()?;
        let (key, payload) = chunk::records(bytes).ok()?.nth(skip)?.ok()?;
        Some((key.to_vec(), payload.to_vec()))
    }))
}

/// An error of tokio-postgres with its cause, in one line.
pub(crate) fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(db) = error.as_db_error() {
        return format!("{}: {}", db.code().code(), db.message());
    }
    std::error::Error::source(error).map_or_else(|| error.to_string(), |s| format!("{error}: {s}"))
}
