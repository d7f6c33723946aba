//! `millrace verify`: clean over a deployment at work and at rest, and each of its checks is seen to fail.

mod corruptions;

use crate::faults::{seed, with_words};
use millrace::postgres::pool::Database;
use millrace::runtime::retention;
use millrace::settings;
use millrace::verify::{self, Check, Options, Report};
use millrace_schemas::time::Micros;
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::faults::now;
use millrace_tests::generator::{List, Plan};
use millrace_tests::outbox;
use millrace_tests::postgres::connect;
use millrace_tests::process::{Process, eventually};
use millrace_tests::receivers::{Answer, Receiver};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_postgres::Client;

const DAY: i64 = 86_400_000_000;
const PARTITIONS: i32 = 4;
/// Messages to a receiver that cannot tell a second one from the first.
const STUBS: u32 = 120;
/// Records not consumed yet.
const LAG: &str = "SELECT coalesce(sum(h.next_offset - coalesce(p.next_offset, 0)), 0)::bigint
                   FROM log_heads h LEFT JOIN positions p USING (topic_no, partition)";

async fn verified(client: &Client) -> anyhow::Result<Report> {
    Ok(verify::run(client, &Options::default()).await?)
}

fn must_be_clean(report: &Report, when: &str) -> anyhow::Result<()> {
    anyhow::ensure!(report.is_clean(), "{when}: {report}");
    Ok(())
}

fn differing(report: &Report) -> BTreeSet<&'static str> {
    let differing = report.checks.iter().filter(|c| c.differences > 0);
    differing.map(|c| c.check).collect()
}

fn plan(seed: u64, records: usize, start: i64) -> Plan {
    Plan {
        seed,
        records,
        partitions: PARTITIONS,
        start,
        step: 2_000,
        poison: true,
        poison_every: 400,
    }
}

/// A deployment with listeners and a receiver, and what shows how far it has come.
struct Scene {
    deployment: Deployment,
    store: Client,
    seed: u64,
}

impl Scene {
    async fn set() -> anyhow::Result<(Scene, Receiver)> {
        let mut deployment = Deployment::start("verify", Log::Postgres, PARTITIONS).await?;
        deployment.set("runtime.batch_records", 100);
        deployment.set("runtime.tick_ms", 50);
        let store = deployment.store().await;
        outbox::listen(&store, &[1, 2]).await?;
        // Older than any record: who listens must have been told of each. One does not listen to visits.
        store
            .batch_execute(
                "UPDATE webhooks SET created_at = created_at - interval '2 hours', updated_at = created_at - interval '2 hours';
                 UPDATE webhooks SET events = '{click,conversion}' WHERE workspace_id = 2",
            )
            .await?;
        let receiver = Receiver::start()?;
        receiver.script((0..10).map(|_| Answer::status(422)));
        let no = outbox::destination(&store, 1, "stub", &receiver.url("/in")).await?;
        outbox::fill(&store, 1, "stub", no, 0..STUBS, |n| {
            format!("{{\"n\":{n}}}")
        })
        .await?;
        let seed = seed();
        Ok((
            Scene {
                deployment,
                store,
                seed,
            },
            receiver,
        ))
    }

    /// Who consumes, and who sends.
    fn start(&self) -> anyhow::Result<[Process; 2]> {
        let clock = self.clock();
        let consumer = self.deployment.attribution("consumer")?.clock(&clock);
        let sender = self.deployment.delivery("sender")?.clock(&clock);
        Ok([consumer.spawn()?, sender.spawn()?])
    }

    fn clock(&self) -> std::path::PathBuf {
        self.deployment.scratch.path().join("clock")
    }

    /// Verifies again and again while records come in, until it has seen the deployment at several moments.
    async fn at_work(&self) -> anyhow::Result<()> {
        let enough = AtomicBool::new(false);
        let producing = async {
            for n in 0.. {
                if enough.load(Ordering::Relaxed) {
                    break;
                }
                let list = List::generate(plan(self.seed + n, 800, now() - 600_000_000));
                self.deployment.produce(list).await?;
                // Never so far behind that catching up takes long.
                eventually("room for more", PATIENCE, async || {
                    Ok((self.count(LAG).await? < 1_500).then_some(()))
                })
                .await?;
            }
            Ok::<(), anyhow::Error>(())
        };
        let verifying = async {
            let client = self.deployment.store().await;
            let mut moments = BTreeSet::new();
            let looked = eventually("verified at work", PATIENCE, async || {
                let before = self.deployment.progress().await;
                must_be_clean(&verified(&client).await?, "at work")?;
                if self.deployment.progress().await > before {
                    moments.insert(before);
                }
                Ok((moments.len() >= 5).then_some(()))
            });
            let looked = looked.await;
            enough.store(true, Ordering::Relaxed);
            looked
        };
        let (produced, looked) = tokio::join!(producing, verifying);
        looked?;
        produced
    }

    async fn count(&self, sql: &str) -> anyhow::Result<i64> {
        Ok(self.store.query_one(sql, &[]).await?.get(0))
    }

    async fn until(&self, sql: &str, wanted: i64) -> anyhow::Result<()> {
        eventually(sql, PATIENCE, async || {
            Ok((self.count(sql).await? == wanted).then_some(()))
        })
        .await
    }

    /// Everything in the log is consumed.
    async fn consumed(&self) -> anyhow::Result<()> {
        self.until(LAG, 0).await
    }

    /// A day later what waited is dead; half of it is given to the log once more, and waits again.
    async fn a_day_later(&self) -> anyhow::Result<()> {
        let waiting = self.count("SELECT count(*) FROM parked").await?;
        anyhow::ensure!(waiting > 10, "{waiting} records wait");
        std::fs::write(self.clock(), (DAY + DAY / 24).to_string())?;
        self.until("SELECT count(*) FROM parked", 0).await?;
        let rows = self
            .store
            .query(
                "SELECT format('%s-%s-%s', topic_no, partition, \"offset\") FROM dead_letters
                 WHERE reason = 'journey_unknown' AND status = 'open' ORDER BY record_id",
                &[],
            )
            .await?;
        let half = rows.iter().step_by(2).map(|r| r.get::<_, String>(0));
        let half: Vec<String> = half.collect();
        let mut words = vec!["dlq".to_owned(), "replay".to_owned()];
        words.extend(half.iter().cloned());
        self.deployment
            .launch("replay")?
            .args(&words)
            .run(PATIENCE)
            .await?;
        let replayed = "SELECT count(*) FROM dead_letters WHERE status = 'replayed'";
        self.until(replayed, i64::try_from(half.len())?).await?;
        self.deployment
            .launch("discard")?
            .args(["dlq", "discard", "--reason", "undecodable"])
            .run(PATIENCE)
            .await?;
        let list = List::generate(plan(self.seed ^ 0x5eed, 1_500, now() + DAY));
        self.deployment.produce(list).await?;
        self.consumed().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_clean_at_work_and_at_rest_and_each_corruption_is_named() {
    let (scene, receiver) = Scene::set().await.unwrap();
    let run = async {
        std::fs::write(scene.clock(), "0")?;
        let processes = scene.start()?;
        scene.at_work().await?;
        scene.consumed().await?;
        scene.a_day_later().await?;
        let open = "SELECT count(*) FROM outbox WHERE channel = 'stub' AND status = 'scheduled'";
        scene.until(open, 0).await?;
        for mut process in processes {
            process.terminate(PATIENCE).await?;
        }
        let report = verified(&scene.store).await?;
        must_be_clean(&report, "at rest")?;
        let asked: Vec<&str> = report.checks.iter().map(|c| c.check).collect();
        let all: Vec<&str> = Check::ALL.iter().map(|c| c.name()).collect();
        anyhow::ensure!(asked == all, "asked {asked:?}");
        // Nothing is emitted here, and no module is enabled.
        let idle = ["emits", "gates"];
        for c in report.checks.iter().filter(|c| !idle.contains(&c.check)) {
            anyhow::ensure!(c.rows > 0, "{} looked at nothing: {report:?}", c.check);
        }
        anyhow::ensure!(receiver.received().len() == STUBS as usize, "stub messages");
        Ok(())
    };
    let result = run.await;
    with_words(&scene.deployment, result);
    // A copy for each corruption; its source must be left by everybody.
    let Scene {
        deployment, store, ..
    } = scene;
    drop(store);
    let copies = Copies::of(&deployment).await;
    corruptions::all_are_named(&copies).await;
    what_retention_dropped_is_not_lost(&copies).await;
    a_day_that_went_another_way_is_lost(&copies).await;
    what_was_read_again_by_hand_is_not_doubled(&copies).await;
    the_command_says_so(&deployment, &copies).await;
}

/// Copies of a deployment's database on its server.
struct Copies {
    admin: Client,
    source: String,
    server: String,
    made: std::sync::atomic::AtomicU32,
}

impl Copies {
    async fn of(deployment: &Deployment) -> Copies {
        let (server, source) = deployment.database.url().rsplit_once('/').unwrap();
        Copies {
            admin: connect(&format!("{server}/postgres")).await,
            source: source.to_owned(),
            server: server.to_owned(),
            made: std::sync::atomic::AtomicU32::new(0),
        }
    }

    /// Another copy: its URL.
    async fn one(&self) -> String {
        let n = self.made.fetch_add(1, Ordering::Relaxed);
        let name = format!("copy_{n}");
        let sql = format!("CREATE DATABASE {name} TEMPLATE {}", self.source);
        // Sessions that have just ended may be seen a moment longer.
        eventually("a copy", PATIENCE, async || {
            match self.admin.batch_execute(&sql).await {
                Ok(()) => Ok(Some(())),
                Err(e) if e.code().is_some_and(|c| c.code() == "55006") => Ok(None),
                Err(e) => Err(e.into()),
            }
        })
        .await
        .unwrap();
        format!("{}/{name}", self.server)
    }

    async fn remove(&self, url: &str) {
        let (_, name) = url.rsplit_once('/').unwrap();
        let sql = format!("DROP DATABASE {name} WITH (FORCE)");
        self.admin.batch_execute(&sql).await.unwrap();
    }
}

/// Retention drops today and all before it: nothing of that is called lost, and what is left is still looked at.
async fn what_retention_dropped_is_not_lost(copies: &Copies) {
    let url = copies.one().await;
    let client = connect(&url).await;
    client
        .batch_execute(
            "DELETE FROM outbox_due WHERE created_at < date_trunc('day', now()) + interval '1 day'",
        )
        .await
        .unwrap();
    let database = settings::Database {
        url: Some(url),
        ..settings::Database::default()
    };
    let mut kept = settings::Settings {
        retention: settings::Retention {
            visits_days: 1,
            conversions_days: 1,
            postbacks_days: 1,
            ..settings::Retention::default()
        },
        ..settings::Settings::default()
    };
    kept.delivery.outbox_retention_days = 1;
    kept.delivery.send_log_retention_days = 1;
    let today = (now() / DAY) * DAY;
    let database = Database::new(&database, "tests").unwrap();
    let gone = retention::once(&database, &kept, Micros(today + 2 * DAY))
        .await
        .unwrap();
    assert!(gone.len() >= 7, "{gone:?}");
    let report = verified(&client).await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert!(report.checks.iter().any(|c| !c.notes.is_empty()));
    // Half of it is still named where it is lost by accident.
    let n = client
        .execute(
            "DELETE FROM conversions WHERE conversion_id = (SELECT c.conversion_id FROM conversions c LIMIT 1)",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(n, 1);
    let report = verified(&client).await.unwrap();
    let named = differing(&report);
    assert!(
        named.contains("bookings") && named.contains("identities"),
        "{report}"
    );
}

/// Nobody has written down that this day was dropped.
async fn a_day_that_went_another_way_is_lost(copies: &Copies) {
    let client = connect(&copies.one().await).await;
    client
        .batch_execute(
            "DO $$ BEGIN EXECUTE 'DROP TABLE ' || (SELECT tableoid::regclass FROM conversions LIMIT 1); END $$",
        )
        .await
        .unwrap();
    let named = differing(&verified(&client).await.unwrap());
    assert!(named.contains("bookings"), "{named:?}");
}

/// An operator had a partition's dead records decided again: their letters are one, their outcomes two.
async fn what_was_read_again_by_hand_is_not_doubled(copies: &Copies) {
    let client = connect(&copies.one().await).await;
    let n = client
        .execute(
            "WITH one AS (SELECT record_id, topic_no, partition, \"offset\" AS at FROM dead_letters WHERE status = 'discarded' LIMIT 1),
                  moved AS (INSERT INTO position_changes (group_name, partition, topic_no, old_offset, new_offset, reason)
                            SELECT 'attribution', partition, topic_no, at + 1, at, 'test' FROM one),
                  counted AS (UPDATE outcomes o SET n = n + 1 FROM one WHERE o.topic_no = one.topic_no
                              AND o.partition = one.partition AND o.outcome = 4 AND o.reason = 'undecodable')
             UPDATE positions p SET consumed = consumed + 1 FROM one
             WHERE p.topic_no = one.topic_no AND p.partition = one.partition",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(n, 1);
    let report = verified(&client).await.unwrap();
    assert!(report.is_clean(), "{report}");
}

/// What the command said: its exit code and its output.
async fn said(deployment: &Deployment, url: &str, words: &[&str]) -> (Option<i32>, String) {
    let launch = deployment
        .launch(&format!("said-{}", words.join("-")))
        .unwrap()
        .env("RUST_LOG", "off")
        .env("DATABASE_URL", url)
        .args(words);
    let mut process = launch.spawn().unwrap();
    let status = process.wait(PATIENCE).await.unwrap();
    (status.code(), process.log_text())
}

async fn the_command_says_so(deployment: &Deployment, copies: &Copies) {
    let url = copies.one().await;
    let (code, text) = said(deployment, &url, &["verify"]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("Nothing differs"), "{text}");
    let (code, text) = said(
        deployment,
        &url,
        &["verify", "--since", "2d", "--check", "ends"],
    )
    .await;
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("positions"), "{text}");
    for wrong in [["--check", "nothing"], ["--since", "soon"]] {
        let (code, text) = said(deployment, &url, &[&["verify"], &wrong[..]].concat()).await;
        assert_eq!(code, Some(2), "{text}");
    }
    // Somebody who may only read.
    let client = connect(&url).await;
    client
        .batch_execute(
            "CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader;
             ALTER ROLE reader SET default_transaction_read_only = on",
        )
        .await
        .unwrap();
    let reader = url.replace("//postgres@", "//reader@");
    let (code, text) = said(deployment, &reader, &["--json", "verify"]).await;
    assert_eq!(code, Some(0), "{text}");
    client
        .batch_execute("DELETE FROM ownership WHERE partition IN (0, 1)")
        .await
        .unwrap();
    let (code, text) = said(deployment, &reader, &["--json", "verify", "--limit", "1"]).await;
    assert_eq!(code, Some(1), "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["differences"], 4, "{json:#}");
    let positions = &json["checks"][0];
    assert_eq!(positions["check"], "positions");
    assert_eq!(positions["examples"].as_array().unwrap().len(), 1);
    let (code, text) = said(deployment, &url, &["verify", "--timeout", "60s"]).await;
    assert_eq!(code, Some(1), "{text}");
    for part in ["4 differences: 0 lost, 0 doubled, 4 wrong", "WRONG", "Do: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A client that was told nothing must not be left in a transaction.
#[tokio::test]
async fn a_client_is_as_it_was_whatever_happens() {
    let database = millrace_tests::postgres::TestDatabase::create().await;
    let client = database.client().await;
    let report = verified(&client).await.unwrap();
    assert!(report.is_clean(), "{report}");
    client
        .batch_execute("ALTER TABLE emits RENAME TO elsewhere")
        .await
        .unwrap();
    let failed = verify::run(&client, &Options::default()).await;
    assert!(failed.is_err());
    client
        .batch_execute("ALTER TABLE elsewhere RENAME TO emits")
        .await
        .unwrap();
    let options = Options {
        statement_timeout: Duration::from_millis(1),
        ..Options::default()
    };
    // It may be fast enough; it must not hang.
    let _ = verify::run(&client, &options).await;
    assert!(verified(&client).await.unwrap().is_clean());
}
