//! PostgreSQL: killed, slow, without a connection to spare, on a full disk, and a sender's COMMIT whose reply is lost.

use super::{Form, Kind, USUAL};
use crate::faults::scene::{Role, Scene};
use anyhow::Context as _;
use millrace_tests::deployment::PATIENCE;
use millrace_tests::postgres::{DedicatedServer, StopMode};
use millrace_tests::process::{Process, eventually};
use millrace_tests::proxy::{Protocol, Proxy};
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

/// Kinds of this family.
pub const KINDS: &[&Kind] = &[
    &Kind {
        name: "postgres-killed",
        variants: &["kill", "fast", "immediate"],
        act: |scene, how| Box::pin(killed(scene, how)),
        ..USUAL
    },
    &Kind {
        name: "postgres-slow",
        stage: |staging, _, _| {
            staging.records = 1_500;
            staging.senders = 1;
        },
        act: |scene, _| Box::pin(slow(scene)),
        ..USUAL
    },
    &Kind {
        name: "postgres-out-of-connections",
        variants: &["at-the-start", "in-the-middle"],
        stage: |staging, _, _| staging.postgres = &["max_connections=80"],
        act: |scene, when| Box::pin(out_of_connections(scene, when)),
        ..USUAL
    },
    &Kind {
        name: "postgres-out-of-disk",
        form: Form::Long,
        stage: |staging, _, _| staging.small_disk = Some(320),
        act: |scene, _| Box::pin(out_of_disk(scene)),
        ..USUAL
    },
    &Kind {
        name: "sending-reply-lost",
        act: |scene, _| Box::pin(reply_lost(scene)),
        ..USUAL
    },
];

/// Lets processes of these roles that are started from now on reach the database through a proxy.
pub fn through_a_proxy(scene: &mut Scene, roles: &[Role]) -> anyhow::Result<Proxy> {
    let address = scene.deployment.database_address().to_owned();
    let proxy = Proxy::start(address.parse()?, Protocol::Postgres)?;
    let url = scene.deployment.database.url();
    let url = url.replace(&address, &proxy.address().to_string());
    for role in roles {
        let all = scene.environment.entry(*role).or_default();
        all.insert("DATABASE_URL".to_owned(), url.clone());
    }
    Ok(proxy)
}

async fn killed(scene: &mut Scene, how: &'static str) -> anyhow::Result<()> {
    scene.start_all(None)?;
    for life in 0..3 {
        scene.moment(4 - life).await?;
        scene.step(format!("PostgreSQL ends ({how}), time {life}"));
        let end = move |server: &mut DedicatedServer| {
            match how {
                "kill" => server.kill(),
                "fast" => server.stop(StopMode::Fast),
                _ => server.stop(StopMode::Immediate),
            }
            server.start_again();
        };
        scene.deployment.with_server(end).await?;
        // It is back, and nobody has found it yet.
        scene.strike(Role::Attribution).await;
    }
    Ok(())
}

/// Every word takes its time, in both directions, for all processes.
async fn slow(scene: &mut Scene) -> anyhow::Result<()> {
    let proxy = through_a_proxy(scene, &Role::ALL)?;
    scene.start_all(None)?;
    for life in 0..3 {
        scene.moment(4 - life).await?;
        let millis = 5 + scene.rng.below(25);
        scene.step(format!("each word takes {millis} ms"));
        proxy.latency(Duration::from_millis(millis));
        let at = scene.consumed().await;
        let end = scene.listed.places.len() as i64;
        scene.strike(Role::Attribution).await;
        // Something must be done at that pace.
        scene.until_consumed((at + 100).min(end)).await?;
    }
    scene.step("it is fast again");
    proxy.latency(Duration::ZERO);
    scene.proxies.push(proxy);
    Ok(())
}

/// Takes every connection that the server has to give, those that are freed meanwhile too, until told to let go.
struct Hog {
    stop: tokio::sync::watch::Sender<bool>,
    task: tokio::task::JoinHandle<usize>,
    full: tokio::sync::watch::Receiver<bool>,
}

impl Hog {
    fn start(url: &str) -> Hog {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let (tell, full) = tokio::sync::watch::channel(false);
        let url = url.to_owned();
        let task = tokio::spawn(async move {
            let mut held: Vec<Client> = Vec::new();
            while !*stopped.borrow() {
                match tokio_postgres::connect(&url, NoTls).await {
                    Ok((client, connection)) => {
                        tokio::spawn(connection);
                        held.push(client);
                    }
                    Err(_) => {
                        tell.send_replace(true);
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                }
            }
            held.len()
        });
        Hog { stop, task, full }
    }

    async fn is_full(&mut self) -> anyhow::Result<()> {
        let full = tokio::time::timeout(PATIENCE, self.full.wait_for(|full| *full)).await;
        full.context("connections without end")??;
        Ok(())
    }

    async fn let_go(self) -> anyhow::Result<usize> {
        self.stop.send_replace(true);
        Ok(self.task.await?)
    }
}

async fn out_of_connections(scene: &mut Scene, when: &'static str) -> anyhow::Result<()> {
    scene.step("all connections but those in use are taken");
    let store = scene.store().await;
    scene.start_all(None)?;
    scene.until_consumed(1).await?;
    let at_the_start = when == "at-the-start";
    if at_the_start {
        // Before they are taken: there must be work left for the one that starts then.
        scene.take(Role::Attribution)?.kill()?;
    }
    let mut hog = Hog::start(scene.deployment.database.url());
    hog.is_full().await?;
    let words = "too many clients already";
    let before = said(scene, Role::Attribution, words)?;
    if at_the_start {
        scene.start(Role::Attribution)?;
    } else {
        scene.step("and those that were held are ended");
    }
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE application_name LIKE 'millrace/%' AND pid <> pg_backend_pid()";
    let refused = eventually("a process that gets no connection", PATIENCE, async || {
        if !at_the_start {
            // Again and again: the process may be quicker to come back than others are to take its place.
            store.execute(end, &[]).await?;
        }
        Ok((said(scene, Role::Attribution, words)? > before).then_some(()))
    })
    .await;
    let held = hog.let_go().await?;
    refused?;
    scene.step(format!("{held} connections are free again"));
    scene.strike(Role::Attribution).await;
    Ok(())
}

/// How often the processes of a role have said something.
fn said(scene: &Scene, role: Role, words: &str) -> anyhow::Result<usize> {
    let all = scene.crew.get(&role).context("nobody of that role")?;
    Ok(all
        .iter()
        .map(Process::log_text)
        .map(|text| text.matches(words).count())
        .sum())
}

async fn out_of_disk(scene: &mut Scene) -> anyhow::Result<()> {
    scene.start_all(None)?;
    for time in 0..2 {
        scene.moment(3 - time).await?;
        scene.step(format!("the disk is full, time {time}"));
        let full = |server: &mut DedicatedServer| -> anyhow::Result<usize> {
            let said = no_space(server);
            server.disk().context("no disk of its own")?.fill()?;
            Ok(said)
        };
        let before = scene.deployment.with_server(full).await??;
        let refused = eventually("a write that the disk refuses", PATIENCE, async || {
            let said = scene.deployment.with_server(|s| no_space(s)).await?;
            Ok((said > before).then_some(()))
        })
        .await;
        scene.step("the disk is freed");
        let free = |server: &mut DedicatedServer| -> anyhow::Result<()> {
            server.disk().context("no disk of its own")?.free()?;
            // A segment of the write-ahead log that could not be made ends the server.
            server.start_again();
            Ok(())
        };
        scene.deployment.with_server(free).await??;
        refused?;
        scene.strike(Role::Attribution).await;
    }
    Ok(())
}

fn no_space(server: &DedicatedServer) -> usize {
    server.log().matches("No space left on device").count()
}

/// The reply to the COMMIT that writes down what was sent.
async fn reply_lost(scene: &mut Scene) -> anyhow::Result<()> {
    const TIMES: u32 = 3;
    let proxy = through_a_proxy(scene, &[Role::Delivery])?;
    proxy.eat_only_after("COPY send_log");
    for _ in 0..TIMES {
        // Ends are written many at once: a run has few such commits.
        proxy.eat_commit_reply(u32::try_from(scene.rng.below(2))?);
    }
    scene.start_all(None)?;
    scene.step("replies to COMMITs of the sender are lost");
    eventually("replies are lost", PATIENCE, async || {
        Ok((proxy.eaten() == TIMES).then_some(()))
    })
    .await?;
    scene.struck += proxy.eaten();
    scene.proxies.push(proxy);
    Ok(())
}
