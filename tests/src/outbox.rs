//! Messages put into the outbox by plain SQL, and what became of them: no product code.

use std::collections::BTreeMap;
use tokio_postgres::Client;
use uuid::Uuid;

/// Makes a workspace; its number.
///
/// # Errors
/// The store's.
pub async fn workspace(store: &Client, slug: &str) -> anyhow::Result<i32> {
    let row = store
        .query_one(
            "INSERT INTO workspaces (slug, name) VALUES ($1, $1) RETURNING workspace_id",
            &[&slug],
        )
        .await?;
    Ok(row.get(0))
}

/// Makes a destination, or finds the one that a pixel or webhook brought with it; its number.
///
/// # Errors
/// The store's.
pub async fn destination(
    store: &Client,
    workspace: i32,
    channel: &str,
    reference: &str,
) -> anyhow::Result<i32> {
    let row = store
        .query_one(
            "INSERT INTO destinations (workspace_id, channel, ref) VALUES ($1, $2, $3)
             ON CONFLICT (channel, ref) DO UPDATE SET ref = excluded.ref RETURNING destination_no",
            &[&workspace, &channel, &reference],
        )
        .await?;
    Ok(row.get(0))
}

/// The id of a destination's `n`th message.
#[must_use]
pub fn id_of(destination: i32, n: u32) -> Uuid {
    let high = 0x0190_0000_0000_8000_u128 << 64;
    Uuid::from_u128(high | 1 << 63 | u128::from(destination.unsigned_abs()) << 32 | u128::from(n))
}

/// Puts messages `range` into a destination's outbox, due at once; `payload` of each is JSON.
///
/// # Errors
/// The store's.
pub async fn fill(
    store: &Client,
    workspace: i32,
    channel: &str,
    destination: i32,
    range: std::ops::Range<u32>,
    payload: impl Fn(u32) -> String,
) -> anyhow::Result<()> {
    for at in range.clone().step_by(5_000) {
        let part = at..range.end.min(at + 5_000);
        let ids: Vec<Uuid> = part.clone().map(|n| id_of(destination, n)).collect();
        let payloads: Vec<String> = part.map(&payload).collect();
        store
            .execute(
                "WITH m AS (
                     INSERT INTO outbox (outbox_id, created_at, workspace_id, channel, destination_no, payload, cause)
                     SELECT id, now(), $1, $2, $3, payload::json, id FROM unnest($4::uuid[], $5::text[]) AS m(id, payload)
                     RETURNING outbox_id, created_at)
                 INSERT INTO outbox_due (outbox_id, created_at, destination_no, due_at)
                 SELECT outbox_id, created_at, $3, created_at FROM m",
                &[&workspace, &channel, &destination, &ids, &payloads],
            )
            .await?;
    }
    Ok(())
}

/// How many messages of a destination stand in each status; what is due counts as `due`.
///
/// # Errors
/// The store's.
pub async fn statuses(store: &Client, destination: i32) -> anyhow::Result<BTreeMap<String, i64>> {
    let rows = store
        .query(
            "SELECT CASE WHEN status = 'scheduled' THEN 'due' ELSE status END, count(*) FROM outbox
             WHERE destination_no = $1 GROUP BY 1",
            &[&destination],
        )
        .await?;
    Ok(rows.iter().map(|r| (r.get(0), r.get(1))).collect())
}

/// Messages of a destination in a status.
///
/// # Errors
/// The store's.
pub async fn in_status(
    store: &Client,
    destination: i32,
    status: &str,
) -> anyhow::Result<Vec<Uuid>> {
    let rows = store
        .query(
            "SELECT outbox_id FROM outbox WHERE destination_no = $1 AND status = $2",
            &[&destination, &status],
        )
        .await?;
    Ok(rows.iter().map(|r| r.get(0)).collect())
}

/// How many messages are still due, anywhere.
///
/// # Errors
/// The store's.
pub async fn due(store: &Client) -> anyhow::Result<i64> {
    let row = store
        .query_one("SELECT count(*) FROM outbox_due", &[])
        .await?;
    Ok(row.get(0))
}

/// Lets all leases run out, once nobody lives who holds them: the database's clock cannot be moved, so the moments are.
///
/// # Errors
/// The store's.
pub async fn expire_leases(store: &Client) -> anyhow::Result<()> {
    use crate::process::eventually;
    let within = std::time::Duration::from_secs(30);
    // What a killed process had asked for may still be done by its server process: a claim that commits after this would be kept
    // to its end.
    let left = "SELECT count(*) FROM pg_stat_activity
                WHERE application_name LIKE 'millrace/delivery/%' AND datname = current_database()";
    eventually("no sender's session is left", within, async || {
        let left: i64 = store.query_one(left, &[]).await?.get(0);
        Ok((left == 0).then_some(()))
    })
    .await?;
    store
        .batch_execute(
            "UPDATE outbox_due SET lease_until = now() - interval '1 second' WHERE lease_token IS NOT NULL;
             UPDATE outbox_leases SET lease_until = now() - interval '1 second'",
        )
        .await?;
    hasten(store).await
}

/// Tokens of all leases there are.
///
/// # Errors
/// The store's.
pub async fn leases(store: &Client) -> anyhow::Result<Vec<Uuid>> {
    let sql = "SELECT DISTINCT lease_token FROM outbox_due WHERE lease_token IS NOT NULL";
    let rows = store.query(sql, &[]).await?;
    Ok(rows.iter().map(|r| r.get(0)).collect())
}

/// Lets these leases run out, whoever holds them.
///
/// # Errors
/// The store's.
pub async fn run_out(store: &Client, tokens: &[Uuid]) -> anyhow::Result<()> {
    for table in ["outbox_due", "outbox_leases"] {
        let sql = format!(
            "UPDATE {table} SET lease_until = now() - interval '1 second' WHERE lease_token = ANY($1)"
        );
        store.execute(sql.as_str(), &[&tokens]).await?;
    }
    Ok(())
}

/// How many messages are still held under these leases.
///
/// # Errors
/// The store's.
pub async fn held(store: &Client, tokens: &[Uuid]) -> anyhow::Result<i64> {
    let sql = "SELECT count(*) FROM outbox_due WHERE lease_token = ANY($1)";
    Ok(store.query_one(sql, &[&tokens]).await?.get(0))
}

/// What waits for its next attempt is due now; what somebody is just working on is left alone.
///
/// # Errors
/// The store's.
pub async fn hasten(store: &Client) -> anyhow::Result<()> {
    store
        .batch_execute(
            "UPDATE outbox_due SET due_at = now() WHERE ctid IN (
                 SELECT ctid FROM outbox_due WHERE lease_token IS NULL AND due_at > now() FOR UPDATE SKIP LOCKED)
             AND lease_token IS NULL",
        )
        .await?;
    Ok(())
}

/// Lets a webhook of each workspace listen to everything; workspaces that have only a number get a row.
///
/// # Errors
/// The store's.
pub async fn listen(store: &Client, workspaces: &[i32]) -> anyhow::Result<()> {
    for no in workspaces {
        store
            .execute(
                "INSERT INTO workspaces (workspace_id, slug, name) OVERRIDING SYSTEM VALUE
                 VALUES ($1, 'listening-' || $1::int4, '') ON CONFLICT DO NOTHING",
                &[no],
            )
            .await?;
        store
            .execute(
                "INSERT INTO webhooks (webhook_id, workspace_id, name, url, events)
                 VALUES ('wh_' || $1::int4, $1, '', 'https://x.example', '{visit,click,conversion}')",
                &[no],
            )
            .await?;
    }
    Ok(())
}

/// What was told of the facts of workspaces that listen, of visits, clicks and conversions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Facts.
    pub facts: [i64; 3],
    /// Messages to webhooks about them.
    pub told: [i64; 3],
    /// Messages under an id of another.
    pub twice: i64,
    /// Messages that are not due (any more).
    pub undue: i64,
}

/// Counts by plain SQL: facts on one side and messages on the other.
///
/// # Errors
/// The store's.
pub async fn told(store: &Client) -> anyhow::Result<Told> {
    let row = store
        .query_one(
            "WITH w AS (SELECT workspace_id FROM webhooks),
                  m AS (SELECT payload ->> 'type' AS type, outbox_id FROM outbox)
             SELECT (SELECT count(*) FROM visits JOIN w USING (workspace_id)),
                    (SELECT count(*) FROM clicks JOIN w USING (workspace_id)),
                    (SELECT count(*) FROM conversions JOIN w USING (workspace_id))
                    + (SELECT count(*) FROM conversion_history JOIN w USING (workspace_id)),
                    (SELECT count(*) FROM m WHERE type = 'visit'),
                    (SELECT count(*) FROM m WHERE type = 'click'),
                    (SELECT count(*) FROM m WHERE type = 'conversion'),
                    (SELECT count(*) - count(DISTINCT outbox_id) FROM m),
                    (SELECT count(*) FROM m) - (SELECT count(*) FROM outbox_due)",
            &[],
        )
        .await?;
    Ok(Told {
        facts: [row.get(0), row.get(1), row.get(2)],
        told: [row.get(3), row.get(4), row.get(5)],
        twice: row.get(6),
        undue: row.get(7),
    })
}

/// Whether every fact of workspaces that listen was told once, and nothing of it has been sent yet.
///
/// # Errors
/// Some fact was not told, or twice.
pub async fn ensure_told_once(store: &Client) -> anyhow::Result<()> {
    let Told {
        facts,
        told,
        twice,
        undue,
    } = told(store).await?;
    anyhow::ensure!(facts == told, "facts {facts:?}, told {told:?}");
    let some = facts.iter().all(|n| *n > 0);
    anyhow::ensure!(some, "nothing to tell: {facts:?}");
    anyhow::ensure!(twice == 0, "{twice} messages under an id of another");
    anyhow::ensure!(undue == 0, "{undue} messages are not due");
    Ok(())
}
