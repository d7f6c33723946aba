//! The mail transport with its password and its test send, suppressed addresses, the send log, endpoints of push.

use super::{Api, id_of};
use reqwest::Method;
use serde_json::{Value, json};

const PASSWORD: &str = "the-mail-password";

#[actix_rt::test]
async fn a_transport_takes_a_password_and_never_shows_it() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let store = api.database.client().await;
    let body = json!({"host": "smtp.example.com", "port": 587, "username": "u", "sender_address": "news@bücher.example",
                      "brand_name": "Books", "site_url": "https://www.example.com"});
    let mut on = body.clone();
    on["enabled"] = json!(true);
    let problem = c
        .post("/v1/mail-transports", on)
        .await
        .refused(400, "invalid");
    assert_eq!(problem["errors"][0]["code"], "password_missing");
    let made = c
        .post("/v1/mail-transports", body.clone())
        .await
        .expect(201);
    let id = id_of(&made);
    assert!(id.starts_with("mt_"), "{id}");
    for (field, want) in [
        ("enabled", json!(false)),
        ("security", json!("starttls")),
        ("has_password", json!(false)),
        ("message_domain", json!("xn--bcher-kva.example")),
        ("brand_accent", json!("#2f5d8a")),
    ] {
        assert_eq!(made[field], want, "{field}");
    }
    // One a workspace.
    c.post("/v1/mail-transports", body)
        .await
        .refused(409, "conflict");
    let one = format!("/v1/mail-transports/{id}");
    let held = c
        .post(&format!("{one}/password"), json!({"password": PASSWORD}))
        .await
        .expect(200);
    assert_eq!(held["has_password"], json!(true));
    c.post(&format!("{one}/verify"), json!({"to": "you@example.com"}))
        .await
        .refused(409, "conflict");
    store
        .execute(
            "UPDATE destinations SET paused_code = 'smtp_credentials', paused_reason = 'r', paused_by = 'x', paused_at = now() WHERE ref = $1",
            &[&id],
        )
        .await
        .unwrap();
    // Switched on, with another sender: its Message-IDs keep their domain, and what waited goes on.
    let changed = c
        .patch(
            &one,
            json!({"enabled": true, "sender_address": "news@else.example"}),
        )
        .await
        .expect(200);
    assert_eq!(changed["message_domain"], "xn--bcher-kva.example");
    let paused: Option<String> = store
        .query_one(
            "SELECT paused_code FROM destinations WHERE ref = $1",
            &[&id],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(paused, None);

    // A test send stands in the outbox like any other, and its address in no text.
    let to = "somebody.special@example.com";
    let sent = c
        .post(&format!("{one}/verify"), json!({ "to": to }))
        .await
        .expect(202);
    let delivery = sent["delivery_id"].as_str().unwrap();
    let shown = c
        .get(&format!("/v1/deliveries/{delivery}"))
        .await
        .expect(200);
    assert_eq!(
        (&shown["channel"], &shown["status"]),
        (&json!("email"), &json!("scheduled"))
    );
    c.post(&format!("{one}/verify"), json!({"to": "nobody"}))
        .await
        .refused(400, "invalid");
    let tables = crate::secrets::tables(&store).await;
    for (table, text) in tables {
        assert!(!text.contains(PASSWORD), "{table}");
        assert!(!text.contains("somebody.special"), "{table}");
    }
    // To another server it does not go.
    let problem = c
        .patch(&one, json!({"host": "smtp.elsewhere.example"}))
        .await
        .refused(400, "invalid");
    assert_eq!(problem["errors"][0]["code"], "password_missing");
    let moved = c
        .patch(
            &one,
            json!({"enabled": false, "host": "smtp.elsewhere.example"}),
        )
        .await
        .expect(200);
    assert_eq!(moved["has_password"], json!(false));
    let gone = c
        .post(&format!("{one}/password"), json!({"password": Value::Null}))
        .await
        .expect(200);
    assert_eq!(gone["has_password"], json!(false));
}

#[actix_rt::test]
async fn an_address_is_suppressed_by_hash_and_lifted_by_id_or_address() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let made = c
        .post(
            "/v1/suppressions",
            json!({"address": "Dora@Example.com", "detail": "asked us"}),
        )
        .await
        .expect(201);
    assert_eq!(made["address"], "D***@Example.com");
    assert_eq!(
        (&made["reason"], &made["detail"]),
        (&json!("manual"), &json!("asked us"))
    );
    assert!(made["created_by"].is_string());
    // The same address in another case is the same; another letter is not.
    let again = c
        .post("/v1/suppressions", json!({"address": "dora@example.COM"}))
        .await
        .expect(201);
    assert_eq!(again["id"], made["id"]);
    c.post("/v1/suppressions", json!({"address": "dorá@example.com"}))
        .await
        .expect(201);
    // Its id says nothing of the address: whoever has a list of addresses finds none of them by an id.
    let store = api.database.client().await;
    let hash: Vec<u8> = store
        .query_one("SELECT sha256('dora@example.com')", &[])
        .await
        .unwrap()
        .get(0);
    let cut = uuid::Uuid::from_slice(&hash[..16]).unwrap().as_u128();
    for workspace in 0..100 {
        let guess = millrace_schemas::ids::encode(uuid::Uuid::from_u128(cut ^ workspace));
        assert_ne!(made["id"], format!("sp_{guess}"));
    }
    assert_eq!(c.all("/v1/suppressions").await.len(), 2);
    assert_eq!(c.all("/v1/suppressions?reason=hard_bounce").await.len(), 0);
    assert!(
        !json!(c.all("/v1/suppressions").await)
            .to_string()
            .contains("hash")
    );
    let lift = async |address: &str| {
        let body = json!({ "address": address });
        c.post("/v1/suppressions/release", body).await.expect(200)["lifted"].clone()
    };
    assert_eq!(lift("DORÁ@example.com").await, json!(true));
    assert_eq!(lift("DORÁ@example.com").await, json!(false));
    assert_eq!(lift("dora@example.com").await, json!(true));
    let body = json!({"address": "dora@example.com"});
    let anew = c.post("/v1/suppressions", body).await.expect(201);
    assert_ne!(anew["id"], made["id"], "made of nothing that stays");
    let made = anew;
    let path = format!("/v1/suppressions/{}", id_of(&made));
    c.send(Method::DELETE, &path, None, &[])
        .await
        .refused(428, "if_match_required");
    let gone = c
        .send(Method::DELETE, &path, None, &[("if-match", "*")])
        .await;
    assert_eq!(gone.expect(200)["lifted"], json!(true));
    assert!(c.all("/v1/suppressions").await.is_empty());
    c.post("/v1/suppressions", json!({"address": "nobody"}))
        .await
        .refused(400, "invalid");
}

#[actix_rt::test]
async fn an_endpoint_is_shown_by_its_origin_alone() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let endpoint = "https://push.example:8443/up-secret?up=1";
    let body = json!({"user": "u1", "endpoint": endpoint});
    let made = c
        .post("/v1/push-subscriptions", body.clone())
        .await
        .expect(201);
    assert_eq!(made["origin"], "https://push.example:8443");
    let again = c.post("/v1/push-subscriptions", body).await.expect(201);
    assert_eq!(again["id"], made["id"]);
    let all = c.all("/v1/push-subscriptions?user=u1").await;
    assert_eq!(all.len(), 1);
    assert!(!json!(all).to_string().contains("up-secret"));
    let path = format!("/v1/push-subscriptions/{}", id_of(&made));
    let gone = c
        .send(Method::DELETE, &path, None, &[("if-match", "\"1\"")])
        .await;
    gone.expect(200);
    assert!(c.all("/v1/push-subscriptions").await.is_empty());
    c.post(
        "/v1/push-subscriptions",
        json!({"user": "u1", "endpoint": "ntfy"}),
    )
    .await
    .refused(400, "invalid");
}

#[actix_rt::test]
async fn the_send_log_is_listed_across_channels() {
    let api = Api::start().await;
    let (workspace, c) = api.tenant("acme").await;
    let store = api.database.client().await;
    super::facts::prepare(&store, 1).await;
    let destination = millrace_tests::outbox::destination(&store, workspace, "stub", "st_1")
        .await
        .unwrap();
    super::facts::delivery(&store, workspace, destination, "stub", 1).await;
    let all = c.all("/v1/sends").await;
    assert_eq!(all.len(), 1);
    assert_eq!(
        (&all[0]["result"], &all[0]["code"]),
        (&json!("retry"), &json!("503"))
    );
    assert_eq!(c.all("/v1/sends?channel=email").await.len(), 0);
    assert_eq!(c.all("/v1/sends?result=retry&channel=stub").await.len(), 1);
    c.get("/v1/sends?since=yesterday")
        .await
        .refused(400, "invalid");
}
