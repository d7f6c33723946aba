//! Numbered records through both groups, and the recount of what came out.

use super::{EMITTER, IN, OUT, SINK, Said};
use crate::deployment::{Deployment, Line, Log, PATIENCE};
use crate::process::{Launch, eventually, free_address};
use crate::recount::{Kind, Report};
use millrace_schemas::time::Micros;
use millrace_topics::contract::TopicRef;
use millrace_topics::kafka::{KafkaAdmin, KafkaSettings};
use millrace_topics::{catalogue, pglog};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio_postgres::Client;

/// Keys of what is put in.
const KEYS: i64 = 29;

/// Which groups a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Both.
    Both,
    /// The one that emits.
    Emitter,
    /// The one that receives.
    Sink,
}

/// What was put into a deployment with the topics and the table of both groups.
#[derive(Debug, Default)]
pub struct Echo {
    put_in: i64,
}

impl Echo {
    /// Makes topics and table.
    ///
    /// # Errors
    /// They could not be made.
    pub async fn create(at: &Deployment) -> anyhow::Result<Echo> {
        let create = at.launch("echo-create")?.args(["echo", "create"]);
        create.run(PATIENCE).await?;
        Ok(Echo::default())
    }

    /// A process of these groups, ready to be started.
    ///
    /// # Errors
    /// The product was not built.
    pub fn launch(at: &Deployment, name: &str, part: Part) -> anyhow::Result<Launch> {
        let launch = at.launch(name)?.args(["echo", "run"]);
        let launch = match part {
            Part::Both => launch,
            Part::Emitter => launch.arg("emitter"),
            Part::Sink => launch.arg("sink"),
        };
        Ok(launch.setting("http.admin", free_address()?))
    }

    /// Puts in so many more records.
    ///
    /// # Errors
    /// The log did not take one.
    pub async fn put_in(&mut self, at: &Deployment, records: i64) -> anyhow::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
        let now = Micros(i64::try_from(now)?);
        let lines = (self.put_in..self.put_in + records)
            .map(|n| {
                let said = Said {
                    accepted_at: now,
                    n,
                };
                Ok(Line {
                    topic: IN.to_owned(),
                    key: format!("in-{}", n % KEYS).into_bytes(),
                    payload: serde_json::to_vec(&said)?,
                })
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        at.append(lines).await?;
        self.put_in += records;
        Ok(())
    }

    /// How many records were put in.
    #[must_use]
    pub fn records(&self) -> i64 {
        self.put_in
    }

    /// Records that a group has consumed; 0 while the store is away.
    pub async fn consumed(at: &Deployment, part: Part) -> i64 {
        let group = if part == Part::Emitter { EMITTER } else { SINK };
        let look = async {
            let url = at.database.url();
            let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            let sql =
                "SELECT coalesce(sum(next_offset), 0)::bigint FROM positions WHERE group_name = $1";
            let row = client.query_one(sql, &[&group.name]).await?;
            Ok::<i64, tokio_postgres::Error>(row.get(0))
        };
        look.await.unwrap_or(0)
    }

    /// Waits until a group has consumed so many records.
    ///
    /// # Errors
    /// It has not in time.
    pub async fn wait_consumed(at: &Deployment, part: Part, records: i64) -> anyhow::Result<()> {
        let what = format!("{records} records consumed by {part:?}");
        eventually(&what, PATIENCE, async || {
            Ok((Echo::consumed(at, part).await >= records).then_some(()))
        })
        .await
    }

    /// Waits until everything put in was emitted, relayed and received.
    ///
    /// # Errors
    /// It was not in time.
    pub async fn settled(&self, at: &Deployment) -> anyhow::Result<()> {
        let store = at.store().await;
        let topics = catalogue::load(&store).await?;
        let (first, last) = (
            catalogue::find(&topics, IN)?,
            catalogue::find(&topics, OUT)?,
        );
        eventually("everything emitted", PATIENCE, async || {
            Ok(is_consumed(at, &store, EMITTER.name, &first)
                .await?
                .then_some(()))
        })
        .await?;
        eventually("everything relayed", PATIENCE, async || {
            let row = store.query_one("SELECT count(*) FROM emits", &[]).await?;
            Ok((row.get::<_, i64>(0) == 0).then_some(()))
        })
        .await?;
        // Nobody writes to it any more: its end is its end.
        eventually("everything received", PATIENCE, async || {
            Ok(is_consumed(at, &store, SINK.name, &last)
                .await?
                .then_some(()))
        })
        .await
    }

    /// What came out against what was put in: each number once, in the order of its source, and the counters beside it.
    ///
    /// # Errors
    /// Not everything came to its end in time.
    pub async fn recounted(&self, at: &Deployment) -> anyhow::Result<Report> {
        self.settled(at).await?;
        let store = at.store().await;
        let mut report = Report {
            records: usize::try_from(self.put_in)?,
            ..Report::default()
        };
        let rows = store
            .query(
                "SELECT n, partition, \"offset\", source_partition, seq FROM proving_seen
                 ORDER BY partition, \"offset\", n",
                &[],
            )
            .await?;
        report.rows = rows.len();
        let mut times: BTreeMap<i64, usize> = BTreeMap::new();
        let mut last: BTreeMap<(i32, i32), i64> = BTreeMap::new();
        for row in &rows {
            let (n, partition, offset): (i64, i32, i64) = (row.get(0), row.get(1), row.get(2));
            let (source, seq): (i32, i64) = (row.get(3), row.get(4));
            *times.entry(n).or_default() += 1;
            let before = last.insert((source, partition), seq);
            if before.is_some_and(|before| seq <= before) {
                let what = format!(
                    "record {n} at {partition}-{offset} is number {seq} of source {source}, behind {before:?}"
                );
                report.add(Kind::Wrong, what);
            }
        }
        for n in 0..self.put_in {
            match times.remove(&n).unwrap_or(0) {
                1 => {}
                0 => report.add(Kind::Loss, format!("record {n} was never received")),
                more => report.add(
                    Kind::Double,
                    format!("record {n} was received {more} times"),
                ),
            }
        }
        for n in times.keys() {
            report.add(Kind::Wrong, format!("record {n} was never put in"));
        }
        self.count(&store, &mut report).await?;
        Ok(report)
    }

    /// Outcomes of both groups against positions and rows.
    async fn count(&self, store: &Client, report: &mut Report) -> anyhow::Result<()> {
        let rows = i64::try_from(report.rows)?;
        for (group, applied) in [(EMITTER.name, self.put_in), (SINK.name, rows)] {
            let row = store
                .query_one(
                    "SELECT (SELECT coalesce(sum(next_offset), 0)::bigint FROM positions WHERE group_name = $1),
                            (SELECT coalesce(sum(n), 0)::bigint FROM outcomes WHERE group_name = $1),
                            (SELECT coalesce(sum(n), 0)::bigint FROM outcomes WHERE group_name = $1 AND outcome = 0)",
                    &[&group],
                )
                .await?;
            let (consumed, ended, counted): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
            if consumed != ended {
                let what = format!("{group}: {consumed} consumed, {ended} outcomes");
                report.add(Kind::Counter, what);
            }
            if counted != applied {
                let what = format!("{group}: {counted} counted as applied, {applied} are");
                report.add(Kind::Counter, what);
            }
        }
        Ok(())
    }

    /// How many records the receiver had seen before: what was sent twice, and dropped.
    ///
    /// # Errors
    /// The store failed.
    pub async fn dropped(at: &Deployment) -> anyhow::Result<i64> {
        let sql = "SELECT coalesce(sum(n), 0)::bigint FROM outcomes WHERE group_name = $1 AND outcome = 1";
        let store = at.store().await;
        Ok(store.query_one(sql, &[&SINK.name]).await?.get(0))
    }
}

async fn is_consumed(
    at: &Deployment,
    store: &Client,
    group: &str,
    topic: &TopicRef,
) -> anyhow::Result<bool> {
    let rows = store
        .query(
            "SELECT partition, next_offset FROM positions WHERE group_name = $1 AND topic_no = $2",
            &[&group, &topic.no],
        )
        .await?;
    let stand: BTreeMap<i32, i64> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
    let ends = ends(at, store, topic).await?;
    Ok(ends
        .iter()
        .all(|(p, end)| stand.get(p).is_some_and(|n| n >= end)))
}

async fn ends(
    at: &Deployment,
    store: &Client,
    topic: &TopicRef,
) -> anyhow::Result<Vec<(i32, i64)>> {
    Ok(match at.log() {
        Log::Postgres => pglog::watermarks(store, std::slice::from_ref(topic))
            .await?
            .iter()
            .map(|w| (w.partition, w.high))
            .collect(),
        Log::Kafka { brokers, .. } => admin(brokers)
            .watermarks(&topic.log_name, topic.partitions)
            .await?
            .iter()
            .map(|w| (w.partition, w.high))
            .collect(),
    })
}

fn admin(brokers: &str) -> KafkaAdmin {
    KafkaAdmin::new(&KafkaSettings {
        brokers: brokers.to_owned(),
        ..KafkaSettings::default()
    })
}
