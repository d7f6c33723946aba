//! Scenes in which one safeguard alone stands between a fault and a loss or a double; `--sabotage` takes it away.
//!
//! - **claim**: identities wider than a partition. Any list has contested ones.
//! - **position**: a batch whose COMMIT was answered by nobody is at hand still.
//! - **fence**: what moves no position, a sweep of what waited too long, in the hands of an owner that stood still.

use super::{Kind, USUAL};
use crate::faults::scene::{Role, Scene, obeyed};
use millrace_tests::deployment::PATIENCE;
use millrace_tests::faults::{outlive, through};
use millrace_tests::generator::List;
use millrace_tests::process::eventually;

const DAY: i64 = 86_400_000_000;

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[
    &Kind {
        name: "undisturbed",
        needs: &["claim"],
        act: |scene, _| Box::pin(undisturbed(scene)),
        ..USUAL
    },
    &Kind {
        name: "commit-reply-lost",
        weight: 2,
        needs: &["position"],
        act: |scene, _| Box::pin(reply_lost(scene)),
        ..USUAL
    },
    &Kind {
        name: "stands-still-with-an-expiry",
        failpoints: |_| vec![("attribution", "batch.before_begin")],
        needs: &["fence"],
        stage: |staging, _, _| {
            staging.partitions = 1;
            staging.senders = 0;
            staging.set("runtime.tick_ms", 50);
            staging.list = |plan, _| List::tell(plan, |t| t.unknown_clicks_that_expire(20));
        },
        act: |scene, _| Box::pin(expiry(scene)),
        ..USUAL
    },
];

/// Nothing happens: what a disturbed run is compared with.
async fn undisturbed(scene: &mut Scene) -> anyhow::Result<()> {
    scene.start_all(None)?;
    scene.strike(Role::Attribution).await;
    scene.until_answered(40).await
}

async fn reply_lost(scene: &mut Scene) -> anyhow::Result<()> {
    scene.start_all(Some(Role::Attribution))?;
    let launch = scene.launch(Role::Attribution)?;
    let (proxy, launch) = through(&scene.deployment, launch)?;
    let times = 3 + u32::try_from(scene.rng.below(3))?;
    for _ in 0..times {
        proxy.eat_commit_reply(u32::try_from(scene.rng.below(8))?);
    }
    scene.step(format!("{times} replies to COMMITs are lost"));
    scene.start_as(Role::Attribution, &launch)?;
    // Senders go on, so there are commits until the last reply is eaten.
    let least = if scene.shared.sabotage.is_empty() {
        times
    } else {
        1
    };
    eventually("replies lost", PATIENCE, async || {
        Ok((proxy.eaten() >= least).then_some(()))
    })
    .await?;
    scene.struck += proxy.eaten();
    scene.proxies.push(proxy);
    Ok(())
}

async fn expiry(scene: &mut Scene) -> anyhow::Result<()> {
    scene.step("postbacks of unknown clicks are parked");
    let all = scene.listed.places.len() as i64;
    scene.start(Role::Attribution)?;
    scene.until_consumed(all).await?;
    let mut parker = scene.take(Role::Attribution)?;
    parker.terminate(PATIENCE).await?;
    anyhow::ensure!(
        obeyed(&mut parker),
        "told to stop: {}",
        parker.last_words(20)
    );
    scene.step("a day later its owner stands still with their expiry");
    let clock = scene.deployment.scratch.path().join("clock");
    std::fs::write(&clock, (DAY + DAY / 24).to_string())?;
    scene
        .environment
        .entry(Role::Attribution)
        .or_default()
        .insert(
            "MILLRACE_CLOCK_FILE".to_owned(),
            clock.display().to_string(),
        );
    let mut zombie = scene.start_armed(Role::Attribution, "batch.before_begin", "stop")?;
    let successor = scene.launch(Role::Attribution)?;
    let done = "SELECT count(*) = 0 FROM parked";
    let second = outlive(&scene.deployment, &mut zombie, &successor, done).await?;
    scene.struck += 1;
    for process in [zombie, second] {
        scene
            .crew
            .entry(Role::Attribution)
            .or_default()
            .push(process);
    }
    Ok(())
}
