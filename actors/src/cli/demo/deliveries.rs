//! What became of every message: recounted from the outbox, from the facts that set them off, and from what the stand-ins counted.

use super::report::{Check, Checks};
use super::scenery::Scenery;
use super::stand_ins::Counts;
use super::traffic::{Door, Expected};
use anyhow::Context;
use millrace_schemas::outcome::Outcome;
use rust_decimal::Decimal;
use serde::Serialize;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, GenericClient};

/// How long nothing may move before the demo stops waiting; a webhook's first retry comes after five seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a person is told what is still to go.
const TELL_EVERY: Duration = Duration::from_secs(3);

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The channel.
    pub channel: String,
    /// How the messages stand: `sent`, `failed`, `cancelled`, `unknown`, …; `scheduled`: still to go.
    pub result: String,
    /// How many.
    pub messages: i64,
    /// Requests that carried them, each message counted by itself.
    pub attempts: i64,
    /// Those among them after which they were to be sent again.
    pub retries: i64,
}

/// What the store says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deliveries {
    /// By channel and result.
    pub lines: Vec<Line>,
    /// Messages that are due, or will be after another attempt; what waits as its rule says is none of them.
    pub due: i64,
    /// Messages whose attempts are not those of the send log.
    pub unlogged: i64,
    /// Conversions with the pixel in their journey that became approved, from the ledger.
    pub approved: i64,
    /// What those paid then.
    pub value: Decimal,
    /// Conversions booked, from the ledger.
    pub booked: i64,
    /// Changes of their status, from their history.
    pub moved: i64,
    /// Clicks charged, from the ledger.
    pub clicks: i64,
}

const LINES: &str = "
SELECT o.channel, o.status, count(*), coalesce(sum(l.attempts), 0)::bigint, coalesce(sum(l.retries), 0)::bigint
FROM outbox o LEFT JOIN (
    SELECT outbox_id, count(*) FILTER (WHERE attempt > 0) AS attempts, count(*) FILTER (WHERE result = 'retry') AS retries
    FROM send_log GROUP BY outbox_id
) l USING (outbox_id)
GROUP BY o.channel, o.status ORDER BY o.channel, o.status";

/// How a conversion was born stands in its first change, or else in itself.
const FACTS: &str = "
WITH born AS (
    SELECT c.conversion_id, c.workspace_id, c.click_key, c.visit_id,
           coalesce(h.old_status, c.status) AS status, coalesce(h.old_payout, c.payout) AS payout
    FROM conversions c LEFT JOIN LATERAL (
        SELECT old_status, old_payout FROM conversion_history h WHERE h.conversion_id = c.conversion_id
        ORDER BY changed_at, record_id LIMIT 1
    ) h ON true
), approved AS (
    SELECT workspace_id, click_key, visit_id, payout FROM born WHERE status = 'approved'
    UNION ALL
    SELECT b.workspace_id, b.click_key, b.visit_id, h.new_payout FROM conversion_history h JOIN born b USING (conversion_id)
    WHERE h.new_status = 'approved' AND h.old_status <> 'approved'
), fired AS (
    SELECT a.payout FROM approved a
    WHERE EXISTS (
        SELECT 1 FROM visits v, json_array_elements(v.journey -> 'pixels') p
        WHERE v.click_key = a.click_key AND v.workspace_id = a.workspace_id AND v.visit_id = a.visit_id
          AND p ->> 'pixel' = $1)
)
SELECT (SELECT count(*) FROM fired), (SELECT coalesce(sum(payout), 0) FROM fired),
       (SELECT count(*) FROM conversions), (SELECT count(*) FROM conversion_history WHERE old_status <> new_status),
       (SELECT count(*) FROM clicks),
       (SELECT count(*) FROM outbox_due WHERE attempts > 0 OR due_at <= now() + interval '1 minute'),
       (SELECT count(*) FROM outbox o WHERE o.status <> 'scheduled' AND o.attempts <>
            (SELECT count(*) FROM send_log l WHERE l.outbox_id = o.outbox_id AND l.attempt > 0))";

/// Recounts the deliveries; `pixel` is the demo's.
///
/// # Errors
/// The store failed.
pub async fn recount(client: &mut Client, pixel: &str) -> anyhow::Result<Deliveries> {
    let snapshot = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await
        .context("the recount of deliveries")?;
    let found = read(&snapshot, pixel)
        .await
        .context("the recount of deliveries")?;
    snapshot
        .commit()
        .await
        .context("the recount of deliveries")?;
    Ok(found)
}

async fn read(
    client: &impl GenericClient,
    pixel: &str,
) -> Result<Deliveries, tokio_postgres::Error> {
    let mut lines = Vec::new();
    for row in client.query(LINES, &[]).await? {
        lines.push(Line {
            channel: row.try_get(0)?,
            result: row.try_get(1)?,
            messages: row.try_get(2)?,
            attempts: row.try_get(3)?,
            retries: row.try_get(4)?,
        });
    }
    let row = client.query_one(FACTS, &[&pixel]).await?;
    Ok(Deliveries {
        lines,
        approved: row.try_get(0)?,
        value: row.try_get::<_, Decimal>(1)?.normalize(),
        booked: row.try_get(2)?,
        moved: row.try_get(3)?,
        clicks: row.try_get(4)?,
        due: row.try_get(5)?,
        unlogged: row.try_get(6)?,
    })
}

/// Waits until nothing is due any more but what waits for minutes because its rule says so. Gives up, without failing, when
/// nothing moves for a while: the recount then says what is missing.
///
/// # Errors
/// The store failed.
pub async fn delivered(client: &Client) -> anyhow::Result<()> {
    let mut moved = ((0, 0), Instant::now());
    let mut told = Instant::now();
    loop {
        let row = client
            .query_one(
                "SELECT count(*), coalesce(sum(attempts), 0)::bigint FROM outbox_due
                 WHERE attempts > 0 OR due_at <= now() + interval '1 minute'",
                &[],
            )
            .await
            .context("reading what is due")?;
        let now: (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        if now.0 == 0 {
            return Ok(());
        }
        if now != moved.0 {
            moved = (now, Instant::now());
        } else if moved.1.elapsed() > PATIENCE {
            eprintln!(
                "nothing was delivered for {} s: {} messages are still to go",
                PATIENCE.as_secs(),
                now.0
            );
            return Ok(());
        }
        if told.elapsed() > TELL_EVERY {
            told = Instant::now();
            eprintln!(
                "delivering: {} messages to go, some for a second time",
                now.0
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Deliveries {
    /// Messages of a channel: all, sent, attempts at all of them.
    fn of(&self, channel: &str) -> (i64, i64, i64) {
        let lines = self.lines.iter().filter(|l| l.channel == channel);
        lines.fold((0, 0, 0), |(all, sent, attempts), l| {
            let arrived = if l.result == "sent" { l.messages } else { 0 };
            (all + l.messages, sent + arrived, attempts + l.attempts)
        })
    }
}

/// Everything that must hold of deliveries, each by name.
#[must_use]
pub fn checks(
    expected: &Expected,
    scenery: &Scenery,
    found: &Deliveries,
    counts: &Counts,
) -> Vec<Check> {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let mut all = Checks::default();
    all.push("messages still to go", 0, found.due);
    all.push(
        "messages whose attempts are not those of the send log",
        0,
        found.unlogged,
    );

    let (messages, sent, attempts) = found.of("meta");
    let approvals = scenery.campaigns.iter().filter(|c| c.pixel).map(|c| c.id);
    all.push(
        "meta: conversions with the pixel that became approved",
        signed(approvals.map(|c| expected.approvals_of(c)).sum()),
        found.approved,
    );
    all.push(
        "meta: messages, and those sent",
        (found.approved, found.approved),
        (messages, sent),
    );
    all.push(
        "meta: events at the stand-in, each once",
        sent,
        signed(counts.meta.unique),
    );
    all.push(
        "meta: what they were worth there",
        found.value,
        counts.meta.value.normalize(),
    );
    all.push(
        "meta: attempts in the send log, and arrivals at the stand-in",
        attempts,
        signed(counts.meta.arrivals),
    );

    let (messages, sent, attempts) = found.of("webhook");
    let conversions = u64::try_from(expected.bookings.len()).unwrap_or(0) + expected.status_changes;
    let doors = [Door::Click, Door::Beacon, Door::BatchClicks];
    let clicks = doors.map(|door| expected.ending_at(door, Outcome::Applied));
    all.push(
        "webhook: conversions with their changes, and clicks",
        (signed(conversions), signed(clicks.iter().sum())),
        (found.booked + found.moved, found.clicks),
    );
    let facts = found.booked + found.moved + found.clicks;
    all.push(
        "webhook: messages, and those sent",
        (facts, facts),
        (messages, sent),
    );
    let heard = |kind| signed(counts.hook.messages.get(kind).copied().unwrap_or(0));
    all.push(
        "webhook: conversions and clicks at the receiver, each once",
        (found.booked + found.moved, found.clicks),
        (heard("conversion"), heard("click")),
    );
    all.push(
        "webhook: messages at the receiver, each once",
        sent,
        signed(counts.hook.unique()),
    );
    all.push(
        "webhook: attempts in the send log, and requests at the receiver",
        attempts,
        signed(counts.hook.requests),
    );
    all.push(
        "webhook: bad signatures, and ids that brought something else",
        (0, 0),
        (counts.hook.forged, counts.hook.altered),
    );
    all.0
}
