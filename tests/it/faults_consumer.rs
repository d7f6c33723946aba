//! A consumer that dies inside a process that lives: the process ends and says why, so that whoever supervises it starts
//! another; nothing is lost or booked twice by the batch that was at hand.

use crate::faults::{kafka, on_kafka, plan, seed, turn, with_words};
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::generator::List;

/// The consumer's thread panics as it hands over its fifth batch.
async fn panics(mut deployment: Deployment) {
    deployment.set("runtime.batch_records", 100);
    let run = async {
        let list = List::generate(plan(seed(), 4_000, deployment.partitions()));
        let produced = deployment.produce(list).await?;
        let launch = deployment.attribution("dying")?;
        let mut dying = launch.failpoint("consumer.batch", "panic@5").spawn()?;
        let status = dying.wait(PATIENCE).await?;
        let words = dying.last_words(30);
        anyhow::ensure!(status.code() == Some(1), "ended with {status}:\n{words}");
        let last = words.lines().last().unwrap_or_default();
        let said = "the consumer of group `attribution` is gone: ";
        anyhow::ensure!(last.contains(said), "does not say why:\n{words}");
        let mut next = deployment.attribution("next")?.spawn()?;
        deployment.recounted(&produced).await?.ensure_right()?;
        anyhow::ensure!(next.ended().is_none(), "the next one ended, too");
        Ok(())
    };
    with_words(&deployment, run.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_dies_ends_its_process() {
    let _turn = turn().await;
    panics(Deployment::start("dying", Log::Postgres, 2).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_of_kafka_that_dies_ends_its_process() {
    let _turn = turn().await;
    let Some(kafka) = kafka().await else { return };
    panics(on_kafka(kafka, "dying", 2).await.unwrap()).await;
}
