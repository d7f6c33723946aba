//! The demo's recount: a ledger that adds up is balanced, one that was tampered with is not, whatever was done to it.

use millrace::cli::demo::drive::{Sent, Tally};
use millrace::cli::demo::recount::recount;
use millrace::cli::demo::report::checks;
use millrace::cli::demo::traffic::{Booking, Door, Expect, Expected};
use millrace_schemas::journey::Role;
use millrace_schemas::outcome::Outcome;
use millrace_schemas::postback::Status;
use millrace_tests::postgres::{TestDatabase, connect};
use millrace_tests::process::{free_address, product};
use std::process::{Command, Stdio};
use tokio_postgres::Client;

/// Two visits (one sent twice) and a click; four postbacks: one booked, one of them again, one that can never be booked, one
/// that waits. Written by hand, as attribution writes it.
const LEDGER: &str = "
INSERT INTO topics (name, generation, log_name, partitions) VALUES ('clicks', 1, 'clicks', 1), ('postbacks', 1, 'postbacks', 1);
CREATE FUNCTION record(topic text, n bigint) RETURNS uuid LANGUAGE sql AS $$
    SELECT (lpad(to_hex(topic_no), 8, '0') || '00000000' || lpad(to_hex(n), 16, '0'))::uuid FROM topics WHERE name = topic $$;
INSERT INTO positions (group_name, partition, topic_no, next_offset, consumed)
    SELECT 'attribution', 0, topic_no, 4, 4 FROM topics;
INSERT INTO outcomes (group_name, topic_no, partition, outcome, reason, n)
    SELECT 'attribution', topic_no, 0, o, '', n FROM topics,
        (VALUES ('clicks', 0, 3), ('clicks', 1, 1), ('postbacks', 0, 1), ('postbacks', 1, 1), ('postbacks', 2, 1),
                ('postbacks', 3, 1)) AS c (name, o, n)
    WHERE topics.name = c.name;
INSERT INTO visits (workspace_id, click_key, visit_id, record_id, accepted_at, stage, direct, campaign_id)
    SELECT 1, record('clicks', n), record('clicks', n), record('clicks', n), now(), 0, false, 'camp'
    FROM generate_series(0, 1) n;
INSERT INTO clicks (workspace_id, click_key, record_id, accepted_at, stage, campaign_id)
    VALUES (1, record('clicks', 0), record('clicks', 3), now(), 0, 'camp');
INSERT INTO conversions (workspace_id, conversion_id, click_key, accepted_at, booked_at, campaign_id, visit_id, offer_id, role,
        network_id, txid, payout, currency, status, status_at)
    VALUES (1, record('postbacks', 0), record('clicks', 0), now(), now(), 'camp', record('clicks', 0), 'of_1', 'navigation',
        'nw_1', 'tx1', 12.50, 'USD', 'approved', now());
INSERT INTO conversion_keys VALUES (record('clicks', 0), record('postbacks', 0), now());
INSERT INTO postback_log (workspace_id, record_id, accepted_at, decided_at, outcome, reason, network_id)
    SELECT 1, record('postbacks', n), now(), now(), o, r, 'nw_1'
    FROM (VALUES (0, 0, ''), (1, 1, ''), (2, 3, 'payout_malformed'), (3, 2, '')) AS l (n, o, r);
INSERT INTO parked (workspace_id, click_key, record_id, hash, accepted_at, deadline, kind, click_id, payload)
    VALUES (1, record('clicks', 9), record('postbacks', 3), 0, now(), now(), 'postback', 'nobody', '');
";

fn generator() -> (Expected, Sent) {
    let mut expected = Expected::default();
    let ends = |outcome| Expect::Ends(outcome);
    for outcome in [Outcome::Applied, Outcome::Applied, Outcome::Duplicate] {
        expected.note(Door::BatchVisits, ends(outcome));
    }
    expected.note(Door::Beacon, ends(Outcome::Applied));
    for outcome in [
        Outcome::Applied,
        Outcome::Duplicate,
        Outcome::Rejected,
        Outcome::Parked,
    ] {
        expected.note(Door::Postback, ends(outcome));
    }
    expected.note(Door::Postback, Expect::Refused);
    let payout = "12.5".parse().unwrap();
    expected.bookings = vec![Booking::new(
        "tx1",
        "camp",
        payout,
        Status::Approved,
        Role::Navigation,
    )];
    let mut sent = Sent::default();
    for (door, accepted, refused) in [
        (Door::BatchVisits, 3, 0),
        (Door::Beacon, 1, 0),
        (Door::Postback, 4, 1),
    ] {
        sent.doors.insert(door, Tally { accepted, refused });
    }
    (expected, sent)
}

/// Names of the checks that fail.
async fn failing(client: &mut Client) -> Vec<String> {
    let (expected, sent) = generator();
    let found = recount(client).await.expect("the recount runs");
    checks(&expected, &sent, &found)
        .into_iter()
        .filter(|c| !c.holds)
        .map(|c| format!("{}: {} instead of {}", c.name, c.found, c.expected))
        .collect()
}

#[tokio::test]
async fn a_ledger_is_balanced_until_somebody_touches_it() {
    let database = TestDatabase::create().await;
    let mut client = connect(database.url()).await;
    client.batch_execute(LEDGER).await.expect("the ledger");
    assert_eq!(failing(&mut client).await, Vec::<String>::new());

    for tampering in [
        "DELETE FROM conversions",
        "UPDATE conversions SET payout = payout + 0.01",
        "UPDATE conversions SET campaign_id = 'another'",
        "UPDATE conversions SET status = 'pending'",
        "INSERT INTO conversions SELECT workspace_id, record('postbacks', 1), click_key, accepted_at, occurred_at, booked_at,
            click_id, campaign_id, visit_id, offer_id, role, network_id, external_id, 'tx2', event, provider_event,
            returned_offer, payout, currency, status, status_at FROM conversions",
        "DELETE FROM conversion_keys",
        "DELETE FROM visits WHERE record_id = record('clicks', 1)",
        "DELETE FROM clicks",
        "DELETE FROM parked",
        "DELETE FROM postback_log WHERE outcome = 1",
        "DELETE FROM postback_log WHERE outcome = 3",
        "INSERT INTO postback_log SELECT workspace_id, record_id, accepted_at, decided_at, click_key, conversion_id, 1, '',
            network_id FROM postback_log WHERE outcome = 0",
        "INSERT INTO rejects (workspace_id, record_id, accepted_at, kind, reason, payload)
            VALUES (1, record('clicks', 0), now(), 'visit', 'journey_malformed', '')",
        "UPDATE positions SET consumed = consumed + 1",
        "UPDATE outcomes SET n = n + 1 WHERE outcome = 1",
    ] {
        client.batch_execute(tampering).await.expect(tampering);
        let wrong = failing(&mut client).await;
        assert!(!wrong.is_empty(), "nobody noticed: {tampering}");
        let tables = "topics, positions, outcomes, visits, clicks, conversions, conversion_keys, postback_log, parked, rejects";
        client
            .batch_execute(&format!("TRUNCATE {tables} CASCADE; DROP FUNCTION record; {LEDGER}"))
            .await
            .expect("the ledger again");
        assert_eq!(failing(&mut client).await, Vec::<String>::new());
    }
}

/// Runs the whole demo on the first lines of the log; its exit code and its report.
async fn play(database_url: &str, sabotage: &str) -> (Option<i32>, serde_json::Value) {
    let address = free_address().expect("a port").to_string();
    let directory = std::env::temp_dir().join(format!("millrace-demo-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let (url, sabotage) = (database_url.to_owned(), sabotage.to_owned());
    let at = directory.clone();
    let done = tokio::task::spawn_blocking(move || {
        Command::new("timeout")
            .args(["--kill-after=5", "100"])
            .arg(product().expect("the product"))
            .args([
                "demo",
                "--exit",
                "--lines",
                "3000",
                "--report",
                "report.json",
            ])
            .current_dir(&at)
            .env("DATABASE_URL", url)
            .env("MILLRACE_HTTP__DOORS", &address)
            .env("MILLRACE_HTTP__ADMIN", &address)
            .env("MILLRACE_SABOTAGE", sabotage)
            .stdin(Stdio::null())
            .output()
            .expect("it runs")
    })
    .await
    .expect("it ran");
    let report = std::fs::read(directory.join("report.json")).unwrap_or_else(|e| {
        let said = String::from_utf8_lossy(&done.stderr);
        panic!("no report ({e}): {said}")
    });
    let _ = std::fs::remove_dir_all(&directory);
    let report = serde_json::from_slice(&report).expect("JSON");
    (done.status.code(), report)
}

/// The proof of the proof: with the claims switched off, conversions are booked twice, and the demo says so.
#[tokio::test]
async fn a_whole_run_is_balanced_and_one_without_the_claims_is_not() {
    // The demo makes a database of its own beside this one.
    let database = TestDatabase::create().await;
    let (code, report) = play(database.url(), "").await;
    assert_eq!(
        (code, &report["balanced"]),
        (Some(0), &true.into()),
        "{report:#}"
    );
    let sum: i64 = [
        "applied",
        "duplicate",
        "parked",
        "rejected",
        "dead_lettered",
    ]
    .iter()
    .map(|outcome| report[*outcome].as_i64().expect("a count"))
    .sum();
    assert_eq!(report["accepted"].as_i64(), Some(sum));
    assert!(sum > 1_000, "{sum}");

    let (code, report) = play(database.url(), "claim").await;
    assert_eq!(
        (code, &report["balanced"]),
        (Some(1), &false.into()),
        "{report:#}"
    );
}
