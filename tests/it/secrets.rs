//! After a full run, with every kind of secret and contact passing through: nothing of them in any log, any table, any listing,
//! any metric, any answer of the terminal.

mod hostile;
mod people;

use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::meta_stand_in::MetaStandIn;
use millrace_tests::outbox;
use millrace_tests::process::{eventually, free_address};
use millrace_tests::receivers::{Answer, Receiver};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio_postgres::Client;

const KEY: &str = "1f2e3d4c5b6a79881f2e3d4c5b6a79881f2e3d4c5b6a79881f2e3d4c5b6a7988";
const TOKEN: &str = "EAAB-access-token-of-the-pixel-0123456789";
const APP_SECRET: &str = "app-secret-0123456789abcdef";
const CONTACT: &str = "jane.doe@private.example";

struct Api {
    http: reqwest::Client,
    at: SocketAddr,
    key: String,
    /// The id of its network, once there is one.
    network: String,
}

impl Api {
    async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self
            .http
            .post(format!("http://{}{path}", self.at))
            .bearer_auth(&self.key)
            .json(&body)
            .send()
            .await
            .unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        assert!(status.is_success(), "{path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    async fn get(&self, path: &str) -> String {
        let asked = self.http.get(format!("http://{}{path}", self.at));
        let answer = asked.bearer_auth(&self.key).send().await.unwrap();
        let status = answer.status();
        assert!(status.is_success(), "{path}: {status}");
        answer.text().await.unwrap()
    }
}

/// Every row of every table, as text.
pub(crate) async fn tables(store: &Client) -> Vec<(String, String)> {
    let names = store
        .query(
            "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    let mut all = Vec::new();
    for name in names {
        let name: String = name.get(0);
        // Bytes as text too: a secret may hide in a bytea as well.
        let sql = format!("SELECT t::text, to_jsonb(t)::text FROM {name} t");
        let mut text = String::new();
        for row in store.query(&sql, &[]).await.unwrap() {
            text.push_str(row.get(0));
            text.push('\n');
            text.push_str(row.get(1));
            text.push('\n');
        }
        all.push((format!("table {name}"), text));
    }
    assert!(all.len() > 20, "{} tables", all.len());
    all
}

fn hex(text: &str) -> String {
    text.bytes().map(|b| format!("{b:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_secret_is_in_any_sink_after_a_full_run() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let deployment = Deployment::start("secrets", Log::Postgres, 2)
        .await
        .unwrap();
    let store = deployment.store().await;
    let meta = MetaStandIn::start().unwrap();
    meta.dataset("77", TOKEN, Some(APP_SECRET));
    let hook = Receiver::start().unwrap();
    // What a receiver says comes into the log of sendings: this one says back what it was told, and more.
    let echo = format!("no: token={TOKEN} secret {CONTACT}");
    hook.script([Answer::status(500).saying(&echo)]);

    let command = |name: &str, words: &[&str]| {
        let launch = deployment
            .launch(name)
            .unwrap()
            .env("MILLRACE_SECRET_KEY", KEY);
        launch.args(words.iter().copied())
    };
    command(
        "workspace",
        &["workspace", "create", "acme", "--name", "Acme"],
    )
    .run(PATIENCE)
    .await
    .unwrap();
    let words = [
        "key",
        "create",
        "--workspace",
        "acme",
        "--name",
        "k",
        "--scopes",
        "full,ingest:write",
    ];
    let key = command("key", &words)
        .env("RUST_LOG", "off")
        .run(PATIENCE)
        .await
        .unwrap();
    let key = key
        .split_whitespace()
        .find(|w| w.starts_with("rk_"))
        .unwrap()
        .to_owned();
    let at = free_address().unwrap();
    let launch = command("everything", &["run"])
        .env("RUST_LOG", "debug,millrace=trace,millrace_topics=trace")
        .setting("http.doors", at)
        .setting("http.admin", at)
        .setting("delivery.allowed_networks", "127.0.0.0/8")
        .setting("delivery.meta.graph_url", meta.url());
    let mut process = launch.spawn().unwrap();
    process
        .wait_for_log("millrace is up", PATIENCE)
        .await
        .unwrap();

    let api = Api {
        http: reqwest::Client::new(),
        at,
        key,
        network: String::new(),
    };
    let network = api.post("/v1/networks", json!({"name": "n"})).await;
    let network_secret = network["secret"].as_str().unwrap().to_owned();
    let offer = api
        .post(
            "/v1/offers",
            json!({"name": "o", "network_id": network["id"], "payout": "5", "currency": "USD",
                "url_template": "https://shop.example/?cid={click_id}"}),
        )
        .await;
    let pixel = api
        .post(
            "/v1/pixels",
            json!({"name": "p", "dataset_id": "77", "currency": "USD", "access_token": TOKEN, "app_secret": APP_SECRET}),
        )
        .await;
    let webhook = api
        .post(
            "/v1/webhooks",
            json!({"name": "w", "url": hook.url("/hook"), "events": ["conversion", "click", "visit"]}),
        )
        .await;
    let hook_secret = webhook["secret"].as_str().unwrap().to_owned();
    let routing = json!({"offers": [{"offer": offer["id"]}], "pixels": [{"pixel": pixel["id"]}]});
    api.post(
        "/v1/campaigns",
        json!({"id": "spring", "name": "s", "routing": routing}),
    )
    .await;
    let door = format!("http://{at}/c/spring?fbclid=X");
    let plain = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let click = eventually("the door knows the campaign", PATIENCE, async || {
        let answer = plain.get(&door).header("user-agent", "test").send().await?;
        let location = answer
            .headers()
            .get("location")
            .and_then(|l| l.to_str().ok());
        Ok(location.and_then(|l| Some(l.split_once("cid=")?.1.to_owned())))
    })
    .await
    .unwrap();
    let paid = |secret: &str, more: &str| {
        format!("http://{at}/pb?secret={secret}&click_id={click}&payout=5&txid=t1{more}")
    };
    assert!(
        plain
            .get(paid(&network_secret, ""))
            .send()
            .await
            .unwrap()
            .status()
            .is_success()
    );
    // A wrong one, and one whose payout is malformed: neither answer nor log may repeat the secret.
    let wrong = "wrong-secret-0123456789";
    assert_eq!(
        plain.get(paid(wrong, "")).send().await.unwrap().status(),
        403
    );
    let bad = plain
        .get(paid(&network_secret, "&payout=NaN"))
        .send()
        .await
        .unwrap();
    let bad_answer = bad.text().await.unwrap();
    eventually("everything left", PATIENCE, async || {
        outbox::hasten(&store).await?;
        let sent = store
            .query_one("SELECT count(*) FROM outbox WHERE status = 'sent'", &[])
            .await?;
        Ok((outbox::due(&store).await? == 0 && sent.get::<_, i64>(0) >= 4).then_some(()))
    })
    .await
    .unwrap_or_else(|e| panic!("{e}\n{}", deployment.last_words()));
    assert_eq!(meta.counts().unique, 1);

    let mut sinks = tables(&store).await;
    sinks.push(("answer of the door".to_owned(), bad_answer));
    for list in [
        "networks",
        "pixels",
        "webhooks",
        "deliveries",
        "destinations",
        "campaigns",
        "conversions",
        "keys",
    ] {
        sinks.push((
            format!("GET /v1/{list}"),
            api.get(&format!("/v1/{list}")).await,
        ));
    }
    let deliveries: Value = serde_json::from_str(&api.get("/v1/deliveries").await).unwrap();
    for one in deliveries["items"].as_array().unwrap() {
        let path = format!("/v1/deliveries/{}", one["id"].as_str().unwrap());
        sinks.push((path.clone(), api.get(&path).await));
    }
    sinks.push(("/metrics".to_owned(), api.get("/metrics").await));
    for words in [
        &["outbox", "list"][..],
        &["trace", "--workspace", "acme", &click],
        &["doctor"],
        &["lag"],
        &["dlq", "list"],
    ] {
        let launch = command(&format!("terminal-{}", words[0]), words).env("RUST_LOG", "trace");
        // Whatever it exits with, its output is in its log.
        let mut run = launch.spawn().unwrap();
        run.wait(PATIENCE).await.unwrap();
    }
    process.signal(15);
    process.wait(PATIENCE).await.unwrap();
    for entry in std::fs::read_dir(deployment.scratch.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && path.file_name().is_some_and(|n| n != "key.log") {
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            sinks.push((path.display().to_string(), text));
        }
    }
    let api_secret = api.key.split_once('.').unwrap().1.to_owned();
    let bare_hook_secret = hook_secret.trim_start_matches("whsec_").to_owned();
    for secret in [
        KEY,
        TOKEN,
        APP_SECRET,
        CONTACT,
        &network_secret,
        &hook_secret,
        &bare_hook_secret,
        &api_secret,
        wrong,
    ] {
        let hidden = hex(secret);
        for (sink, text) in &sinks {
            let found = text.contains(secret) || text.contains(&hidden);
            assert!(
                !found,
                "{} characters of a secret stand in {sink}: {}…",
                secret.len(),
                &secret[..8]
            );
        }
    }
    // The search itself works: what is no secret is found in every kind of sink.
    for (needle, kind) in [
        ("spring", "table"),
        (&*click, "/v1/deliveries/"),
        (&*click, "terminal-trace"),
    ] {
        let found = sinks
            .iter()
            .any(|(sink, text)| sink.contains(kind) && text.contains(needle));
        let said = sinks
            .iter()
            .filter(|(sink, _)| sink.contains(kind))
            .map(|(_, t)| t.as_str())
            .collect::<String>();
        assert!(found, "{needle} should stand in {kind}: {said}");
    }
}
