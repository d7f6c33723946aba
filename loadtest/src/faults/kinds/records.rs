//! What comes in is itself the fault: everything twice and in another order, poison, clocks that step.

use super::{Kind, USUAL};
use crate::faults::scene::{Role, Scene};
use millrace_tests::generator::{List, Plan, Rng};

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

/// The wall clocks of doors, attribution and delivery step, one after the other, and back.
async fn clock_steps(scene: &mut Scene, way: &'static str) -> anyhow::Result<()> {
    const MINUTE: i64 = 60_000_000;
    let sign = if way == "ahead" { 1 } else { -1 };
    let mut clocks = Vec::new();
    for role in Role::ALL {
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
        clocks.push(clock);
    }
    scene.start_all(None)?;
    for (n, clock) in clocks.iter().enumerate() {
        scene.moment(4 - n as i64).await?;
        // Any of them may be an hour wrong, against the others too: a door is clamped, an event that lies ahead of the sender's
        // clock or of Meta's waits until it does not, and a visit is found however far behind attribution's clock stands.
        let minutes = 1 + scene.rng.below(50).cast_signed();
        scene.step(format!("{} by {} min", clock.display(), sign * minutes));
        std::fs::write(clock, (sign * minutes * MINUTE).to_string())?;
        scene.strike(Role::Attribution).await;
    }
    scene.until_answered(10).await?;
    scene.step("all clocks are set right");
    for clock in &clocks {
        std::fs::write(clock, "0")?;
    }
    Ok(())
}
