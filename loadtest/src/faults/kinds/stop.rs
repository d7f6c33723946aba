//! SIGSTOP past the end of a session or a lease, then SIGCONT: an owner that stood still, wherever it stood, has nothing more to
//! say, and a sender sends nothing again.

use super::{Form, Kind, USUAL, variant_of};
use crate::faults::scene::{Role, Scene};
use millrace_tests::deployment::PATIENCE;
use millrace_tests::faults::{handed_over, owners, shared_by};
use millrace_tests::outbox;
use millrace_tests::process::eventually;
use std::time::{Duration, SystemTime};

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[
    &Kind {
        name: "attribution-stands-still",
        weight: 1,
        variants: &["", "batch.before_begin", "batch.before_commit"],
        failpoints: |point| variant_of("attribution", point),
        act: |scene, point| Box::pin(stands_still(scene, point)),
        ..USUAL
    },
    &Kind {
        name: "door-stands-still",
        act: |scene, _| Box::pin(door_stands_still(scene)),
        ..USUAL
    },
    &Kind {
        // Its lease is over by the store's clock, and by its own it is not.
        name: "sender-stands-still",
        variants: &[CLAIMED, ""],
        failpoints: |point| variant_of("delivery", point),
        needs: &["lease"],
        stage: |staging, _, _| {
            staging.records = 1_500;
            staging.set("delivery.stub.timeout_ms", 20_000);
        },
        act: |scene, point| Box::pin(sender_stands_still(scene, point, Duration::ZERO)),
        ..USUAL
    },
    &Kind {
        // Its lease is over by either.
        name: "sender-stands-still-for-long",
        form: Form::Long,
        failpoints: |_| vec![("delivery", CLAIMED)],
        stage: |staging, _, _| {
            staging.records = 1_500;
            staging.set("delivery.stub.timeout_ms", 500);
        },
        act: |scene, _| Box::pin(sender_stands_still(scene, CLAIMED, FOR_LONG)),
        ..USUAL
    },
];

/// Where a sender holds what it has not begun to send.
const CLAIMED: &str = "delivery.claimed";
/// A lease lasts 30 s beyond two requests, and nothing is begun with less than 10 s of it left beyond the request itself: with
/// half a second for a request this is later.
const FOR_LONG: Duration = Duration::from_secs(21);
/// How long a receiver takes to answer whom the sender's stop is to find asking.
const SLOW: Duration = Duration::from_secs(6);

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

/// A sender stands still, with messages claimed and not sent (at a failpoint) or while they are asked for, until its leases have
/// run out and another sender has dealt with them; then it goes on. They are of the kind that may not be repeated, and nothing
/// else is due yet: no other work of its is under way, and no transaction open.
async fn sender_stands_still(
    scene: &mut Scene,
    point: &'static str,
    how_long: Duration,
) -> anyhow::Result<()> {
    scene.step(format!("a sender stands still at `{point}`"));
    if point.is_empty() {
        scene.parties.linger(SLOW);
        scene.start(Role::Delivery)?;
        scene.parties.stub().wait_for(1, PATIENCE).await?;
        scene.of(Role::Delivery, 0)?.stop().await?;
    } else {
        let launch = scene.launch(Role::Delivery)?.failpoint(point, "stop");
        scene.start_as(Role::Delivery, &launch)?;
        let process = scene.of(Role::Delivery, 0)?;
        eventually("stopped at its failpoint", PATIENCE, async || {
            Ok(process.is_stopped().then_some(()))
        })
        .await?;
    }
    let store = scene.store().await;
    let leases = outbox::leases(&store).await?;
    anyhow::ensure!(!leases.is_empty(), "it holds nothing");
    // Its sessions that ask again and again what is due: what they say next they say after it has gone on with what it holds.
    let asking = "SELECT pid FROM pg_stat_activity
                  WHERE datname = current_database() AND application_name LIKE 'millrace/delivery/%'
                    AND (query LIKE '%WITH found AS (%' OR query LIKE '%WITH RECURSIVE d(no) AS (%')";
    let rows = store.query(asking, &[]).await?;
    let sessions: Vec<i32> = rows.iter().map(|r| r.get(0)).collect();
    anyhow::ensure!(!sessions.is_empty(), "no session of its has asked");
    scene.strike(Role::Delivery).await;
    scene.parties.linger(Duration::ZERO);
    scene.step("others go on, another sender too");
    scene.start_all(None)?;
    // By its own clock, which is not the wall's and cannot be moved.
    tokio::time::sleep(how_long).await;
    scene.step("its leases run out");
    outbox::run_out(&store, &leases).await?;
    eventually("what it holds is taken from it", PATIENCE, async || {
        Ok((outbox::held(&store, &leases).await? == 0).then_some(()))
    })
    .await?;
    scene.step("it goes on");
    let row = store.query_one("SELECT clock_timestamp()", &[]).await?;
    let resumed: SystemTime = row.get(0);
    scene.of(Role::Delivery, 0)?.resume();
    eventually("it asks for more", PATIENCE, async || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1) AND state_change < $2";
        let row = store.query_one(sql, &[&sessions, &resumed]).await?;
        Ok((row.get::<_, i64>(0) == 0).then_some(()))
    })
    .await
}
