//! Emits: records for other topics, born of a batch.
//!
//! **Sending.** The batch's transaction writes them as rows of `emits`, numbered per (group, source partition). A [`Relay`] reads
//! them in order, produces them, and deletes what the log has acknowledged. What a crash leaves between the two is sent again.
//! On the Postgres log [`emit_directly`] appends them in the batch's own transaction instead: no row, no relay, no second copy.
//!
//! **Receiving.** [`accept`] keeps, in the receiver's transaction, the greatest number seen of each source and topic, and says
//! which records are new. Dropping "not greater than the greatest" is right only if no record can reach a partition ahead of an
//! earlier one of its source; so the relay has at most one record under way to each partition: a second one behind a first that
//! failed would make the first look old.
//!
//! **Why no fence.** One relay runs where the partition is owned. A former owner that still sends or deletes does no harm: what
//! it sends has numbers that the new owner has sent or is about to send, which the receiver drops; and it deletes only what the
//! log has. It can never send a number ahead of an earlier one of the same partition, since it waits for each.

use crate::contract::{Outgoing, Position, ProduceError, Producer, TopicRef};
use crate::partitioner;
use crate::pglog::append::{AppendError, append_in};
use crate::pglog::{Connector, describe};
use bytes::Bytes;
use millrace_schemas::emit::{EmitSource, NotAnObject};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_postgres::{Client, GenericClient};

/// What is wrong with emits.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// The store failed.
    #[error("the store: {0}")]
    Store(#[from] tokio_postgres::Error),
    /// The log did.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// A row names a topic that the catalogue no longer has.
    #[error("emit {seq} is for topic number {topic_no}, which is not in the catalogue")]
    UnknownTopic {
        /// The emit's number.
        seq: i64,
        /// The topic's number.
        topic_no: i32,
    },
    /// The payload cannot carry its source.
    #[error(transparent)]
    Payload(#[from] NotAnObject),
}

/// Numbers, stamps and appends records within the caller's transaction (the Postgres log alone; see [`append_in`] for what the
/// transaction owes it). The payloads are JSON objects without a member `emit`.
///
/// # Errors
/// [`EmitError`]; the transaction is to be given up.
pub async fn emit_directly(
    tx: &impl GenericClient,
    topics: &[TopicRef],
    group: &str,
    partition: i32,
    records: &[Outgoing],
) -> Result<Vec<Position>, EmitError> {
    if records.is_empty() {
        return Ok(Vec::new());
    }
    let n = i64::try_from(records.len()).unwrap_or(i64::MAX);
    let first: i64 = tx
        .query_one(
            "INSERT INTO emit_heads (group_name, source_partition, next_seq) VALUES ($1, $2, $3)
             ON CONFLICT (group_name, source_partition)
             DO UPDATE SET next_seq = emit_heads.next_seq + $3 RETURNING next_seq - $3",
            &[&group, &partition, &n],
        )
        .await?
        .get(0);
    let stamped: Vec<Outgoing> = records
        .iter()
        .zip(first..)
        .map(|(record, seq)| {
            let source = EmitSource {
                group: group.to_owned(),
                partition,
                seq,
            };
            Ok(Outgoing {
                payload: Bytes::from(source.stamp(&record.payload)?),
                ..record.clone()
            })
        })
        .collect::<Result<_, EmitError>>()?;
    Ok(append_in(tx, topics, &stamped).await?)
}

/// Which of the records that arrived are new, in their order, and notes it: within the receiver's transaction, under its
/// ownership's fence. `arrived`: topic number and source of each.
///
/// # Errors
/// The store failed.
pub async fn accept(
    tx: &impl GenericClient,
    group: &str,
    partition: i32,
    arrived: &[(i32, EmitSource)],
) -> Result<Vec<bool>, tokio_postgres::Error> {
    if arrived.is_empty() {
        return Ok(Vec::new());
    }
    let rows = tx
        .query(
            "SELECT topic_no, source_group, source_partition, last_seq FROM emit_receipts
             WHERE group_name = $1 AND partition = $2",
            &[&group, &partition],
        )
        .await?;
    let mut last: HashMap<(i32, &str, i32), i64> = rows
        .iter()
        .map(|r| ((r.get(0), r.get(1), r.get(2)), r.get(3)))
        .collect();
    let mut moved: BTreeMap<(i32, &str, i32), i64> = BTreeMap::new();
    let new = arrived
        .iter()
        .map(|(topic_no, source)| {
            let key = (*topic_no, source.group.as_str(), source.partition);
            let seen = last.entry(key).or_insert(-1);
            let new = source.seq > *seen;
            if new {
                *seen = source.seq;
                moved.insert(key, source.seq);
            }
            new
        })
        .collect();
    if !moved.is_empty() {
        let (mut topics, mut groups) = (Vec::new(), Vec::new());
        let (mut partitions, mut seqs) = (Vec::new(), Vec::new());
        for ((topic_no, source_group, source_partition), seq) in moved {
            topics.push(topic_no);
            groups.push(source_group);
            partitions.push(source_partition);
            seqs.push(seq);
        }
        tx.execute(
            "INSERT INTO emit_receipts (group_name, partition, topic_no, source_group, source_partition, last_seq)
             SELECT $1, $2, * FROM unnest($3::int4[], $4::text[], $5::int4[], $6::int8[])
             ON CONFLICT (group_name, partition, topic_no, source_group, source_partition)
             DO UPDATE SET last_seq = excluded.last_seq",
            &[&group, &partition, &topics, &groups, &partitions, &seqs],
        )
        .await?;
    }
    Ok(new)
}

/// What one turn of a relay did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Records that the log acknowledged, and that are deleted.
    pub relayed: usize,
    /// Whether there may be more: take another turn at once.
    pub more: bool,
    /// The first record that the log did not take, and why. A turn later it is tried again; one that is too large stays, and
    /// all for the same partition behind it.
    pub refused: Option<(i64, ProduceError)>,
}

/// Relays what one partition of a group emits.
pub struct Relay {
    producer: Arc<dyn Producer>,
    topics: Vec<TopicRef>,
    group: String,
    partition: i32,
    /// Records of one turn at most.
    rows: i64,
    sent: Hook,
}

/// Called between the log's acknowledgement and the deletion.
pub type Hook = Arc<dyn Fn() + Send + Sync>;

/// One row of `emits`.
struct Row {
    seq: i64,
    record: Outgoing,
}

impl Relay {
    /// A relay of (group, source partition); `topics` is the catalogue.
    #[must_use]
    pub fn new(
        producer: Arc<dyn Producer>,
        topics: &[TopicRef],
        group: &str,
        partition: i32,
    ) -> Relay {
        Relay {
            producer,
            topics: topics.to_vec(),
            group: group.to_owned(),
            partition,
            rows: 1_000,
            sent: Arc::new(|| {}),
        }
    }

    /// Calls `sent` between the log's acknowledgement and the deletion: where a crash makes the log hold a record twice.
    #[must_use]
    pub fn with_sent_hook(mut self, sent: Hook) -> Relay {
        self.sent = sent;
        self
    }

    /// Reads the oldest rows, produces them, waits for the log, deletes what it has. Each statement commits by itself; cancelling
    /// the future is as harmless as a crash.
    ///
    /// # Errors
    /// The store failed, or a row names a topic that is gone.
    pub async fn turn(&self, client: &impl GenericClient) -> Result<Turn, EmitError> {
        let rows = client
            .query(
                "SELECT seq, topic_no, key, payload FROM emits
                 WHERE group_name = $1 AND source_partition = $2 ORDER BY seq LIMIT $3",
                &[&self.group, &self.partition, &self.rows],
            )
            .await?;
        if rows.is_empty() {
            return Ok(Turn::default());
        }
        let full = i64::try_from(rows.len()).unwrap_or(i64::MAX) >= self.rows;
        let lanes = self.lanes(&rows)?;
        let (acknowledged, refused) = self.produce(lanes).await;
        (self.sent)();
        if !acknowledged.is_empty() {
            client
                .execute(
                    "DELETE FROM emits WHERE group_name = $1 AND source_partition = $2 AND seq = ANY($3)",
                    &[&self.group, &self.partition, &acknowledged],
                )
                .await?;
        }
        Ok(Turn {
            relayed: acknowledged.len(),
            more: full && refused.is_none(),
            refused,
        })
    }

    /// The rows by (topic, partition), each in order.
    fn lanes(&self, rows: &[tokio_postgres::Row]) -> Result<Vec<VecDeque<Row>>, EmitError> {
        let mut lanes: BTreeMap<(i32, i32), VecDeque<Row>> = BTreeMap::new();
        for row in rows {
            let (seq, topic_no): (i64, i32) = (row.get(0), row.get(1));
            let (key, payload): (&[u8], &[u8]) = (row.get(2), row.get(3));
            let topic = self
                .topics
                .iter()
                .find(|t| t.no == topic_no)
                .ok_or(EmitError::UnknownTopic { seq, topic_no })?;
            let source = EmitSource {
                group: self.group.clone(),
                partition: self.partition,
                seq,
            };
            let record = Outgoing {
                topic_no,
                key: Bytes::copy_from_slice(key),
                payload: Bytes::from(source.stamp(payload)?),
            };
            let at = (topic_no, partitioner::partition(key, topic.partitions));
            lanes.entry(at).or_default().push_back(Row { seq, record });
        }
        Ok(lanes.into_values().collect())
    }

    /// Produces the lanes side by side, each record after the one before it was acknowledged; a lane ends at its first refusal.
    /// What was acknowledged, and the refusal of the lowest number.
    async fn produce(
        &self,
        mut lanes: Vec<VecDeque<Row>>,
    ) -> (Vec<i64>, Option<(i64, ProduceError)>) {
        let mut acknowledged = Vec::new();
        let mut refused: Option<(i64, ProduceError)> = None;
        while !lanes.is_empty() {
            let under_way: Vec<_> = lanes
                .iter_mut()
                .map(|lane| {
                    lane.pop_front()
                        .map(|row| (row.seq, self.producer.produce(row.record)))
                })
                .collect();
            let mut kept = Vec::with_capacity(lanes.len());
            for (lane, sent) in lanes.into_iter().zip(under_way) {
                let Some((seq, acknowledgement)) = sent else {
                    continue;
                };
                match acknowledgement.await.unwrap_or(Err(ProduceError::Closed)) {
                    Ok(_) => {
                        acknowledged.push(seq);
                        kept.push(lane);
                    }
                    Err(error) => {
                        if refused.as_ref().is_none_or(|(first, _)| seq < *first) {
                            refused = Some((seq, error));
                        }
                    }
                }
            }
            lanes = kept;
        }
        (acknowledged, refused)
    }
}

/// What [`keep`] relays.
#[derive(Clone)]
pub struct Relayed {
    /// Where the rows are.
    pub connector: Connector,
    /// Where they go.
    pub producer: Arc<dyn Producer>,
    /// The catalogue.
    pub topics: Vec<TopicRef>,
    /// The emitting group.
    pub group: String,
    /// Called between the log's acknowledgement and the deletion.
    pub sent: Hook,
    /// How long to rest when there is nothing.
    pub idle: Duration,
}

/// Relays what partitions of a group emit while this process owns them (`owned` is asked each time), over one connection, again
/// and again, until the future is dropped.
pub async fn keep(relayed: Relayed, owned: impl Fn() -> Vec<i32> + Send) {
    let deaf = Arc::new(Notify::new());
    let mut client: Option<Client> = None;
    loop {
        let partitions = owned();
        let result = match &client {
            _ if partitions.is_empty() => Ok(false),
            Some(open) if !open.is_closed() => relay_all(&relayed, open, &partitions).await,
            _ => match relayed.connector.open(&deaf).await {
                Ok(opened) => {
                    client = Some(opened);
                    continue;
                }
                Err(error) => Err(EmitError::Store(error)),
            },
        };
        let rest = match result {
            Ok(true) => continue,
            Ok(false) => relayed.idle,
            Err(error) => {
                let reason = match &error {
                    EmitError::Store(e) => describe(e),
                    other => other.to_string(),
                };
                tracing::warn!(group = %relayed.group, %reason, "emits wait");
                relayed.idle.max(Duration::from_millis(500))
            }
        };
        tokio::time::sleep(rest).await;
    }
}

/// One turn of every partition that has something; whether there is more.
async fn relay_all(
    relayed: &Relayed,
    client: &Client,
    partitions: &[i32],
) -> Result<bool, EmitError> {
    let rows = client
        .query(
            "SELECT p FROM unnest($2::int4[]) AS p WHERE EXISTS (
                 SELECT 1 FROM emits WHERE group_name = $1 AND source_partition = p)",
            &[&relayed.group, &partitions],
        )
        .await?;
    let relays: Vec<Relay> = rows
        .iter()
        .map(|row| {
            let producer = Arc::clone(&relayed.producer);
            Relay::new(producer, &relayed.topics, &relayed.group, row.get(0))
                .with_sent_hook(Arc::clone(&relayed.sent))
        })
        .collect();
    // Side by side: each waits for the log, not for the others.
    let turns = futures::future::join_all(relays.iter().map(|r| r.turn(client))).await;
    let mut more = false;
    for turn in turns {
        let turn = turn?;
        more |= turn.more;
        metrics::counter!("millrace_emits_relayed_total", "group" => relayed.group.clone())
            .increment(u64::try_from(turn.relayed).unwrap_or(0));
        if let Some((seq, error)) = turn.refused {
            tracing::warn!(group = %relayed.group, seq, reason = %error, "the log did not take an emit");
        }
    }
    Ok(more)
}
