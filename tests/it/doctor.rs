//! `millrace doctor` with each of its dependencies broken in turn: it is named, and the exit code says so.

use millrace::sealing::Seals;
use millrace_tests::postgres::{DedicatedServer, TestDatabase, connect};
use millrace_tests::process::{Launch, Scratch, free_address};
use serde_json::Value;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::Client;

const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const OTHER_KEY: &str = "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A server that keeps what it acknowledges: the one that tests share does not, which the doctor would rightly say.
async fn durable() -> &'static DedicatedServer {
    static SERVER: OnceLock<DedicatedServer> = OnceLock::new();
    tokio::task::spawn_blocking(|| SERVER.get_or_init(DedicatedServer::start_durable))
        .await
        .unwrap()
}

/// A patient in good health: database, schema, topics, one sealed secret.
struct Patient {
    scratch: Scratch,
    url: String,
    client: Client,
    _database: TestDatabase,
}

struct Answer {
    code: Option<i32>,
    text: String,
}

impl Answer {
    /// What failed, as `check: says`.
    fn failed(&self) -> Vec<String> {
        let all: Vec<Value> = serde_json::from_str(&self.text).unwrap_or_default();
        all.iter()
            .filter(|f| f["state"] == "fail")
            .map(|f| {
                assert!(f["advice"].is_string(), "no advice: {f}");
                format!(
                    "{}: {}",
                    f["check"].as_str().unwrap(),
                    f["says"].as_str().unwrap()
                )
            })
            .collect()
    }

    fn warned(&self, check: &str) -> bool {
        let all: Vec<Value> = serde_json::from_str(&self.text).unwrap_or_default();
        all.iter()
            .any(|f| f["state"] == "warn" && f["check"] == check)
    }
}

impl Patient {
    async fn healthy() -> Patient {
        let database = TestDatabase::create_on(durable().await).await;
        let client = connect(database.url()).await;
        let patient = Patient {
            scratch: Scratch::new("doctor").unwrap(),
            url: database.url().to_owned(),
            client,
            _database: database,
        };
        let made = patient.command(&["topics", "create"], |l| l).await;
        assert_eq!(made.code, Some(0), "{}", made.text);
        let sealed = Seals::from_texts(Some(KEY), None)
            .unwrap()
            .seal("network-secret:nw_1", b"postback secret")
            .unwrap();
        patient
            .sql("INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme')")
            .await;
        patient
            .client
            .execute(
                "INSERT INTO networks (network_id, workspace_id, name, secret_digest, secret_sealed)
                 SELECT 'nw_1', workspace_id, 'One', '\\x00', $1 FROM workspaces",
                &[&sealed],
            )
            .await
            .unwrap();
        patient
    }

    async fn sql(&self, text: &str) {
        self.client.batch_execute(text).await.unwrap();
    }

    async fn command(&self, words: &[&str], with: impl FnOnce(Launch) -> Launch) -> Answer {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("doctor-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let doors = free_address().unwrap();
        let launch = Launch::product(&name, self.scratch.path())
            .unwrap()
            .env("RUST_LOG", "off")
            .env("DATABASE_URL", &self.url)
            .env("MILLRACE_SECRET_KEY", KEY)
            .setting("http.doors", doors)
            .setting("database.connect_timeout_ms", 2_000)
            .arg("--json")
            .args(words.iter().copied());
        let mut process = with(launch).spawn().unwrap();
        let status = process.wait(Duration::from_secs(60)).await.unwrap();
        Answer {
            code: status.code(),
            text: process.log_text(),
        }
    }

    async fn doctor(&self, with: impl FnOnce(Launch) -> Launch) -> Answer {
        self.command(&["doctor"], with).await
    }

    /// Breaks something by SQL, expects it to be named, mends it by SQL, expects nothing.
    async fn breaks(&self, break_it: &str, mend_it: &str, named: &[&str]) {
        self.sql(break_it).await;
        expect(&self.doctor(|l| l).await, named);
        self.sql(mend_it).await;
        let mended = self.doctor(|l| l).await;
        assert_eq!(mended.code, Some(0), "after {mend_it}: {}", mended.text);
    }
}

fn expect(answer: &Answer, named: &[&str]) {
    assert_eq!(answer.code, Some(1), "{}", answer.text);
    let failed = answer.failed();
    assert!(
        failed.iter().any(|f| named.iter().all(|n| f.contains(n))),
        "{named:?} is not named: {}",
        answer.text
    );
}

#[tokio::test]
async fn what_the_store_lacks_is_named() {
    let p = Patient::healthy().await;
    let well = p.doctor(|l| l).await;
    assert_eq!(well.code, Some(0), "{}", well.text);
    assert!(well.warned("groups"), "nobody consumes: {}", well.text);

    p.breaks(
        "INSERT INTO refinery_schema_history (version, name, applied_on, checksum) VALUES (999, 'later', '2030-01-01T00:00:00Z', '1');
         UPDATE schema_floor SET version = 999",
        // During an upgrade the older program still runs on what a newer one has added to.
        "UPDATE schema_floor SET version = 13",
        &["schema", "V999"],
    )
    .await;
    assert!(p.doctor(|l| l).await.warned("schema"));
    p.sql("DELETE FROM refinery_schema_history WHERE version = 999")
        .await;
    p.breaks(
        "DO $$ BEGIN EXECUTE 'DROP TABLE clicks_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD'); END $$",
        "SELECT make_daily_partitions('clicks', (now() AT TIME ZONE 'UTC')::date, (now() AT TIME ZONE 'UTC')::date)",
        &["partitions", "clicks 20"],
    )
    .await;
    p.breaks(
        "INSERT INTO ownership (group_name, partition, stopped_reason) VALUES ('attribution', 3, 'too much poison')",
        "DELETE FROM ownership",
        &["partitions", "partition 3", "too much poison"],
    )
    .await;
    p.breaks(
        "UPDATE log_heads SET next_offset = 5 WHERE partition = 2",
        "UPDATE log_heads SET next_offset = 0",
        &["groups", "nobody consumes `attribution`", "10 records"],
    )
    .await;
    p.breaks(
        "UPDATE log_heads SET next_offset = 9; UPDATE log_bounds SET first_offset = 9",
        "UPDATE log_heads SET next_offset = 0; UPDATE log_bounds SET first_offset = 0",
        &["lag", "dropped 9 records"],
    )
    .await;

    p.sql("INSERT INTO paused_groups (group_name, reason) VALUES ('attribution', 'moving house')")
        .await;
    let paused = p.doctor(|l| l).await;
    assert_eq!(paused.code, Some(0), "{}", paused.text);
    assert!(paused.text.contains("moving house"), "{}", paused.text);

    p.sql("DELETE FROM refinery_schema_history WHERE version = 4")
        .await;
    expect(&p.doctor(|l| l).await, &["schema", "V004"]);
}

#[tokio::test]
async fn what_does_not_leave_is_named() {
    let p = Patient::healthy().await;
    p.sql(
        "INSERT INTO pixels (pixel_id, workspace_id, name, dataset_id) SELECT 'px_1', workspace_id, 'P', '1' FROM workspaces;
         INSERT INTO webhooks (webhook_id, workspace_id, name, url, events)
         SELECT 'wh_1', workspace_id, 'W', 'https://x.example/', '{visit}' FROM workspaces",
    )
    .await;
    let well = p.doctor(|l| l).await;
    assert_eq!(well.code, Some(0), "{}", well.text);
    assert!(well.text.contains("2 destinations"), "{}", well.text);

    let due = "INSERT INTO outbox_due (outbox_id, created_at, destination_no, due_at)
               SELECT gen_random_uuid(), now() - interval '1 day', destination_no, now() - interval";
    p.breaks(
        &format!("{due} '61 minutes' FROM destinations WHERE ref = 'wh_1'"),
        "DELETE FROM outbox_due",
        &["outbox", "overdue", "wh_1"],
    )
    .await;
    // Paused, with messages: it fails, and says what to do. With none, or by hand, it is only to look at.
    let pause = "UPDATE destinations SET paused_code = 'meta_token_invalid', paused_reason = 'token expired', paused_by = 'millrace',
                 paused_at = now() WHERE ref = 'px_1'";
    let resume = "UPDATE destinations SET paused_code = NULL";
    p.breaks(
        &format!("{pause}; {due} '2 days' FROM destinations WHERE ref = 'px_1'"),
        &format!("{resume}; DELETE FROM outbox_due"),
        &["destinations", "px_1", "token expired", "messages wait"],
    )
    .await;
    p.sql(pause).await;
    let answer = p.doctor(|l| l).await;
    assert_eq!(answer.code, Some(0), "{}", answer.text);
    assert!(answer.warned("destinations") && answer.text.contains("/v1/pixels/px_1/credentials"));
    p.sql(&format!(
        "{resume}; INSERT INTO paused_channels VALUES ('*', 'restored from a backup', 'cli'); {due} '2 days' FROM destinations"
    ))
    .await;
    let answer = p.doctor(|l| l).await;
    assert_eq!(answer.code, Some(0), "{}", answer.text);
    assert!(answer.warned("outbox") && answer.text.contains("release --all-held"));
    p.sql("DELETE FROM paused_channels; DELETE FROM outbox_due")
        .await;

    // Each kind of secret, by its name and the id of its key.
    let sealed = |purpose: &str| {
        Seals::from_texts(Some(OTHER_KEY), None)
            .unwrap()
            .seal(purpose, b"hush")
            .unwrap()
    };
    p.client
        .execute(
            "UPDATE pixels SET access_token_sealed = $1, app_secret_sealed = $2",
            &[
                &sealed("pixel-access-token:px_1"),
                &sealed("pixel-app-secret:px_1"),
            ],
        )
        .await
        .unwrap();
    p.client
        .execute(
            "UPDATE webhooks SET secret_sealed = $1, previous_secret_sealed = $1, previous_until = now() + interval '1 hour'",
            &[&sealed("webhook-secret:wh_1")],
        )
        .await
        .unwrap();
    let shut = p.doctor(|l| l).await;
    for name in [
        "px_1 access token",
        "px_1 app secret",
        "wh_1 secret",
        "wh_1 previous secret",
    ] {
        expect(&shut, &["secrets", "4 of 5", name, "sealed under key"]);
    }
    let both = |l: Launch| l.env("MILLRACE_SECRET_KEY_OLD", OTHER_KEY);
    assert_eq!(p.doctor(both).await.code, Some(0));
}

#[tokio::test]
async fn topics_that_do_not_fit_are_named() {
    let p = Patient::healthy().await;
    p.breaks(
        "UPDATE topics SET partitions = 4 WHERE name = 'clicks'",
        "UPDATE topics SET partitions = 8 WHERE name = 'clicks'",
        &["topics", "clicks 4, postbacks 8"],
    )
    .await;
    p.breaks(
        "UPDATE topics SET partitions = 4",
        "UPDATE topics SET partitions = 8",
        &["topics", "has 8 partitions", "4 in the catalogue"],
    )
    .await;
    p.breaks(
        "UPDATE topics SET retired_at = now() WHERE name = 'postbacks'",
        "UPDATE topics SET retired_at = NULL",
        &["topics", "postbacks"],
    )
    .await;
    let kafka = |l: Launch| l.setting("log.backend", "kafka");
    expect(&p.doctor(kafka).await, &["log", "log.brokers"]);
    let nowhere = free_address().unwrap();
    let away = |l: Launch| kafka(l).setting("log.brokers", nowhere);
    expect(
        &p.doctor(away).await,
        &["topics", "was made in the postgres log"],
    );
    p.sql("UPDATE topics SET log_id = 'kafka'").await;
    expect(
        &p.doctor(|l| kafka(l).setting("log.brokers", nowhere)).await,
        &["log", "does not answer"],
    );
}

#[tokio::test]
async fn a_database_that_is_away_or_unsafe_is_named() {
    let p = Patient::healthy().await;
    let nowhere = free_address().unwrap();
    let away = |l: Launch| l.env("DATABASE_URL", format!("postgres://millrace@{nowhere}/x"));
    expect(
        &p.doctor(away).await,
        &["database", "does not answer", &nowhere.to_string()],
    );
    let none = |l: Launch| l.env("DATABASE_URL", "");
    expect(&p.doctor(none).await, &["database", "DATABASE_URL"]);
    let tls = |l: Launch| l.env("DATABASE_URL", format!("{}?sslmode=verify-full", p.url));
    expect(&p.doctor(tls).await, &["database"]);
    let word = |l: Launch| l.env("DATABASE_URL", format!("{}?sslmode=verify_full", p.url));
    expect(&p.doctor(word).await, &["database", "verify_full"]);
    let empty = p.url.replace(p._database.name(), "postgres");
    expect(
        &p.doctor(|l| l.env("DATABASE_URL", empty)).await,
        &["schema", "V001"],
    );

    let shared = TestDatabase::create().await;
    expect(
        &p.doctor(|l| l.env("DATABASE_URL", shared.url())).await,
        &["durability", "fsync is off"],
    );

    let clock = p.scratch.path().join("clock");
    std::fs::write(&clock, "120000000").unwrap();
    expect(&p.doctor(|l| l.clock(&clock)).await, &["clock", "s away"]);
}

#[tokio::test]
async fn keys_ports_disks_and_settings_are_named() {
    let p = Patient::healthy().await;
    let bad = |l: Launch| l.env("MILLRACE_SECRET_KEY", "hunter2");
    let answer = p.doctor(bad).await;
    expect(&answer, &["secret key"]);
    assert!(!answer.text.contains("hunter2"));
    let other = |l: Launch| l.env("MILLRACE_SECRET_KEY", OTHER_KEY);
    expect(&p.doctor(other).await, &["secrets", "nw_1"]);
    let both = |l: Launch| other(l).env("MILLRACE_SECRET_KEY_OLD", KEY);
    let rotating = p.doctor(both).await;
    assert_eq!(rotating.code, Some(0));
    assert!(
        rotating.warned("secrets") && rotating.text.contains("millrace secrets reseal"),
        "{}",
        rotating.text
    );
    // Sealed anew, the old key is needed no more, and the doctor says so.
    let resealed = p.command(&["secrets", "reseal"], both).await;
    assert_eq!(resealed.code, Some(0), "{}", resealed.text);
    assert!(
        resealed.text.contains("\"resealed\": 1"),
        "{}",
        resealed.text
    );
    let done = p.doctor(both).await;
    assert!(done.text.contains("needed no more"), "{}", done.text);
    assert!(!p.doctor(other).await.warned("secrets"));
    let lost = p.command(&["secrets", "reseal"], |l| l).await;
    assert_eq!(lost.code, Some(1), "{}", lost.text);
    assert!(lost.text.contains("nw_1"), "{}", lost.text);
    let back = |l: Launch| l.env("MILLRACE_SECRET_KEY_OLD", OTHER_KEY);
    assert_eq!(p.command(&["secrets", "reseal"], back).await.code, Some(0));

    // Somebody else's web server, and doors that are not ready.
    for (body, named) in [
        ("<html>", "another program"),
        (r#"{"ready":false,"reasons":["log: away"]}"#, "log: away"),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        expect(
            &p.doctor(|l| l.setting("http.doors", address)).await,
            &["doors", named],
        );
        server.abort();
    }
    let elsewhere = |l: Launch| l.setting("http.doors", "192.0.2.1:80");
    expect(&p.doctor(elsewhere).await, &["doors", "192.0.2.1:80"]);

    std::fs::create_dir_all(p.scratch.path().join("data")).unwrap();
    let full = |l: Launch| {
        l.env("DATABASE_URL", "")
            .setting("http.disk_low_watermark", u64::MAX >> 1)
    };
    expect(&p.doctor(full).await, &["disk", "disk_low_watermark"]);

    let unknown = p.doctor(|l| l.setting("http.door", "x")).await;
    assert_eq!(unknown.code, Some(2), "{}", unknown.text);
    assert!(
        unknown.text.contains("MILLRACE_HTTP__DOOR"),
        "{}",
        unknown.text
    );
}
