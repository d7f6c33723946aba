//! After a run with a module, when people are told: no password of a mail transport, no token of a feed, no link that unsubscribes,
//! and no address or endpoint of anybody in a log (PostgreSQL's own among them), a table that is not theirs, a listing, a metric, a
//! topic, the words about a dead letter. On Apache Kafka where there is one, so that topics are read back as anybody could.

use super::{Api, KEY, hex, tables};
use millrace::api::registry::{Method, registry};
use millrace::cli::demo::stand_ins::mail::Mail;
use millrace::runtime::clock::{Clock, SystemClock};
use millrace_schemas::notification::{GenericBody, Notification};
use millrace_tests::deployment::{Deployment, Line, Log, PATIENCE};
use millrace_tests::kafka;
use millrace_tests::log_reader::read_all;
use millrace_tests::outbox;
use millrace_tests::process::{eventually, free_address};
use millrace_tests::receivers::{Answer, Receiver};
use millrace_topics::pglog::chunk;
use serde_json::{Value, json};
use std::path::Path;
use tokio_postgres::Client;

const PASSWORD: &str = "mail-password-0123456789abcdef";
/// No digit in it, as of many distributors: it looks like words.
const ENDPOINT: &str = "endpoint-of-a-secret-device";
/// Whom mail reaches, whose mailbox is not there, to whom a test is sent.
const ADDRESSES: [&str; 3] = [
    "ana.unmistakable@players.example",
    "ben.unmistakable@players.example",
    "somebody.special@players.example",
];
/// Lines of the recorded session.
const FRAMES: usize = 300;
/// The players of the recorded session whom an address is given.
const USERS: [&str; 2] = ["ana", "ben"];

fn news(user: &str) -> String {
    let notice = Notification {
        v: 1,
        user: user.to_owned(),
        trigger: "news.post".to_owned(),
        firing: "1-0-1-0".to_owned(),
        dedupe_key: "news.post:1".to_owned(),
        at: SystemClock.wall(),
        body: GenericBody {
            title: "News".to_owned(),
            ..GenericBody::default()
        },
        ..Notification::default()
    };
    serde_json::to_string(&notice).unwrap()
}

impl Api {
    /// A change of what is there, whatever its version.
    async fn change(&self, method: reqwest::Method, path: &str, body: Value) -> Value {
        let request = self
            .http
            .request(method, format!("http://{}{path}", self.at))
            .bearer_auth(&self.key)
            .header("if-match", "*");
        let request = match body {
            Value::Null => request,
            body => request.json(&body),
        };
        let answer = request.send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        assert!(status.is_success(), "{path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// What it answers, if it is an error too.
    async fn says(&self, method: reqwest::Method, path: &str, body: Option<Value>) -> String {
        let mut request = self
            .http
            .request(method, format!("http://{}{path}", self.at))
            .bearer_auth(&self.key);
        if let Some(body) = body {
            request = request.json(&body);
        }
        request.send().await.unwrap().text().await.unwrap()
    }
}

/// A transport with a password, a shard with its feed, two players with addresses and a device; the module's rules on. Answers
/// the feed's token and the transport's id.
async fn furnish(api: &Api, mail: &Mail, device: &str) -> (String, String) {
    let post = reqwest::Method::POST;
    let server = mail.address();
    let transport = json!({"enabled": false, "host": server.ip().to_string(), "port": server.port(), "security": "none",
        "username": "postman", "sender_name": "S", "sender_address": "news@sender.example", "brand_name": "S",
        "site_url": "https://site.example"});
    let made = api.post("/v1/mail-transports", transport).await;
    let id = made["id"].as_str().unwrap().to_owned();
    let one = format!("/v1/mail-transports/{id}");
    let password = json!({"password": PASSWORD});
    api.change(post.clone(), &format!("{one}/password"), password)
        .await;
    api.change(reqwest::Method::PATCH, &one, json!({"enabled": true}))
        .await;
    let shard = json!({"id": "atlantic", "name": "A", "module": "uo", "protocol": 5});
    api.post("/v1/shards", shard).await;
    let made = json!({"shard": "atlantic", "name": "t"});
    let made = api.post("/v1/feed-tokens", made).await;
    let token = made["token"].as_str().unwrap().to_owned();
    for (user, address) in USERS.into_iter().zip(ADDRESSES) {
        let whole = json!({"id": user, "email": address, "email_verified": true});
        api.post("/v1/users", whole).await;
        let link = json!({"module": "uo", "shard": "atlantic", "account": user, "user_id": user});
        api.post("/v1/account-links", link).await;
        let wishes: Vec<Value> = ["", "news.post"]
            .into_iter()
            .flat_map(|id| {
                ["email", "push"].map(|c| json!({"id": id, "channel": c, "mode": "instant"}))
            })
            .collect();
        let path = format!("/v1/users/{user}/preferences");
        api.change(post.clone(), &path, json!({"preferences": wishes}))
            .await;
    }
    let device = json!({"user": USERS[0], "endpoint": device});
    api.post("/v1/push-subscriptions", device).await;
    let rules: Value = serde_json::from_str(&api.get("/v1/rules?limit=100").await).unwrap();
    for rule in rules["items"].as_array().unwrap() {
        if rule["trigger_id"].as_str().unwrap().starts_with("uo.") {
            let path = format!("/v1/rules/{}/enable", rule["id"].as_str().unwrap());
            api.change(post.clone(), &path, Value::Null).await;
        }
    }
    (token, id)
}

/// Mails and a push that are due now, beside whatever the session's firings bring.
async fn enqueue(store: &Client) {
    let push = "SELECT notification_destination(workspace_id, 'push') FROM workspaces";
    store.query(push, &[]).await.unwrap();
    for (channel, users) in [("email", &USERS[..]), ("push", &USERS[..1])] {
        let sql = "SELECT destination_no, workspace_id FROM destinations WHERE channel = $1";
        let row = store.query_one(sql, &[&channel]).await.unwrap();
        let (no, workspace): (i32, i32) = (row.get(0), row.get(1));
        let range = 0..u32::try_from(users.len()).unwrap();
        outbox::fill(store, workspace, channel, no, range, |n| {
            news(users[n as usize])
        })
        .await
        .unwrap();
    }
}

/// Every record of every topic, but for the poisoned: a line a record.
async fn topics(deployment: &Deployment, store: &Client) -> String {
    let mut all = Vec::new();
    match deployment.log() {
        Log::Kafka { brokers, .. } => {
            let sql = "SELECT topic_no, log_name, partitions FROM topics WHERE retired_at IS NULL";
            let rows = store.query(sql, &[]).await.unwrap();
            let names: Vec<(i32, String, i32)> = rows
                .iter()
                .map(|r| (r.get(0), r.get(1), r.get(2)))
                .collect();
            let brokers = brokers.clone();
            let read = tokio::task::spawn_blocking(move || read_all(&brokers, &names));
            all.extend(
                read.await
                    .unwrap()
                    .unwrap()
                    .into_iter()
                    .map(|r| (r.key, r.payload)),
            );
        }
        Log::Postgres => {
            let sql = "SELECT records FROM log_chunks";
            for row in store.query(sql, &[]).await.unwrap() {
                let bytes: Vec<u8> = row.get(0);
                for record in chunk::records(&bytes).unwrap() {
                    let (key, payload) = record.unwrap();
                    all.push((key.to_vec(), payload.to_vec()));
                }
            }
        }
    }
    all.iter()
        .filter(|(key, _)| key != b"1:poison")
        .map(|(key, payload)| {
            let (key, payload) = (
                String::from_utf8_lossy(key),
                String::from_utf8_lossy(payload),
            );
            format!("{key} {payload}\n")
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_whom_is_told_is_in_any_sink() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let log = match kafka::shared().await {
        Some(kafka) => Log::Kafka {
            brokers: kafka.brokers().to_owned(),
            prefix: format!("secrets-{}-", std::process::id()),
        },
        None => Log::Postgres,
    };
    let modules = [("modules.enabled", "uo")];
    let mut deployment = Deployment::start_with("secrets-people", log, 1, &modules)
        .await
        .unwrap();
    let store = deployment.store().await;
    let mail = Mail::start().unwrap();
    mail.ask_for("postman", PASSWORD);
    for address in &ADDRESSES[1..] {
        let local = address.split('@').next().unwrap();
        let reply = format!("550 5.1.1 <{address}>: {local}... no such user");
        mail.refuse(address, &reply);
    }
    let devices = Receiver::start().unwrap();
    let device = devices.url(&format!("/wake/{ENDPOINT}"));
    // What a distributor says comes into the log of sendings.
    let echo = format!("no {device} of {}", ADDRESSES[0]);
    devices.script([Answer::status(500).saying(&echo)]);

    let command = |deployment: &Deployment, name: &str, words: &[&str]| {
        let launch = deployment.launch(name).unwrap();
        launch
            .env("MILLRACE_SECRET_KEY", KEY)
            .args(words.iter().copied())
    };
    let words = ["workspace", "create", "acme", "--name", "Acme"];
    command(&deployment, "workspace", &words)
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
    let key = command(&deployment, "key", &words)
        .env("RUST_LOG", "off")
        .run(PATIENCE)
        .await
        .unwrap();
    let key = key
        .split_whitespace()
        .find(|w| w.starts_with("rk_"))
        .unwrap();
    let at = free_address().unwrap();
    let mut process = command(&deployment, "everything", &["run"])
        .env("RUST_LOG", "debug,millrace=trace,millrace_topics=trace")
        .setting("http.doors", at)
        .setting("http.admin", at)
        .setting("http.public_url", "https://m.example")
        .setting("delivery.allowed_networks", "127.0.0.0/8")
        .setting("delivery.push.origins", devices.url(""))
        .spawn()
        .unwrap();
    process
        .wait_for_log("millrace is up", PATIENCE)
        .await
        .unwrap();
    let api = Api {
        http: reqwest::Client::builder().no_proxy().build().unwrap(),
        at,
        key: key.to_owned(),
        network: String::new(),
    };
    let (token, transport) = furnish(&api, &mail, &device).await;
    let feed_secret = token.split_once('.').unwrap().1.to_owned();

    // The shard speaks: the beginning of its recorded session, all of it would make logs of many megabytes.
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/demo/shard.ndjson");
    let recorded = std::fs::read_to_string(recorded).unwrap();
    let session = deployment.scratch.path().join("session.ndjson");
    let beginning: Vec<&str> = recorded.lines().take(FRAMES).collect();
    std::fs::write(&session, beginning.join("\n")).unwrap();
    let (session, feed) = (
        session.display().to_string(),
        format!("http://{at}/feed/atlantic"),
    );
    let words = ["feed", "send", &session, "--url", &feed];
    command(&deployment, "feed", &words)
        .env("MILLRACE_FEED_TOKEN", &token)
        .env("RUST_LOG", "trace")
        .run(PATIENCE)
        .await
        .unwrap_or_else(|e| panic!("{e}\n{}", deployment.last_words()));
    enqueue(&store).await;
    let to = json!({"to": ADDRESSES[2]});
    let path = format!("/v1/mail-transports/{transport}/verify");
    api.change(reqwest::Method::POST, &path, to).await;
    let mut sinks: Vec<(String, String)> = Vec::new();
    // Refusals: a token in the wrong place, an address that is taken, one that is none.
    let (get, post) = (reqwest::Method::GET, reqwest::Method::POST);
    let twice = json!({"id": "carl", "email": ADDRESSES[0].to_uppercase()});
    let none = json!({"id": "carl", "email": format!("{},{}", ADDRESSES[0], ADDRESSES[1])});
    let elsewhere = json!({"user": USERS[0], "endpoint": format!("ftp://x.example/{ENDPOINT}")});
    for (method, path, body) in [
        (get.clone(), format!("/feed/atlantic?token={token}"), None),
        (get.clone(), format!("/unsubscribe/{}", ADDRESSES[0]), None),
        (post.clone(), "/v1/users".to_owned(), Some(twice)),
        (post.clone(), "/v1/users".to_owned(), Some(none)),
        (
            post.clone(),
            "/v1/push-subscriptions".to_owned(),
            Some(elsewhere),
        ),
    ] {
        let said = api.says(method, &path, body).await;
        sinks.push((format!("an answer of {path:.20}"), said));
    }
    // Another's producer: an address in what is no record.
    let poison = Line {
        topic: "directory".to_owned(),
        key: b"1:poison".to_vec(),
        payload: format!("{{\"v\":1,\"ws\":1,\"user\":\"{}\",", ADDRESSES[0]).into_bytes(),
    };
    deployment.append(vec![poison]).await.unwrap();

    let linked = || {
        mail.caught()
            .iter()
            .find_map(|m| m.header("List-Unsubscribe"))
    };
    let told = "SELECT (SELECT count(*) FROM send_log WHERE code LIKE '550%'), (SELECT count(*) FROM dead_letters)";
    eventually("people are told, or cannot be", PATIENCE, async || {
        outbox::hasten(&store).await?;
        let row = store.query_one(told, &[]).await?;
        let (refused, dead): (i64, i64) = (row.get(0), row.get(1));
        let woken = devices.received().len() >= 2;
        Ok((refused >= 2 && dead >= 1 && woken && linked().is_some()).then_some(()))
    })
    .await
    .unwrap_or_else(|e| panic!("{e}\n{}", deployment.last_words()));
    let link = linked().unwrap();
    let link = link.trim_matches(['<', '>']).rsplit('/').next().unwrap();
    for method in [get, post] {
        let said = api
            .says(method, &format!("/unsubscribe/{link}"), None)
            .await;
        assert!(said.contains("You will get no more"), "{said}");
        sinks.push(("the page of a link".to_owned(), said));
    }

    for registered in registry() {
        let op = &registered.operation;
        let own = ["/v1/users", "/v1/push-subscriptions"];
        if op.method == Method::Get && op.params.is_empty() && !own.contains(&op.path) {
            let said = api.says(reqwest::Method::GET, op.path, None).await;
            sinks.push((format!("GET {}", op.path), said));
        }
    }
    let deliveries: Value = serde_json::from_str(&api.get("/v1/deliveries").await).unwrap();
    for one in deliveries["items"].as_array().unwrap().iter().take(50) {
        let path = format!("/v1/deliveries/{}", one["id"].as_str().unwrap());
        sinks.push((path.clone(), api.get(&path).await));
    }
    for path in ["/metrics", "/healthz", "/readyz"] {
        sinks.push((path.to_owned(), api.get(path).await));
    }
    for words in [
        &["outbox", "list"][..],
        &["doctor"],
        &["dlq", "list"],
        &["lag"],
    ] {
        let launch = command(&deployment, &format!("terminal-{}", words[0]), words);
        let mut run = launch.env("RUST_LOG", "trace").spawn().unwrap();
        run.wait(PATIENCE).await.unwrap();
    }
    sinks.push(("topics".to_owned(), topics(&deployment, &store).await));
    let about = "SELECT string_agg(reason || ' ' || coalesce(detail, ''), ' ') FROM dead_letters";
    let about: String = store.query_one(about, &[]).await.unwrap().get(0);
    sinks.push(("words about a dead letter".to_owned(), about));
    let stored = tables(&store).await;
    process.signal(15);
    process.wait(PATIENCE).await.unwrap();
    for entry in std::fs::read_dir(deployment.scratch.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && path.file_name().is_some_and(|n| n != "key.log") {
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            sinks.push((path.display().to_string(), text));
        }
    }
    let postgres = deployment.with_server(|server| server.log()).await.unwrap();
    assert!(
        postgres.contains("LOG:"),
        "it is the server's log: {postgres}"
    );
    sinks.push(("PostgreSQL's log".to_owned(), postgres));

    // Secrets stand in no table either; contacts only where they belong, and where somebody else put them.
    let theirs = [
        "table users",
        "table push_subscriptions",
        "table dead_letters",
        "table log_chunks",
    ];
    let (mut held, free): (Vec<_>, Vec<_>) = stored
        .into_iter()
        .partition(|(table, _)| theirs.contains(&&**table));
    sinks.extend(free);
    // In whatever case it stands there.
    for (_, text) in sinks.iter_mut().chain(&mut held) {
        *text = text.to_lowercase();
    }
    let link_of = link.to_owned();
    let secrets = [PASSWORD, &feed_secret, &link_of];
    let locals = ADDRESSES.map(|a| a.split('@').next().unwrap());
    let contacts = [ENDPOINT].into_iter().chain(locals);
    for said in secrets.into_iter().chain(contacts) {
        for (sink, text) in &sinks {
            no(said, sink, text);
        }
    }
    for secret in secrets {
        for (sink, text) in &held {
            no(secret, sink, text);
        }
    }
    // The search itself works: what is no secret is found in every kind of sink.
    for (needle, kind) in [
        ("house.decay", "topics"),
        ("atlantic", "table shards"),
        ("email", "/v1/deliveries/"),
        ("millrace is up", "everything"),
    ] {
        let found = sinks
            .iter()
            .any(|(sink, text)| sink.contains(kind) && text.contains(needle));
        assert!(found, "{needle} should stand in {kind}");
    }
    let users = held.iter().find(|(table, _)| table == "table users");
    assert!(users.is_some_and(|(_, text)| text.contains(ADDRESSES[0])));
}

/// It does not stand in a text of small letters, neither as it is nor as bytes in hex.
fn no(said: &str, sink: &str, text: &str) {
    let small = said.to_lowercase();
    let found = text.contains(&small) || text.contains(&hex(said));
    let line = || text.lines().find(|l| l.contains(&small)).unwrap_or("");
    assert!(
        !found,
        "`{}…` stands in {sink}: {}",
        &said[..6],
        line().chars().take(600).collect::<String>()
    );
}
