//! Facts to list: written by plain SQL, each kind once or more.

use millrace_schemas::ids::{self, ClickKey, RecordId};
use millrace_schemas::time::Micros;
use tokio_postgres::Client;
use uuid::Uuid;

/// The id of the `n`th record.
pub fn record(n: i64) -> RecordId {
    RecordId {
        topic_no: 1,
        partition: 0,
        offset: n,
    }
}

/// Makes the topic and the partitions of the last `days`.
pub async fn prepare(client: &Client, days: i32) {
    client
        .execute(
            "INSERT INTO topics (name, generation, log_name, partitions) VALUES ('clicks', 1, 'clicks', 1) ON CONFLICT DO NOTHING",
            &[],
        )
        .await
        .unwrap();
    for table in [
        "visits",
        "clicks",
        "conversions",
        "postback_log",
        "rejects",
        "outbox",
        "send_log",
        "firings",
    ] {
        client
            .execute(
                &format!("SELECT make_daily_partitions('{table}', (now() AT TIME ZONE 'UTC')::date - $1::int, (now() AT TIME ZONE 'UTC')::date + 1)"),
                &[&days],
            )
            .await
            .unwrap();
    }
}

/// A minted click id.
pub fn minted() -> String {
    ids::encode(ids::mint(Micros(1_764_500_000_000_000)).unwrap())
}

/// One visit, `age_s` seconds old.
pub async fn visit(
    client: &Client,
    workspace: i32,
    n: i64,
    click_id: &str,
    campaign: &str,
    age_s: i64,
) {
    let key = ClickKey::new(workspace, click_id);
    let text = key.minted_text().is_none().then_some(click_id);
    client
        .execute(
            "INSERT INTO visits (workspace_id, click_key, visit_id, record_id, accepted_at, stage, direct, click_id, campaign_id,
                    offer_id, ip, user_agent, source_url, fbp, params, journey)
             VALUES ($1, $2, $3, $4, now() - make_interval(secs => $5::bigint::float8), 0, true, $6, $7, 'of_1', '203.0.113.9', 'agent', 'https://s.example/',
                    'fb.1.2.3', '{\"utm_source\":\"news\",\"email\":\"a@b.example\"}', '{\"offer\":{\"id\":\"of_1\"},\"pixels\":[{\"token\":\"t\"}]}')",
            &[&workspace, &key.key, &Uuid::from_u128(n.unsigned_abs().into()), &record(n).to_uuid(), &age_s, &text, &campaign],
        )
        .await
        .unwrap();
}

/// One of each kind, under records numbered from `n`; a foreign and a minted click id.
pub async fn one_of_each(client: &Client, workspace: i32, n: i64, campaign: &str, network: &str) {
    let foreign = format!("foreign-{workspace}");
    visit(client, workspace, n, &minted(), campaign, 30).await;
    visit(client, workspace, n + 1, &foreign, campaign, 20).await;
    let key = ClickKey::new(workspace, &foreign).key;
    let id = |k: i64| record(n + k).to_uuid();
    let of = "now() - interval '10 seconds'";
    for (sql, record) in [
        (format!("INSERT INTO clicks (workspace_id, click_key, record_id, accepted_at, stage, click_id, campaign_id, offer_id)
                  VALUES ($1, $2, $3, {of}, 0, $4, $5, 'of_1')"), id(2)),
        (format!("INSERT INTO conversions (workspace_id, click_key, conversion_id, accepted_at, booked_at, click_id, campaign_id, visit_id,
                  offer_id, role, network_id, txid, event, payout, currency, status, status_at, email_hash, flags)
                  VALUES ($1, $2, $3, {of}, now(), $4, $5, gen_random_uuid(), 'of_1', 'navigation', '{network}', 'tx1', 'sale', 12.5, 'USD',
                  'approved', now(), 'abc', 'payout_defaulted,other')"), id(3)),
        (format!("INSERT INTO parked (workspace_id, click_key, record_id, hash, accepted_at, deadline, kind, click_id, payload)
                  VALUES ($1, $2, $3, 1, {of}, now() + interval '1 day', 'postback', $4, convert_to($5, 'UTF8'))"), id(4)),
        (format!("INSERT INTO rejects (workspace_id, record_id, accepted_at, kind, reason, click_id, payload)
                  SELECT $1, $3, {of}, 'click', 'campaign_mismatch', $4, convert_to($5, 'UTF8') WHERE $2::uuid IS NOT NULL"), id(5)),
        (format!("INSERT INTO postback_log (workspace_id, click_key, record_id, accepted_at, decided_at, outcome, reason, network_id, query)
                  SELECT $1, $2, $3, {of}, now(), 3, 'payout_malformed', '{network}', 'click_id=' || $4 WHERE $5::text <> ''"), id(6)),
        ("INSERT INTO dead_letters (workspace_id, key, record_id, group_name, topic_no, partition, \"offset\", payload, reason, detail, accepted_at)
                  SELECT $1, convert_to($4, 'UTF8'), $3, 'attribution', 1, 0, 9, convert_to($5, 'UTF8'), 'journey_unknown', 'detail', now()
                  WHERE $2::uuid IS NOT NULL".to_owned(), id(7)),
        (format!("INSERT INTO firings (workspace_id, firing_pos, accepted_at, firing_id, trigger_id, module, shard, subject, scope, dedupe,
                  vars, at, notices)
                  SELECT $1, $3, {of}, 'ev_' || $4, 'news.post', 'core', 's' || $1::int, $5, '', 'd', '{{}}', now(), 0
                  WHERE $2::uuid IS NOT NULL"), id(8)),
    ] {
        client.execute(&sql, &[&workspace, &key, &record, &foreign, &campaign]).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    client
        .execute(
            "INSERT INTO conversion_history (workspace_id, conversion_id, changed_at, record_id, old_status, new_status, old_payout, new_payout)
             VALUES ($1, $2, now(), $2, 'pending', 'approved', 1, 12.5)",
            &[&workspace, &id(3)],
        )
        .await
        .unwrap();
    let destination: i32 = client
        .query_one(
            "INSERT INTO destinations (workspace_id, channel, ref) VALUES ($1, 'stub', 'st_' || $1::int) RETURNING destination_no",
            &[&workspace],
        )
        .await
        .unwrap()
        .get(0);
    delivery(client, workspace, destination, "stub", n).await;
}

/// A message that waits, one attempt behind it; its id.
pub async fn delivery(
    client: &Client,
    workspace: i32,
    destination: i32,
    channel: &str,
    n: i64,
) -> Uuid {
    let id = Uuid::from_u128((1_764_500_000_000_u128 << 80) | u128::from(n.unsigned_abs()));
    let cause = record(n).to_uuid();
    for sql in [
        "INSERT INTO outbox (outbox_id, created_at, workspace_id, channel, destination_no, subject_key, payload, cause)
         SELECT $1, now() - interval '10 seconds', $2, $3, $4, 'subject', '{\"email\": \"a@b.example\"}', $5",
        "INSERT INTO outbox_due (outbox_id, created_at, destination_no, due_at, attempts)
         SELECT outbox_id, created_at, $4, now(), 1 FROM outbox
         WHERE outbox_id = $1 AND workspace_id = $2 AND channel = $3 AND cause = $5",
        "INSERT INTO send_log (sent_at, outbox_id, workspace_id, channel, destination_no, attempt, result, code, target)
         SELECT now(), $1, $2, $3, $4, 1, 'retry', '503', 'https://h.example' WHERE $5::uuid IS NOT NULL",
    ] {
        client
            .execute(sql, &[&id, &workspace, &channel, &destination, &cause])
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }
    id
}
