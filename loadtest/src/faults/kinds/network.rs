//! The network between processes and PostgreSQL, and between processes and Kafka: cut, refused, half-open.

use super::store::through_a_proxy;
use super::{Kind, USUAL};
use crate::faults::scene::{Role, Scene};
use millrace_tests::deployment::PATIENCE;
use millrace_tests::kafka::Kafka;
use millrace_tests::process::eventually;
use millrace_tests::proxy::Proxy;
use std::time::Duration;

/// How long a connection is half-open: longer than a member of a group may be silent.
const HALF_OPEN: Duration = Duration::from_millis(3_000);

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[
    &Kind {
        name: "store-network",
        variants: &["cut", "refused", "half-open", "half-open-then-cut"],
        act: |scene, how| Box::pin(store(scene, how)),
        ..USUAL
    },
    &Kind {
        name: "kafka-network",
        variants: &["cut", "refused", "half-open", "half-open-then-cut"],
        // Little is fetched ahead: what is still to be consumed is still to come over the network.
        stage: |staging, _, _| {
            staging.set("log.properties.fetch_message_max_bytes", 4_096);
            staging.set("log.properties.queued_max_messages_kbytes", 8);
        },
        act: |scene, how| Box::pin(kafka(scene, how)),
        ..USUAL
    },
    &Kind {
        name: "door-without-log",
        variants: &["refused", "half-open"],
        // A door that waits no longer than its senders.
        stage: |staging, _, _| staging.set("log.ack_timeout_ms", 1_000),
        act: |scene, how| Box::pin(without_log(scene, how)),
        ..USUAL
    },
];

/// What happens to all connections of some proxies.
async fn trouble(each: impl Fn(&dyn Fn(&Proxy)), how: &'static str) {
    match how {
        "cut" => each(&Proxy::cut),
        "refused" => {
            each(&|p| p.refuse(true));
            each(&Proxy::cut);
            // Long enough for several tries.
            tokio::time::sleep(Duration::from_millis(700)).await;
            each(&|p| p.refuse(false));
        }
        _ => {
            // Nobody hangs up, nobody answers.
            each(&|p| p.stall(true));
            tokio::time::sleep(HALF_OPEN).await;
            if how == "half-open-then-cut" {
                each(&Proxy::cut);
            }
            each(&|p| p.stall(false));
        }
    }
}

async fn store(scene: &mut Scene, how: &'static str) -> anyhow::Result<()> {
    let proxy = through_a_proxy(scene, &Role::ALL)?;
    scene.start_all(None)?;
    let times = if how.starts_with("half-open") { 2 } else { 4 };
    for time in 0..times {
        scene.moment(times + 1 - time).await?;
        scene.step(format!("connections to PostgreSQL: {how}, time {time}"));
        trouble(|act| act(&proxy), how).await;
        scene.strike(Role::Attribution).await;
    }
    scene.proxies.push(proxy);
    Ok(())
}

/// Lets processes of these roles that are started from now on reach the brokers through their proxies.
fn brokers_behind_proxies(scene: &mut Scene, roles: &[Role]) {
    let brokers = scene.shared.kafka.proxied_brokers();
    for role in roles {
        let all = scene.environment.entry(*role).or_default();
        all.insert("MILLRACE_LOG__BROKERS".to_owned(), brokers.clone());
    }
}

async fn kafka(scene: &mut Scene, how: &'static str) -> anyhow::Result<()> {
    brokers_behind_proxies(scene, &[Role::Doors, Role::Attribution]);
    scene.start_all(None)?;
    let kafka = scene.shared.kafka.clone();
    let times = if how.starts_with("half-open") { 2 } else { 4 };
    for time in 0..times {
        scene.moment(times + 2 - time).await?;
        scene.step(format!("connections to Kafka: {how}, time {time}"));
        let mut taken = 0;
        kafka.proxies(|p| taken += p.connections());
        anyhow::ensure!(taken > 0, "nobody goes through the proxies");
        // Asked before: in seconds of silence what was fetched by then is consumed, and little is left.
        scene.strike(Role::Attribution).await;
        trouble(|act| kafka.proxies(act), how).await;
    }
    scene.until_answered(10).await
}

/// The log is away for whoever goes through the proxies: `refused`, or nobody answers.
pub fn silence(kafka: &Kafka, how: &'static str) {
    kafka.proxies(|proxy| {
        if how == "refused" {
            proxy.refuse(true);
            proxy.cut();
        } else {
            proxy.stall(true);
        }
    });
}

/// It is back.
pub fn speak(kafka: &Kafka) {
    kafka.proxies(|proxy| {
        proxy.refuse(false);
        proxy.stall(false);
    });
}

/// The log is away for the doors alone: they say so (503), and whoever sends again is answered when it is back.
async fn without_log(scene: &mut Scene, how: &'static str) -> anyhow::Result<()> {
    brokers_behind_proxies(scene, &[Role::Doors]);
    scene.start_all(None)?;
    let kafka = scene.shared.kafka.clone();
    for time in 0..2 {
        let more = 5 + scene.rng.below(20);
        scene.until_answered(more).await?;
        scene.step(format!("the log is away for the doors: {how}, time {time}"));
        let again = || scene.client.as_ref().map_or(0, |c| c.counts().1);
        let before = again();
        silence(&kafka, how);
        let refused = eventually("senders are told to come again", PATIENCE, async || {
            Ok((again() >= before + 2).then_some(()))
        })
        .await;
        speak(&kafka);
        refused?;
        let door = scene.of(Role::Doors, 0)?;
        anyhow::ensure!(door.ended().is_none(), "the door gave up");
        scene.strike(Role::Doors).await;
    }
    scene.until_answered(20).await
}
