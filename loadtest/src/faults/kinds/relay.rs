//! What one group emits and another receives, on the vertical of the proving build: whoever dies, each is received once.

use super::network::{silence, speak};
use super::{Kind, USUAL, variant_of};
use crate::faults::scene::{Role, Scene};
use anyhow::Context as _;
use millrace_tests::deployment::PATIENCE;
use millrace_tests::echo::run::{Echo, Part};
use millrace_tests::faults::killed_itself;
use millrace_tests::process::{Launch, Process, eventually};

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[
    &Kind {
        name: "emitter-killed-at",
        variants: &["relay.sent", "batch.before_commit", "batch.after_commit"],
        failpoints: |point| variant_of("emitter", point),
        needs: &["relay"],
        stage: |staging, _, _| small(staging),
        act: |scene, point| Box::pin(killed_at(scene, Part::Emitter, point)),
        ..USUAL
    },
    &Kind {
        name: "receiver-killed-at",
        variants: &[
            "batch.after_claims",
            "batch.before_commit",
            "batch.after_commit",
        ],
        failpoints: |point| variant_of("sink", point),
        stage: |staging, _, _| small(staging),
        act: |scene, point| Box::pin(killed_at(scene, Part::Sink, point)),
        ..USUAL
    },
    &Kind {
        name: "relay-without-log",
        variants: &["refused", "half-open"],
        stage: |staging, _, _| {
            small(staging);
            staging.set("log.ack_timeout_ms", 1_000);
        },
        act: |scene, how| Box::pin(without_log(scene, how)),
        ..USUAL
    },
];

/// The usual work beside it, but little of it.
fn small(staging: &mut crate::faults::scene::Staging) {
    staging.records = 100;
    staging.unrepeatable = 10;
    staging.senders = 0;
}

/// A process of the echo's groups with what all processes of a run are given.
fn launch(scene: &Scene, name: &str, part: Part) -> anyhow::Result<Launch> {
    let launch = Echo::launch(&scene.deployment, name, part)?;
    Ok(if scene.shared.sabotage.is_empty() {
        launch
    } else {
        launch.sabotage(&scene.shared.sabotage)
    })
}

async fn killed_at(scene: &mut Scene, part: Part, point: &'static str) -> anyhow::Result<()> {
    scene.step("topics of the echo");
    let mut echo = Echo::create(&scene.deployment).await?;
    scene.start_all(None)?;
    for life in 0..2 {
        echo.put_in(&scene.deployment, 600).await?;
        let beside = match part {
            Part::Sink => Some(launch(scene, &format!("emitter-{life}"), Part::Emitter)?.spawn()?),
            _ => None,
        };
        let most = if point == "relay.sent" { 2 } else { 6 };
        let action = format!("abort@{}", 1 + scene.rng.below(most));
        scene.step(format!("life {life}: {part:?} {point}={action}"));
        let dying = launch(scene, &format!("{part:?}-{life}"), part)?;
        killed_itself(&mut dying.failpoint(point, &action).spawn()?).await?;
        // Whatever it was killed in was not at its end; and what was put in is not received yet.
        let left = Echo::consumed(&scene.deployment, Part::Sink).await < echo.records();
        scene.struck += u32::from(left);
        drop(beside);
    }
    let both = launch(scene, "echo", Part::Both)?.spawn()?;
    recount(scene, &echo, both).await
}

async fn recount(scene: &mut Scene, echo: &Echo, mut process: Process) -> anyhow::Result<()> {
    scene.step("the echo is recounted");
    let report = echo.recounted(&scene.deployment).await?;
    scene.findings.extend(report.findings);
    if let Some(status) = process.ended() {
        anyhow::bail!("{} gave up ({status})", process.name());
    }
    let status = process.terminate(PATIENCE).await?;
    anyhow::ensure!(status.success(), "told to stop, it ended with {status}");
    Ok(())
}

/// The log is away for the emitter alone: what it emits waits as rows, and goes in its order when the log is back.
async fn without_log(scene: &mut Scene, how: &'static str) -> anyhow::Result<()> {
    scene.step("topics of the echo");
    let mut echo = Echo::create(&scene.deployment).await?;
    scene.start_all(None)?;
    let kafka = scene.shared.kafka.clone();
    let brokers = kafka.proxied_brokers();
    let emitter = launch(scene, "emitter", Part::Emitter)?.setting("log.brokers", brokers);
    let emitter = emitter.spawn()?;
    let mut sink = launch(scene, "sink", Part::Sink)?.spawn()?;
    echo.put_in(&scene.deployment, 2_000).await?;
    let some = 200 + scene.rng.below(600).cast_signed();
    Echo::wait_consumed(&scene.deployment, Part::Emitter, some).await?;
    scene.step(format!("the log is away for the emitter: {how}"));
    silence(&kafka, how);
    let words = "the log did not take an emit";
    let store = scene.store().await;
    let waits = eventually("an emit that waits", PATIENCE, async || {
        let rows: i64 = store
            .query_one("SELECT count(*) FROM emits", &[])
            .await?
            .get(0);
        Ok((emitter.log_text().contains(words) && rows > 0).then_some(rows))
    })
    .await;
    speak(&kafka);
    let rows = waits.context(words)?;
    scene.step(format!("the log is back, {rows} emits wait"));
    scene.struck += 1;
    scene.strike(Role::Attribution).await;
    anyhow::ensure!(sink.ended().is_none(), "the receiver gave up");
    recount(scene, &echo, emitter).await?;
    let status = sink.terminate(PATIENCE).await?;
    anyhow::ensure!(status.success(), "told to stop, it ended with {status}");
    Ok(())
}
