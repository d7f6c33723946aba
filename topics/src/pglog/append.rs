//! Appending: one statement, whatever the number of records and partitions.

use super::chunk;
use crate::contract::{Outgoing, Position, TopicRef};
use crate::partitioner;
use std::collections::BTreeMap;
use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

/// Locks the heads in order (`held`), moves them (`moved`: the lock is held, so the new values are ours), inserts. Under READ
/// COMMITTED a head that moved while the statement waited is read anew. Answers the first offset of each lane.
pub(super) const STATEMENT: &str = "
WITH held AS (
    SELECT h.topic_no, h.partition, w.n, w.lane
    FROM unnest($1::int4[], $2::int4[], $3::int4[]) WITH ORDINALITY AS w (topic_no, partition, n, lane)
    JOIN log_heads h ON h.topic_no = w.topic_no AND h.partition = w.partition
    ORDER BY h.topic_no, h.partition
    FOR UPDATE OF h
), moved AS (
    UPDATE log_heads h SET next_offset = h.next_offset + held.n
    FROM held WHERE h.topic_no = held.topic_no AND h.partition = held.partition
    RETURNING held.lane, h.segment_no, h.topic_no, h.partition, h.next_offset - held.n AS base
), put AS (
    INSERT INTO log_chunks (last_offset, segment_no, topic_no, partition, n, records)
    SELECT m.base + c.last, m.segment_no, m.topic_no, m.partition, c.n, c.records
    FROM unnest($4::int8[], $5::int8[], $6::int4[], $7::bytea[]) AS c (lane, last, n, records)
    JOIN moved m ON m.lane = c.lane
)
SELECT lane, base FROM moved";

/// Types of the statement's parameters, so that it needs no round trip to be described.
pub(super) const TYPES: [Type; 7] = [
    Type::INT4_ARRAY,
    Type::INT4_ARRAY,
    Type::INT4_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT4_ARRAY,
    Type::BYTEA_ARRAY,
];

/// Records, sorted into lanes (one a topic and partition) and chunks.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    topic_nos: Vec<i32>,
    partitions: Vec<i32>,
    counts: Vec<i32>,
    lanes: Vec<i64>,
    lasts: Vec<i64>,
    ns: Vec<i32>,
    chunks: Vec<Vec<u8>>,
    /// For each record, in the order given: its lane (from 0), its place within it.
    slots: Vec<(usize, i64)>,
}

#[derive(Debug, Default)]
struct Lane {
    count: i32,
    /// Place of each chunk's last record, number of its records, its bytes.
    chunks: Vec<(i64, i32, Vec<u8>)>,
}

impl Lane {
    fn push(&mut self, key: &[u8], payload: &[u8]) -> i64 {
        let place = i64::from(self.count);
        let fits = self
            .chunks
            .last()
            .is_some_and(|(_, _, bytes)| chunk::has_room(bytes, key, payload));
        if !fits {
            let size = (9 + key.len() + payload.len()).max(chunk::TARGET / 8);
            self.chunks.push((0, 0, Vec::with_capacity(size)));
        }
        if let Some((last, n, bytes)) = self.chunks.last_mut() {
            // Lengths are far below 32 bits: the producer's limit on a record sees to it.
            let _ = chunk::push(bytes, key, payload);
            *last = place;
            *n += 1;
        }
        self.count += 1;
        place
    }
}

impl Prepared {
    /// Sorts records of (topic, partition, key, payload).
    pub(super) fn new<'a>(
        records: impl Iterator<Item = (i32, i32, &'a [u8], &'a [u8])>,
    ) -> Prepared {
        let mut lanes: BTreeMap<(i32, i32), Lane> = BTreeMap::new();
        let places: Vec<((i32, i32), i64)> = records
            .map(|(topic_no, partition, key, payload)| {
                let at = (topic_no, partition);
                (at, lanes.entry(at).or_default().push(key, payload))
            })
            .collect();
        let numbers: BTreeMap<(i32, i32), usize> =
            lanes.keys().enumerate().map(|(i, at)| (*at, i)).collect();
        let mut out = Prepared {
            slots: places
                .into_iter()
                .map(|(at, place)| (numbers.get(&at).copied().unwrap_or(usize::MAX), place))
                .collect(),
            ..Prepared::default()
        };
        for (number, ((topic_no, partition), lane)) in (1..).zip(lanes) {
            out.topic_nos.push(topic_no);
            out.partitions.push(partition);
            out.counts.push(lane.count);
            for (last, n, bytes) in lane.chunks {
                out.lanes.push(number);
                out.lasts.push(last);
                out.ns.push(n);
                out.chunks.push(bytes);
            }
        }
        out
    }

    /// The statement's parameters.
    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 7] {
        [
            &self.topic_nos,
            &self.partitions,
            &self.counts,
            &self.lanes,
            &self.lasts,
            &self.ns,
            &self.chunks,
        ]
    }

    /// Where each record stands, in the order given; `None`: its partition has no head.
    pub(super) fn positions<'a>(
        &'a self,
        rows: &[tokio_postgres::Row],
    ) -> impl Iterator<Item = Option<Position>> + use<'a> {
        let mut bases: Vec<Option<i64>> = vec![None; self.topic_nos.len()];
        for row in rows {
            let lane = usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(usize::MAX);
            if let Some(base) = bases.get_mut(lane) {
                *base = Some(row.get(1));
            }
        }
        self.slots.iter().map(move |(lane, place)| {
            Some(Position {
                partition: *self.partitions.get(*lane)?,
                offset: bases.get(*lane).copied().flatten()? + place,
            })
        })
    }
}

/// Why records could not be appended within a transaction.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The store failed; the transaction is to be given up.
    #[error("the store: {0}")]
    Store(#[from] tokio_postgres::Error),
    /// No such topic, or it has no partitions in the log; the transaction is to be given up.
    #[error("topic number {0} has no partitions in the Postgres log; run `millrace topics create`")]
    UnknownTopic(i32),
}

/// Appends within the caller's transaction, READ COMMITTED, and answers where each record will stand once that commits.
///
/// Call it once, as the last writing statement before the commit: heads stay locked up to there, every other appender waits
/// for them, and whoever waits for other locks while he holds heads could close a circle. No hint is sent; readers find the
/// records when they next look (50 ms).
///
/// # Errors
/// [`AppendError`].
pub async fn append_in(
    tx: &impl GenericClient,
    topics: &[TopicRef],
    records: &[Outgoing],
) -> Result<Vec<Position>, AppendError> {
    if records.is_empty() {
        return Ok(Vec::new());
    }
    let mut placed = Vec::with_capacity(records.len());
    for record in records {
        let topic = topics
            .iter()
            .find(|t| t.no == record.topic_no)
            .ok_or(AppendError::UnknownTopic(record.topic_no))?;
        let partition = partitioner::partition(&record.key, topic.partitions);
        placed.push((topic.no, partition, &record.key[..], &record.payload[..]));
    }
    let prepared = Prepared::new(placed.iter().copied());
    let parameters: Vec<(&(dyn ToSql + Sync), Type)> =
        prepared.parameters().into_iter().zip(TYPES).collect();
    let rows = tx.query_typed(STATEMENT, &parameters).await?;
    prepared
        .positions(&rows)
        .zip(records)
        .map(|(position, record)| position.ok_or(AppendError::UnknownTopic(record.topic_no)))
        .collect()
}
