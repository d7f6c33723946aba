//! The one transaction in which everything is read, and what all checks need to know of the store.

use super::Options;
use super::kept::Kept;
use crate::postgres::types::Tz;
use futures::TryStreamExt;
use millrace_schemas::ids::RecordId;
use millrace_schemas::time::Micros;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row};
use uuid::Uuid;

/// Tables whose days may be dropped while we read: held by the weakest lock there is, taken before the snapshot, so that what
/// the snapshot counts can still be read at the end. Writers do not notice.
const HELD: &str = "LOCK TABLE visits, clicks, conversions, postback_log, rejects, outbox, send_log, firings IN ACCESS SHARE MODE";

/// Nested loops are off: planned on old statistics, one of them would walk a table for each row of another. No parallel workers:
/// the deployment needs its processors more than we do.
const GENTLY: &str = "
SET LOCAL lock_timeout = '10s';
SET LOCAL work_mem = '64MB';
SET LOCAL enable_nestloop = off;
SET LOCAL max_parallel_workers_per_gather = 0;
SET LOCAL jit = off;
SET LOCAL timezone = 'UTC';";

/// A topic, of whatever generation.
#[derive(Clone, Debug)]
pub(super) struct Topic {
    pub name: String,
    pub log_name: String,
    /// In the Postgres log.
    pub here: bool,
    pub retired: bool,
}

/// Offsets that were read again by an operator's word: `positions set --again`.
#[derive(Clone, Copy, Debug)]
struct Rewound {
    topic_no: i32,
    partition: i32,
    from: i64,
    to: i64,
}

/// The store at one moment.
pub(super) struct Snapshot<'a> {
    client: &'a Client,
    /// When it was taken, by the store's clock.
    pub moment: Micros,
    pub on_replica: bool,
    /// Examples kept of each check.
    pub limit: usize,
    pub kept: Kept,
    pub topics: HashMap<i32, Topic>,
    rewound: Vec<Rewound>,
    counts: Mutex<HashMap<&'static str, i64>>,
}

impl<'a> Snapshot<'a> {
    pub async fn take(client: &'a Client, options: &Options) -> Result<Snapshot<'a>, Error> {
        let timeout = options.statement_timeout.as_millis();
        client
            .batch_execute(&format!(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = {timeout}; {GENTLY}"
            ))
            .await?;
        client.batch_execute(HELD).await?;
        let row = client
            .query_one("SELECT now(), pg_is_in_recovery()", &[])
            .await?;
        let moment = row.get::<_, Tz>(0).0;
        let since = options.since.map_or(Micros::MIN, |since| {
            let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
            Micros(moment.0.saturating_sub(micros))
        });
        let rows = client
            .query(
                "SELECT topic_no, name, log_name, coalesce(log_id = 'postgres', false), retired_at IS NOT NULL
                 FROM topics",
                &[],
            )
            .await?;
        let topic = |r: &Row| {
            let topic = Topic {
                name: r.get(1),
                log_name: r.get(2),
                here: r.get(3),
                retired: r.get(4),
            };
            (r.get(0), topic)
        };
        let topics = rows.iter().map(topic).collect();
        let rows = client
            .query(
                "SELECT topic_no, partition, new_offset, old_offset FROM position_changes WHERE new_offset < old_offset",
                &[],
            )
            .await?;
        let rewound = |r: &Row| Rewound {
            topic_no: r.get(0),
            partition: r.get(1),
            from: r.get(2),
            to: r.get(3),
        };
        let rewound = rows.iter().map(rewound).collect();
        Ok(Snapshot {
            client,
            moment,
            on_replica: row.get(1),
            limit: options.limit,
            kept: Kept::read(client, since).await?,
            topics,
            rewound,
            counts: Mutex::default(),
        })
    }

    /// All rows of an answer that is small by its nature.
    pub async fn query(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.client.query(sql, params).await
    }

    /// Each row of an answer that may be long, one at a time.
    pub async fn each(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
        mut heard: impl FnMut(&Row),
    ) -> Result<(), Error> {
        let mut rows = pin!(self.client.query_raw(sql, params.iter().copied()).await?);
        while let Some(row) = rows.try_next().await? {
            heard(&row);
        }
        Ok(())
    }

    /// Statements without an answer.
    pub async fn batch(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await
    }

    /// Rows of these tables together, counted once a table.
    pub async fn rows(&self, tables: &[&'static str]) -> Result<i64, Error> {
        let mut all = 0;
        for table in tables {
            let known = self.known(table);
            all += match known {
                Some(n) => n,
                None => {
                    let rows = self
                        .query(&format!("SELECT count(*) FROM {table}"), &[])
                        .await?;
                    let n: i64 = rows.first().map_or(0, |r| r.get(0));
                    self.counts
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(table, n);
                    n
                }
            };
        }
        Ok(all)
    }

    fn known(&self, table: &str) -> Option<i64> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(table).copied()
    }

    /// Whether an operator had this record decided again: its rows may stand twice.
    pub fn decided_again(&self, record: Uuid) -> bool {
        let id = RecordId::from_uuid(record);
        self.rewound.iter().any(|r| {
            r.topic_no == id.topic_no
                && r.partition == id.partition
                && (r.from..r.to).contains(&id.offset)
        })
    }

    /// The first offset that no reader of this partition has ever passed, as far as moves back tell: `next` unless one was
    /// further on before.
    pub fn reached(&self, topic_no: i32, partition: i32, next: i64) -> i64 {
        self.rewound
            .iter()
            .filter(|r| r.topic_no == topic_no && r.partition == partition)
            .map(|r| r.to)
            .fold(next, i64::max)
    }

    /// Whether a position of this partition was ever moved back.
    pub fn was_rewound(&self, topic_no: i32, partition: i32) -> bool {
        self.rewound
            .iter()
            .any(|r| r.topic_no == topic_no && r.partition == partition)
    }

    /// Whether any position was ever moved back.
    pub fn any_rewound(&self) -> bool {
        !self.rewound.is_empty()
    }

    /// `clicks.2 partition 5`, for people.
    pub fn place(&self, topic_no: i32, partition: i32) -> String {
        match self.topics.get(&topic_no) {
            Some(topic) => format!("{} partition {partition}", topic.log_name),
            None => format!("topic number {topic_no} partition {partition}"),
        }
    }
}

/// A record's coordinates, for people.
pub(super) fn at(record: Uuid) -> String {
    RecordId::from_uuid(record).to_string()
}
