//! A harbour under faults: its sidecars, the groups from its frames to its people, the module's manifest, firings that call others off,
//! and the server that takes its mail. What must hold is the same for all: every notice once on every channel that its user asked
//! for, none inside its cooldown, none outside its ceiling, none that was called off before it was due, never two Message-IDs.

use super::{Form, Kind, USUAL};
use crate::faults::scene::{Role, Scene, Staging};
use anyhow::Context as _;
use millrace::cli::demo::stand_ins::mail::{Act, Step};
use millrace_tests::deployment::PATIENCE;
use millrace_tests::faults::killed_itself;
use millrace_tests::process::eventually;
use millrace_tests::quay::{SHARDS, Size};

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[
    &Kind {
        name: "sidecar-killed",
        form: Form::Slow,
        variants: &["sidecar", "door"],
        failpoints: |whom| {
            let points = DOOR_POINTS.into_iter().filter(|_| whom == "door");
            points.map(|point| ("doors", point)).collect()
        },
        stage: |staging, _, _| small(staging),
        act: |scene, whom| Box::pin(sidecar_killed(scene, whom)),
        ..USUAL
    },
    &Kind {
        name: "engagement-killed-at",
        form: Form::Slow,
        variants: &[
            RELAYED,
            "claim.after",
            "batch.before_begin",
            "batch.after_fence",
            "batch.after_claims",
            "batch.before_commit",
            "batch.after_commit",
        ],
        failpoints: |point| {
            let groups = GROUPS.into_iter().filter(|group| passes(*group, point));
            groups.map(|group| (group.name(), point)).collect()
        },
        needs: &["cooldown"],
        stage: |staging, _, _| small(staging),
        act: |scene, point| Box::pin(killed_at(scene, point)),
        ..USUAL
    },
    &Kind {
        name: "engagement-killed-at-random",
        form: Form::Slow,
        stage: |staging, _, _| small(staging),
        act: |scene, _| Box::pin(killed_at_random(scene)),
        ..USUAL
    },
    &Kind {
        name: "module-reloaded",
        form: Form::Slow,
        variants: &["replaced", "signalled"],
        stage: |staging, _, _| small(staging),
        act: |scene, how| Box::pin(module_reloaded(scene, how)),
        ..USUAL
    },
    &Kind {
        name: "cancel-crossing",
        form: Form::Slow,
        stage: |staging, _, _| small(staging),
        act: |scene, _| Box::pin(cancel_crossing(scene)),
        ..USUAL
    },
    &Kind {
        // The quickest of them: what CI has of engagement.
        name: "smtp-dies-before-reply",
        variants: &["alive", "sender-killed"],
        needs: &["cooldown"],
        stage: |staging, _, _| small(staging),
        act: |scene, how| Box::pin(smtp_dies(scene, how)),
        ..USUAL
    },
];

const DOOR_POINTS: [&str; 2] = ["feed_door.produced", "feed_door.before_produce"];
/// Where what a batch has emitted is sent on.
const RELAYED: &str = "relay.sent";
/// The groups of a harbour, in the order in which news go through them; who there is comes first.
const GROUPS: [Role; 4] = [
    Role::Directory,
    Role::Thresholds,
    Role::Engagement,
    Role::Recipients,
];
/// What the directory is told while it is disturbed: with those that there are, more batches than it lives through.
const NEWS: usize = 60;

/// Whether processes of a group pass a point.
fn passes(group: Role, point: &str) -> bool {
    // Nobody receives what these two say but the store.
    point != RELAYED || !matches!(group, Role::Directory | Role::Recipients)
}

/// The usual work beside it, but little of it, and small batches: there are many moments.
fn small(staging: &mut Staging) {
    staging.records = 60;
    staging.unrepeatable = 10;
    staging.senders = 0;
    staging.batch = 15;
}

/// Sidecars are killed while they send, or the door is that they send to: sessions begin again from their first frame, runs of the
/// shard that are long over among them, and change nothing a second time.
async fn sidecar_killed(scene: &mut Scene, whom: &'static str) -> anyhow::Result<()> {
    const LIVES: i64 = 3;
    scene.harbour(&Size::of(&[70, 90])).await?;
    let frames = scene.quay()?.plan.frames();
    let of_door = whom == "door";
    let mut points = DOOR_POINTS;
    if scene.rng.one_in(2) {
        points.reverse();
    }
    let mut points = points.to_vec();
    scene.start_harbour(of_door.then_some(Role::Doors)).await?;
    scene.stream(0..2, Some(60))?;
    for life in 0..LIVES {
        if of_door && let Some(point) = points.pop() {
            let action = format!("abort@{}", 1 + scene.rng.below(25));
            scene.step(format!("life {life}: the door at {point}={action}"));
            let mut door = scene.start_armed(Role::Doors, point, &action)?;
            killed_itself(&mut door).await?;
            scene.strike(Role::Doors).await;
            continue;
        }
        if of_door {
            scene.start(Role::Doors)?;
        }
        scene.logged_moment(frames, LIVES + 1 - life).await?;
        if of_door {
            scene.step("the door is killed");
            scene.take(Role::Doors)?.kill()?;
            scene.strike(Role::Doors).await;
            scene.start(Role::Doors)?;
        } else {
            let nth = scene.rng.below(SHARDS.len() as u64) as usize;
            scene.step(format!("life {life}: sidecar {nth} is killed"));
            let quay = scene.quay.as_mut().context("no harbour")?;
            scene.struck += u32::from(quay.kill_sidecar(nth)?);
        }
    }
    Ok(())
}

/// A process of each group is killed at one point of its work, a group after the other, as news go through them: first who there is,
/// then what they are told.
async fn killed_at(scene: &mut Scene, point: &'static str) -> anyhow::Result<()> {
    scene.harbour(&Size::of(&[60])).await?;
    scene.start_all(None)?;
    scene.tell_directory(NEWS).await?;
    for role in GROUPS {
        if role == Role::Thresholds {
            // Whoever is not known yet is told nothing.
            scene.everybody_is_known().await?;
            scene.stream(0..1, None)?;
            scene.streamed().await?;
        }
        if passes(role, point) {
            // A claim is passed once a partition, what a batch emits is sent on as a whole.
            let most = match point {
                RELAYED => 1,
                _ => 4,
            };
            let action = format!("abort@{}", 1 + scene.rng.below(most));
            scene.step(format!("{} at {point}={action}", role.name()));
            let mut process = scene.start_armed(role, point, &action)?;
            killed_itself(&mut process).await?;
            scene.strike(role).await;
        }
        scene.start(role)?;
    }
    Ok(())
}

/// Every process on the way from a frame to a message, and the one that knows who there is, each once, in an order of chance, at
/// moments that progress names.
async fn killed_at_random(scene: &mut Scene) -> anyhow::Result<()> {
    let mut whom = GROUPS.to_vec();
    whom.push(Role::Delivery);
    for i in (1..whom.len()).rev() {
        whom.swap(i, scene.rng.below(i as u64 + 1) as usize);
    }
    scene.harbour(&Size::of(&[90, 90])).await?;
    scene.start_harbour(None).await?;
    scene.stream(0..2, Some(60))?;
    let lives = whom.len() as i64;
    for (life, role) in (0..).zip(whom) {
        scene.step(format!("life {life}: {} is killed", role.name()));
        scene.decided_moment("recipients", lives + 1 - life).await?;
        if role == Role::Directory {
            scene.tell_directory(10 * NEWS).await?;
            scene.decided_moment("directory", 4).await?;
        }
        scene.take(role)?.kill()?;
        scene.strike(role).await;
        scene.start(role)?;
    }
    Ok(())
}

/// The module's manifest changes while frames stream: what is decided before is of the old one, what is sent after it of the new
/// one, and in between each frame is of one of the two.
async fn module_reloaded(scene: &mut Scene, how: &'static str) -> anyhow::Result<()> {
    let size = Size {
        changes_in: Some(1),
        ..Size::of(&[40, 150, 50])
    };
    scene.harbour(&size).await?;
    scene.start_harbour(None).await?;
    scene.step("frames of the old manifest");
    scene.stream(0..1, None)?;
    scene.all_decided().await?;
    scene.step("frames while it changes");
    scene.stream(1..2, Some(30))?;
    let before = scene.quay()?.plan.frames_in(0);
    scene.logged_moment(before + 20, 1).await?;
    scene.quay()?.change_manifest()?;
    // Whoever hears of a new trigger must know it before anybody fires it.
    for role in [Role::Engagement, Role::Thresholds] {
        scene.step(format!("{} is {how}", role.name()));
        if how == "signalled" {
            signalled(scene, role).await?;
        } else {
            replaced(scene, role).await?;
        }
    }
    scene.step("frames of the new manifest");
    scene.all_decided().await?;
    scene.stream(2..3, None)
}

/// A process that holds the changed manifest takes the place of one that holds the old one.
async fn replaced(scene: &mut Scene, role: Role) -> anyhow::Result<()> {
    scene.joined(role).await?;
    let old = scene.take(role)?;
    scene.strike(role).await;
    scene.told_to_stop(old).await
}

/// A process reads the changed manifest while it works.
async fn signalled(scene: &mut Scene, role: Role) -> anyhow::Result<()> {
    let process = scene.of(role, 0)?;
    process.signal(libc::SIGHUP);
    let words = "modules read anew and in force";
    process.wait_for_log(words, PATIENCE).await?;
    scene.strike(role).await;
    Ok(())
}

/// Storms are called off through other partitions than they came through, while members join the groups and leave them. Whatever
/// waits is due long after everything is decided.
async fn cancel_crossing(scene: &mut Scene) -> anyhow::Result<()> {
    const ROLES: [Role; 3] = [Role::Thresholds, Role::Engagement, Role::Recipients];
    let size = Size {
        storms: 75,
        ..Size::of(&[70, 130])
    };
    scene.harbour(&size).await?;
    scene.start_harbour(None).await?;
    scene.step("storms are seen");
    scene.stream(0..1, None)?;
    scene.all_decided().await?;
    scene.step("storms pass while members join");
    scene.stream(1..2, Some(25))?;
    for role in ROLES {
        scene.joined(role).await?;
        scene.strike(role).await;
    }
    for role in ROLES {
        let mut gone = scene.take(role)?;
        if scene.rng.one_in(2) {
            scene.step(format!("one of {} is killed", role.name()));
            gone.kill()?;
        } else {
            scene.step(format!("one of {} is told to go", role.name()));
            scene.told_to_stop(gone).await?;
        }
        scene.strike(role).await;
    }
    Ok(())
}

/// The mail server takes messages and is gone before it says so; perhaps whoever sends them dies of it, too. They come again, each
/// under the Message-ID that it had.
async fn smtp_dies(scene: &mut Scene, how: &'static str) -> anyhow::Result<()> {
    const WAVES: usize = 2;
    scene.harbour(&Size::of(&[50])).await?;
    scene.start_harbour(None).await?;
    scene.stream(0..1, Some(50))?;
    for wave in 0..WAVES {
        // Fewer than make the sender believe that the server is dead.
        let deaths = 2 + scene.rng.below(3) as usize;
        scene.step(format!("wave {wave}: the server dies {deaths} times"));
        let mail = &scene.quay()?.mail;
        let before = mail.caught().len();
        mail.script(std::iter::repeat_n(Act::Die(Step::Body), deaths));
        eventually("mails whose end nobody was told", PATIENCE, async || {
            Ok((mail.caught().len() >= before + deaths).then_some(()))
        })
        .await?;
        scene.struck += 1;
        if how == "sender-killed" {
            scene.step("the sender dies");
            scene.take(Role::Delivery)?.kill()?;
            scene.strike(Role::Delivery).await;
            scene.start(Role::Delivery)?;
        }
    }
    Ok(())
}
