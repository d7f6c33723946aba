//! An upgrade in the middle, or the way back: an older build and this one share a group, a door's address and an outbox.

use super::{Form, Kind, USUAL};
use crate::faults::scene::{Role, Scene, obeyed};
use anyhow::Context as _;
use millrace_tests::deployment::PATIENCE;
use millrace_tests::faults::shared_by;

/// Its name; where it is dealt, the older build must be there.
pub const NAME: &str = "upgrade";

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[&Kind {
    name: NAME,
    form: Form::Long,
    variants: &["forward", "back"],
    act: |scene, way| Box::pin(upgrade(scene, way)),
    ..USUAL
}];

async fn upgrade(scene: &mut Scene, way: &'static str) -> anyhow::Result<()> {
    let old = scene.shared.old.clone().context("no older build")?;
    let new = millrace_tests::process::product()?;
    let (first, second) = if way == "forward" {
        (old, new)
    } else {
        (new, old)
    };
    scene.program = Role::ALL.map(|role| (role, first.clone())).into();
    scene.start_all(None)?;
    scene.moment(5).await?;
    scene.program = Role::ALL.map(|role| (role, second.clone())).into();
    scene.step("both builds in one group");
    scene.start(Role::Attribution)?;
    scene.strike(Role::Attribution).await;
    shared_by(&scene.deployment, 2).await?;
    scene.moment(4).await?;
    for role in Role::ALL {
        scene.step(format!("{} of the first build goes", role.name()));
        let mut gone = scene.take(role)?;
        if role == Role::Delivery {
            scene.start(role)?;
        }
        scene.strike(role).await;
        gone.terminate(PATIENCE).await?;
        anyhow::ensure!(obeyed(&mut gone), "told to stop: {}", gone.last_words(20));
        if role == Role::Doors {
            scene.start(role)?;
        }
    }
    scene.until_answered(10).await
}
