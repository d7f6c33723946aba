//! Two processes share a group: one is killed, one stops breathing and comes back.

use crate::faults::{kafka, next_moment, plan, preloaded, seed, turn, with_words};
use millrace_tests::deployment::PATIENCE;
use millrace_tests::faults::{handed_over, owners, shared_by};
use millrace_tests::generator::Rng;
use millrace_tests::process::{Process, eventually};

fn both_live(first: &mut Process, second: &mut Process) -> anyhow::Result<()> {
    for process in [first, second] {
        if let Some(status) = process.ended() {
            anyhow::bail!("{} ended with {status}", process.name());
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_is_killed() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let seed = seed();
    let mut rng = Rng::new(seed ^ 6);
    let (deployment, produced) = preloaded(kafka, "pair", plan(seed, 30_000, 4), 50)
        .await
        .unwrap();
    let run = async {
        let mut first = deployment.attribution("first")?.spawn()?;
        let mut second = deployment.attribution("second")?.spawn()?;
        shared_by(&deployment, 2).await?;
        let at = deployment.progress().await;
        let moment = next_moment(&mut rng, at, produced.places.len(), 2);
        deployment.wait_for_progress(&mut first, moment).await?;
        first.kill()?;
        deployment.recounted(&produced).await?.ensure_right()?;
        anyhow::ensure!(second.ended().is_none(), "the other gave up");
        Ok(())
    };
    with_words(&deployment, run.await);
}

/// Processes come and go at random, under either protocol: every partition changes hands many times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_come_and_go() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let seed = seed();
    for protocol in ["consumer", "classic"] {
        let mut rng = Rng::new(seed ^ 11);
        let plan = plan(seed, 20_000, 6);
        let (mut deployment, produced) = preloaded(kafka, protocol, plan, 50).await.unwrap();
        deployment.set("log.group_protocol", protocol);
        let run = async {
            let mut alive: Vec<Process> = Vec::new();
            for change in 0..10 {
                let name = format!("{protocol}-{change}");
                alive.push(deployment.attribution(&name)?.spawn()?);
                let at = deployment.progress().await;
                let moment = next_moment(&mut rng, at, produced.places.len(), 11 - change);
                let newest = alive.len() - 1;
                deployment
                    .wait_for_progress(&mut alive[newest], moment)
                    .await?;
                if alive.len() > 2 {
                    let mut gone = alive.swap_remove(rng.below(3) as usize);
                    if rng.one_in(2) {
                        gone.kill()?;
                    } else {
                        gone.terminate(PATIENCE).await?;
                    }
                }
            }
            deployment.recounted(&produced).await?.ensure_right()
        };
        let result = run.await;
        with_words(&deployment, result);
    }
}

/// Stopped past its session wherever it stands: idle between batches, before a transaction, or with one open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_is_stopped_past_its_session_and_continued() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let seed = seed();
    for point in ["", "batch.before_begin", "batch.before_commit"] {
        let mut rng = Rng::new(seed ^ 7);
        let plan = plan(seed, 16_000, 4);
        let (deployment, produced) = preloaded(kafka, "stopped", plan, 50).await.unwrap();
        let run = async {
            let mut launch = deployment.attribution("first")?;
            if !point.is_empty() {
                launch = launch.failpoint(point, &format!("stop@{}", 20 + rng.below(20)));
            }
            let mut first = launch.spawn()?;
            if point.is_empty() {
                let moment = next_moment(&mut rng, 0, produced.places.len(), 3);
                deployment.wait_for_progress(&mut first, moment).await?;
                first.stop().await?;
            } else {
                eventually("stopped at its failpoint", PATIENCE, async || {
                    Ok(first.is_stopped().then_some(()))
                })
                .await?;
            }
            let before = owners(&deployment).await?;
            let mut second = deployment.attribution("second")?.spawn()?;
            // An open transaction of the stopped one is ended by the server; until then its partition must wait.
            handed_over(&deployment, &before).await?;
            first.resume();
            // Until it takes part again it has not said its last word of before.
            shared_by(&deployment, 2).await?;
            deployment.recounted(&produced).await?.ensure_right()?;
            both_live(&mut first, &mut second)
        };
        with_words(&deployment, run.await);
    }
}

/// An owner that hangs in the middle of a COPY: the server waits for the rest, and no timeout of its own ends that. Its
/// successor does, and takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_hangs_in_a_copy_is_evicted() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let plan = plan(seed(), 500, 1);
    let (deployment, produced) = preloaded(kafka, "hung", plan, 50).await.unwrap();
    let run = async {
        let mut hung = deployment.store().await;
        hung.batch_execute(
            "INSERT INTO ownership (group_name, partition) VALUES ('attribution', 0)",
        )
        .await?;
        let open = hung.transaction().await?;
        open.execute("SELECT FROM ownership FOR NO KEY UPDATE", &[])
            .await?;
        let sink = open
            .copy_in::<_, bytes::Bytes>("COPY visits FROM STDIN")
            .await?;
        let mut sink = std::pin::pin!(sink);
        let half = bytes::Bytes::from_static(b"1\t");
        futures::SinkExt::send(&mut sink, half).await?;
        let _process = deployment.attribution("successor")?.spawn()?;
        deployment.recounted(&produced).await?.ensure_right()
    };
    with_words(&deployment, run.await);
}
