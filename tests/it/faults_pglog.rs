//! The same faults on the Postgres log, where one process does everything.

use crate::faults::{Struck, killed_itself, next_moment, plan, seed, turn, with_words};
use crate::faults_kill::OF_BATCHES;
use crate::faults_store::through;
use millrace_tests::deployment::{Deployment, Log};
use millrace_tests::faults::owners;
use millrace_tests::generator::{List, Rng};
use millrace_tests::outbox;
use millrace_tests::postgres::StopMode;
use millrace_tests::recount::Produced;

async fn preloaded(seed: u64, records: usize) -> (Deployment, Produced) {
    let mut deployment = Deployment::start("pglog", Log::Postgres, 4).await.unwrap();
    deployment.set("runtime.batch_records", 100);
    let list = List::generate(plan(seed, records, 4));
    let produced = deployment.produce(list).await.unwrap();
    (deployment, produced)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_random_moments_and_at_each_failpoint() {
    let _turn = turn().await;
    let seed = seed();
    let mut rng = Rng::new(seed ^ 8);
    let (deployment, produced) = preloaded(seed, 20_000).await;
    let run = async {
        outbox::listen(&deployment.store().await, &[1, 2]).await?;
        let mut struck = Struck::default();
        for life in 0..20 {
            let mut process = deployment.attribution(&format!("life-{life}"))?.spawn()?;
            let at = deployment.progress().await;
            let moment = next_moment(&mut rng, at, produced.places.len() / 2, 21 - life);
            deployment.wait_for_progress(&mut process, moment).await?;
            process.kill()?;
            struck.look(&deployment, &produced).await;
        }
        struck.ensure(10)?;
        for point in OF_BATCHES {
            let most = if point == "claim.after" { 4 } else { 10 };
            let action = format!("abort@{}", 1 + rng.below(most));
            let launch = deployment.attribution(point)?.failpoint(point, &action);
            killed_itself(&mut launch.spawn()?).await?;
        }
        let _last = deployment.attribution("last")?.spawn()?;
        deployment.recounted(&produced).await?.ensure_right()?;
        outbox::ensure_told_once(&deployment.store().await).await
    };
    with_words(&deployment, run.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_database_is_restarted_and_eats_replies() {
    let _turn = turn().await;
    let seed = seed();
    let mut rng = Rng::new(seed ^ 9);
    let (mut deployment, produced) = preloaded(seed, 15_000).await;
    let run = async {
        let (proxy, launch) = through(&deployment, "consumer")?;
        for _ in 0..4 {
            proxy.eat_commit_reply(u32::try_from(rng.below(10))?);
        }
        let mut process = launch.spawn()?;
        let mut struck = Struck::default();
        for (i, kill) in [true, false].into_iter().enumerate() {
            let at = deployment.progress().await;
            let moment = next_moment(&mut rng, at, produced.places.len(), 3 - i as i64);
            deployment.wait_for_progress(&mut process, moment).await?;
            struck.look(&deployment, &produced).await;
            deployment
                .with_server(move |server| {
                    if kill {
                        server.kill();
                    } else {
                        server.stop(StopMode::Fast);
                    }
                    server.start_again();
                })
                .await?;
        }
        struck.ensure(1)?;
        deployment.recounted(&produced).await?.ensure_right()?;
        anyhow::ensure!(proxy.eaten() == 4, "{} replies eaten", proxy.eaten());
        anyhow::ensure!(process.ended().is_none(), "the consumer gave up");
        Ok(())
    };
    let result = run.await;
    with_words(&deployment, result);
}

/// A second process keeps out of the way while the first lives, and takes over when it has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_waits_for_the_first_to_go() {
    let _turn = turn().await;
    let seed = seed();
    let mut rng = Rng::new(seed ^ 10);
    let (deployment, produced) = preloaded(seed, 15_000).await;
    let run = async {
        let mut first = deployment.attribution("first")?.spawn()?;
        deployment.wait_for_progress(&mut first, 1).await?;
        let before = owners(&deployment).await?;
        let mut second = deployment.attribution("second")?.spawn()?;
        let at = deployment.progress().await;
        let moment = next_moment(&mut rng, at, produced.places.len(), 2);
        deployment.wait_for_progress(&mut first, moment).await?;
        let same = before == owners(&deployment).await?;
        anyhow::ensure!(same, "the second took what the first holds");
        first.kill()?;
        deployment.recounted(&produced).await?.ensure_right()?;
        anyhow::ensure!(second.ended().is_none(), "the second gave up");
        Ok(())
    };
    with_words(&deployment, run.await);
}
