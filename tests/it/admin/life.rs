//! From an empty deployment to a campaign that could take traffic, and keys from birth to death.

use super::{Api, Caller, caller, id_of};
use millrace::sealing::Seals;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant};

/// A network, an offer and a campaign of a tenant; their ids and the network's secret.
pub async fn set_up(c: &Caller, campaign: &str) -> (String, String, String) {
    let network = c
        .post(
            "/v1/networks",
            json!({"name": "Net", "status_words": {"ok": "approved"}}),
        )
        .await
        .expect(201);
    let offer = c
        .post(
            "/v1/offers",
            json!({"name": "Offer", "url_template": "https://o.example/?c={click_id}", "network_id": network["id"], "payout": "12.50"}),
        )
        .await
        .expect(201);
    let pixel = c
        .post("/v1/pixels", json!({"name": "Pixel", "dataset_id": "0042"}))
        .await
        .expect(201);
    c.post(
        "/v1/webhooks",
        json!({"name": "Hook", "url": "https://h.example/in", "events": ["conversion"]}),
    )
    .await
    .expect(201);
    let shard = format!("shard-{campaign}");
    c.post(
        "/v1/shards",
        json!({"id": shard, "name": "Shard", "module": "survival", "protocol": 5}),
    )
    .await
    .expect(201);
    c.post(
        "/v1/feed-tokens",
        json!({"shard": shard, "name": "Sidecar"}),
    )
    .await
    .expect(201);
    let routing = json!({
        "offers": [{"offer": offer["id"], "weight": 3}],
        "sidecar_offers": [{"offer": offer["id"], "network": network["id"], "network_offer_id": "007"}],
        "pixels": [{"pixel": pixel["id"], "event": null, "amount": "0", "currency": null, "conversion_events": ["sale"]}],
    });
    let made = c
        .post(
            "/v1/campaigns",
            json!({"id": campaign, "name": "Camp", "ref": "r", "routing": routing}),
        )
        .await
        .expect(201);
    assert_eq!(made["routing"], routing);
    super::people::one_of_each(c).await;
    (
        id_of(&network),
        id_of(&offer),
        network["secret"].as_str().expect("a secret").to_owned(),
    )
}

/// Asks until the answer has the status; a cache may hold a key for a second.
async fn until(c: &Caller, path: &str, status: u16) {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let reply = c.get(path).await;
        if reply.status == status {
            return;
        }
        assert!(
            Instant::now() < end,
            "{path} still answers {}",
            reply.status
        );
        tokio::task::yield_now().await;
    }
}

#[actix_rt::test]
async fn a_deployment_begins() {
    let api = Api::start().await;
    let root = api.caller(&api.key(None, &["ops:read", "ops:write"]).await);
    let me = root.get("/v1/me").await.expect(200);
    assert_eq!(
        (&me["workspace"], &me["scopes"]),
        (&Value::Null, &json!(["ops:read", "ops:write"]))
    );

    let made = root
        .post("/v1/workspaces", json!({"id": "acme", "name": "Acme"}))
        .await;
    assert_eq!(made.header("location"), "/v1/workspaces/acme");
    assert_eq!(made.header("etag"), "\"1\"");
    made.expect(201);
    root.post("/v1/workspaces", json!({"id": "acme"}))
        .await
        .refused(409, "slug_taken");
    root.post("/v1/workspaces", json!({"id": "Acme!"}))
        .await
        .refused(400, "invalid");
    root.get("/v1/campaigns")
        .await
        .refused(403, "scope_missing");
    assert_eq!(
        root.get("/v1/workspaces").await.expect(200)["items"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );

    // The terminal makes the tenant's first key.
    let key = api.key(Some(1), &["full"]).await;
    let c = api.caller(&key);
    let me = c.get("/v1/me").await.expect(200);
    assert_eq!(me["workspace"], "acme");
    assert!(!me["scopes"].to_string().contains("ops:"));
    c.get("/v1/workspaces").await.refused(403, "scope_missing");

    let (network, offer, secret) = set_up(&c, "spring").await;
    assert_eq!(
        c.get("/v1/campaigns/spring").await.expect(200)["name"],
        "Camp"
    );
    assert_eq!(
        c.get(&format!("/v1/offers/{offer}")).await.expect(200)["payout"],
        "12.5"
    );

    // The secret: its digest for the doors, a sealed copy for the callback URL, nowhere else.
    let client = api.database.client().await;
    let row = client
        .query_one("SELECT secret_digest, secret_sealed FROM networks", &[])
        .await
        .unwrap();
    let digest: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
    assert_eq!(row.get::<_, Vec<u8>>(0), digest);
    let sealed: Vec<u8> = row.get(1);
    assert!(!sealed.windows(secret.len()).any(|w| w == secret.as_bytes()));
    let shown = c.get(&format!("/v1/networks/{network}")).await.expect(200);
    assert!(shown.get("secret").is_none() && !shown.to_string().contains(&secret));
    let info = c.get("/v1/postback-info").await.expect(200);
    let url = info["items"][0]["url"].as_str().expect("a URL");
    assert!(
        url.starts_with(&format!("https://t.example/pb?secret={secret}&click_id=")),
        "{url}"
    );

    // Rotated, the old one is dead and the new one is what is shown.
    let path = format!("/v1/networks/{network}/rotate-secret");
    let rotated = c.send(Method::POST, &path, None, &[]).await.expect(200);
    assert_ne!(rotated["secret"], json!(secret));
    assert_eq!(rotated["version"], 2);
    let info = c.get("/v1/postback-info").await.expect(200).to_string();
    assert!(
        info.contains(rotated["secret"].as_str().expect("a secret")) && !info.contains(&secret)
    );

    // Archived: keys of the workspace are refused within the second, data stays.
    root.patch("/v1/workspaces/acme", json!({"status": "archived"}))
        .await
        .expect(200);
    until(&c, "/v1/me", 403).await;
    root.patch("/v1/workspaces/acme", json!({"status": null}))
        .await
        .expect(200);
    until(&c, "/v1/me", 200).await;
}

#[actix_rt::test]
async fn without_a_sealing_key_nothing_is_sealed_and_it_is_said() {
    let api = Api::start_with(Seals::none()).await;
    let (_, c) = api.tenant("acme").await;
    let made = c
        .post("/v1/networks", json!({"name": "Net"}))
        .await
        .expect(201);
    assert!(made["secret"].is_string());
    let info = c.get("/v1/postback-info").await.expect(200);
    assert_eq!(info["items"][0]["url"], Value::Null);
    assert!(
        info["items"][0]["unavailable"]
            .as_str()
            .is_some_and(|u| u.contains("MILLRACE_SECRET_KEY"))
    );
}

#[actix_rt::test]
async fn keys_live_and_die() {
    let api = Api::start().await;
    let (workspace, c) = api.tenant("acme").await;
    let made = c
        .post("/v1/keys", json!({"name": "reader", "scopes": ["reports:read", "keys:manage"], "cidrs": ["127.0.0.1/8"]}))
        .await
        .expect(201);
    assert_eq!(made["cidrs"], json!(["127.0.0.0/8"]));
    let id = id_of(&made);
    let reader = api.caller(made["key"].as_str().expect("a key"));
    assert_eq!(
        reader.get("/v1/me").await.expect(200)["scopes"],
        json!(["keys:manage", "reports:read"])
    );
    let problem = reader
        .get("/v1/campaigns")
        .await
        .refused(403, "scope_missing");
    assert_eq!(problem["scope"], "entities:read");

    // Nobody gives what they do not hold, neither by minting nor by rotating.
    reader
        .post("/v1/keys", json!({"name": "x", "scopes": ["full"]}))
        .await
        .refused(403, "scope_not_held");
    reader
        .post("/v1/keys", json!({"name": "x", "scopes": ["ingest:write"]}))
        .await
        .refused(403, "scope_not_held");
    c.post("/v1/keys", json!({"name": "x", "scopes": ["ingest:write"]}))
        .await
        .refused(403, "scope_not_held");
    let full = c
        .all("/v1/keys")
        .await
        .into_iter()
        .find(|k| k["scopes"] == json!(["full"]))
        .expect("the full key");
    reader
        .post(&format!("/v1/keys/{}/rotate", id_of(&full)), json!({}))
        .await
        .refused(403, "scope_not_held");
    reader
        .post("/v1/keys", json!({"name": "x", "scopes": ["reports:read"]}))
        .await
        .expect(201);

    let faults = c
        .post("/v1/keys", json!({"name": " ", "scopes": ["nope", "ops:read", "preferences:write"], "cidrs": ["x"], "expires_at": "2001-01-01T00:00:00Z"}))
        .await
        .refused(400, "invalid");
    let codes: Vec<_> = faults["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["code"].as_str().unwrap())
        .collect();
    assert_eq!(
        codes,
        [
            "invalid_name",
            "unknown_scope",
            "scope_of_deployment",
            "scope_of_users",
            "invalid_network",
            "in_the_past"
        ]
    );

    // Rotation: both secrets for a while; with overlap 0 the old one dies.
    let path = format!("/v1/keys/{id}/rotate");
    let second = c.post(&path, json!({"overlap_s": 600})).await.expect(200);
    let second = api.caller(second["key"].as_str().expect("a key"));
    until(&second, "/v1/me", 200).await;
    until(&reader, "/v1/me", 200).await;
    let third = c.post(&path, json!({"overlap_s": 0})).await.expect(200);
    assert_eq!(third["previous_until"], Value::Null);
    let third = api.caller(third["key"].as_str().expect("a key"));
    until(&third, "/v1/me", 200).await;
    until(&second, "/v1/me", 401).await;
    until(&reader, "/v1/me", 401).await;

    // Used: written down, at most once a minute.
    let used = c.get(&format!("/v1/keys/{id}")).await.expect(200)["last_used_at"].clone();
    assert!(used.is_string());
    until(&third, "/v1/me", 200).await;
    assert_eq!(
        c.get(&format!("/v1/keys/{id}")).await.expect(200)["last_used_at"],
        used
    );

    let revoke = format!("/v1/keys/{id}/revoke");
    let revoked = c.send(Method::POST, &revoke, None, &[]).await.expect(200);
    assert!(revoked["revoked_at"].is_string());
    until(&third, "/v1/me", 401).await;
    assert_eq!(
        c.send(Method::POST, &revoke, None, &[]).await.expect(200),
        revoked
    );
    c.post(&path, json!({})).await.refused(409, "key_revoked");

    // Expired and from elsewhere.
    let client = api.database.client().await;
    let made = c
        .post(
            "/v1/keys",
            json!({"name": "far", "scopes": ["reports:read"], "cidrs": ["203.0.113.0/24"]}),
        )
        .await
        .expect(201);
    api.caller(made["key"].as_str().unwrap())
        .get("/v1/me")
        .await
        .refused(403, "address_refused");
    let made = c.post("/v1/keys", json!({"name": "short", "scopes": ["reports:read"], "expires_at": "2999-01-01T00:00:00Z"})).await.expect(201);
    let short = api.caller(made["key"].as_str().unwrap());
    short.get("/v1/me").await.expect(200);
    client
        .execute(
            "UPDATE api_keys SET expires_at = now() WHERE key_id = $1",
            &[&id_of(&made)],
        )
        .await
        .unwrap();
    until(&short, "/v1/me", 401).await;

    // At most a hundred live ones.
    client
        .execute(
            "INSERT INTO api_keys (key_id, workspace_id, name, secret_digest, scopes, created_by)
             SELECT 'rk_fill' || n, $1, 'fill', sha256(n::text::bytea), '{reports:read}', 'cli' FROM generate_series(1, 100) n",
            &[&workspace],
        )
        .await
        .unwrap();
    c.post(
        "/v1/keys",
        json!({"name": "one more", "scopes": ["reports:read"]}),
    )
    .await
    .refused(409, "too_many_keys");
}

#[actix_rt::test]
async fn with_the_store_away_it_says_so() {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let (address, handle, _thread) = super::serve(
        format!("postgres://nobody@127.0.0.1:{port}/none"),
        Seals::none(),
    );
    let c = caller(
        address,
        &millrace::api::keys::ApiKey::generate().unwrap().reveal(),
    );
    let reply = c.get("/v1/me").await;
    assert_eq!(reply.header("retry-after"), "1");
    reply.refused(503, "unavailable");
    drop(handle.stop(false));
}

#[actix_rt::test]
async fn a_shard_is_of_an_enabled_module() {
    let api = Api::start().await;
    let (_, c) = api.tenant("alpha").await;
    let shard =
        |module: &str| json!({"id": "north", "name": "North", "module": module, "protocol": 1});
    let unknown = |said: Value| {
        let error = &said["errors"][0];
        assert_eq!(
            (&error["code"], &error["path"]),
            (&json!("unknown_module"), &json!("/module")),
            "{said:#}"
        );
    };
    // One that is shipped and not enabled, one that nobody knows, and core, of which no shard is.
    for module in ["uo", "chess", "core"] {
        unknown(
            c.post("/v1/shards", shard(module))
                .await
                .refused(400, "invalid"),
        );
    }
    c.post("/v1/shards", shard("survival")).await.expect(201);
}
