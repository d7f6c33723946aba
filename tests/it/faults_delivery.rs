//! A sender is killed at each step of a message's way, again and again: what may be sent twice arrives at least once, always
//! under its own id; what may not arrives never twice; and the store knows how each ended.

use crate::faults::{seed, turn, with_words};
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::generator::Rng;
use millrace_tests::outbox;
use millrace_tests::parties::{Parties, judge};
use millrace_tests::postgres::StopMode;
use millrace_tests::process::{Launch, eventually};
use millrace_tests::proxy::{Protocol, Proxy};
use std::time::Duration;
use tokio_postgres::Client;

/// Steps of a message's way at which the process can be made to kill itself. Between `claimed` and `answered` lies `sent`: there
/// it is killed from outside, when a receiver has the request and has not answered yet.
pub const OF_DELIVERY: [&str; 3] = ["delivery.claimed", "delivery.answered", "delivery.finished"];
/// How often at each step.
const TIMES: usize = 50;
/// What each life finds due at each destination.
const FRESH: u32 = 24;
struct Scene {
    deployment: Deployment,
    store: Client,
    parties: Parties,
}

impl Scene {
    async fn set() -> anyhow::Result<Scene> {
        let deployment = Deployment::start("delivery", Log::Postgres, 1).await?;
        let store = deployment.store().await;
        let workspace = outbox::workspace(&store, "acme").await?;
        let parties = Parties::set(&store, workspace, &["visit"]).await?;
        Ok(Scene {
            deployment,
            store,
            parties,
        })
    }

    fn launch(&self, name: &str) -> Launch {
        self.parties.sender(&self.deployment, name).unwrap()
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        self.parties.fill(&self.store, FRESH).await
    }

    fn arrivals(&self) -> u64 {
        self.parties.arrivals()
    }

    fn linger(&self, latency: Duration) {
        self.parties.linger(latency);
    }

    /// One life that ends at a step.
    async fn die_at(&mut self, step: &str, rng: &mut Rng) -> anyhow::Result<()> {
        self.fill().await?;
        outbox::expire_leases(&self.store).await?;
        if step == "sent" {
            let before = self.arrivals();
            self.linger(Duration::from_millis(300));
            let mut process = self.launch("sent").spawn()?;
            eventually("a request has come", PATIENCE, async || {
                Ok((self.arrivals() > before).then_some(()))
            })
            .await?;
            process.kill()?;
            self.linger(Duration::ZERO);
            return Ok(());
        }
        let most = if step == "delivery.answered" { 30 } else { 3 };
        let action = format!("abort@{}", 1 + rng.below(most));
        let mut process = self.launch(step).failpoint(step, &action).spawn()?;
        crate::faults::killed_itself(&mut process).await
    }

    /// A life that is not disturbed brings everything to its end.
    async fn finish(&self) -> anyhow::Result<()> {
        outbox::expire_leases(&self.store).await?;
        let process = self.launch("undisturbed").spawn()?;
        eventually("nothing is due", PATIENCE, async || {
            outbox::hasten(&self.store).await?;
            Ok((outbox::due(&self.store).await? == 0).then_some(()))
        })
        .await?;
        drop(process);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_fifty_times_at_each_step_nothing_is_lost_and_nothing_not_to_be_repeated_is_repeated()
 {
    let _turn = turn().await;
    let mut rng = Rng::new(seed() ^ 40);
    let mut scene = Scene::set().await.unwrap();
    let run = async {
        for _ in 0..TIMES {
            scene.die_at("sent", &mut rng).await?;
            for step in OF_DELIVERY {
                scene.die_at(step, &mut rng).await?;
            }
            // Each death has used an attempt of what it held, and a message has eight.
            scene.finish().await?;
        }
        for p in &scene.parties.all {
            let statuses = outbox::statuses(&scene.store, p.no).await?;
            judge(&scene.store, p, &statuses, true).await?;
        }
        Ok(())
    };
    let result = run.await;
    with_words(&scene.deployment, result);
}

/// The store dies and comes back while messages are on their way: what was sent is written down when it is back, and no process
/// needs help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_is_killed_and_restarted_while_messages_are_sent() {
    let _turn = turn().await;
    let mut scene = Scene::set().await.unwrap();
    let run = async {
        for _ in 0..40 {
            scene.fill().await?;
        }
        scene.linger(Duration::from_millis(5));
        let mut process = scene.launch("sender").spawn()?;
        for (i, kill) in [true, false, true].into_iter().enumerate() {
            let before = scene.arrivals();
            eventually("more has come", PATIENCE, async || {
                Ok((scene.arrivals() > before + 100).then_some(()))
            })
            .await?;
            let left = outbox::due(&scene.store).await?;
            anyhow::ensure!(
                left > 0,
                "the store dies for the {i}th time when all is sent"
            );
            scene
                .deployment
                .with_server(move |server| {
                    if kill {
                        server.kill();
                    } else {
                        server.stop(StopMode::Fast);
                    }
                    server.start_again();
                })
                .await?;
            scene.store = scene.deployment.store().await;
        }
        eventually("nothing is due", PATIENCE, async || {
            outbox::hasten(&scene.store).await?;
            Ok((outbox::due(&scene.store).await? == 0).then_some(()))
        })
        .await?;
        for p in &scene.parties.all {
            let statuses = outbox::statuses(&scene.store, p.no).await?;
            judge(&scene.store, p, &statuses, false).await?;
        }
        anyhow::ensure!(process.ended().is_none(), "the sender gave up");
        Ok(())
    };
    let result = run.await;
    with_words(&scene.deployment, result);
}

/// The reply to the COMMIT that writes down what was sent is lost, again and again: every message ends once, and every attempt
/// stands once in the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_to_finishing_commits_are_lost() {
    let _turn = turn().await;
    let mut scene = Scene::set().await.unwrap();
    let run = async {
        for _ in 0..20 {
            scene.fill().await?;
        }
        let address = scene.deployment.database_address();
        let proxy = Proxy::start(address.parse()?, Protocol::Postgres)?;
        proxy.eat_only_after("COPY send_log");
        // Ends are written many at once: a run has few such commits, and fewer the slower the store is.
        for skip in [0, 1, 0] {
            proxy.eat_commit_reply(skip);
        }
        let url = scene.deployment.database.url();
        let url = url.replace(address, &proxy.address().to_string());
        let launch = scene.launch("sender").env("DATABASE_URL", url);
        scene.linger(Duration::from_millis(5));
        let _process = launch.spawn()?;
        eventually("nothing is due", PATIENCE, async || {
            outbox::hasten(&scene.store).await?;
            Ok((outbox::due(&scene.store).await? == 0).then_some(()))
        })
        .await?;
        anyhow::ensure!(proxy.eaten() == 3, "{} replies eaten", proxy.eaten());
        let twice = "SELECT count(*) - count(DISTINCT (outbox_id, attempt)) FROM send_log WHERE attempt > 0";
        let twice: i64 = scene.store.query_one(twice, &[]).await?.get(0);
        anyhow::ensure!(twice == 0, "{twice} attempts stand in the log twice");
        for p in &scene.parties.all {
            let statuses = outbox::statuses(&scene.store, p.no).await?;
            judge(&scene.store, p, &statuses, false).await?;
        }
        Ok(())
    };
    let result = run.await;
    with_words(&scene.deployment, result);
}
