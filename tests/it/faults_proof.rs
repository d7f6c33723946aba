//! The proof of the proof: with a safeguard switched off, runs in which it matters end in a loss or a double that the recount
//! names; with it on, the same runs are right.
//!
//! - **The fence** guards what moves no position: a sweep of what waited too long. An owner that stood still with a sweep at
//!   hand expires again what its successor has expired, unless the fence stops it.
//! - **The position check** keeps an owner from doing again what it has done: a batch whose COMMIT was answered by nobody is at
//!   hand still, and books a second time. It also stands behind the fence: with that open, an owner that stood still with a
//!   batch writes what its successor has written; the check alone undoes it.
//! - **The claims** guard identities wider than a partition.

use crate::faults::{kafka, on_kafka, plan, preloaded, seed, turn, with_words};
use crate::faults_store::lost_replies;
use millrace_tests::deployment::{Deployment, PATIENCE};
use millrace_tests::faults::outlive;
use millrace_tests::generator::{List, Plan};
use millrace_tests::kafka::Kafka;
use millrace_tests::recount::{Kind, Produced, Report, recount};
use std::time::Duration;

const DAY: i64 = 86_400_000_000;

/// Lets one owner stand still at a failpoint until its successor has done `done`, goes on with it, and recounts.
async fn zombie(
    deployment: &Deployment,
    produced: &Produced,
    sabotage: &str,
    point: &str,
    clock: &std::path::Path,
    done: &str,
) -> anyhow::Result<Report> {
    let launch = |name: &str| -> anyhow::Result<_> {
        Ok(deployment
            .attribution(name)?
            .sabotage(sabotage)
            .clock(clock))
    };
    let mut first = launch("zombie")?.failpoint(point, "stop").spawn()?;
    let mut second = outlive(deployment, &mut first, &launch("successor")?, done).await?;
    first.terminate(PATIENCE).await?;
    second.terminate(PATIENCE).await?;
    recount(&deployment.store().await, produced).await
}

/// Postbacks of unknown clicks, parked by a first process; a day later they expire.
async fn expiring(kafka: &Kafka, sabotage: &str) -> anyhow::Result<Report> {
    let seed = seed();
    let mut deployment = on_kafka(kafka, "expiring", 1).await?;
    deployment.set("runtime.tick_ms", 50);
    let list = List::tell(plan(seed, 20, 1), |t| t.unknown_clicks_that_expire(20));
    let produced = deployment.produce(list).await?;
    let mut parker = deployment.attribution("parker")?.spawn()?;
    deployment.settled(&produced, PATIENCE).await?;
    parker.terminate(PATIENCE).await?;
    let clock = deployment.scratch.path().join("clock");
    std::fs::write(&clock, (DAY + DAY / 24).to_string())?;
    let done = "SELECT count(*) = 0 FROM parked";
    let point = "batch.before_begin";
    let result = zombie(&deployment, &produced, sabotage, point, &clock, done).await;
    Ok(with_words(&deployment, result))
}

/// Visits, clicks and conversions in one partition, consumed by a successor while their first owner stands still.
async fn overtaken(kafka: &Kafka, sabotage: &str) -> anyhow::Result<Report> {
    let plan = Plan {
        // What must be isolated takes several attempts, and between two a former owner notices by itself.
        poison: false,
        ..plan(seed(), 1_000, 1)
    };
    let (deployment, produced) = preloaded(kafka, "overtaken", plan, 200).await?;
    let clock = deployment.scratch.path().join("clock");
    std::fs::write(&clock, "0")?;
    let ends: i64 = produced.ends().values().sum();
    let done = format!("SELECT coalesce(sum(next_offset), 0) = {ends} FROM positions");
    let point = "batch.before_begin";
    let result = zombie(&deployment, &produced, sabotage, point, &clock, &done).await;
    Ok(with_words(&deployment, result))
}

fn must_be_right(report: &Report, run: &str) {
    assert!(report.is_right(), "{run}: {report}");
}

fn must_be_seen(report: &Report, run: &str) {
    eprintln!("{run}: {report}");
    assert!(report.lost_or_doubled(), "{run} was not noticed: {report}");
}

/// How often a scene may be played until it shows what it is about: an owner that goes on after it stood still may hear of its
/// lost partition before it does its harm, and then there is nothing to be seen.
const SCENES: usize = 5;

/// Plays a scene with safeguards off until the recount names a loss or a double.
async fn must_be_seen_in(run: &str, mut scene: impl AsyncFnMut() -> anyhow::Result<Report>) {
    for _ in 1..SCENES {
        let report = scene().await.unwrap();
        if report.lost_or_doubled() {
            eprintln!("{run}: {report}");
            return;
        }
        eprintln!("{run}: no harm done, once more");
    }
    must_be_seen(&scene().await.unwrap(), run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_fence_an_expiry_happens_twice() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    must_be_right(&expiring(kafka, "").await.unwrap(), "fence on");
    must_be_seen_in("fence off", async || expiring(kafka, "fence").await).await;
}

/// The run with the check on is `faults_store.rs`'s own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_position_check_a_batch_whose_commit_got_no_reply_books_twice() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let report = lost_replies(kafka, "position").await;
    must_be_seen(&report, "position check off");
    assert!(report.count(Kind::Double) > 0, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_an_open_fence_the_position_check_alone_prevents_doubles() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    must_be_right(&overtaken(kafka, "").await.unwrap(), "both on");
    let report = overtaken(kafka, "fence").await.unwrap();
    must_be_right(&report, "fence off, position check on");
    let scene = async || overtaken(kafka, "fence,position").await;
    must_be_seen_in("fence and position check off", scene).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_claims_one_identity_is_booked_twice() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let run = async |sabotage: &str| {
        let plan = plan(seed(), 3_000, 4);
        let (deployment, produced) = preloaded(kafka, "claims", plan, 100).await.unwrap();
        let run = async {
            let launch = deployment.attribution("consumer")?.sabotage(sabotage);
            let _process = launch.spawn()?;
            deployment.settled(&produced, PATIENCE).await?;
            recount(&deployment.store().await, &produced).await
        };
        let result = run.await;
        with_words(&deployment, result)
    };
    must_be_right(&run("").await, "claims on");
    let report = run("claim").await;
    must_be_seen(&report, "claims off");
    let twice = |f: &&millrace_tests::recount::Finding| {
        f.kind == Kind::Double && f.what.contains("one identity is booked by")
    };
    assert!(report.findings.iter().filter(twice).count() > 0, "{report}");
}

/// The recount itself: what is taken away, put in twice or changed by hand is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_changed_by_hand_is_found() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let plan = plan(seed(), 2_000, 2);
    let (deployment, produced) = preloaded(kafka, "by-hand", plan, 500).await.unwrap();
    let run = async {
        let mut process = deployment.attribution("consumer")?.spawn()?;
        deployment.recounted(&produced).await?.ensure_right()?;
        process.terminate(Duration::from_secs(15)).await?;
        let mut store = deployment.store().await;
        for (sql, kind, word) in [
            (
                "DELETE FROM visits WHERE record_id = (SELECT max(record_id::text)::uuid FROM visits)",
                Kind::Loss,
                "visits",
            ),
            (
                "INSERT INTO visits SELECT * FROM visits LIMIT 1",
                Kind::Double,
                "visits",
            ),
            (
                "DELETE FROM clicks WHERE record_id = (SELECT max(record_id::text)::uuid FROM clicks)",
                Kind::Loss,
                "clicks",
            ),
            (
                "INSERT INTO clicks SELECT * FROM clicks LIMIT 1",
                Kind::Double,
                "clicks",
            ),
            (
                "UPDATE clicks SET campaign_id = 'x'",
                Kind::Wrong,
                "campaign",
            ),
            (
                "DELETE FROM conversions WHERE conversion_id = (SELECT max(conversion_id::text)::uuid FROM conversions)",
                Kind::Loss,
                "conversions",
            ),
            (
                "UPDATE conversions SET payout = payout + 0.01",
                Kind::Wrong,
                "payout",
            ),
            (
                "UPDATE conversions SET status = 'pending' WHERE status = 'approved'",
                Kind::Wrong,
                "status",
            ),
            (
                "INSERT INTO postback_log SELECT * FROM postback_log WHERE outcome = 1 LIMIT 1",
                Kind::Double,
                "two ends",
            ),
            (
                "DELETE FROM postback_log WHERE outcome = 3",
                Kind::Loss,
                "no end",
            ),
            ("DELETE FROM parked", Kind::Loss, "no end"),
            ("DELETE FROM dead_letters", Kind::Loss, "no end"),
            (
                "UPDATE dead_letters SET payload = ''",
                Kind::Wrong,
                "original bytes",
            ),
            ("DELETE FROM conversion_keys", Kind::Loss, "identity"),
        ] {
            let tx = store.transaction().await?;
            tx.batch_execute(sql).await?;
            let report = recount(&tx, &produced).await?;
            tx.rollback().await?;
            let found =
                |f: &millrace_tests::recount::Finding| f.kind == kind && f.what.contains(word);
            anyhow::ensure!(report.findings.iter().any(found), "{sql}: {report}");
        }
        recount(&store, &produced).await?.ensure_right()
    };
    let result = run.await;
    with_words(&deployment, result);
}
