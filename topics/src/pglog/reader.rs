//! Reading: heads in one query, then what the partitions want, all at once over one connection.

use super::CHANNEL;
use super::chunk;
use super::chunk::Damaged;
use super::connect::Connector;
use super::describe;
use crate::contract::Batch;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Statement};

/// One topic of a partition, as far as it was read.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub topic_no: i32,
    /// The next offset to read.
    pub position: i64,
    /// Where its end was last told.
    pub told: Option<i64>,
}

/// What a partition may take now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub records: usize,
    pub bytes: usize,
    /// Fewer available records than this are left to gather.
    pub at_least: i64,
}

/// Why a partition cannot be read on.
#[derive(Debug)]
pub(super) struct Fault(pub String);

/// What a read of one partition brought.
pub(super) type Read = Result<Batch, Fault>;

/// A session that reads.
pub(super) struct Reader {
    client: Client,
    topic_nos: Vec<i32>,
    heads_query: Statement,
    /// `(next offset, open segment)` of each (topic, partition).
    heads: HashMap<(i32, i32), (i64, i32)>,
    /// First offsets of each (topic, partition) by segment.
    bounds: HashMap<(i32, i32), BTreeMap<i32, i64>>,
    statements: HashMap<i32, Statement>,
}

/// One statement to run: (topic, partition), from, to take at most.
struct Ask {
    at: (i32, i32),
    segment: i32,
    position: i64,
    chunks: i64,
    bytes: i64,
}

impl Reader {
    /// Connects and listens for hints.
    pub(super) async fn open(
        connector: &Connector,
        hint: &Arc<Notify>,
        topic_nos: Vec<i32>,
    ) -> Result<Reader, String> {
        let open = async {
            let client = connector.open(hint).await?;
            // The plan is known: an index scan in order. A table that was never analysed must not talk the planner out of it.
            client
                .batch_execute(&format!(
                    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;
                     SET plan_cache_mode = force_generic_plan; SET jit = off; LISTEN {CHANNEL}"
                ))
                .await?;
            let heads_query = client
                .prepare_typed(
                    "SELECT topic_no, partition, next_offset, segment_no FROM log_heads WHERE topic_no = ANY($1)",
                    &[Type::INT4_ARRAY],
                )
                .await?;
            Ok::<_, tokio_postgres::Error>((client, heads_query))
        };
        let (client, heads_query) = open.await.map_err(|e| describe(&e))?;
        Ok(Reader {
            client,
            topic_nos,
            heads_query,
            heads: HashMap::new(),
            bounds: HashMap::new(),
            statements: HashMap::new(),
        })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Looks where the log ends now, and at new segments.
    async fn look(&mut self) -> Result<(), tokio_postgres::Error> {
        let rows = self
            .client
            .query(&self.heads_query, &[&self.topic_nos])
            .await?;
        let mut news = false;
        for row in &rows {
            let at = (row.get(0), row.get(1));
            let (next, segment): (i64, i32) = (row.get(2), row.get(3));
            let before = self.heads.insert(at, (next, segment));
            news |= before.is_none_or(|(_, s)| s != segment);
        }
        if news {
            self.learn_bounds().await?;
        }
        Ok(())
    }

    async fn learn_bounds(&mut self) -> Result<(), tokio_postgres::Error> {
        let rows = self
            .client
            .query(
                "SELECT topic_no, partition, segment_no, first_offset FROM log_bounds WHERE topic_no = ANY($1)",
                &[&self.topic_nos],
            )
            .await?;
        self.bounds.clear();
        let mut live = std::collections::HashSet::new();
        for row in &rows {
            let segment: i32 = row.get(2);
            live.insert(segment);
            self.bounds
                .entry((row.get(0), row.get(1)))
                .or_default()
                .insert(segment, row.get(3));
        }
        self.statements.retain(|s, _| live.contains(s));
        Ok(())
    }

    /// The segment that holds a position: the last that begins at or before it.
    fn segment_of(&self, at: (i32, i32), position: i64) -> Option<i32> {
        self.bounds
            .get(&at)?
            .iter()
            .rev()
            .find(|(_, first)| **first <= position)
            .map(|(segment, _)| *segment)
    }

    async fn statement(&mut self, segment: i32) -> Result<(), tokio_postgres::Error> {
        if self.statements.contains_key(&segment) {
            return Ok(());
        }
        // `before`: bytes of the rows ahead of this one, so that a row is sent only while there is room for its beginning.
        // octet_length reads no body.
        let sql = format!(
            "SELECT last_offset, n, records FROM (
                 SELECT last_offset, n, records, sum(octet_length(records)) OVER (
                     ORDER BY last_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                 FROM log_chunks_{segment}
                 WHERE topic_no = $1 AND partition = $2 AND last_offset >= $3
                 ORDER BY last_offset LIMIT $4) AS r
             WHERE before IS NULL OR before < $5 ORDER BY last_offset"
        );
        let statement = self
            .client
            .prepare_typed(
                &sql,
                &[Type::INT4, Type::INT4, Type::INT8, Type::INT8, Type::INT8],
            )
            .await?;
        self.statements.insert(segment, statement);
        Ok(())
    }

    /// Checks stored positions of a partition against the log, when it is assigned.
    pub(super) async fn check(
        &mut self,
        partition: i32,
        lanes: &[Lane],
    ) -> Result<Result<(), Fault>, tokio_postgres::Error> {
        self.look().await?;
        self.learn_bounds().await?;
        Ok(lanes.iter().try_for_each(|lane| {
            let at = (lane.topic_no, partition);
            let Some((high, _)) = self.heads.get(&at).copied() else {
                return Err(Fault(format!(
                    "topic number {} has no partition {partition} in the Postgres log; run `millrace topics create`",
                    lane.topic_no
                )));
            };
            let low = self
                .bounds
                .get(&at)
                .and_then(|b| b.values().next().copied())
                .unwrap_or(high);
            if lane.position > high || lane.position < low {
                return Err(out_of_range(lane, partition, low, high));
            }
            Ok(())
        }))
    }

    /// Reads what each partition has room for. Positions of the lanes move past what the batches hold.
    pub(super) async fn read(
        &mut self,
        wants: &mut [(i32, Room, &mut Vec<Lane>)],
    ) -> Result<Vec<(i32, Read)>, tokio_postgres::Error> {
        self.look().await?;
        let mut asks: Vec<Ask> = Vec::new();
        let mut out = Vec::new();
        // By want: the asks of its lanes, and what each lane may take.
        let mut plans: Vec<Vec<(usize, usize, usize)>> = Vec::new();
        for (partition, room, lanes) in wants.iter() {
            let backlog = |lane: &Lane| {
                let high = self.heads.get(&(lane.topic_no, *partition));
                high.map_or(0, |(high, _)| high.saturating_sub(lane.position).max(0))
            };
            let total: i64 = lanes.iter().map(backlog).sum();
            let mut plan = Vec::new();
            if total >= room.at_least.max(1) {
                for (index, lane) in lanes.iter().enumerate() {
                    let available = backlog(lane);
                    if available == 0 {
                        continue;
                    }
                    // Lanes share the room as their backlogs stand, so that all reach their ends at about the same time.
                    let records = share(room.records, available, total);
                    let bytes = share(room.bytes, available, total);
                    let at = (lane.topic_no, *partition);
                    if let Some(segment) = self.segment_of(at, lane.position) {
                        plan.push((index, records, bytes));
                        asks.push(Ask {
                            at,
                            segment,
                            position: lane.position,
                            chunks: i64::try_from(records.min(2_048)).unwrap_or(2_048),
                            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
                        });
                    } else {
                        out.push((*partition, Err(out_of_range(lane, *partition, -1, -1))));
                    }
                }
            }
            plans.push(plan);
        }
        for ask in &asks {
            self.statement(ask.segment).await?;
        }
        let this = &*self;
        let answers = futures::future::try_join_all(asks.iter().map(|ask| async move {
            let Some(statement) = this.statements.get(&ask.segment) else {
                return Ok(Vec::new());
            };
            let (topic_no, partition) = ask.at;
            this.client
                .query(
                    statement,
                    &[
                        &topic_no,
                        &partition,
                        &ask.position,
                        &ask.chunks,
                        &ask.bytes,
                    ],
                )
                .await
        }))
        .await?;
        let mut answers = answers.into_iter();
        for ((partition, room, lanes), plan) in wants.iter_mut().zip(plans) {
            let mut batch = Batch::new(*partition);
            let mut failed = None;
            let from: Vec<i64> = lanes.iter().map(|l| l.position).collect();
            for (index, records, bytes) in plan {
                let rows = answers.next().unwrap_or_default();
                let Some(lane) = lanes.get_mut(index) else {
                    continue;
                };
                let share = Room {
                    records,
                    bytes,
                    ..*room
                };
                if let Err(fault) = take(&mut batch, lane, &rows, share, *room) {
                    failed.get_or_insert(fault);
                }
            }
            if let Some(fault) = failed {
                out.push((*partition, Err(fault)));
                continue;
            }
            for (lane, from) in lanes.iter().zip(from) {
                if lane.position > from {
                    batch.follow(lane.topic_no, from);
                }
            }
            for lane in lanes.iter_mut() {
                let high = self.heads.get(&(lane.topic_no, *partition));
                if high.is_some_and(|(high, _)| *high == lane.position)
                    && lane.told != Some(lane.position)
                {
                    lane.told = Some(lane.position);
                    batch.ends.push(lane.topic_no);
                }
            }
            if !batch.is_empty() {
                out.push((*partition, Ok(batch)));
            }
        }
        Ok(out)
    }
}

fn out_of_range(lane: &Lane, partition: i32, low: i64, high: i64) -> Fault {
    let kept = if high < 0 {
        "no segment holds it".to_owned()
    } else {
        format!("the log has {low} to {high}")
    };
    Fault(format!(
        "position {} of topic number {}, partition {partition}, is out of range: {kept}; \
         `millrace positions set --reason` resumes",
        lane.position, lane.topic_no
    ))
}

/// A lane's share of `room`, at least 1.
fn share(room: usize, available: i64, total: i64) -> usize {
    let part = (room as u128) * u128::from(available.unsigned_abs())
        / u128::from(total.unsigned_abs().max(1));
    usize::try_from(part).unwrap_or(room).max(1)
}

/// Moves records of the rows into the batch, as far as the lane's share and the partition's room allow.
fn take(
    batch: &mut Batch,
    lane: &mut Lane,
    rows: &[tokio_postgres::Row],
    share: Room,
    room: Room,
) -> Result<(), Fault> {
    let partition = batch.partition;
    let missing = |lane: &Lane, found: i64| {
        Fault(format!(
            "topic number {}, partition {}: offset {} is missing from the log (the next one found is {found})",
            lane.topic_no, partition, lane.position
        ))
    };
    if rows.is_empty() {
        return Err(missing(lane, -1));
    }
    let damaged = |topic_no: i32, at: i64, d: Damaged| {
        Fault(format!("topic number {topic_no}, offset {at}: {d}"))
    };
    let (mut records, mut bytes) = (0, 0);
    for row in rows {
        let (last, n, body): (i64, i32, &[u8]) = (row.get(0), row.get(1), row.get(2));
        let first = last - i64::from(n) + 1;
        if first > lane.position {
            return Err(missing(lane, first));
        }
        let skip = usize::try_from(lane.position - first).unwrap_or(usize::MAX);
        let body = chunk::records(body).map_err(|d| damaged(lane.topic_no, first, d))?;
        for record in body.skip(skip) {
            let (key, payload) = record.map_err(|d| damaged(lane.topic_no, lane.position, d))?;
            let size = key.len() + payload.len();
            let full = records >= share.records
                || (records > 0 && bytes + size > share.bytes)
                || batch.len() >= room.records
                || (!batch.records().is_empty() && batch.bytes() + size > room.bytes);
            if full || !batch.push(lane.topic_no, lane.position, key, payload) {
                return Ok(());
            }
            records += 1;
            bytes += size;
            lane.position += 1;
        }
        if lane.position != last + 1 {
            return Err(damaged(lane.topic_no, lane.position, Damaged::Bytes));
        }
    }
    Ok(())
}
