//! Writes: once for a key, on the version that was seen, all faults at once, nothing in a dry run.

use super::life::set_up;
use super::{Api, Caller, id_of};
use reqwest::Method;
use serde_json::{Value, json};

async fn send_with(c: &Caller, path: &str, key: &str, body: Value) -> super::Reply {
    c.send(Method::POST, path, Some(body), &[("idempotency-key", key)])
        .await
}

#[actix_rt::test]
async fn an_idempotency_key_acts_once() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let first = send_with(&c, "/v1/networks", "k1", json!({"name": "Net"}))
        .await
        .expect(201);
    assert!(first["secret"].is_string());
    let again = send_with(&c, "/v1/networks", "k1", json!({"name": "Net"})).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(again.header("etag"), "\"1\"");
    let again = again.expect(201);
    assert_eq!(
        (&again["id"], &again["secret"]),
        (&first["id"], &Value::Null)
    );
    send_with(&c, "/v1/networks", "k1", json!({"name": "Other"}))
        .await
        .refused(409, "idempotency_conflict");
    send_with(
        &c,
        "/v1/networks?dry_run=true",
        "k1",
        json!({"name": "Net"}),
    )
    .await
    .expect(200);
    send_with(&c, "/v1/networks", &"x".repeat(256), json!({"name": "Net"}))
        .await
        .refused(400, "header_malformed");
    // Another operation and another actor have keys of their own.
    send_with(
        &c,
        "/v1/campaigns",
        "k1",
        json!({"name": "x", "routing": {}}),
    )
    .await
    .expect(201);
    let (_, other) = api.tenant("beta").await;
    let theirs = send_with(&other, "/v1/networks", "k1", json!({"name": "Net"}))
        .await
        .expect(201);
    assert_ne!(theirs["id"], first["id"]);
    // What was refused was not done, and may be tried again under the same key.
    send_with(&c, "/v1/networks", "k2", json!({"name": ""}))
        .await
        .refused(400, "invalid");
    send_with(&c, "/v1/networks", "k2", json!({"name": "Second"}))
        .await
        .expect(201);
    // The stored answer holds no secret; after a day the key is free.
    let client = api.database.client().await;
    let secret = first["secret"].as_str().unwrap();
    let rows = client
        .query("SELECT answer::text FROM idempotency_keys", &[])
        .await
        .unwrap();
    assert!(rows.iter().all(|r| !r.get::<_, String>(0).contains(secret)));
    client
        .execute(
            "UPDATE idempotency_keys SET created_at = now() - interval '24 hours 1 second'",
            &[],
        )
        .await
        .unwrap();
    let third = send_with(&c, "/v1/networks", "k1", json!({"name": "Net"}))
        .await
        .expect(201);
    assert_ne!(third["id"], first["id"]);
}

#[actix_rt::test]
async fn many_at_once_act_once() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    for round in 0..10 {
        let key = format!("race{round}");
        let all = (0..8).map(|_| send_with(&c, "/v1/networks", &key, json!({"name": key})));
        let mut fresh = 0;
        for reply in futures::future::join_all(all).await {
            match reply.status {
                201 => fresh += usize::from(reply.header("idempotent-replayed").is_empty()),
                409 => drop(reply.refused(409, "idempotency_in_progress")),
                other => panic!("{other}: {:#}", reply.body),
            }
        }
        assert_eq!(fresh, 1);
        let made = c
            .all("/v1/networks")
            .await
            .iter()
            .filter(|n| n["name"] == json!(key))
            .count();
        assert_eq!(made, 1, "{key}");
    }
}

#[actix_rt::test]
async fn versions_guard_writes() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    set_up(&c, "spring").await;
    let path = "/v1/campaigns/spring";
    let got = c.get(path).await;
    assert_eq!(got.header("etag"), "\"1\"");
    let mut fields = got.expect(200);
    for own in ["id", "version", "created_at", "updated_at", "updated_by"] {
        fields.as_object_mut().unwrap().remove(own);
    }
    c.send(Method::PUT, path, Some(fields.clone()), &[])
        .await
        .refused(428, "if_match_required");
    c.send(Method::DELETE, path, None, &[])
        .await
        .refused(428, "if_match_required");
    c.send(
        Method::PUT,
        path,
        Some(fields.clone()),
        &[("if-match", "3")],
    )
    .await
    .refused(400, "header_malformed");
    fields["name"] = json!("Second");
    let put = c
        .send(
            Method::PUT,
            path,
            Some(fields.clone()),
            &[("if-match", "\"1\"")],
        )
        .await;
    assert_eq!(put.header("etag"), "\"2\"");
    put.expect(200);
    let stale = c
        .send(Method::PUT, path, Some(fields), &[("if-match", "\"1\"")])
        .await
        .refused(412, "version_stale");
    let me = c.get("/v1/me").await.expect(200);
    assert_eq!(
        (
            &stale["current"]["version"],
            &stale["current"]["updated_by"]
        ),
        (&json!(2), &me["id"])
    );
    assert!(stale["current"]["updated_at"].is_string());
    c.send(
        Method::PATCH,
        path,
        Some(json!({"name": "x"})),
        &[("if-match", "\"1\"")],
    )
    .await
    .refused(412, "version_stale");

    // A merge patch: absent keeps, null clears, {} touches.
    let patched = c
        .patch(path, json!({"ref": null, "status": "paused"}))
        .await
        .expect(200);
    assert_eq!(
        (&patched["ref"], &patched["status"], &patched["name"]),
        (&Value::Null, &json!("paused"), &json!("Second"))
    );
    let touched = c.patch(path, json!({})).await.expect(200);
    assert_ne!(touched["updated_at"], patched["updated_at"]);
    let merged = c
        .patch(path, json!({"routing": {"pixels": []}}))
        .await
        .expect(200);
    assert_eq!(
        (&merged["routing"]["offers"], &merged["routing"]["pixels"]),
        (&patched["routing"]["offers"], &json!([]))
    );
    let problem = c
        .patch(path, json!({"name": null, "nmae": "x", "status": "gone"}))
        .await
        .refused(400, "invalid");
    assert_eq!(
        problem["errors"].as_array().map(Vec::len),
        Some(3),
        "{problem:#}"
    );

    // Of writers on one version, one wins.
    let version = merged["version"].to_string();
    let tag = format!("\"{version}\"");
    let headers = [("if-match", tag.as_str())];
    let writers = (0..6).map(|n| {
        c.send(
            Method::PATCH,
            path,
            Some(json!({"name": format!("w{n}")})),
            &headers,
        )
    });
    let mut codes: Vec<u16> = futures::future::join_all(writers)
        .await
        .into_iter()
        .map(|r| r.status)
        .collect();
    codes.sort_unstable();
    assert_eq!(codes, [200, 412, 412, 412, 412, 412]);

    let gone = c
        .send(Method::DELETE, path, None, &[("if-match", "*")])
        .await
        .expect(200);
    assert_eq!(gone["status"], "archived");
}

#[actix_rt::test]
async fn what_is_used_is_not_archived() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let (network, offer, _) = set_up(&c, "spring").await;
    let (network, offer) = (
        format!("/v1/networks/{network}"),
        format!("/v1/offers/{offer}"),
    );
    let any = [("if-match", "*")];
    let problem = c
        .send(Method::DELETE, &offer, None, &any)
        .await
        .refused(409, "in_use");
    assert_eq!(problem["used_by"], json!(["spring"]));
    c.patch(&offer, json!({"status": "archived"}))
        .await
        .refused(409, "in_use");
    c.send(Method::DELETE, &network, None, &any)
        .await
        .refused(409, "in_use");
    c.send(Method::DELETE, "/v1/campaigns/spring", None, &any)
        .await
        .expect(200);
    c.send(Method::DELETE, &offer, None, &any).await.expect(200);
    c.send(Method::DELETE, &network, None, &any)
        .await
        .expect(200);
    // It cannot come back to offers that are gone.
    let problem = c
        .patch("/v1/campaigns/spring", json!({"status": "active"}))
        .await
        .refused(400, "invalid");
    assert!(problem["errors"].to_string().contains("unknown_offer"));
    // Its name may still change, archived as it is.
    c.patch("/v1/campaigns/spring", json!({"name": "Was spring"}))
        .await
        .expect(200);
}

#[actix_rt::test]
async fn every_fault_is_named_and_nothing_is_done() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let (network, offer, _) = set_up(&c, "spring").await;
    let sidecar = json!({"offer": offer, "network": network, "network_offer_id": "7"});
    let problem = c
        .post(
            "/v1/campaigns",
            json!({"name": "x", "routing": {"offers": [{"offer": offer, "weight": 0}, {"offer": "of_none", "weight": 0}, {"offer": offer, "weight": 0}],
                   "sidecar_offers": [sidecar, sidecar, {"offer": offer, "network": "nw_none", "network_offer_id": " 7"}]}}),
        )
        .await
        .refused(400, "invalid");
    let found: Vec<_> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| {
            format!(
                "{} {}",
                e["path"].as_str().unwrap(),
                e["code"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            "/routing/offers/1/offer unknown_offer",
            "/routing/offers/2/offer repeated",
            "/routing/offers no_weight",
            "/routing/sidecar_offers/1/network_offer_id repeated",
            "/routing/sidecar_offers/2/network unknown_network",
            "/routing/sidecar_offers/2/network_offer_id malformed",
        ]
    );
    let problem = c
        .post(
            "/v1/campaigns?limit=3&dry_run=perhaps",
            json!({"name": 7, "routing": {"offers": [{"offer": "x", "weight": -1, "wieght": 1}]}, "colour": "red"}),
        )
        .await
        .refused(400, "invalid");
    let mut found: Vec<_> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| {
            format!(
                "{} {}",
                e["path"].as_str().unwrap(),
                e["code"].as_str().unwrap()
            )
        })
        .collect();
    found.sort();
    assert_eq!(
        found,
        [
            "/colour unknown_field",
            "/name wrong_type",
            "/routing/offers/0/weight out_of_range",
            "/routing/offers/0/wieght unknown_field",
            "?dry_run wrong_type",
            "?limit unknown_parameter",
        ]
    );
    for (body, code) in [
        (
            json!({"name": "x", "url_template": "ftp://x.example/"}),
            "malformed",
        ),
        (
            json!({"name": "x", "url_template": "https://x.example/", "currency": "usd"}),
            "malformed",
        ),
        (
            json!({"name": "x", "url_template": "https://x.example/", "payout": 3}),
            "wrong_type",
        ),
        (
            json!({"name": "x", "url_template": "https://x.example/", "payout": "1e3"}),
            "malformed",
        ),
        (
            json!({"name": "x", "url_template": "https://x.example/", "payout": "123456789012345678.9"}),
            "malformed",
        ),
        (
            json!({"name": "x\u{0}", "url_template": "https://x.example/"}),
            "nul_character",
        ),
    ] {
        let problem = c
            .post("/v1/offers", body.clone())
            .await
            .refused(400, "invalid");
        assert_eq!(problem["errors"][0]["code"], code, "{body}");
    }
    let problem = c
        .post(
            "/v1/networks",
            json!({"name": "x", "status_words": {"OK": "approved", "x": "maybe"}}),
        )
        .await
        .refused(400, "invalid");
    assert_eq!(problem["errors"][0]["path"], "/status_words/x");
    c.post(
        "/v1/networks",
        json!({"name": "x", "status_words": {"OK": "approved"}}),
    )
    .await
    .refused(400, "invalid");
    assert_eq!(
        c.all("/v1/campaigns").await.len()
            + c.all("/v1/offers").await.len()
            + c.all("/v1/networks").await.len(),
        3
    );
}

#[actix_rt::test]
async fn a_dry_run_does_nothing_else() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let (network, offer, _) = set_up(&c, "spring").await;
    let client = api.database.client().await;
    let state = async || {
        let mut all = String::new();
        for table in [
            "workspaces",
            "networks",
            "offers",
            "campaigns",
            "idempotency_keys",
            "configuration_epoch",
        ] {
            let row = client
                .query_one(
                    &format!(
                        "SELECT coalesce(json_agg(t ORDER BY t::text), '[]')::text FROM {table} t"
                    ),
                    &[],
                )
                .await
                .unwrap();
            all.push_str(row.get(0));
        }
        all.push_str(&c.all("/v1/keys").await.len().to_string());
        all
    };
    let before = state().await;
    let any = [("if-match", "*"), ("idempotency-key", "dry")];
    let key = id_of(&c.all("/v1/keys").await[0]);
    for (method, path, body) in [
        (
            Method::POST,
            "/v1/networks".to_owned(),
            Some(json!({"name": "x"})),
        ),
        (
            Method::POST,
            "/v1/offers".to_owned(),
            Some(json!({"name": "x", "url_template": "https://x.example/"})),
        ),
        (
            Method::POST,
            "/v1/campaigns".to_owned(),
            Some(json!({"name": "x", "routing": {}})),
        ),
        (
            Method::POST,
            "/v1/keys".to_owned(),
            Some(json!({"name": "x", "scopes": ["full"]})),
        ),
        (
            Method::POST,
            format!("/v1/keys/{key}/rotate"),
            Some(json!({"overlap_s": 0})),
        ),
        (Method::POST, format!("/v1/keys/{key}/revoke"), None),
        (
            Method::POST,
            format!("/v1/networks/{network}/rotate-secret"),
            None,
        ),
        (
            Method::PATCH,
            format!("/v1/offers/{offer}"),
            Some(json!({"name": "y"})),
        ),
        (Method::DELETE, "/v1/campaigns/spring".to_owned(), None),
    ] {
        let would = c
            .send(method, &format!("{path}?dry_run=true"), body, &any)
            .await
            .expect(200);
        let after = &would["would"]["after"];
        assert!(after["id"].is_string(), "{path}: {would:#}");
        assert!(
            after["secret"].is_null() && after["key"].is_null(),
            "{path}: a dry run shows no secret"
        );
        assert_eq!(state().await, before, "{path}");
    }
    c.get("/v1/me").await.expect(200);
    // It validates as the act itself would.
    c.send(
        Method::DELETE,
        &format!("/v1/offers/{offer}?dry_run=true"),
        None,
        &any,
    )
    .await
    .refused(409, "in_use");
    c.post("/v1/networks?dry_run=true", json!({}))
        .await
        .refused(400, "invalid");
    c.get("/v1/networks?dry_run=true")
        .await
        .refused(400, "invalid");
}
