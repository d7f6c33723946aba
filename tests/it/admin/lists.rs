//! Pages that neither repeat nor skip, cursors that belong to one list, what a reader may see.

use super::facts::{minted, one_of_each, prepare, record, visit};
use super::{Api, Caller};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Pages through `path`, running `between` before each further page; the ids seen, in order.
async fn page_through(
    c: &Caller,
    path: &str,
    id: &str,
    mut between: impl AsyncFnMut(usize),
) -> Vec<String> {
    let join = if path.contains('?') { '&' } else { '?' };
    let mut seen = Vec::new();
    let mut cursor = String::new();
    for n in 0.. {
        let page = c
            .get(&format!("{path}{join}limit=7{cursor}"))
            .await
            .expect(200);
        for item in page["items"].as_array().expect("items") {
            seen.push(item[id].as_str().expect("an id").to_owned());
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
        between(n).await;
    }
    seen
}

#[track_caller]
fn each_once(seen: &[String], wanted: impl IntoIterator<Item = String>) {
    let unique: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!(unique.len(), seen.len(), "repeated");
    for id in wanted {
        assert!(unique.contains(&id), "{id} was skipped");
    }
}

#[actix_rt::test]
async fn pages_neither_repeat_nor_skip_while_rows_come() {
    let api = Api::start().await;
    let (workspace, c) = api.tenant("acme").await;
    let client = api.database.client().await;
    let mut ids = Vec::new();
    for n in 0..40 {
        let made = c
            .post(
                "/v1/campaigns",
                json!({"id": format!("c{n}"), "name": "x", "routing": {}}),
            )
            .await
            .expect(201);
        ids.push(super::id_of(&made));
    }
    // Many of one moment: the id alone decides their order.
    client
        .execute(
            "UPDATE campaigns SET created_at = now() WHERE campaign_id < 'c3'",
            &[],
        )
        .await
        .unwrap();
    let seen = page_through(&c, "/v1/campaigns", "id", async |n| {
        c.post(
            "/v1/campaigns",
            json!({"id": format!("late{n}"), "name": "x", "routing": {}}),
        )
        .await
        .expect(201);
    })
    .await;
    each_once(&seen, ids);

    prepare(&client, 40).await;
    // In every window there is something, and many at one moment.
    let ages = [
        1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 200, 400, 3_000, 4_000, 20_000, 22_000, 80_000, 90_000,
        500_000, 700_000, 3_000_000,
    ];
    for (n, age) in ages.iter().enumerate() {
        visit(&client, workspace, n as i64, &minted(), "c1", *age).await;
    }
    // Older than the windows, within a partition of its own.
    client
        .batch_execute("SELECT make_daily_partitions('visits', '2023-01-01', '2023-01-01')")
        .await
        .unwrap();
    client
        .execute(
            "INSERT INTO visits (workspace_id, click_key, visit_id, record_id, accepted_at, stage, direct, campaign_id)
             VALUES ($1, gen_random_uuid(), gen_random_uuid(), $2, '2023-01-01T12:00:00Z', 0, false, 'c1')",
            &[&workspace, &record(900).to_uuid()],
        )
        .await
        .unwrap();
    let wanted: Vec<_> = (0..ages.len() as i64)
        .chain([900])
        .map(|n| record(n).to_string())
        .collect();
    let seen = page_through(&c, "/v1/visits", "record_id", async |n| {
        visit(&client, workspace, 1_000 + n as i64, &minted(), "c1", 0).await;
    })
    .await;
    each_once(&seen, wanted.clone());
    let all = c.all("/v1/visits?campaign=c1").await;
    let times: Vec<_> = all
        .iter()
        .map(|v| v["accepted_at"].as_str().unwrap().to_owned())
        .collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "{times:#?}");
    each_once(
        &all.iter()
            .map(|v| v["record_id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>(),
        wanted,
    );
}

#[actix_rt::test]
async fn a_cursor_belongs_to_one_list_and_filter() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    for n in 0..3 {
        c.post(
            "/v1/campaigns",
            json!({"id": format!("c{n}"), "name": "x", "routing": {}}),
        )
        .await
        .expect(201);
        c.post("/v1/networks", json!({"name": "x"}))
            .await
            .expect(201);
    }
    let page = c
        .get("/v1/campaigns?limit=1&status=active")
        .await
        .expect(200);
    let cursor = page["next_cursor"].as_str().expect("more").to_owned();
    c.get(&format!(
        "/v1/campaigns?limit=2&status=active&cursor={cursor}"
    ))
    .await
    .expect(200);
    for path in [
        format!("/v1/campaigns?cursor={cursor}"),
        format!("/v1/campaigns?status=paused&cursor={cursor}"),
        format!("/v1/networks?status=active&cursor={cursor}"),
        format!("/v1/campaigns?status=active&cursor={}", &cursor[1..]),
        format!(
            "/v1/campaigns?status=active&cursor={}x",
            &cursor[..cursor.len() - 1]
        ),
        "/v1/campaigns?status=active&cursor=".to_owned(),
    ] {
        c.get(&path).await.refused(400, "cursor_mismatch");
    }
    assert_eq!(page["count"], Value::Null);
    assert_eq!(
        c.get("/v1/campaigns?limit=1&count=true").await.expect(200)["count"],
        3
    );
}

#[actix_rt::test]
async fn counting_ends_at_ten_thousand() {
    let api = Api::start().await;
    let (workspace, c) = api.tenant("acme").await;
    let client = api.database.client().await;
    client
        .execute(
            "INSERT INTO campaigns (campaign_id, workspace_id, name, routing) SELECT 'n' || n, $1, 'x', '{}' FROM generate_series(1, 10000) n",
            &[&workspace],
        )
        .await
        .unwrap();
    assert_eq!(
        c.get("/v1/campaigns?limit=1&count=true").await.expect(200)["count"],
        10_000
    );
    c.post("/v1/campaigns", json!({"name": "x", "routing": {}}))
        .await
        .expect(201);
    assert_eq!(
        c.get("/v1/campaigns?limit=1&count=true").await.expect(200)["count"],
        json!({"at_least": 10_000})
    );
}

#[actix_rt::test]
async fn facts_are_listed_by_what_is_asked() {
    let api = Api::start().await;
    let (workspace, c) = api.tenant("acme").await;
    let client = api.database.client().await;
    prepare(&client, 1).await;
    one_of_each(&client, workspace, 10, "spring", "nw_1").await;
    let visits = c.all("/v1/visits").await;
    assert_eq!(visits.len(), 2);
    assert_eq!(visits[0]["click_id"], format!("foreign-{workspace}"));
    let minted = visits[1]["click_id"].as_str().unwrap();
    assert_eq!(minted.len(), 26);
    assert_eq!(
        c.all(&format!("/v1/visits?click_id={minted}")).await.len(),
        1
    );
    assert_eq!(c.all("/v1/visits?from=2999-01-01T00:00:00Z").await.len(), 0);
    c.get("/v1/visits?from=yesterday")
        .await
        .refused(400, "invalid");

    let conversion = &c
        .all("/v1/conversions?event=sale&status=approved&campaign=spring")
        .await[0];
    assert_eq!(conversion["conversion_id"], record(13).to_string());
    assert_eq!(
        (&conversion["payout"], &conversion["flags"]),
        (&json!("12.5"), &json!(["payout_defaulted", "other"]))
    );
    for nothing in [
        "event=x",
        "status=pending",
        "campaign=x",
        "click_id=x",
        "network=x",
        "txid=x",
        "offer=x",
    ] {
        assert_eq!(
            c.all(&format!("/v1/conversions?{nothing}")).await.len(),
            0,
            "{nothing}"
        );
    }
    c.get("/v1/conversions?status=maybe")
        .await
        .refused(400, "invalid");
    let one = c
        .get(&format!("/v1/conversions/{}", record(13)))
        .await
        .expect(200);
    assert_eq!(
        (
            &one["history"][0]["old_payout"],
            &one["history"][0]["new_status"]
        ),
        (&json!("1"), &json!("approved"))
    );
    for no_id in ["x", "1-0", "1-0-x", "1-0-013", "+1-0-13", "1-0-13%00"] {
        c.get(&format!("/v1/conversions/{no_id}"))
            .await
            .refused(404, "not_found");
    }
    assert_eq!(c.all("/v1/parked?kind=postback").await.len(), 1);
    assert_eq!(c.all("/v1/parked?kind=click").await.len(), 0);
    let kinds: BTreeSet<_> = c
        .all("/v1/rejects")
        .await
        .iter()
        .map(|r| r["kind"].to_string())
        .collect();
    assert_eq!(kinds.len(), 2);
    assert_eq!(
        c.all("/v1/rejects?reason=payout_malformed&kind=postback")
            .await
            .len(),
        1
    );
    assert_eq!(
        c.all("/v1/dead-letters?status=open&topic=clicks").await[0]["offset"],
        "9"
    );
}

#[actix_rt::test]
async fn identities_need_their_scope() {
    let api = Api::start().await;
    let (workspace, high) = api.tenant("acme").await;
    let low = api.caller(
        &api.key(Some(workspace), &["reports:read", "records:read"])
            .await,
    );
    let client = api.database.client().await;
    prepare(&client, 1).await;
    one_of_each(&client, workspace, 10, "spring", "nw_1").await;
    let (seen, hidden) = (high.all("/v1/visits").await, low.all("/v1/visits").await);
    assert_eq!(seen[0]["ip"], "203.0.113.9");
    assert_eq!(seen[0]["params"]["email"], "a@b.example");
    for field in ["ip", "user_agent", "fbp"] {
        assert_eq!(hidden[0][field], Value::Null, "{field}");
    }
    assert_eq!(hidden[0]["params"], json!({"utm_source": "news"}));
    assert_eq!(hidden[0]["journey"], json!({"offer": {"id": "of_1"}}));
    assert_eq!(
        low.all("/v1/conversions").await[0]["email_hash"],
        Value::Null
    );
    for path in ["/v1/parked", "/v1/rejects", "/v1/dead-letters"] {
        let seen = high.all(path).await;
        assert!(!seen.is_empty(), "{path}: nothing to hide");
        assert!(seen.iter().all(|i| i["payload"].is_string()), "{path}");
        assert!(
            low.all(path).await.iter().all(|i| i["payload"].is_null()),
            "{path}"
        );
    }
}
