//! `kill -9` at random moments and at every failpoint, over topics that were filled before.

use crate::faults::{
    Struck, kafka, killed_itself, next_moment, plan, preloaded, seed, turn, with_words,
};
use millrace_tests::generator::Rng;

/// Failpoints that a consuming process passes.
pub const OF_BATCHES: [&str; 6] = [
    "claim.after",
    "batch.before_begin",
    "batch.after_fence",
    "batch.after_claims",
    "batch.before_commit",
    "batch.after_commit",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_twenty_times_at_random_moments() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let seed = seed();
    let mut rng = Rng::new(seed);
    let plan = plan(seed, 30_000, 4);
    let (mut deployment, produced) = preloaded(kafka, "kills", plan, 100).await.unwrap();
    // Slices far smaller than what is read: what was dropped from memory is found again in the store.
    deployment.set("attribution.slice_clicks", 200);
    let run = async {
        let mut struck = Struck::default();
        for life in 0..20 {
            let mut process = deployment.attribution(&format!("life-{life}"))?.spawn()?;
            let at = deployment.progress().await;
            let moment = next_moment(&mut rng, at, produced.places.len(), 21 - life);
            deployment.wait_for_progress(&mut process, moment).await?;
            process.kill()?;
            struck.look(&deployment, &produced).await;
        }
        struck.ensure(10)?;
        let mut last = deployment.attribution("last")?.spawn()?;
        let report = deployment.recounted(&produced).await?;
        report.ensure_right()?;
        let status = last.terminate(std::time::Duration::from_secs(15)).await?;
        anyhow::ensure!(status.success(), "a told stop ended with {status}");
        Ok(())
    };
    let result = run.await;
    with_words(&deployment, result);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_once_at_each_failpoint() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    let seed = seed();
    let mut rng = Rng::new(seed ^ 1);
    let (deployment, produced) = preloaded(kafka, "failpoints", plan(seed, 10_000, 4), 100)
        .await
        .unwrap();
    let run = async {
        for point in OF_BATCHES {
            // A claim is passed once a partition, a batch's points many times.
            let most = if point == "claim.after" { 4 } else { 12 };
            let action = format!("abort@{}", 1 + rng.below(most));
            let launch = deployment.attribution(point)?.failpoint(point, &action);
            let mut process = launch.spawn()?;
            killed_itself(&mut process).await?;
        }
        let _last = deployment.attribution("last")?.spawn()?;
        deployment.recounted(&produced).await?.ensure_right()
    };
    with_words(&deployment, run.await);
}
