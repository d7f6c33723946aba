//! SIGSTOP past the session's end, then SIGCONT: an owner that stood still, wherever it stood, has nothing more to say.

use super::{Kind, USUAL, variant_is_failpoint};
use crate::faults::scene::{Role, Scene};
use millrace_tests::deployment::PATIENCE;
use millrace_tests::faults::{handed_over, owners, shared_by};
use millrace_tests::process::eventually;

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[
    &Kind {
        name: "attribution-stands-still",
        weight: 1,
        variants: &["", "batch.before_begin", "batch.before_commit"],
        failpoints: variant_is_failpoint,
        act: |scene, point| Box::pin(stands_still(scene, point)),
        ..USUAL
    },
    &Kind {
        name: "door-stands-still",
        act: |scene, _| Box::pin(door_stands_still(scene)),
        ..USUAL
    },
];

async fn stands_still(scene: &mut Scene, point: &'static str) -> anyhow::Result<()> {
    scene.start_all(Some(Role::Attribution))?;
    scene.step(format!("stands still at `{point}`"));
    if point.is_empty() {
        scene.start(Role::Attribution)?;
        scene.moment(4).await?;
        scene.of(Role::Attribution, 0)?.stop().await?;
    } else {
        let action = format!("stop@{}", 4 + scene.rng.below(12));
        let launch = scene.launch(Role::Attribution)?.failpoint(point, &action);
        scene.start_as(Role::Attribution, &launch)?;
        let process = scene.of(Role::Attribution, 0)?;
        eventually("stopped at its failpoint", PATIENCE, async || {
            Ok(process.is_stopped().then_some(()))
        })
        .await?;
    }
    scene.strike(Role::Attribution).await;
    scene.step("its successor takes over");
    let before = owners(&scene.deployment).await?;
    scene.start(Role::Attribution)?;
    handed_over(&scene.deployment, &before).await?;
    scene.step("it goes on");
    scene.of(Role::Attribution, 0)?.resume();
    // Until it takes part again it has not said its last word of before.
    shared_by(&scene.deployment, 2).await?;
    Ok(())
}

/// A door that answers nobody for longer than its senders wait: they send again, and it answers what it had taken.
async fn door_stands_still(scene: &mut Scene) -> anyhow::Result<()> {
    scene.start_all(None)?;
    let more = 5 + scene.rng.below(20);
    scene.until_answered(more).await?;
    scene.step("the door stands still");
    scene.of(Role::Doors, 0)?.stop().await?;
    scene.strike(Role::Doors).await;
    let again = || scene.client.as_ref().map_or(0, |c| c.counts().1);
    let before = again();
    eventually("senders lose their patience", PATIENCE, async || {
        Ok((again() > before).then_some(()))
    })
    .await?;
    scene.of(Role::Doors, 0)?.resume();
    scene.until_answered(20).await
}
