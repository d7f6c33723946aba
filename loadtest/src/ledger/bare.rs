//! Bare writes of the rows that the product wrote: one transaction a batch (or a record), all its statements sent at once, the
//! position in it. No fence, no claim, no outcome counts.

use super::product::{Transaction, failed};
use super::rows::Cells;
use super::{Clock, Spent, Way};
use crate::delivery::connect;
use anyhow::Context;
use bytes::Bytes;
use futures::SinkExt;
use futures::future::{BoxFuture, join_all};
use millrace::attribution::store::{FACT_TABLES, FACTS};
use millrace::runtime::days;
use millrace::runtime::session::Session;
use millrace_topics::contract::TopicRef;
use std::collections::BTreeMap;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Statement};
use uuid::Uuid;

const GROUP: &str = "bare";
const KEYS: &str = "COPY conversion_keys (key, conversion_id, accepted_at) FROM STDIN BINARY";
const UNPARK: &str = "DELETE FROM parked p USING unnest($1::uuid[], $2::uuid[]) AS u(key, id) WHERE p.click_key = u.key AND p.record_id = u.id";
const MOVE: &str = "UPDATE positions p SET next_offset = m.next, consumed = consumed + $5 FROM unnest($3::int4[], $4::int8[]) AS m(topic_no, next) WHERE p.group_name = $1 AND p.partition = $2 AND p.topic_no = m.topic_no";

/// A table, and the statements that write to it.
struct Table {
    types: Vec<Type>,
    statement: Statement,
    /// After the COPY into the stage.
    merge: Option<Statement>,
    /// The column that holds the id of the record that a row is of.
    record: usize,
}

struct Writer {
    client: Client,
    tables: Vec<Table>,
    unpark: Statement,
    advance: Statement,
}

/// Writes transactions into a fresh database.
///
/// # Errors
/// The store's.
pub async fn write(
    url: &str,
    way: Way,
    topics: &[TopicRef],
    days: &[i64],
    all: &[Transaction],
) -> anyhow::Result<Spent> {
    let writer = Writer::new(url, way, topics, days).await?;
    let mut spent = Spent::default();
    for transaction in all {
        match way {
            Way::Single => writer.singly(transaction, &mut spent).await?,
            _ => {
                let clock = Clock::start();
                writer.together(way, transaction).await?;
                clock.stop(&mut spent);
            }
        }
    }
    Ok(spent)
}

impl Writer {
    async fn new(url: &str, way: Way, topics: &[TopicRef], of: &[i64]) -> anyhow::Result<Writer> {
        let client = connect(url, "ledger")?()
            .await
            .map_err(anyhow::Error::msg)?;
        let session = Session::new(client);
        days::make(&session, FACT_TABLES, of)
            .await
            .map_err(failed)?;
        for topic in topics {
            session
                .execute(
                    "INSERT INTO positions (group_name, partition, topic_no) SELECT $1, generate_series(0, $2 - 1), $3",
                    &[&GROUP, &topic.partitions, &topic.no],
                )
                .await?;
        }
        let client = session.into_client();
        let mut tables = Vec::new();
        for copy in FACTS.iter().map(|f| f.copy).chain([KEYS]) {
            tables.push(table(&client, way, copy).await?);
        }
        Ok(Writer {
            unpark: client.prepare(UNPARK).await?,
            advance: client.prepare(MOVE).await?,
            tables,
            client,
        })
    }

    /// All of a batch in one transaction.
    async fn together(&self, way: Way, t: &Transaction) -> anyhow::Result<()> {
        let arrays: Vec<_> = self
            .tables
            .iter()
            .zip(cells(t))
            .map(|(table, cells)| {
                let columns = table.types.iter().enumerate();
                columns
                    .map(|(c, of)| cells.column(c, of))
                    .collect::<Vec<_>>()
            })
            .collect();
        let parameters: Vec<Vec<&(dyn ToSql + Sync)>> = arrays
            .iter()
            .map(|columns| columns.iter().map(|c| c as _).collect())
            .collect();
        let records = i64::try_from(t.records)?;
        let moves: [&(dyn ToSql + Sync); 5] = [&GROUP, &t.partition, &t.topics, &t.next, &records];
        let unparked: [&(dyn ToSql + Sync); 2] = [&t.unparked.0, &t.unparked.1];
        let mut sent: Vec<BoxFuture<'_, Result<u64, Error>>> = vec![self.word("BEGIN")];
        for ((table, cells), columns) in self.tables.iter().zip(cells(t)).zip(&parameters) {
            if cells.len() == 0 {
                continue;
            }
            let statement = &table.statement;
            sent.push(match way {
                Way::Unnest => Box::pin(self.client.execute(statement, columns)),
                _ => Box::pin(self.copy(statement, cells)),
            });
            if let Some(merge) = &table.merge {
                sent.push(Box::pin(self.client.execute(merge, &[])));
            }
        }
        if !t.unparked.0.is_empty() {
            sent.push(Box::pin(self.client.execute(&self.unpark, &unparked)));
        }
        sent.push(Box::pin(self.client.execute(&self.advance, &moves)));
        sent.push(self.word("COMMIT"));
        all(sent).await
    }

    /// A transaction for each record that left a row.
    async fn singly(&self, t: &Transaction, spent: &mut Spent) -> anyhow::Result<()> {
        let mut records: BTreeMap<Uuid, Vec<(usize, usize)>> = BTreeMap::new();
        for (at, (table, cells)) in self.tables.iter().zip(cells(t)).enumerate() {
            for row in 0..cells.len() {
                let id = cells.uuid(row, table.record);
                records.entry(id).or_default().push((at, row));
            }
        }
        let moves: [&(dyn ToSql + Sync); 5] = [&GROUP, &t.partition, &t.topics, &t.next, &1_i64];
        for rows in records.values() {
            let clock = Clock::start();
            let mut cells_of = Vec::new();
            for (at, row) in rows {
                let (Some(table), Some(cells)) = (self.tables.get(*at), cells(t).nth(*at)) else {
                    continue;
                };
                let width = table.types.len();
                let of: Vec<_> = (0..width).map(|c| cells.parameter(*row, c)).collect();
                cells_of.push((&table.statement, of));
            }
            let parameters: Vec<Vec<&(dyn ToSql + Sync)>> = cells_of
                .iter()
                .map(|(_, cells)| cells.iter().map(|c| c as _).collect())
                .collect();
            let mut sent = vec![self.word("BEGIN")];
            for ((statement, _), parameters) in cells_of.iter().zip(&parameters) {
                sent.push(Box::pin(self.client.execute(*statement, parameters)));
            }
            sent.push(Box::pin(self.client.execute(&self.advance, &moves)));
            sent.push(self.word("COMMIT"));
            all(sent).await?;
            clock.stop(spent);
        }
        Ok(())
    }

    fn word(&self, sql: &'static str) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(async move { self.client.batch_execute(sql).await.map(|()| 0) })
    }

    async fn copy(&self, statement: &Statement, cells: &Cells) -> Result<u64, Error> {
        let sink = self.client.copy_in::<_, Bytes>(statement).await?;
        let mut sink = std::pin::pin!(sink);
        sink.send(cells.copy()).await?;
        sink.finish().await
    }
}

/// Sends all in this order; the server runs them in it.
async fn all(sent: Vec<BoxFuture<'_, Result<u64, Error>>>) -> anyhow::Result<()> {
    for done in join_all(sent).await {
        done?;
    }
    Ok(())
}

/// Facts and keys, in the order of the tables.
fn cells(t: &Transaction) -> impl Iterator<Item = &Cells> {
    t.facts.iter().chain([&t.keys])
}

async fn table(client: &Client, way: Way, copy: &str) -> anyhow::Result<Table> {
    let (name, rest) = copy
        .strip_prefix("COPY ")
        .and_then(|rest| rest.split_once('('))
        .context("a COPY")?;
    let (columns, _) = rest.split_once(')').context("columns of a COPY")?;
    let name = name.trim();
    let shape = client
        .prepare(&format!("SELECT {columns} FROM {name} LIMIT 0"))
        .await?;
    let types: Vec<Type> = shape.columns().iter().map(|c| c.type_().clone()).collect();
    let identity = if name == "conversions" || name == "conversion_keys" {
        "conversion_id"
    } else {
        "record_id"
    };
    let record = shape
        .columns()
        .iter()
        .position(|c| c.name() == identity)
        .context("a column of the record's id")?;
    let stage = format!("stage_{name}");
    if way == Way::CopyMerge {
        client
            .batch_execute(&format!(
                "CREATE TEMP TABLE {stage} ON COMMIT DELETE ROWS AS SELECT {columns} FROM {name} LIMIT 0"
            ))
            .await?;
    }
    let statement = match way {
        Way::Single => {
            let marks: Vec<String> = (1..=types.len()).map(|n| format!("${n}")).collect();
            let marks = marks.join(", ");
            format!("INSERT INTO {name} ({columns}) VALUES ({marks})")
        }
        Way::Unnest => {
            let marks: Vec<String> = types
                .iter()
                .zip(1..)
                .map(|(of, n)| format!("${n}::{}[]", of.name()))
                .collect();
            let marks = marks.join(", ");
            format!(
                "INSERT INTO {name} ({columns}) SELECT * FROM unnest({marks}) ON CONFLICT DO NOTHING"
            )
        }
        Way::CopyMerge => format!("COPY {stage} ({columns}) FROM STDIN BINARY"),
        Way::Copy | Way::Product => copy.to_owned(),
    };
    let merge = format!(
        "INSERT INTO {name} ({columns}) SELECT {columns} FROM {stage} ON CONFLICT DO NOTHING"
    );
    Ok(Table {
        types,
        statement: client.prepare(&statement).await?,
        merge: match way {
            Way::CopyMerge => Some(client.prepare(&merge).await?),
            _ => None,
        },
        record,
    })
}
