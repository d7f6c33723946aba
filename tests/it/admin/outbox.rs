//! Deliveries and destinations: seen, called off, released, paused.

use super::facts::{delivery, prepare, record};
use super::{Api, Caller, id_of};
use millrace_schemas::ids;
use reqwest::Method;
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;

async fn act(c: &Caller, id: &str, what: &str) -> super::Reply {
    let body = (what == "release").then(|| json!({}));
    c.send(
        Method::POST,
        &format!("/v1/deliveries/{id}/{what}"),
        body,
        &[],
    )
    .await
}

async fn destination(client: &Client, workspace: i32, channel: &str, reference: &str) -> i32 {
    client
        .query_one(
            "INSERT INTO destinations (workspace_id, channel, ref) VALUES ($1, $2, $3) RETURNING destination_no",
            &[&workspace, &channel, &reference],
        )
        .await
        .unwrap()
        .get(0)
}

async fn due(client: &Client, id: &str) -> Option<(i16, bool, bool)> {
    client
        .query_opt(
            "SELECT attempts, due_at <= now(), unsure_since IS NOT NULL FROM outbox_due WHERE outbox_id = $1",
            &[&ids::decode(id).unwrap()],
        )
        .await
        .unwrap()
        .map(|r| (r.get(0), r.get(1), r.get(2)))
}

/// Ends a message as a sender would.
async fn end(client: &Client, id: &str, status: &str) {
    let id: Uuid = ids::decode(id).unwrap();
    client
        .execute("DELETE FROM outbox_due WHERE outbox_id = $1", &[&id])
        .await
        .unwrap();
    client
        .execute(
            "UPDATE outbox SET status = $2, status_reason = 'why', attempts = 8, ended_at = now() WHERE outbox_id = $1",
            &[&id, &status],
        )
        .await
        .unwrap();
}

async fn lease(client: &Client, id: &str, seconds: f64) {
    client
        .execute(
            "UPDATE outbox_due SET lease_token = gen_random_uuid(), lease_until = clock_timestamp() + make_interval(secs => $2)
             WHERE outbox_id = $1",
            &[&ids::decode(id).unwrap(), &seconds],
        )
        .await
        .unwrap();
}

#[actix_rt::test]
async fn deliveries_are_listed_and_shown() {
    let api = Api::start().await;
    let (workspace, c) = api.tenant("acme").await;
    let client = api.database.client().await;
    prepare(&client, 1).await;
    let one = destination(&client, workspace, "webhook", "wh_one").await;
    let two = destination(&client, workspace, "stub", "st_two").await;
    let mut made = Vec::new();
    for n in 0..9 {
        let (no, channel) = if n % 3 == 0 {
            (two, "stub")
        } else {
            (one, "webhook")
        };
        made.push(ids::encode(
            delivery(&client, workspace, no, channel, n).await,
        ));
    }
    lease(&client, &made[1], 60.0).await;
    lease(&client, &made[4], -60.0).await;
    end(&client, &made[2], "sent").await;

    let all = c.all("/v1/deliveries").await;
    let listed: Vec<&str> = all.iter().map(|d| d["id"].as_str().unwrap()).collect();
    let newest_first: Vec<&str> = made.iter().rev().map(String::as_str).collect();
    assert_eq!(listed, newest_first);
    let of = |n: usize| all.iter().find(|d| d["id"] == json!(made[n])).unwrap();
    assert_eq!(of(0)["cause"], record(0).to_string());
    assert_eq!(
        (&of(0)["status"], &of(0)["attempts"], &of(0)["destination"]),
        (&json!("scheduled"), &json!(1), &json!("st_two"))
    );
    assert!(of(0)["due_at"].is_string() && of(0)["ended_at"].is_null());
    assert_eq!(of(1)["status"], "sending");
    assert_eq!(
        (
            &of(2)["status"],
            &of(2)["status_reason"],
            &of(2)["attempts"]
        ),
        (&json!("sent"), &json!("why"), &json!(8))
    );
    assert!(of(2)["due_at"].is_null() && of(2)["ended_at"].is_string());
    for (query, n) in [
        ("status=sending", 2),
        ("status=scheduled", 6),
        ("status=sent", 1),
        ("status=failed", 0),
        ("channel=stub", 3),
        ("destination=wh_one", 6),
        ("channel=stub&destination=wh_one", 0),
        ("since=2999-01-01T00:00:00Z", 0),
        ("until=2999-01-01T00:00:00Z", 9),
    ] {
        let path = format!("/v1/deliveries?{query}");
        assert_eq!(c.all(&path).await.len(), n, "{query}");
        let counted = c.get(&format!("{path}&count=true")).await.expect(200);
        assert_eq!(counted["count"], n, "{query}");
    }
    for bad in ["since=yesterday", "status=gone", "other=1"] {
        c.get(&format!("/v1/deliveries?{bad}"))
            .await
            .refused(400, "invalid");
    }
    // Page by page, while newer ones come.
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    for n in 100.. {
        let page = c
            .get(&format!("/v1/deliveries?limit=2{cursor}"))
            .await
            .expect(200);
        let items = page["items"].as_array().unwrap();
        seen.extend(items.iter().map(id_of));
        let Some(next) = page["next_cursor"].as_str() else {
            break;
        };
        cursor = format!("&cursor={next}");
        delivery(&client, workspace, one, "webhook", n).await;
    }
    assert_eq!(seen, newest_first);

    // Payload and subject are identities.
    let path = format!("/v1/deliveries/{}", made[3]);
    let whole = c.get(&path).await.expect(200);
    assert_eq!(whole["payload"], r#"{"email": "a@b.example"}"#);
    assert_eq!(whole["subject"], "subject");
    assert_eq!(whole["log"][0]["result"], "retry");
    assert_eq!(whole["log"].as_array().map(Vec::len), Some(1));
    let low = api.caller(&api.key(Some(workspace), &["records:read"]).await);
    let hidden = low.get(&path).await.expect(200);
    assert_eq!(
        (&hidden["payload"], &hidden["subject"], &hidden["log"]),
        (&Value::Null, &Value::Null, &whole["log"])
    );
    for no_id in ["x", "00000000000000000000000000", "1-0-1"] {
        c.get(&format!("/v1/deliveries/{no_id}"))
            .await
            .refused(404, "not_found");
    }
    act(&low, &made[3], "cancel")
        .await
        .refused(403, "scope_missing");
}

#[actix_rt::test]
async fn a_delivery_is_called_off_and_released() {
    let api = Api::start().await;
    let (workspace, c) = api.tenant("acme").await;
    let client = api.database.client().await;
    prepare(&client, 1).await;
    let hook = destination(&client, workspace, "webhook", "wh_one").await;
    let stub = destination(&client, workspace, "stub", "st_two").await;
    let new =
        async |no, channel, n| ids::encode(delivery(&client, workspace, no, channel, n).await);

    let id = new(hook, "webhook", 1).await;
    let path = format!("/v1/deliveries/{id}/cancel?dry_run=true");
    let dry = c.send(Method::POST, &path, None, &[]).await.expect(200);
    assert_eq!(dry["would"]["after"]["status"], "cancelled");
    assert!(due(&client, &id).await.is_some());
    let cancelled = act(&c, &id, "cancel").await.expect(200);
    assert_eq!(
        (&cancelled["status"], &cancelled["status_reason"]),
        (&json!("cancelled"), &json!("by_hand"))
    );
    assert_eq!(due(&client, &id).await, None);
    let log = c.get(&format!("/v1/deliveries/{id}")).await.expect(200)["log"].clone();
    assert_eq!(
        (&log[1]["result"], &log[1]["code"], &log[1]["attempt"]),
        (&json!("cancelled"), &json!("by_hand"), &json!(0))
    );
    let problem = act(&c, &id, "cancel").await.refused(409, "delivery_ended");
    assert_eq!(problem["delivery_status"], "cancelled");
    // Released: due now, all attempts before it; that it may have arrived is not forgotten.
    let released = act(&c, &id, "release").await.expect(200);
    assert_eq!(
        (&released["status"], &released["attempts"]),
        (&json!("scheduled"), &json!(0))
    );
    assert!(released["ended_at"].is_null() && released["due_at"].is_string());
    assert_eq!(due(&client, &id).await, Some((0, true, true)));
    act(&c, &id, "release").await.refused(409, "not_releasable");

    // Under a lease it is its holder's; after one, of a receiver that cannot tell, the janitor's.
    lease(&client, &id, 60.0).await;
    act(&c, &id, "cancel").await.refused(409, "being_sent");
    lease(&client, &id, -1.0).await;
    act(&c, &id, "cancel").await.expect(200);
    let claimed = new(stub, "stub", 2).await;
    lease(&client, &claimed, -1.0).await;
    act(&c, &claimed, "cancel").await.refused(409, "being_sent");

    let unsure = new(stub, "stub", 3).await;
    end(&client, &unsure, "unknown").await;
    act(&c, &unsure, "release")
        .await
        .refused(409, "may_repeat_required");
    let path = format!("/v1/deliveries/{unsure}/release");
    c.post(&path, json!({"may_repeat": true})).await.expect(200);
    assert_eq!(due(&client, &unsure).await, Some((0, true, false)));
    let known = new(hook, "webhook", 4).await;
    end(&client, &known, "unknown").await;
    // What its devices answered was before somebody mended something: all of them are asked anew.
    let known_id = ids::decode(&known).unwrap();
    let answered = "UPDATE outbox SET answered = '{\"ps_1\": false}' WHERE outbox_id = $1";
    client.execute(answered, &[&known_id]).await.unwrap();
    act(&c, &known, "release").await.expect(200);
    let asked = "SELECT answered IS NULL FROM outbox WHERE outbox_id = $1";
    let forgotten: bool = client.query_one(asked, &[&known_id]).await.unwrap().get(0);
    assert!(forgotten);
    for (n, status) in [(5, "sent"), (6, "suppressed"), (7, "bounced")] {
        let id = new(hook, "webhook", n).await;
        end(&client, &id, status).await;
        act(&c, &id, "release").await.refused(409, "not_releasable");
        act(&c, &id, "cancel").await.refused(409, "delivery_ended");
    }
    let failed = new(hook, "webhook", 8).await;
    end(&client, &failed, "failed").await;
    // Of many at once, one releases.
    let all = (0..6).map(|_| act(&c, &failed, "release"));
    let won = futures::future::join_all(all).await;
    assert_eq!(won.iter().filter(|r| r.status == 200).count(), 1);
    let rows: i64 = client
        .query_one(
            "SELECT count(*) FROM outbox_due WHERE outbox_id = $1",
            &[&ids::decode(&failed).unwrap()],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(rows, 1);
}

#[actix_rt::test]
async fn destinations_are_paused_and_go_on() {
    let api = Api::start().await;
    let (workspace, c) = api.tenant("acme").await;
    let client = api.database.client().await;
    prepare(&client, 1).await;
    let pixel = c
        .post("/v1/pixels", json!({"name": "Pixel", "dataset_id": "1"}))
        .await
        .expect(201);
    let pixel = id_of(&pixel);
    let stub = destination(&client, workspace, "stub", "st_two").await;
    delivery(&client, workspace, stub, "stub", 1).await;
    let all = c.all("/v1/destinations").await;
    assert_eq!(all.len(), 2);
    let of = all.iter().find(|d| d["id"] == json!(pixel)).unwrap();
    assert_eq!(
        (&of["name"], &of["status"], &of["channel"]),
        (&json!("Pixel"), &json!("active"), &json!("meta"))
    );
    assert!(of["paused_code"].is_null() && of["waiting"].is_null());
    let counted = c.all("/v1/destinations?counts=true&channel=stub").await;
    assert_eq!(counted[0]["waiting"], 1);
    assert!(counted[0]["oldest_due_at"].is_string());

    let path = format!("/v1/destinations/{pixel}");
    let paused = c
        .post(&format!("{path}/pause"), json!({"reason": "they moved"}))
        .await
        .expect(200);
    assert_eq!(
        (&paused["paused_code"], &paused["paused_reason"]),
        (&json!("by_hand"), &json!("they moved"))
    );
    assert!(paused["paused_by"].as_str().unwrap().starts_with("rk_"));
    assert_eq!(c.all("/v1/destinations?paused=true").await.len(), 1);
    // By its number too, and as often as one likes.
    for _ in 0..2 {
        let resumed = c
            .send(
                Method::POST,
                &format!("/v1/destinations/{}/resume", paused["no"]),
                None,
                &[],
            )
            .await
            .expect(200);
        assert_eq!(resumed["paused_code"], Value::Null);
    }
    c.post(&format!("{path}/pause"), json!({"reason": ""}))
        .await
        .refused(400, "invalid");
    client
        .batch_execute("INSERT INTO paused_channels VALUES ('*', 'restored', 'cli')")
        .await
        .unwrap();
    assert_eq!(
        c.all("/v1/destinations").await[0]["held_reason"],
        "restored"
    );
}
