//! The doors over real sockets, on the real Postgres log, with configuration and keys in a real database.

use millrace::api::key_store::{self, NewKey};
use millrace::ingress::disk::DiskWatch;
use millrace::ingress::feed::FeedSetup;
use millrace::ingress::keys::StoredKeys;
use millrace::ingress::server;
use millrace::ingress::snapshot::SnapshotHandle;
use millrace::ingress::state::{DoorSetup, DoorState};
use millrace::runtime::clock::SystemClock;
use millrace::settings::Http;
use millrace_schemas::click::{ClickRecord, Kind};
use millrace_schemas::postback::PostbackRecord;
use millrace_tests::postgres::{DedicatedServer, StopMode, TestDatabase};
use millrace_tests::process::eventually;
use millrace_topics::catalogue;
use millrace_topics::contract::{Producer, TopicRef};
use millrace_topics::pglog::{self, Connector, PgLogProducer, ProducerOptions};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECRET: &str = "a-networks-secret";

/// Doors of one test.
struct Doors {
    database: TestDatabase,
    topics: Vec<TopicRef>,
    producer: Arc<dyn Producer>,
    snapshot: Arc<SnapshotHandle>,
    handle: actix_web::dev::ServerHandle,
    base: String,
    key: String,
    http: Client,
}

impl Doors {
    async fn open(database: TestDatabase, http: Http) -> Doors {
        let mut client = database.client().await;
        let mut topics = Vec::new();
        for name in [catalogue::CLICKS, catalogue::POSTBACKS] {
            let topic = catalogue::register(&client, name, "", 4)
                .await
                .expect("registered");
            pglog::create_topic(&client, &topic).await.expect("made");
            topics.push(topic);
        }
        let digest = Sha256::digest(SECRET).to_vec();
        client
            .batch_execute(
                "INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme'), ('other', 'Other');",
            )
            .await
            .expect("workspaces");
        client
            .execute(
                "INSERT INTO networks (network_id, workspace_id, name, secret_digest) VALUES ('nw_1', 1, 'N', $1)",
                &[&digest],
            )
            .await
            .expect("a network");
        client
            .batch_execute(
                r#"INSERT INTO offers (offer_id, workspace_id, name, url_template, network_id, payout)
                   VALUES ('of_1', 1, 'O', 'https://offer.example/?c={click_id}', 'nw_1', 2.5);
                   INSERT INTO campaigns (campaign_id, workspace_id, name, routing)
                   VALUES ('camp', 1, 'C', '{"offers": [{"offer": "of_1", "weight": 1}]}');"#,
            )
            .await
            .expect("a campaign");
        let tx = client.transaction().await.expect("begins");
        let new = NewKey {
            workspace: Some(1),
            name: "feed".into(),
            scopes: vec!["ingest:write".into()],
            created_by: "test".into(),
            ..NewKey::default()
        };
        let (_, key) = key_store::create(&tx, &new, None).await.expect("a key");
        tx.commit().await.expect("commits");
        let connector = Connector::plain(database.url()).expect("a URL");
        let options = ProducerOptions {
            give_up_after: Duration::from_secs(1),
            ..ProducerOptions::default()
        };
        let producer: Arc<dyn Producer> =
            Arc::new(PgLogProducer::start(connector, &topics, options).expect("a producer"));
        let snapshot = SnapshotHandle::empty(Duration::from_secs(http.configuration_hold_s));
        snapshot
            .refresh(database.pool())
            .await
            .expect("configuration");
        snapshot.keep_fresh(database.pool().clone());
        let state = DoorState::new(DoorSetup {
            producer: producer.clone(),
            clicks: topics[0].clone(),
            postbacks: topics[1].clone(),
            snapshot: snapshot.clone(),
            keys: Arc::new(StoredKeys {
                pool: database.pool().clone(),
            }),
            clock: Arc::new(SystemClock),
            http: http.clone(),
            ack_timeout: Duration::from_secs(2),
            disk: Arc::new(DiskWatch::default()),
            feed: FeedSetup::off(),
            stopped: Arc::new(Vec::new),
            metrics: None,
        })
        .expect("settings read");
        let (running, addresses) = server::serve(&http, state, |_| {}).expect("binds");
        let handle = running.handle();
        actix_rt::spawn(running);
        let _ = rustls::crypto::ring::default_provider().install_default();
        Doors {
            topics,
            producer,
            snapshot,
            handle,
            base: format!("http://{}", addresses[0]),
            key: key.reveal(),
            http: Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .expect("a client"),
            database,
        }
    }

    async fn new() -> Doors {
        Doors::open(TestDatabase::create().await, settings()).await
    }

    async fn get(&self, path: &str) -> reqwest::Response {
        let url = format!("{}{path}", self.base);
        self.http.get(url).send().await.expect("answers")
    }

    async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> reqwest::Response {
        self.http
            .post(format!("{}{path}", self.base))
            .bearer_auth(&self.key)
            .body(body)
            .send()
            .await
            .expect("answers")
    }

    /// Everything that the log has, by topic.
    async fn records(&self) -> (Vec<ClickRecord>, Vec<PostbackRecord>) {
        let client = self.database.client().await;
        let (mut clicks, mut postbacks) = (Vec::new(), Vec::new());
        for mark in pglog::watermarks(&client, &self.topics)
            .await
            .expect("watermarks")
        {
            for offset in mark.low..mark.high {
                let (_, payload) = pglog::record_at(&client, mark.topic_no, mark.partition, offset)
                    .await
                    .expect("reads")
                    .expect("is there");
                if mark.topic_no == self.topics[0].no {
                    clicks.push(serde_json::from_slice(&payload).expect("a click record"));
                } else {
                    postbacks.push(serde_json::from_slice(&payload).expect("a postback record"));
                }
            }
        }
        (clicks, postbacks)
    }

    async fn count(&self) -> usize {
        let (clicks, postbacks) = self.records().await;
        clicks.len() + postbacks.len()
    }

    async fn close(self) {
        self.handle.stop(true).await;
        self.producer.close(Duration::from_secs(1)).await;
    }
}

fn settings() -> Http {
    Http {
        doors: ([127, 0, 0, 1], 0).into(),
        max_body: 4_096,
        max_batch_body: 65_536,
        ..Http::default()
    }
}

#[actix_web::test]
async fn what_was_answered_with_success_is_in_the_log() {
    let doors = Doors::new().await;
    let visit = doors.get("/c/camp?fbclid=IwAR&sub1=x").await;
    assert_eq!(visit.status(), StatusCode::FOUND);
    let location = visit.headers()["location"]
        .to_str()
        .expect("text")
        .to_owned();
    let click_id = location.rsplit('=').next().expect("a click id").to_owned();
    assert_eq!(doors.count().await, 1, "before anything else is asked");
    let beacon = json!({"click_id": click_id, "link_id": "camp"}).to_string();
    assert_eq!(
        doors.post("/e", beacon).await.status(),
        StatusCode::NO_CONTENT
    );
    let pb = format!("/pb?secret={SECRET}&click_id={click_id}&payout=3&txid=t1");
    let told = doors.get(&pb).await;
    assert_eq!(told.status(), StatusCode::OK);
    assert_eq!(told.text().await.expect("text"), "1");
    // A postback for a click that nobody knows is accepted; it waits in its actor.
    let unknown = format!("/pb?secret={SECRET}&click_id=nobody-knows");
    assert_eq!(
        doors.post(&unknown, "ignored").await.status(),
        StatusCode::OK
    );
    let never = format!("/pb?secret={SECRET}&payout=1");
    assert_eq!(doors.get(&never).await.status(), StatusCode::BAD_REQUEST);
    let lines = "{\"id\":\"1\",\"campaign\":\"camp\"}\n{\"id\":\"2\",\"campaign\":\"camp\"}\n";
    for stream in ["visits", "clicks"] {
        let answer = doors.post(&format!("/v1/batch/{stream}"), lines).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let answer: Value = answer.json().await.expect("JSON");
        assert_eq!(answer["accepted"], 2, "{answer}");
    }
    let line = r#"{"id":"p","network":"nw_1","click_id":"x","payout":"1.25"}"#;
    assert_eq!(
        doors.post("/v1/batch/postbacks", line).await.status(),
        StatusCode::OK
    );
    let (clicks, postbacks) = doors.records().await;
    let kinds = |kind| clicks.iter().filter(|c| c.kind == kind).count();
    assert_eq!((kinds(Kind::Visit), kinds(Kind::Click)), (3, 3));
    assert_eq!(postbacks.len(), 4);
    assert!(postbacks.iter().all(|p| !p.query.contains(SECRET)));
    let direct = clicks.iter().find(|c| c.direct).expect("the visit");
    assert_eq!(direct.click_id, click_id);
    let journey = direct.journey.as_deref().expect("a journey").get();
    assert_eq!(
        journey,
        r#"{"offer":{"id":"of_1","network":"nw_1","payout":"2.5","currency":"USD"}}"#
    );
    doors.close().await;
}

#[actix_web::test]
async fn what_was_turned_away_is_not_in_the_log_and_the_door_goes_on() {
    let doors = Doors::new().await;
    let long = "x".repeat(70_000);
    let good = r#"{"id":"1","campaign":"camp"}"#;
    for (path, body, status) in [
        ("/e", long.clone(), 413),
        ("/e", "{".into(), 400),
        (
            "/e",
            r#"{"click_id":"a\u0000","link_id":"camp"}"#.into(),
            400,
        ),
        ("/e", r#"{"click_id":"a","link_id":"nowhere"}"#.into(), 404),
        ("/v1/batch/clicks", long, 413),
        ("/v1/batch/clicks", format!("{good}\nnot json\n"), 400),
        (
            "/v1/batch/clicks",
            r#"{"id":"1","campaign":"nowhere"}"#.into(),
            400,
        ),
        ("/pb?secret=wrong&click_id=a", String::new(), 403),
    ] {
        let answer = doors.post(path, body).await;
        assert_eq!(answer.status().as_u16(), status, "{path}");
        let told: Value = answer.json().await.expect("a JSON body");
        assert!(
            told["code"].is_string() && told["detail"].is_string(),
            "{told}"
        );
        if path.starts_with("/v1") && told["code"] == "not_json" {
            assert_eq!(told["line"], 2);
        }
    }
    for (path, status) in [("/c/nowhere", 404), ("/c/camp?x=%00", 400), ("/pb", 403)] {
        assert_eq!(doors.get(path).await.status().as_u16(), status, "{path}");
    }
    let url = format!("{}/v1/batch/clicks", doors.base);
    let foreign = doors
        .http
        .post(url)
        .bearer_auth("rk_x.y")
        .body(good)
        .send()
        .await;
    assert_eq!(foreign.expect("answers").status(), StatusCode::UNAUTHORIZED);
    assert_eq!(doors.count().await, 0);
    assert_eq!(doors.get("/c/camp").await.status(), StatusCode::FOUND);
    doors.close().await;
}

#[actix_web::test]
async fn an_edit_reaches_the_doors_within_a_second() {
    let doors = Doors::new().await;
    let client = doors.database.client().await;
    let within = |since: Instant| {
        let took = since.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
    };
    let secret = Sha256::digest("another").to_vec();
    let since = Instant::now();
    client
        .execute("UPDATE networks SET secret_digest = $1", &[&secret])
        .await
        .expect("rotated");
    let old = format!("/pb?secret={SECRET}&click_id=a");
    eventually(
        "the old secret is dead",
        Duration::from_secs(5),
        async || Ok((doors.get(&old).await.status() == StatusCode::FORBIDDEN).then_some(())),
    )
    .await
    .expect("in time");
    within(since);
    assert_eq!(
        doors.get("/pb?secret=another&click_id=a").await.status(),
        StatusCode::OK
    );
    let since = Instant::now();
    client
        .batch_execute("UPDATE campaigns SET status = 'paused'")
        .await
        .expect("paused");
    eventually(
        "the campaign is closed",
        Duration::from_secs(5),
        async || Ok((doors.get("/c/camp").await.status() == StatusCode::NOT_FOUND).then_some(())),
    )
    .await
    .expect("in time");
    within(since);
    let line = r#"{"id":"1","campaign":"camp"}"#;
    assert_eq!(
        doors.post("/v1/batch/clicks", line).await.status(),
        StatusCode::OK
    );
    let since = Instant::now();
    client
        .batch_execute("UPDATE api_keys SET revoked_at = now()")
        .await
        .expect("revoked");
    eventually("the key is dead", Duration::from_secs(5), async || {
        let answer = doors.post("/v1/batch/clicks", line).await;
        Ok((answer.status() == StatusCode::UNAUTHORIZED).then_some(()))
    })
    .await
    .expect("in time");
    assert!(
        since.elapsed() < Duration::from_millis(1_300),
        "{:?}",
        since.elapsed()
    );
    doors.close().await;
}

#[actix_web::test]
async fn without_its_log_a_door_says_503_and_recovers() {
    let server = tokio::task::spawn_blocking(DedicatedServer::start_durable)
        .await
        .expect("a server");
    let database = TestDatabase::create_on(&server).await;
    let http = Http {
        configuration_hold_s: 6,
        ..settings()
    };
    let doors = Doors::open(database, http).await;
    assert_eq!(doors.get("/readyz").await.status(), StatusCode::OK);
    assert_eq!(doors.get("/c/camp").await.status(), StatusCode::FOUND);
    let server = tokio::task::spawn_blocking(move || {
        let mut server = server;
        server.stop(StopMode::Immediate);
        server
    })
    .await
    .expect("stops");
    for answer in [
        doors.get("/c/camp").await,
        doors
            .post("/e", r#"{"click_id":"a","link_id":"camp"}"#)
            .await,
    ] {
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.headers().contains_key("retry-after"));
        let told: Value = answer.json().await.expect("JSON");
        assert_eq!(told["code"], "log_unavailable", "what is held still serves");
    }
    eventually(
        "the configuration is too old",
        Duration::from_secs(20),
        async || {
            let told: Value = doors.get("/c/camp").await.json().await?;
            Ok((told["code"] == "configuration_stale").then_some(()))
        },
    )
    .await
    .expect("in time");
    assert!(doors.snapshot.current().is_none());
    assert_eq!(
        doors.get("/readyz").await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(doors.get("/healthz").await.status(), StatusCode::OK);
    let server = tokio::task::spawn_blocking(move || {
        let mut server = server;
        server.start_again();
        server
    })
    .await
    .expect("starts");
    eventually(
        "the doors are open again",
        Duration::from_secs(20),
        async || Ok((doors.get("/c/camp").await.status() == StatusCode::FOUND).then_some(())),
    )
    .await
    .expect("in time");
    eventually("ready", Duration::from_secs(5), async || {
        Ok((doors.get("/readyz").await.status() == StatusCode::OK).then_some(()))
    })
    .await
    .expect("in time");
    doors.close().await;
    drop(server);
}
