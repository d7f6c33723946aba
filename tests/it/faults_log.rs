//! Kafka goes away and comes back under a running consumer.

use crate::faults::{Struck, kafka, next_moment, plan, preloaded, seed, turn_alone, with_words};
use millrace_tests::generator::Rng;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_is_killed_and_restarted() {
    let _turn = turn_alone().await;
    let Some(kafka) = kafka().await else { return };
    let seed = seed();
    let mut rng = Rng::new(seed ^ 5);
    let (deployment, produced) = preloaded(kafka, "broker", plan(seed, 20_000, 4), 50)
        .await
        .unwrap();
    let run = async {
        let mut process = deployment.attribution("consumer")?.spawn()?;
        let mut struck = Struck::default();
        for (i, kill) in [true, false].into_iter().enumerate() {
            let at = deployment.progress().await;
            let moment = next_moment(&mut rng, at, produced.places.len(), 3 - i as i64);
            deployment.wait_for_progress(&mut process, moment).await?;
            struck.look(&deployment, &produced).await;
            tokio::task::spawn_blocking(move || {
                if kill {
                    kafka.kill(0);
                } else {
                    kafka.stop(0);
                }
                kafka.start_again(0);
            })
            .await?;
        }
        struck.ensure(1)?;
        deployment.recounted(&produced).await?.ensure_right()?;
        anyhow::ensure!(process.ended().is_none(), "the consumer gave up");
        Ok(())
    };
    with_words(&deployment, run.await);
}
