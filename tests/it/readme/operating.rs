//! The chapter for operators: its blocks are run in order after the README's first four steps, those marked `kafka` on Apache
//! Kafka, the others on the Postgres log.

use super::{blocks, chapters, is_run_elsewhere, stand_in};
use millrace_tests::kafka;
use millrace_tests::postgres::{DedicatedServer, TestDatabase, binaries};
use millrace_tests::process::{Scratch, free_address, product};
use millrace_tests::receivers::Receiver;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// Seconds that a session may take.
const PATIENCE: &str = "240";

/// A deployment with a network, a campaign, conversions and a webhook, as the README makes one; then the chapter's blocks.
fn script(language: &str) -> String {
    let (rest, chapter) = chapters();
    let from = rest.find("### 1.").expect("the first step");
    let to = rest.find("### 5.").expect("the fifth step");
    let mut all = blocks(&rest[from..to], "sh");
    let own = blocks(&chapter, language);
    assert!(own.len() >= 4, "only {} blocks of {language}", own.len());
    all.extend(own);
    let mut script =
        String::from("set -euo pipefail\ntrap 'kill -KILL $(jobs -p) 2>/dev/null || true' EXIT\n");
    for line in all.iter().flat_map(|b| b.lines()) {
        if !is_run_elsewhere(line) {
            script.push_str(line);
            script.push('\n');
        }
    }
    script.push_str("echo; echo THE END\n");
    script
}

/// Runs a session to its end; what it said on stdout.
async fn run(name: &str, language: &str, settings: Vec<(&'static str, String)>) -> String {
    // `doctor` finds fault with a database that may forget.
    let server = tokio::task::spawn_blocking(DedicatedServer::start_durable)
        .await
        .expect("the server starts");
    let database = TestDatabase::create_on(&server).await;
    database
        .client()
        .await
        .batch_execute("CREATE DATABASE restored")
        .await
        .expect("an empty database");
    let (first, next) = (
        free_address().expect("a port"),
        free_address().expect("a port"),
    );
    let receiver = Receiver::start().expect("a receiver");
    let scratch = Scratch::new(name).expect("a directory");
    let bin = scratch.path().join("bin");
    std::fs::create_dir_all(&bin).expect("a directory");
    let millrace = bin.join("millrace");
    std::fs::write(&millrace, stand_in(&product().expect("the product"))).expect("the stand-in");
    std::fs::set_permissions(&millrace, PermissionsExt::from_mode(0o755)).expect("executable");
    let path = format!(
        "{}:{}:{}",
        bin.display(),
        binaries().display(),
        std::env::var("PATH").expect("PATH")
    );
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", PATIENCE, "bash", "-c", &script(language)])
        .current_dir(scratch.path())
        .env("PATH", path)
        .env("DATABASE_URL", database.url())
        .env("RESTORED", server.url("restored"))
        .env("URL", format!("http://{first}"))
        .env("NEXT", next.to_string())
        .env("HOOK", receiver.url("/millrace"))
        .env("MILLRACE_SECRET_KEY", "5a".repeat(32))
        .env("MILLRACE_DELIVERY__ALLOWED_NETWORKS", "127.0.0.0/8")
        .env("MILLRACE_DELIVERY__META__GRAPH_URL", "http://127.0.0.1:1")
        .env("MILLRACE_HTTP__DOORS", first.to_string())
        .env("MILLRACE_HTTP__ADMIN", first.to_string())
        .env("MILLRACE_ATTRIBUTION__PARK_FOR_S", "1")
        .envs(settings)
        .stdin(Stdio::null());
    let done = tokio::task::spawn_blocking(move || command.output().expect("bash runs"))
        .await
        .expect("it ran");
    let out = String::from_utf8_lossy(&done.stdout).into_owned();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success() && out.contains("THE END"),
        "{}\n--- stdout\n{out}\n--- stderr\n{err}",
        done.status
    );
    out
}

#[tokio::test]
async fn its_blocks_run_in_order() {
    let out = run("operating", "sh", Vec::new()).await;
    assert!(out.contains("resealed"), "{out}");
    assert!(out.contains("the outbox goes on"), "{out}");
}

#[tokio::test]
async fn its_blocks_about_consumers_and_partitions_run_on_kafka() {
    let Some(kafka) = kafka::shared().await else {
        return;
    };
    let settings = vec![
        ("MILLRACE_LOG__BACKEND", "kafka".to_owned()),
        ("MILLRACE_LOG__BROKERS", kafka.brokers().to_owned()),
        (
            "MILLRACE_LOG__PREFIX",
            format!("operating-{}-", std::process::id()),
        ),
        ("MILLRACE_LOG__PARTITIONS", "4".to_owned()),
    ];
    let out = run("operating-kafka", "sh kafka", settings).await;
    assert!(out.contains("every topic has 16 partitions now"), "{out}");
}
