//! A consumer group grows and shrinks under load, 1 → 3 → 2, under either protocol.

use super::{Form, Kind, USUAL};
use crate::faults::scene::{Role, Scene, obeyed};
use millrace_tests::deployment::PATIENCE;
use millrace_tests::faults::shared_by;

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[&Kind {
    name: "group-1-3-2",
    weight: 2,
    form: Form::Short,
    variants: &["consumer", "classic"],
    stage: |staging, protocol, _| {
        staging.partitions = 6;
        staging.set("log.group_protocol", protocol);
    },
    act: |scene, _| Box::pin(one_three_two(scene)),
    ..USUAL
}];

async fn one_three_two(scene: &mut Scene) -> anyhow::Result<()> {
    scene.start_all(None)?;
    scene.step("one");
    scene.moment(5).await?;
    scene.step("three");
    scene.start(Role::Attribution)?;
    scene.start(Role::Attribution)?;
    scene.strike(Role::Attribution).await;
    shared_by(&scene.deployment, 3).await?;
    scene.moment(3).await?;
    let mut gone = scene.take(Role::Attribution)?;
    if scene.rng.one_in(2) {
        scene.step("two: one is killed");
        gone.kill()?;
    } else {
        scene.step("two: one is told to go");
        let status = gone.terminate(PATIENCE).await?;
        anyhow::ensure!(obeyed(&mut gone), "told to go, it ended with {status}");
    }
    scene.strike(Role::Attribution).await;
    // The killed one's partitions are its own until its session ends.
    shared_by(&scene.deployment, 2).await?;
    Ok(())
}
