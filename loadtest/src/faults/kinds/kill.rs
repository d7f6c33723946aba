//! `kill -9`: any role, at random moments and at every failpoint. A process that killed itself is replaced, as a supervisor
//! would.

use super::{Kind, USUAL, variant_of};
use crate::faults::scene::{Role, Scene};
use millrace_tests::deployment::PATIENCE;
use millrace_tests::faults::killed_itself;

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[
    &Kind {
        name: "attribution-killed-at",
        variants: &[
            "claim.after",
            "batch.before_begin",
            "batch.after_fence",
            "batch.after_claims",
            "batch.before_commit",
            "batch.after_commit",
        ],
        failpoints: |point| variant_of("attribution", point),
        act: |scene, point| Box::pin(attribution_at(scene, point)),
        ..USUAL
    },
    &Kind {
        name: "door-killed-at",
        variants: DOOR_POINTS,
        failpoints: |point| variant_of("doors", point),
        act: |scene, point| Box::pin(door_at(scene, point)),
        ..USUAL
    },
    &Kind {
        name: "delivery-killed-at",
        variants: &["delivery.claimed", "delivery.answered", "delivery.finished"],
        failpoints: |point| variant_of("delivery", point),
        act: |scene, point| Box::pin(delivery_at(scene, point)),
        ..USUAL
    },
    &Kind {
        name: "killed-at-random",
        variants: &["attribution", "doors", "delivery", "all"],
        act: |scene, whom| Box::pin(at_random(scene, whom)),
        ..USUAL
    },
    &Kind {
        name: "commit-fails-at",
        variants: &["batch.before_commit", "batch.after_commit"],
        failpoints: |point| variant_of("attribution", point),
        act: |scene, point| Box::pin(fails_at(scene, point, Role::Attribution)),
        ..USUAL
    },
    &Kind {
        name: "door-fails-at",
        variants: DOOR_POINTS,
        failpoints: |point| variant_of("doors", point),
        act: |scene, point| Box::pin(fails_at(scene, point, Role::Doors)),
        ..USUAL
    },
    &Kind {
        name: "consumer-panics",
        failpoints: |_| vec![("attribution", "consumer.batch")],
        act: |scene, _| Box::pin(consumer_panics(scene)),
        ..USUAL
    },
];

/// Before the log has a record and after, of the doors that take one at a time and of those that take a batch of lines.
const DOOR_POINTS: &[&str] = &[
    "door.before_produce",
    "door.produced",
    "batch_door.before_produce",
    "batch_door.produced",
];

async fn attribution_at(scene: &mut Scene, point: &'static str) -> anyhow::Result<()> {
    scene.start_all(Some(Role::Attribution))?;
    for life in 0..2 {
        // A claim is passed once a partition, a batch's points many times.
        let most = if point == "claim.after" { 4 } else { 12 };
        let action = format!("abort@{}", 1 + scene.rng.below(most));
        scene.step(format!("life {life}: {point}={action}"));
        let mut process = scene.start_armed(Role::Attribution, point, &action)?;
        killed_itself(&mut process).await?;
        scene.strike(Role::Attribution).await;
    }
    scene.start(Role::Attribution)?;
    Ok(())
}

async fn door_at(scene: &mut Scene, point: &'static str) -> anyhow::Result<()> {
    scene.start_all(Some(Role::Doors))?;
    for life in 0..3 {
        let action = format!("abort@{}", 1 + scene.rng.below(8));
        scene.step(format!("life {life}: {point}={action}"));
        let mut process = scene.start_armed(Role::Doors, point, &action)?;
        killed_itself(&mut process).await?;
        scene.strike(Role::Doors).await;
    }
    scene.start(Role::Doors)?;
    scene.until_answered(20).await
}

async fn delivery_at(scene: &mut Scene, point: &'static str) -> anyhow::Result<()> {
    scene.start_all(Some(Role::Delivery))?;
    for life in 0..3 {
        let most = if point == "delivery.answered" { 30 } else { 3 };
        let action = format!("abort@{}", 1 + scene.rng.below(most));
        scene.step(format!("life {life}: {point}={action}"));
        let mut process = scene.start_armed(Role::Delivery, point, &action)?;
        killed_itself(&mut process).await?;
        scene.strike(Role::Delivery).await;
    }
    scene.start(Role::Delivery)?;
    Ok(())
}

/// Kills at moments that progress names, not the clock: a slow machine is struck in the middle, too.
async fn at_random(scene: &mut Scene, whom: &'static str) -> anyhow::Result<()> {
    scene.start_all(None)?;
    for life in 0..3 {
        scene.step(format!("kill {life} of {whom}"));
        let roles: Vec<Role> = Role::ALL
            .into_iter()
            .filter(|r| whom == "all" || r.name() == whom)
            .collect();
        match whom {
            "doors" => {
                let more = 3 + scene.rng.below(20);
                scene.until_answered(more).await?;
            }
            "delivery" => {
                let more = 5 + scene.rng.below(60);
                scene.until_arrived(more).await?;
            }
            _ => scene.moment(4 - life).await?,
        }
        for role in roles {
            scene.take(role)?.kill()?;
            scene.strike(role).await;
            scene.start(role)?;
        }
    }
    Ok(())
}

/// A failpoint fails in the way that it stands for, and nobody dies. It is passed in the middle of work alone: each hit has struck.
async fn fails_at(scene: &mut Scene, point: &'static str, role: Role) -> anyhow::Result<()> {
    const TIMES: u32 = 3;
    scene.start_all(Some(role))?;
    let mut launch = scene.launch(role)?;
    for _ in 0..TIMES {
        let action = format!("error@{}", 1 + scene.rng.below(20));
        launch = launch.failpoint(point, &action);
    }
    scene.step(format!("{point} fails {TIMES} times"));
    scene.start_as(role, &launch)?;
    scene
        .until_hit((role.name(), point), u64::from(TIMES))
        .await?;
    scene.struck += TIMES;
    // Senders are answered beyond the last of them.
    scene.until_answered(10).await
}

/// The consumer's thread dies inside a process that lives: the process ends and says why.
async fn consumer_panics(scene: &mut Scene) -> anyhow::Result<()> {
    scene.start_all(Some(Role::Attribution))?;
    let action = format!("panic@{}", 1 + scene.rng.below(6));
    scene.step(format!("consumer.batch={action}"));
    let mut process = scene.start_armed(Role::Attribution, "consumer.batch", &action)?;
    let status = process.wait(PATIENCE).await?;
    anyhow::ensure!(
        status.code() == Some(1),
        "ended with {status}:\n{}",
        process.last_words(20)
    );
    scene.strike(Role::Attribution).await;
    scene.start(Role::Attribution)?;
    Ok(())
}
