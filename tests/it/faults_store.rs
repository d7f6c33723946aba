//! PostgreSQL goes away, comes back, or answers nobody: nothing is lost or booked twice, and no process needs help.

use crate::faults::{Struck, kafka, next_moment, plan, preloaded, seed, turn, with_words};
use millrace_tests::deployment::{Deployment, PATIENCE};
use millrace_tests::generator::Rng;
use millrace_tests::kafka::Kafka;
use millrace_tests::postgres::{DedicatedServer, StopMode};
use millrace_tests::process::{Launch, eventually};
use millrace_tests::proxy::Proxy;
use millrace_tests::recount::{Report, recount_all};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_is_killed_and_restarted() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let seed = seed();
    let mut rng = Rng::new(seed ^ 2);
    let (mut deployment, produced) = preloaded(kafka, "store", plan(seed, 20_000, 4), 100)
        .await
        .unwrap();
    let acts: [fn(&mut DedicatedServer); 4] = [
        DedicatedServer::kill,
        |server| server.stop(StopMode::Fast),
        DedicatedServer::kill,
        |server| server.stop(StopMode::Immediate),
    ];
    let run = async {
        let mut process = deployment.attribution("consumer")?.spawn()?;
        let mut struck = Struck::default();
        for (i, act) in acts.into_iter().enumerate() {
            let at = deployment.progress().await;
            let moment = next_moment(&mut rng, at, produced.places.len(), 5 - i as i64);
            deployment.wait_for_progress(&mut process, moment).await?;
            struck.look(&deployment, &produced).await;
            deployment
                .with_server(move |server| {
                    act(server);
                    server.start_again();
                })
                .await?;
        }
        struck.ensure(2)?;
        deployment.recounted(&produced).await?.ensure_right()?;
        anyhow::ensure!(process.ended().is_none(), "the consumer gave up");
        Ok(())
    };
    let result = run.await;
    with_words(&deployment, result);
}

/// A consumer that reaches its database through a proxy.
pub fn through(deployment: &Deployment, name: &str) -> anyhow::Result<(Proxy, Launch)> {
    millrace_tests::faults::through(deployment, deployment.attribution(name)?)
}

/// A run in which replies to COMMITs are lost, with safeguards switched off or none, and its recount.
pub async fn lost_replies(kafka: &Kafka, sabotage: &str) -> Report {
    const TIMES: u32 = 8;
    let seed = seed();
    let mut rng = Rng::new(seed ^ 3);
    let (deployment, produced) = preloaded(kafka, "commits", plan(seed, 15_000, 4), 100)
        .await
        .unwrap();
    let run = async {
        let (proxy, launch) = through(&deployment, "consumer")?;
        for _ in 0..TIMES {
            proxy.eat_commit_reply(u32::try_from(rng.below(12))?);
        }
        let mut process = launch.sabotage(sabotage).spawn()?;
        // What is booked twice by sabotage is refused by the store here and there, and too much of that stops a partition.
        let report = match sabotage {
            "" => deployment.recounted(&produced).await?,
            _ => {
                deployment.at_rest(&produced, PATIENCE).await?;
                recount_all(&deployment.store().await, &produced).await?
            }
        };
        let least = if sabotage.is_empty() { TIMES } else { 1 };
        anyhow::ensure!(proxy.eaten() >= least, "{} replies eaten", proxy.eaten());
        anyhow::ensure!(process.ended().is_none(), "the consumer gave up");
        Ok(report)
    };
    with_words(&deployment, run.await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_to_a_commit_is_lost() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let report = lost_replies(kafka, "").await;
    assert!(report.is_right(), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connection_is_cut_refused_and_stalled() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let seed = seed();
    let mut rng = Rng::new(seed ^ 4);
    let (deployment, produced) = preloaded(kafka, "network", plan(seed, 15_000, 4), 100)
        .await
        .unwrap();
    let run = async {
        let (proxy, launch) = through(&deployment, "consumer")?;
        let mut process = launch.spawn()?;
        let mut struck = Struck::default();
        for i in 0..4 {
            let at = deployment.progress().await;
            let moment = next_moment(&mut rng, at, produced.places.len(), 5 - i);
            deployment.wait_for_progress(&mut process, moment).await?;
            struck.look(&deployment, &produced).await;
            match i {
                0 => proxy.cut(),
                1 => {
                    let taken = proxy.connections();
                    proxy.refuse(true);
                    proxy.cut();
                    // Nothing moves meanwhile; a tenth of a second is many batches.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    anyhow::ensure!(proxy.connections() == taken, "refused, and yet taken");
                    proxy.refuse(false);
                }
                2 => {
                    // Half-open: nobody hangs up, nobody answers. Then it ends after all.
                    proxy.stall(true);
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    proxy.cut();
                    proxy.stall(false);
                }
                _ => {
                    proxy.stall(true);
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    proxy.stall(false);
                }
            }
        }
        struck.ensure(2)?;
        deployment.recounted(&produced).await?.ensure_right()?;
        anyhow::ensure!(process.ended().is_none(), "the consumer gave up");
        Ok(())
    };
    with_words(&deployment, run.await);
}

/// Records of days past, and a day's border in the middle: a backlog after a long outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_of_days_is_booked_to_its_days() {
    const DAY: i64 = 86_400_000_000;
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let seed = seed();
    let mut plan = plan(seed, 4_000, 2);
    // Five seconds before midnight, four days ago, on for eight seconds.
    plan.start = (plan.start / DAY - 3) * DAY - 5_000_000;
    let (mut deployment, produced) = preloaded(kafka, "backlog", plan, 100).await.unwrap();
    // What waits must not expire of old age while this test looks.
    deployment.set("attribution.park_for_s", 30 * 86_400);
    let run = async {
        let (proxy, launch) = through(&deployment, "consumer")?;
        proxy.eat_commit_reply(1);
        let _process = launch.spawn()?;
        deployment.recounted(&produced).await?.ensure_right()?;
        let sql = "SELECT count(DISTINCT (accepted_at AT TIME ZONE 'UTC')::date) FROM visits";
        let days: i64 = deployment.store().await.query_one(sql, &[]).await?.get(0);
        anyhow::ensure!(days == 2, "{days} days");
        anyhow::ensure!(proxy.eaten() == 1, "no reply was eaten");
        Ok(())
    };
    with_words(&deployment, run.await);
}

/// Two runs over one list, one of them disturbed, end in one ledger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disturbed_run_ends_in_the_ledger_of_an_undisturbed_one() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let plan = plan(seed(), 5_000, 2);
    let mut ledgers = Vec::new();
    for disturbed in [false, true] {
        let (deployment, produced) = preloaded(kafka, "ledger", plan, 100).await.unwrap();
        let run = async {
            let (proxy, launch) = through(&deployment, "consumer")?;
            if disturbed {
                proxy.eat_commit_reply(2);
                proxy.eat_commit_reply(3);
            }
            let _process = launch.spawn()?;
            deployment.recounted(&produced).await?.ensure_right()?;
            let store = deployment.store().await;
            let ledger = millrace_tests::recount::ledger(&store).await?;
            let what = "both replies eaten";
            eventually(what, PATIENCE, async || {
                Ok((!disturbed || proxy.eaten() == 2).then_some(()))
            })
            .await?;
            Ok(ledger)
        };
        ledgers.push(with_words(&deployment, run.await));
    }
    let difference = millrace_tests::recount::difference(&ledgers[0], &ledgers[1]);
    assert!(difference.is_empty(), "{difference:#?}");
}
