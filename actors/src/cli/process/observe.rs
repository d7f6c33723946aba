//! Gauges that are read from the store, so that they are right whoever did the work: lag, outcomes, parked, dead letters,
//! stopped partitions.

use crate::cli::lag;
use crate::cli::log::Log;
use crate::postgres::pool::Database;
use millrace_schemas::outcome::{Outcome, reason};
use millrace_topics::catalogue::GROUPS;
use millrace_topics::contract::TopicRef;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_postgres::Client;

/// Why a record becomes a dead letter.
const DEAD: &[&str] = &[
    reason::JOURNEY_UNKNOWN,
    reason::UNDECODABLE,
    reason::DATA_REFUSED,
    reason::PANICKED,
];

const EVERY: Duration = Duration::from_secs(10);

/// Reads them again and again, until dropped.
pub(super) async fn keep(database: Database, log: Log, topics: Vec<TopicRef>) {
    describe();
    let mut held: Option<Client> = None;
    loop {
        let client = match held.take().filter(|c| !c.is_closed()) {
            Some(client) => Some(client),
            None => database.single().await.ok().map(|(client, _)| client),
        };
        if let Some(client) = client {
            match once(&client, &log, &topics).await {
                Ok(()) => held = Some(client),
                Err(error) => tracing::debug!(%error, "gauges could not be read"),
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

fn describe() {
    use metrics::{describe_counter, describe_gauge};
    describe_gauge!(
        "millrace_lag_records",
        "Records written and not consumed, by group and topic"
    );
    describe_gauge!(
        "millrace_partitions_stopped",
        "Partitions that are stopped, by group"
    );
    describe_gauge!(
        "millrace_parked_records",
        "Records that wait for their visit"
    );
    describe_gauge!(
        "millrace_dead_letters_open",
        "Dead letters that are open, by reason"
    );
    describe_gauge!(
        "millrace_outbox_due",
        "Messages that are still to be delivered (100 000 stands for more)"
    );
    describe_gauge!(
        "millrace_outbox_oldest_due_seconds",
        "How long ago the oldest message of a channel was due"
    );
    describe_gauge!(
        "millrace_destinations_paused",
        "Destinations that are paused, by channel"
    );
    // What has not happened yet is told as none of it, so that an alert sees the first one.
    for group in GROUPS {
        metrics::counter!("batch_retries_total", "group" => group.name).increment(0);
        metrics::gauge!("millrace_partitions_stopped", "group" => group.name).set(0.0);
    }
    for reason in DEAD {
        metrics::gauge!("millrace_dead_letters_open", "reason" => *reason).set(0.0);
    }
    describe_counter!(
        "millrace_outcomes_total",
        "Outcomes of records, by group, topic, outcome and reason"
    );
}

/// The oldest due message of each destination is one step along the index.
const OLDEST: &str = "
WITH RECURSIVE d(no) AS (
    (SELECT destination_no FROM outbox_due ORDER BY destination_no LIMIT 1)
    UNION ALL
    SELECT (SELECT o.destination_no FROM outbox_due o WHERE o.destination_no > d.no ORDER BY o.destination_no LIMIT 1)
    FROM d WHERE d.no IS NOT NULL
)
SELECT t.channel, extract(epoch FROM now() - min((SELECT min(due_at) FROM outbox_due o WHERE o.destination_no = d.no)))::float8
FROM d JOIN destinations t ON t.destination_no = d.no GROUP BY 1";

async fn outbox(client: &Client) -> Result<(), tokio_postgres::Error> {
    let due = client
        .query_one(
            "SELECT count(*) FROM (SELECT FROM outbox_due LIMIT 100000) AS due",
            &[],
        )
        .await?;
    metrics::gauge!("millrace_outbox_due").set(due.get::<_, i64>(0) as f64);
    for channel in ["meta", "webhook", "stub"] {
        metrics::gauge!("millrace_outbox_oldest_due_seconds", "channel" => channel).set(0.0);
        metrics::gauge!("millrace_destinations_paused", "channel" => channel).set(0.0);
    }
    for row in client.query(OLDEST, &[]).await? {
        let (channel, age): (String, f64) = (row.get(0), row.get(1));
        metrics::gauge!("millrace_outbox_oldest_due_seconds", "channel" => channel)
            .set(age.max(0.0));
    }
    let paused = client
        .query(
            "SELECT channel, count(*) FROM destinations WHERE paused_code IS NOT NULL GROUP BY 1",
            &[],
        )
        .await?;
    for row in &paused {
        let channel: String = row.get(0);
        metrics::gauge!("millrace_destinations_paused", "channel" => channel)
            .set(row.get::<_, i64>(1) as f64);
    }
    Ok(())
}

async fn once(client: &Client, log: &Log, topics: &[TopicRef]) -> anyhow::Result<()> {
    outbox(client).await?;
    let mut lags: BTreeMap<(&'static str, String), i64> = BTreeMap::new();
    for l in lag::measure(client, log, topics).await? {
        *lags.entry((l.group, l.topic)).or_default() += l.lag;
    }
    for ((group, topic), lag) in lags {
        metrics::gauge!("millrace_lag_records", "group" => group, "topic" => topic).set(lag as f64);
    }
    let rows = client
        .query(
            "SELECT o.group_name, t.name, o.outcome, o.reason, sum(o.n)::bigint
             FROM outcomes o JOIN topics t USING (topic_no) GROUP BY 1, 2, 3, 4",
            &[],
        )
        .await?;
    for r in &rows {
        let (group, topic): (String, String) = (r.get(0), r.get(1));
        let outcome = Outcome::from_code(r.get(2)).map_or("unknown", Outcome::name);
        let reason: String = r.get(3);
        metrics::counter!("millrace_outcomes_total", "group" => group, "topic" => topic, "outcome" => outcome, "reason" => reason)
            .absolute(u64::try_from(r.get::<_, i64>(4)).unwrap_or(0));
    }
    let rows = client
        .query(
            "SELECT group_name, count(*) FILTER (WHERE stopped_reason IS NOT NULL) FROM ownership GROUP BY 1",
            &[],
        )
        .await?;
    for r in &rows {
        let group: String = r.get(0);
        metrics::gauge!("millrace_partitions_stopped", "group" => group)
            .set(r.get::<_, i64>(1) as f64);
    }
    let row = client
        .query_one(
            "SELECT count(*) FROM (SELECT 1 FROM parked LIMIT 1000000) AS p",
            &[],
        )
        .await?;
    metrics::gauge!("millrace_parked_records").set(row.get::<_, i64>(0) as f64);
    let rows = client
        .query(
            "SELECT reason, count(*) FILTER (WHERE status = 'open') FROM dead_letters GROUP BY 1",
            &[],
        )
        .await?;
    for r in &rows {
        let reason: String = r.get(0);
        metrics::gauge!("millrace_dead_letters_open", "reason" => reason)
            .set(r.get::<_, i64>(1) as f64);
    }
    Ok(())
}
