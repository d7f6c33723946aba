//! Pixels and webhooks: made, changed, archived; their secrets go in, or come out once, and never again.

use super::{Api, Caller, id_of};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use millrace::sealing::Seals;
use reqwest::Method;
use serde_json::{Value, json};
use tokio_postgres::Client;

const TOKEN: &str = "EAAB-the-access-token";
const APP_SECRET: &str = "the-app-secret";

fn seals() -> Seals {
    Seals::from_texts(Some(super::SEAL_KEY), None).unwrap()
}

/// Every list of the workspace in one text.
async fn all_lists(c: &Caller) -> String {
    let mut text = String::new();
    for r in millrace::api::registry::registry() {
        let op = &r.operation;
        if op.list && op.place == millrace::api::registry::Place::Workspace && !op.reveals {
            text.push_str(&Value::Array(c.all(op.path).await).to_string());
        }
    }
    text
}

async fn pause(client: &Client, reference: &str, code: &str) {
    client
        .execute(
            "UPDATE destinations SET paused_code = $2, paused_reason = 'r', paused_by = 'x', paused_at = now() WHERE ref = $1",
            &[&reference, &code],
        )
        .await
        .unwrap();
}

async fn paused(client: &Client, reference: &str) -> Option<String> {
    client
        .query_one(
            "SELECT paused_code FROM destinations WHERE ref = $1",
            &[&reference],
        )
        .await
        .unwrap()
        .get(0)
}

#[actix_rt::test]
async fn a_pixel_takes_credentials_and_never_shows_them() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let client = api.database.client().await;
    let plain = c
        .post("/v1/pixels", json!({"name": "Plain", "dataset_id": "007"}))
        .await
        .expect(201);
    for (field, want) in [
        ("dataset_id", json!("007")),
        ("event_name", json!("Purchase")),
        ("platform", json!("meta")),
        ("action_source", json!("website")),
        ("currency", Value::Null),
        ("data_processing", Value::Null),
        ("has_access_token", json!(false)),
        ("has_app_secret", json!(false)),
    ] {
        assert_eq!(plain[field], want, "{field}");
    }
    let made = c
        .post(
            "/v1/pixels",
            json!({"name": "P", "dataset_id": "1", "event_name": "Lead", "currency": "EUR", "action_source": "phone_call",
                   "data_processing": {"options": ["LDU"], "country": 1, "state": 1000}, "test_event_code": "TEST1",
                   "access_token": TOKEN, "app_secret": APP_SECRET}),
        )
        .await;
    let id = id_of(&made.body);
    assert!(id.starts_with("px_"), "{id}");
    assert_eq!(made.header("location"), format!("/v1/pixels/{id}"));
    let made = made.expect(201);
    assert_eq!(
        (&made["has_access_token"], &made["has_app_secret"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(
        made["data_processing"],
        json!({"options": ["LDU"], "country": 1, "state": 1000})
    );
    assert_eq!(c.get(&format!("/v1/pixels/{id}")).await.expect(200), made);
    assert_eq!(c.all("/v1/pixels?platform=meta").await.len(), 2);

    // What the channel opens.
    let sealed = async |id: &str| {
        let row = client
            .query_one(
                "SELECT access_token_sealed, app_secret_sealed FROM pixels WHERE pixel_id = $1",
                &[&id],
            )
            .await
            .unwrap();
        (
            row.get::<_, Option<Vec<u8>>>(0),
            row.get::<_, Option<Vec<u8>>>(1),
        )
    };
    let (token, secret) = sealed(&id).await;
    let open = |purpose: &str, blob: Option<Vec<u8>>| {
        seals()
            .open(&format!("{purpose}:{id}"), &blob.unwrap())
            .unwrap()
    };
    assert_eq!(open("pixel-access-token", token), TOKEN.as_bytes());
    assert_eq!(open("pixel-app-secret", secret), APP_SECRET.as_bytes());

    // A merge patch cannot name them; a replacement leaves them.
    let patched = c
        .patch(&format!("/v1/pixels/{id}"), json!({"access_token": "x"}))
        .await
        .refused(400, "invalid");
    assert_eq!(patched["errors"][0]["code"], "unknown_field");
    let replaced = c
        .send(
            Method::PUT,
            &format!("/v1/pixels/{id}"),
            Some(json!({"name": "Q", "dataset_id": "2"})),
            &[("if-match", "\"1\"")],
        )
        .await
        .expect(200);
    assert_eq!(
        (&replaced["version"], &replaced["has_access_token"]),
        (&json!(2), &json!(true))
    );

    // New credentials; a destination that waited for them goes on, one that a person paused does not.
    let path = format!("/v1/pixels/{id}/credentials");
    for (code, after) in [
        ("secret_unreadable", None),
        ("meta_token_invalid", None),
        ("by_hand", Some("by_hand")),
    ] {
        pause(&client, &id, code).await;
        let set = c
            .post(&path, json!({"access_token": format!("{TOKEN}-{code}")}))
            .await
            .expect(200);
        assert_eq!(set["has_app_secret"], json!(true));
        assert_eq!(paused(&client, &id).await.as_deref(), after, "{code}");
    }
    let (token, secret) = sealed(&id).await;
    assert_eq!(
        open("pixel-access-token", token),
        format!("{TOKEN}-by_hand").as_bytes()
    );
    assert!(secret.is_some());
    let cleared = c.post(&path, json!({"app_secret": null})).await.expect(200);
    assert_eq!(
        (&cleared["has_access_token"], &cleared["has_app_secret"]),
        (&json!(true), &json!(false))
    );
    for bad in [
        json!({}),
        json!({"access_token": "a b"}),
        json!({"token": "x"}),
    ] {
        c.post(&path, bad).await.refused(400, "invalid");
    }
    // Another dataset may be one that is there.
    pause(&client, &id, "meta_permission").await;
    c.patch(&format!("/v1/pixels/{id}"), json!({"name": "R"}))
        .await
        .expect(200);
    assert!(paused(&client, &id).await.is_some());
    c.patch(&format!("/v1/pixels/{id}"), json!({"dataset_id": "3"}))
        .await
        .expect(200);
    assert_eq!(paused(&client, &id).await, None);

    let text = all_lists(&c).await;
    assert!(text.contains(&id) && !text.contains(TOKEN) && !text.contains(APP_SECRET));
    let rows = client
        .query("SELECT pixels::text FROM pixels", &[])
        .await
        .unwrap();
    assert!(rows.iter().all(|r| !r.get::<_, String>(0).contains(TOKEN)));
}

#[actix_rt::test]
async fn what_a_pixel_cannot_be_is_said_at_once() {
    let api = Api::start().await;
    let (workspace, c) = api.tenant("acme").await;
    let problem = c
        .post(
            "/v1/pixels",
            json!({"name": " ", "dataset_id": "../me", "currency": "usd", "action_source": "web", "platform": "x",
                   "data_processing": {"options": ["LDU"], "state": 5}, "test_event_code": "a b", "access_token": "", "extra": 1}),
        )
        .await
        .refused(400, "invalid");
    let paths: Vec<&str> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["path"].as_str().unwrap())
        .collect();
    for path in [
        "/dataset_id",
        "/currency",
        "/action_source",
        "/platform",
        "/test_event_code",
        "/access_token",
        "/extra",
    ] {
        assert!(paths.contains(&path), "{path}: {paths:?}");
    }
    let problem = c
        .post(
            "/v1/pixels",
            json!({"name": " ", "dataset_id": "1", "data_processing": {"options": [], "state": 5}}),
        )
        .await
        .refused(400, "invalid");
    assert_eq!(problem["errors"].as_array().map(Vec::len), Some(2));
    // Scopes.
    let reader = api.caller(&api.key(Some(workspace), &["entities:read"]).await);
    reader.get("/v1/pixels").await.expect(200);
    reader
        .post("/v1/pixels", json!({"name": "x", "dataset_id": "1"}))
        .await
        .refused(403, "scope_missing");
    // Without a key to seal with, credentials are refused and nothing is made.
    let bare = Api::start_with(Seals::none()).await;
    let (_, c) = bare.tenant("acme").await;
    c.post(
        "/v1/pixels",
        json!({"name": "x", "dataset_id": "1", "access_token": TOKEN}),
    )
    .await
    .refused(409, "sealing_unconfigured");
    assert!(c.all("/v1/pixels").await.is_empty());
    c.post("/v1/pixels", json!({"name": "x", "dataset_id": "1"}))
        .await
        .expect(201);
    c.post(
        "/v1/webhooks",
        json!({"name": "x", "url": "https://x.example/", "events": ["visit"]}),
    )
    .await
    .refused(409, "sealing_unconfigured");
    assert!(c.all("/v1/webhooks").await.is_empty());
}

#[actix_rt::test]
async fn campaigns_name_pixels_of_their_workspace() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let pixel = |n: &'static str| {
        let c = c.clone();
        async move {
            let body = json!({"name": n, "dataset_id": "1"});
            id_of(&c.post("/v1/pixels", body).await.expect(201))
        }
    };
    let (one, two) = (pixel("one").await, pixel("two").await);
    let archive = async |id: &str| {
        c.send(
            Method::DELETE,
            &format!("/v1/pixels/{id}"),
            None,
            &[("if-match", "*")],
        )
        .await
        .expect(200)
    };
    let campaign =
        |pixels: Value| json!({"id": "spring", "name": "x", "routing": {"pixels": pixels}});
    for (pixels, path, code) in [
        (
            json!([{"pixel": "px_0"}]),
            "/routing/pixels/0/pixel",
            "unknown_pixel",
        ),
        (
            json!([{"kind": "meta"}]),
            "/routing/pixels/0/pixel",
            "required",
        ),
        (
            json!([{"pixel": one, "kind": "meta"}]),
            "/routing/pixels/0/kind",
            "unknown_field",
        ),
        (
            json!([{"pixel": one, "amount": 1.5}]),
            "/routing/pixels/0/amount",
            "wrong_type",
        ),
        (
            json!([{"pixel": one, "amount": "-1"}]),
            "/routing/pixels/0/amount",
            "malformed",
        ),
        (
            json!([{"pixel": one, "currency": "usd"}]),
            "/routing/pixels/0/currency",
            "malformed",
        ),
        (
            json!([{"pixel": one, "event": ""}]),
            "/routing/pixels/0/event",
            "too_short",
        ),
        (
            json!([{"pixel": one, "conversion_events": ["a", "a"]}]),
            "/routing/pixels/0/conversion_events/1",
            "invalid_name",
        ),
    ] {
        let problem = c
            .post("/v1/campaigns", campaign(pixels.clone()))
            .await
            .refused(400, "invalid");
        let named = problem["errors"]
            .as_array()
            .unwrap()
            .iter()
            .any(|e| e["path"] == path && e["code"] == code);
        assert!(named, "{pixels}: {problem:#}");
    }
    let made = c
        .post(
            "/v1/campaigns",
            campaign(json!([{"pixel": one}, {"pixel": one, "amount": "0", "event": "Lead"}])),
        )
        .await
        .expect(201);
    assert_eq!(
        made["routing"]["pixels"][0],
        json!({"pixel": one, "event": null, "amount": null, "currency": null, "conversion_events": []})
    );
    // Archived, it may stay where it stands, and be named nowhere anew.
    archive(&one).await;
    archive(&two).await;
    let routing = json!({"pixels": [{"pixel": one, "amount": "2"}]});
    c.patch("/v1/campaigns/spring", json!({"routing": routing}))
        .await
        .expect(200);
    let routing = json!({"pixels": [{"pixel": one}, {"pixel": two}]});
    let problem = c
        .patch("/v1/campaigns/spring", json!({"routing": routing}))
        .await
        .refused(400, "invalid");
    assert_eq!(
        (&problem["errors"][0]["path"], &problem["errors"][0]["code"]),
        (&json!("/routing/pixels/1/pixel"), &json!("archived_pixel"))
    );
}

#[actix_rt::test]
async fn a_webhook_shows_its_secret_once_and_rotates_it() {
    let api = Api::start().await;
    let (workspace, c) = api.tenant("acme").await;
    let client = api.database.client().await;
    let made = c
        .post(
            "/v1/webhooks",
            json!({"name": "H", "url": "https://h.example/in?x=1", "events": ["visit", "conversion"]}),
        )
        .await
        .expect(201);
    let (id, first) = (id_of(&made), made["secret"].as_str().unwrap().to_owned());
    assert!(id.starts_with("wh_"), "{id}");
    let key = first.strip_prefix("whsec_").expect("its prefix");
    assert_eq!(STANDARD.decode(key).unwrap().len(), 32);
    let path = format!("/v1/webhooks/{id}");
    let got = c.get(&path).await.expect(200);
    assert!(got.get("secret").is_none());
    for field in ["disabled_reason", "failing_since", "previous_until"] {
        assert_eq!(got[field], Value::Null, "{field}");
    }
    let stored = async || {
        let row = client
            .query_one(
                "SELECT secret_sealed, previous_secret_sealed FROM webhooks WHERE webhook_id = $1",
                &[&id],
            )
            .await
            .unwrap();
        let open = |blob: Option<Vec<u8>>| {
            let opened = seals().open(&format!("webhook-secret:{id}"), &blob?);
            Some(String::from_utf8(opened.unwrap()).unwrap())
        };
        (open(row.get(0)), open(row.get(1)))
    };
    assert_eq!(stored().await, (Some(first.clone()), None));

    // The query of its URL may be a secret between two others: who may not see identities sees that there is one, and cannot
    // write that back.
    assert_eq!(got["url"], "https://h.example/in?x=1");
    let low = api
        .key(Some(workspace), &["entities:read", "webhooks:manage"])
        .await;
    let low = api.caller(&low);
    let seen = low.get(&path).await.expect(200);
    assert_eq!(seen["url"], "https://h.example/in?…");
    assert_eq!(low.all("/v1/webhooks").await[0]["url"], seen["url"]);
    low.patch(&path, json!({"url": seen["url"]}))
        .await
        .refused(400, "invalid");
    low.patch(&path, json!({"name": "H"})).await.expect(200);
    assert_eq!(
        c.get(&path).await.expect(200)["url"],
        "https://h.example/in?x=1"
    );

    // A test is a message like any other.
    let test = format!("{path}/test");
    let sent = c
        .send(Method::POST, &test, None, &[("idempotency-key", "once")])
        .await
        .expect(202);
    let again = c
        .send(Method::POST, &test, None, &[("idempotency-key", "once")])
        .await
        .expect(202);
    assert_eq!(sent, again);
    let delivery = format!("/v1/deliveries/{}", sent["delivery_id"].as_str().unwrap());
    let delivery = c.get(&delivery).await.expect(200);
    assert_eq!(
        (
            &delivery["channel"],
            &delivery["destination"],
            &delivery["status"]
        ),
        (&json!("webhook"), &json!(id), &json!("scheduled"))
    );
    let payload: Value = serde_json::from_str(delivery["payload"].as_str().unwrap()).unwrap();
    assert_eq!(
        (
            &payload["type"],
            &payload["workspace"],
            &payload["data"]["webhook"]
        ),
        (&json!("test"), &json!("acme"), &json!(id))
    );
    assert_eq!(c.all("/v1/deliveries").await.len(), 1);

    pause(&client, &id, "secret_unreadable").await;
    let rotate = format!("{path}/rotate-secret");
    let rotated = c.post(&rotate, json!({})).await.expect(200);
    let second = rotated["secret"].as_str().unwrap().to_owned();
    assert_ne!(second, first);
    assert!(rotated["previous_until"].is_string());
    assert_eq!(stored().await, (Some(second.clone()), Some(first.clone())));
    assert_eq!(paused(&client, &id).await, None);
    let rotated = c.post(&rotate, json!({"overlap_s": 0})).await.expect(200);
    let third = rotated["secret"].as_str().unwrap().to_owned();
    assert_eq!(rotated["previous_until"], Value::Null);
    assert_eq!(stored().await, (Some(third.clone()), None));
    c.post(&rotate, json!({"overlap_s": 604_801}))
        .await
        .refused(400, "invalid");
    // A dry run shows nothing and changes nothing.
    let dry = c
        .post(&format!("{rotate}?dry_run=true"), json!({}))
        .await
        .expect(200);
    assert_eq!(dry["would"]["after"]["secret"], Value::Null);
    assert_eq!(stored().await.0, Some(third.clone()));

    // Disabled by its failures, enabled by a person.
    client
        .execute(
            "UPDATE webhooks SET status = 'disabled', disabled_reason = 'gone', failing_since = now() WHERE webhook_id = $1",
            &[&id],
        )
        .await
        .unwrap();
    assert_eq!(c.all("/v1/webhooks?status=disabled").await.len(), 1);
    let enabled = c
        .send(Method::POST, &format!("{path}/enable"), None, &[])
        .await
        .expect(200);
    assert_eq!(
        (
            &enabled["status"],
            &enabled["disabled_reason"],
            &enabled["failing_since"]
        ),
        (&json!("active"), &Value::Null, &Value::Null)
    );
    let off = c
        .patch(&path, json!({"status": "disabled"}))
        .await
        .expect(200);
    assert_eq!(off["disabled_reason"], "by hand");
    c.send(Method::DELETE, &path, None, &[("if-match", "*")])
        .await
        .expect(200);
    for act in ["enable", "test"] {
        c.send(Method::POST, &format!("{path}/{act}"), None, &[])
            .await
            .refused(409, "conflict");
    }

    for bad in [
        json!({"name": "x", "url": "ftp://x.example/", "events": ["visit"]}),
        json!({"name": "x", "url": "https://u:p@x.example/", "events": ["visit"]}),
        json!({"name": "x", "url": "https://x.example/", "events": []}),
        json!({"name": "x", "url": "https://x.example/", "events": ["visit", "visit"]}),
        json!({"name": "x", "url": "https://x.example/", "events": ["lead"]}),
        json!({"name": "x", "url": "https://x.example/", "events": ["visit"], "secret": "mine"}),
    ] {
        c.post("/v1/webhooks", bad).await.refused(400, "invalid");
    }
    let links = api.caller(&api.key(Some(workspace), &["links:write"]).await);
    links
        .post(&rotate, json!({}))
        .await
        .refused(403, "scope_missing");
    let text = all_lists(&c).await;
    assert!(text.contains(&id));
    for secret in [first, second, third] {
        assert!(!text.contains(&secret[6..]));
    }
}
