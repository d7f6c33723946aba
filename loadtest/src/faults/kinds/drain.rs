//! SIGTERM: whoever is told to stop brings to its end what it has begun, and is replaced.

use super::{Kind, USUAL};
use crate::faults::scene::{Role, Scene, obeyed};
use millrace_tests::deployment::PATIENCE;

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[&Kind {
    name: "drained",
    weight: 2,
    act: |scene, _| Box::pin(drained(scene)),
    ..USUAL
}];

/// All roles, in an order of chance, each with its successor started before or after.
async fn drained(scene: &mut Scene) -> anyhow::Result<()> {
    scene.start_all(None)?;
    let mut roles = Role::ALL.to_vec();
    for i in (1..roles.len()).rev() {
        roles.swap(i, scene.rng.below(i as u64 + 1) as usize);
    }
    for (n, role) in roles.into_iter().enumerate() {
        scene.moment(4 - n as i64).await?;
        scene.step(format!("{} is told to stop", role.name()));
        let mut old = scene.take(role)?;
        // Two doors cannot have one address.
        let overlap = role != Role::Doors && scene.rng.one_in(2);
        if overlap {
            scene.start(role)?;
        }
        old.signal(libc::SIGTERM);
        scene.strike(role).await;
        let status = old.wait(PATIENCE).await?;
        anyhow::ensure!(
            obeyed(&mut old),
            "told to stop, it ended with {status}:\n{}",
            old.last_words(20)
        );
        if !overlap {
            scene.start(role)?;
        }
    }
    Ok(())
}
