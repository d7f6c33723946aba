//! Kafka goes away and comes back: one broker killed, stopped or frozen, leaders moved, all brokers restarted.

use super::{Form, Kind, USUAL};
use crate::faults::scene::{Role, Scene};
use millrace_tests::kafka::Kafka;
use std::sync::Arc;

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[
    &Kind {
        name: "broker-killed",
        act: |scene, _| Box::pin(broker(scene, Kafka::kill)),
        ..USUAL
    },
    &Kind {
        // Told to stop, a broker first hands its leaderships over; after its return they are handed back.
        name: "leader-moved",
        form: Form::Long,
        act: |scene, _| Box::pin(broker(scene, Kafka::stop)),
        ..USUAL
    },
    &Kind {
        name: "broker-frozen",
        act: |scene, _| Box::pin(frozen(scene)),
        ..USUAL
    },
    &Kind {
        name: "all-brokers-restarted",
        act: |scene, _| Box::pin(all_restarted(scene)),
        ..USUAL
    },
];

/// Blocks elsewhere: starting a broker takes seconds.
async fn with(kafka: &Arc<Kafka>, act: impl FnOnce(&Kafka) + Send + 'static) -> anyhow::Result<()> {
    let kafka = Arc::clone(kafka);
    Ok(tokio::task::spawn_blocking(move || act(&kafka)).await?)
}

async fn broker(scene: &mut Scene, end: fn(&Kafka, usize)) -> anyhow::Result<()> {
    let kafka = scene.shared.kafka.clone();
    let node = scene.rng.below(scene.shared.brokers as u64) as usize;
    scene.start_all(None)?;
    scene.moment(3).await?;
    scene.step(format!("broker {node} goes"));
    with(&kafka, move |k| end(k, node)).await?;
    scene.strike(Role::Attribution).await;
    scene.strike(Role::Doors).await;
    if scene.shared.brokers > 1 {
        // The others carry on without it.
        scene.until_answered(10).await?;
    }
    scene.step(format!("broker {node} comes back"));
    with(&kafka, move |k| k.start_again(node)).await?;
    scene.until_answered(10).await
}

/// A broker that is there and says nothing.
async fn frozen(scene: &mut Scene) -> anyhow::Result<()> {
    let kafka = scene.shared.kafka.clone();
    let node = scene.rng.below(scene.shared.brokers as u64) as usize;
    scene.start_all(None)?;
    scene.moment(3).await?;
    scene.step(format!("broker {node} is frozen"));
    kafka.freeze(node);
    scene.strike(Role::Attribution).await;
    scene.strike(Role::Doors).await;
    // Long enough for heartbeats and requests to be missed; nothing can be awaited of one that says nothing.
    let seconds = 2 + scene.rng.below(4);
    tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
    kafka.thaw(node);
    scene.step(format!("broker {node} goes on"));
    scene.until_answered(10).await
}

async fn all_restarted(scene: &mut Scene) -> anyhow::Result<()> {
    let kafka = scene.shared.kafka.clone();
    let brokers = scene.shared.brokers;
    scene.start_all(None)?;
    scene.moment(3).await?;
    scene.step("all brokers go");
    with(&kafka, move |k| (0..brokers).for_each(|n| k.kill(n))).await?;
    scene.strike(Role::Attribution).await;
    scene.strike(Role::Doors).await;
    scene.step("all brokers come back");
    with(&kafka, move |k| k.start_all_again()).await?;
    scene.until_answered(10).await
}
