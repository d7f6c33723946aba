//! What is emitted is received once, whatever dies: the emits of a stream mounted on the product's process, on Kafka by the relay
//! and on the Postgres log by the batch itself.

use crate::faults::{kafka, killed_itself, on_kafka, seed, turn, turn_alone, with_words};
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::echo::run::{Echo, Part};
use millrace_tests::generator::Rng;
use millrace_tests::kafka::Kafka;
use millrace_tests::process::eventually;
use millrace_tests::recount::{Kind, Report};

const POINTS: [&str; 5] = [
    "batch.before_begin",
    "batch.after_fence",
    "batch.after_claims",
    "batch.before_commit",
    "batch.after_commit",
];

/// Both topics and the table, and small transactions: a run has many moments.
async fn echo(mut at: Deployment) -> (Deployment, Echo) {
    at.set("runtime.batch_records", 40);
    let created = Echo::create(&at).await;
    let created = with_words(&at, created);
    (at, created)
}

/// Kills the emitter or the receiver at each point of a batch, and the relay between the log's word and its deletion. The fault
/// runner kills each at each.
async fn killed_everywhere(
    at: &Deployment,
    echo: &mut Echo,
    rng: &mut Rng,
    relayed: bool,
) -> anyhow::Result<()> {
    let first = rng.below(2) as usize;
    let parts = [Part::Emitter, Part::Sink];
    let mut deaths: Vec<(&str, Part)> = POINTS
        .iter()
        .enumerate()
        .map(|(i, point)| (*point, parts[(first + i) % 2]))
        .collect();
    if relayed {
        deaths.push(("relay.sent", Part::Emitter));
    }
    for (i, (point, part)) in deaths.into_iter().enumerate() {
        echo.put_in(at, 400).await?;
        // What the receiver is killed in must come from somebody, who dies with it.
        let _other = match part {
            Part::Sink => Some(Echo::launch(at, &format!("emitter-{i}"), Part::Emitter)?.spawn()?),
            _ => None,
        };
        let most = if point == "relay.sent" { 2 } else { 4 };
        let action = format!("abort@{}", 1 + rng.below(most));
        let launch = Echo::launch(at, &format!("{part:?}-{i}-{point}"), part)?;
        killed_itself(&mut launch.failpoint(point, &action).spawn()?).await?;
    }
    let _emitter = Echo::launch(at, "last-emitter", Part::Emitter)?.spawn()?;
    let _sink = Echo::launch(at, "last-sink", Part::Sink)?.spawn()?;
    echo.recounted(at).await?.ensure_right()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_anywhere_what_is_relayed_is_received_once() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let mut rng = Rng::new(seed() ^ 50);
    let (at, mut echo) = echo(on_kafka(kafka, "echo", 4).await.unwrap()).await;
    let at = &at;
    let done = async {
        killed_everywhere(at, &mut echo, &mut rng, true).await?;
        let dropped = Echo::dropped(at).await?;
        anyhow::ensure!(dropped > 0, "no kill made the relay send anything twice");
        Ok(())
    };
    let done = done.await;
    with_words(at, done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_anywhere_what_is_emitted_into_the_postgres_log_is_received_once() {
    let _turn = turn().await;
    let mut rng = Rng::new(seed() ^ 51);
    let at = Deployment::start("echo-pglog", Log::Postgres, 4).await;
    let (at, mut echo) = echo(at.unwrap()).await;
    let at = &at;
    let done = async {
        killed_everywhere(at, &mut echo, &mut rng, false).await?;
        let dropped = Echo::dropped(at).await?;
        anyhow::ensure!(dropped == 0, "{dropped} records stood in the log twice");
        Ok(())
    };
    let done = done.await;
    with_words(at, done);
}

/// A process that dies between the log's word and its own deletion: its successor sends again.
async fn sent_twice(kafka: &Kafka, sabotage: &str) -> (Report, i64) {
    let (at, mut echo) = echo(on_kafka(kafka, "echo-twice", 4).await.unwrap()).await;
    let at = &at;
    let done = async {
        echo.put_in(at, 800).await?;
        let first = Echo::launch(at, "first", Part::Both)?.sabotage(sabotage);
        killed_itself(&mut first.failpoint("relay.sent", "abort").spawn()?).await?;
        let second = Echo::launch(at, "second", Part::Both)?;
        let _second = second.sabotage(sabotage).spawn()?;
        Ok((echo.recounted(at).await?, Echo::dropped(at).await?))
    };
    let done = done.await;
    with_words(at, done)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_does_not_drop_what_it_has_seen_is_noticed() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let (report, dropped) = sent_twice(kafka, "").await;
    assert!(
        report.is_right() && dropped > 0,
        "{dropped} dropped: {report}"
    );
    let (report, _) = sent_twice(kafka, "relay").await;
    assert!(report.count(Kind::Double) > 0, "{report}");
}

/// The log goes away while records are to be relayed, and comes back: they wait as rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_restarted_under_the_relay() {
    let _turn = turn_alone().await;
    let Some(kafka) = kafka().await else { return };
    let (at, mut echo) = echo(on_kafka(kafka, "echo-restart", 4).await.unwrap()).await;
    let at = &at;
    let done = async {
        let mut process = Echo::launch(at, "both", Part::Both)?.spawn()?;
        for kill in [true, false] {
            echo.put_in(at, 2_000).await?;
            Echo::wait_consumed(at, Part::Emitter, echo.records() - 1_600).await?;
            tokio::task::block_in_place(|| {
                if kill {
                    kafka.kill(0);
                } else {
                    kafka.stop(0);
                }
                kafka.start_again(0);
            });
        }
        echo.recounted(at).await?.ensure_right()?;
        anyhow::ensure!(process.ended().is_none(), "the process gave up");
        Ok(())
    };
    let done = done.await;
    with_words(at, done);
}

/// One of the topic's partitions takes nothing: what is for it waits, in its order, and all else goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_log_does_not_take_waits_in_its_order() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let (at, mut echo) = echo(on_kafka(kafka, "echo-stopped", 4).await.unwrap()).await;
    let at = &at;
    let done = async {
        let store = at.store().await;
        echo.put_in(at, 200).await?;
        let held = Echo::launch(at, "held", Part::Both)?;
        // Smaller than any record: the producer refuses them all.
        let mut held = held.setting("log.max_record_bytes", 40).spawn()?;
        Echo::wait_consumed(at, Part::Emitter, 200).await?;
        held.wait_for_log("the log did not take an emit", PATIENCE)
            .await?;
        let rows = store.query_one("SELECT count(*) FROM emits", &[]).await?;
        anyhow::ensure!(rows.get::<_, i64>(0) == 200, "some were relayed");
        anyhow::ensure!(held.ended().is_none(), "the process gave up");
        held.terminate(PATIENCE).await?;
        let mut free = Echo::launch(at, "free", Part::Both)?.spawn()?;
        echo.put_in(at, 200).await?;
        echo.recounted(at).await?.ensure_right()?;
        let rows = "SELECT count(*) FROM emits";
        eventually("nothing waits", PATIENCE, async || {
            let left: i64 = store.query_one(rows, &[]).await?.get(0);
            Ok((left == 0).then_some(()))
        })
        .await?;
        let status = free.terminate(PATIENCE).await?;
        anyhow::ensure!(status.success(), "a told stop ended with {status}");
        Ok(())
    };
    let done = done.await;
    with_words(at, done);
}
