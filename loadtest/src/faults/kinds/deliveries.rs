//! Messages on their way out: a sender killed while its requests are answered, receivers that answer badly or not at all, a store
//! that dies between a message's leaving and its end.

use super::{Kind, USUAL};
use crate::faults::scene::{Role, Scene};
use millrace_tests::meta_stand_in::Fault;
use millrace_tests::postgres::DedicatedServer;
use millrace_tests::receivers::{Answer, Manner};
use std::time::Duration;

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[
    &Kind {
        name: "sender-killed-while-sending",
        needs: &["lease"],
        act: |scene, _| Box::pin(killed_while_sending(scene)),
        ..USUAL
    },
    &Kind {
        name: "receivers",
        variants: &["reset", "time-out", "500", "429"],
        stage: |staging, _, _| {
            staging.set("delivery.webhook.timeout_ms", 700);
            staging.set("delivery.stub.timeout_ms", 700);
            staging.set("delivery.meta.timeout_ms", 700);
        },
        act: |scene, how| Box::pin(answer_badly(scene, how)),
        ..USUAL
    },
    &Kind {
        name: "postgres-killed-while-sending",
        act: |scene, _| Box::pin(store_killed_while_sending(scene)),
        ..USUAL
    },
];

/// Receivers take their time, longer than the janitor's round; in between the sender dies. What was on its way may not be sent
/// again where that is forbidden: neither while its lease holds, nor after.
async fn killed_while_sending(scene: &mut Scene) -> anyhow::Result<()> {
    scene.parties.linger(Duration::from_millis(2_600));
    scene.start_all(None)?;
    let before = scene.parties.stub().received().len();
    scene.step("requests are under way");
    scene
        .parties
        .stub()
        .wait_for(before + 1, Duration::from_secs(30))
        .await?;
    // The first answers are there, and requests of another claim under way.
    let first = scene.parties.stub().received().len();
    scene
        .parties
        .stub()
        .wait_for(first + 4, Duration::from_secs(30))
        .await?;
    scene.step("the sender dies");
    scene.take(Role::Delivery)?.kill()?;
    scene.strike(Role::Delivery).await;
    scene.parties.linger(Duration::ZERO);
    scene.start(Role::Delivery)?;
    Ok(())
}

async fn answer_badly(scene: &mut Scene, how: &'static str) -> anyhow::Result<()> {
    let (bad, of_meta) = match how {
        "reset" => (
            Answer::status(200).in_manner(Manner::Reset),
            Fault::ResetBeforeAnswer,
        ),
        "time-out" => (
            Answer::status(200).after(Duration::from_secs(2)),
            Fault::Hang,
        ),
        "500" => (Answer::status(500), Fault::status(500)),
        _ => (
            Answer::status(429).with("retry-after", "1"),
            Fault::status(429),
        ),
    };
    scene.parties.hook().answer_all(bad.clone());
    // A plain refusal of what may not be repeated is its end, and is not asked for here.
    if how != "429" {
        let some = 8 + scene.rng.below(12) as usize;
        scene.parties.stub().script(std::iter::repeat_n(bad, some));
    }
    let some = 2 + scene.rng.below(4) as usize;
    scene
        .parties
        .meta()
        .script(std::iter::repeat_n(of_meta, some));
    scene.start_all(None)?;
    scene.step(format!("receivers: {how}"));
    let hook = scene.parties.hook().received().len();
    scene
        .parties
        .hook()
        .wait_for(hook + 3, Duration::from_secs(30))
        .await?;
    scene.strike(Role::Delivery).await;
    scene.step("receivers are well again");
    scene.parties.hook().answer_all(Answer::status(200));
    Ok(())
}

async fn store_killed_while_sending(scene: &mut Scene) -> anyhow::Result<()> {
    scene.parties.linger(Duration::from_millis(20));
    scene.start_all(None)?;
    for time in 0..2 {
        let more = 10 + scene.rng.below(60);
        scene.until_arrived(more).await?;
        scene.step(format!(
            "PostgreSQL dies while messages are sent, time {time}"
        ));
        let end = |server: &mut DedicatedServer| {
            server.kill();
            server.start_again();
        };
        scene.deployment.with_server(end).await?;
        scene.strike(Role::Delivery).await;
    }
    scene.parties.linger(Duration::ZERO);
    Ok(())
}
