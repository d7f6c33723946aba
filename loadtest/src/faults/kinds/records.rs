//! What comes in is itself the fault: everything twice and in another order, poison, clocks that step.

use super::{Kind, USUAL};
use crate::faults::scene::{Role, Scene};
use millrace_tests::generator::{List, Plan, Rng};
use std::path::PathBuf;

const MINUTE: i64 = 60_000_000;
/// By how many minutes a clock steps at most.
const MOST: u64 = 50;

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[
    &Kind {
        name: "everything-twice",
        stage: |staging, _, _| {
            staging.records = 2_000;
            staging.list = |plan, rng| List::generate(plan).twice(rng);
        },
        act: |scene, _| Box::pin(with_a_kill(scene)),
        ..USUAL
    },
    &Kind {
        name: "everything-reordered",
        stage: |staging, _, _| staging.list = |plan, rng| List::generate(plan).reordered(rng),
        act: |scene, _| Box::pin(with_a_kill(scene)),
        ..USUAL
    },
    &Kind {
        name: "poison",
        stage: |staging, _, _| staging.list = poisoned,
        act: |scene, _| Box::pin(with_a_kill(scene)),
        ..USUAL
    },
    &Kind {
        name: "clock-steps",
        variants: &["ahead", "back"],
        act: |scene, way| Box::pin(clock_steps(scene, way)),
        ..USUAL
    },
];

/// As many records that can never be processed as a partition surely bears without being stopped (5 of 100).
fn poisoned(plan: Plan, _: &mut Rng) -> List {
    List::generate(Plan {
        poison_every: 40,
        ..plan
    })
}

/// The owner dies in the middle of it: what was isolated, repeated or reordered is so again for the next one.
async fn with_a_kill(scene: &mut Scene) -> anyhow::Result<()> {
    scene.start_all(None)?;
    for life in 0..2 {
        scene.moment(3 - life).await?;
        scene.step(format!("kill {life}"));
        scene.take(Role::Attribution)?.kill()?;
        scene.strike(Role::Attribution).await;
        scene.start(Role::Attribution)?;
    }
    Ok(())
}

/// The wall clocks of doors, delivery and attribution step, one after the other, and back. Each may be an hour wrong: what a door
/// accepts is clamped, an event that lies ahead of the sender's clock waits until it does not, and a visit is found however far
/// behind attribution's clock stands. A sender whose own clock is ahead of Meta's, though, cannot know that Meta finds an event early
/// for good: before attribution's clock steps, delivery's is right again.
async fn clock_steps(scene: &mut Scene, way: &'static str) -> anyhow::Result<()> {
    let sign = if way == "ahead" { 1 } else { -1 };
    let roles = [Role::Doors, Role::Delivery, Role::Attribution];
    let mut clocks = Vec::new();
    for role in roles {
        let clock = scene
            .deployment
            .scratch
            .path()
            .join(format!("clock-{}", role.name()));
        std::fs::write(&clock, "0")?;
        let all = scene.environment.entry(role).or_default();
        all.insert(
            "MILLRACE_CLOCK_FILE".to_owned(),
            clock.display().to_string(),
        );
        clocks.push((role, clock));
    }
    scene.start_all(None)?;
    for (n, (role, clock)) in clocks.iter().enumerate() {
        if *role == Role::Attribution {
            set(&clocks, Role::Delivery, 0)?;
        }
        scene.moment(4 - n as i64).await?;
        let minutes = 1 + scene.rng.below(MOST).cast_signed();
        scene.step(format!("{} by {} min", clock.display(), sign * minutes));
        std::fs::write(clock, (sign * minutes * MINUTE).to_string())?;
        scene.strike(Role::Attribution).await;
    }
    scene.until_answered(10).await?;
    scene.step("all clocks are set right");
    for role in roles {
        set(&clocks, role, 0)?;
    }
    if way == "ahead" {
        // What waits for its time is not waited for: the hour goes by for who sends it and for Meta.
        let hour = MOST.cast_signed() + 1;
        scene.step(format!("{hour} min later"));
        scene.parties.meta().shift_clock(hour * 60);
        set(&clocks, Role::Delivery, hour * MINUTE)?;
    }
    Ok(())
}

/// Sets a role's clock so many microseconds ahead.
fn set(clocks: &[(Role, PathBuf)], role: Role, micros: i64) -> std::io::Result<()> {
    let found = clocks.iter().filter(|(of, _)| *of == role);
    for (_, clock) in found {
        std::fs::write(clock, micros.to_string())?;
    }
    Ok(())
}
