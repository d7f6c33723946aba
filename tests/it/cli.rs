//! The command line over a deployment: `run`, and what an operator does to groups, positions, topics and dead letters.

mod bounce;
mod directory;
mod outbox;

use bytes::Bytes;
use millrace_tests::deployment::{Deployment, Log};
use millrace_tests::postgres::{DedicatedServer, TestDatabase};
use millrace_tests::process::{Launch, Process, Scratch, eventually, free_address};
use millrace_topics::catalogue;
use millrace_topics::contract::Outgoing;
use millrace_topics::pglog::append_in;
use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::Client;

const SOON: Duration = Duration::from_secs(30);

struct Said {
    code: Option<i32>,
    text: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }
}

async fn say(launch: Launch, words: &str) -> Said {
    let mut process = launch
        .env("RUST_LOG", "off")
        .arg("--json")
        .args(words.split(' '))
        .spawn()
        .unwrap();
    let status = process.wait(SOON).await.unwrap();
    Said {
        code: status.code(),
        text: process.log_text(),
    }
}

struct Stage {
    deployment: Deployment,
    store: Client,
    said: u32,
}

impl Stage {
    async fn new(name: &str) -> Stage {
        let deployment = Deployment::start(name, Log::Postgres, 2).await.unwrap();
        let store = deployment.store().await;
        Stage {
            deployment,
            store,
            said: 0,
        }
    }

    /// The answer of a command that must succeed.
    async fn ok(&mut self, words: &str) -> Value {
        let said = self.say(words).await;
        assert_eq!(said.code, Some(0), "{words}: {}", said.text);
        said.json()
    }

    /// What a command that must fail says.
    async fn refused(&mut self, words: &str) -> String {
        let said = self.say(words).await;
        assert_eq!(said.code, Some(1), "{words}: {}", said.text);
        said.text
    }

    async fn say(&mut self, words: &str) -> Said {
        self.said += 1;
        let launch = self
            .deployment
            .launch(&format!("said-{}", self.said))
            .unwrap();
        say(launch, words).await
    }

    async fn run(&self, name: &str) -> (Process, SocketAddr) {
        let doors = free_address().unwrap();
        let launch = self
            .deployment
            .launch(name)
            .unwrap()
            .setting("http.doors", doors)
            .setting("http.admin", doors)
            .arg("run");
        let mut process = launch.spawn().unwrap();
        process.wait_for_log("millrace is up", SOON).await.unwrap();
        (process, doors)
    }

    /// Appends records that nobody can decide: each becomes a dead letter.
    async fn poison(&mut self, n: usize) {
        let topics = catalogue::load(&self.store).await.unwrap();
        let no = catalogue::find(&topics, catalogue::POSTBACKS).unwrap().no;
        let records: Vec<Outgoing> = (0..n)
            .map(|i| Outgoing {
                topic_no: no,
                key: Bytes::from(format!("1:{i}")),
                payload: Bytes::from_static(b"no record at all"),
            })
            .collect();
        let tx = self.store.transaction().await.unwrap();
        append_in(&tx, &topics, &records).await.unwrap();
        tx.commit().await.unwrap();
    }

    async fn count(&self, sql: &str) -> i64 {
        self.store.query_one(sql, &[]).await.unwrap().get(0)
    }

    async fn until(&self, sql: &str, wanted: i64) {
        eventually(sql, SOON, async || {
            Ok((self.count(sql).await == wanted).then_some(()))
        })
        .await
        .unwrap();
    }
}

const DEAD: &str = "SELECT count(*) FROM dead_letters";

#[tokio::test]
async fn run_says_what_it_lacks() {
    let server = tokio::task::spawn_blocking(DedicatedServer::start)
        .await
        .unwrap();
    let database = TestDatabase::create_on(&server).await;
    let scratch = Scratch::new("cli-lacks").unwrap();
    let doors = free_address().unwrap();
    let launch = |name: &str| {
        Launch::product(name, scratch.path())
            .unwrap()
            .env("DATABASE_URL", database.url())
            .setting("http.doors", doors)
            .setting("http.admin", doors)
    };
    let said = say(launch("no-topics"), "run").await;
    assert_eq!(said.code, Some(1));
    assert!(
        said.text.contains("millrace topics create"),
        "{}",
        said.text
    );
    let said = say(launch("create"), "topics create").await;
    assert_eq!(said.code, Some(0), "{}", said.text);
    let _taken = std::net::TcpListener::bind(doors).unwrap();
    let said = say(launch("taken"), "run").await;
    assert_eq!(said.code, Some(1));
    assert!(said.text.contains("MILLRACE_HTTP__DOORS"), "{}", said.text);
    let said = say(launch("no-database").env("DATABASE_URL", ""), "run").await;
    assert_eq!(said.code, Some(1));
    assert!(said.text.contains("DATABASE_URL"), "{}", said.text);
    let said = say(launch("no-role"), "run --roles door").await;
    assert_eq!(said.code, Some(2));
    assert!(said.text.contains("no role `door`"), "{}", said.text);
}

/// A load balancer keeps connections open without a request on them: they must not hold up the end.
#[tokio::test]
async fn sigterm_drains_beside_idle_connections() {
    let stage = Stage::new("cli-drain").await;
    let (mut process, doors) = stage.run("run").await;
    let mut idle = tokio::net::TcpStream::connect(doors).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = [0; 1024];
    let n = idle.read(&mut answer).await.unwrap();
    assert!(answer[..n].starts_with(b"HTTP/1.1 200"));
    let begun = Instant::now();
    let status = process.terminate(SOON).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", process.last_words(20));
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn groups_pause_and_positions_move_under_a_running_owner() {
    let mut stage = Stage::new("cli-positions").await;
    let (mut process, _) = stage.run("run").await;
    stage.poison(4).await;
    stage.until(DEAD, 4).await;

    stage.ok("groups pause attribution --reason house").await;
    let listed = stage.ok("groups list").await;
    assert_eq!(listed[0]["paused"], true);
    // Consumers look once a second; what comes after that waits.
    process.wait_for_log("group paused", SOON).await.unwrap();
    let sent = 9;
    stage.poison(5).await;
    let behind = stage.ok("lag").await;
    let behind: i64 = behind
        .as_array()
        .unwrap()
        .iter()
        .map(|l| l["lag"].as_i64().unwrap())
        .sum();
    assert_eq!(behind, 5);
    stage.ok("groups resume attribution").await;
    stage.until(DEAD, sent).await;

    // Back needs a word more; the running owner is fenced and starts from there.
    let (partition, next): (i32, i64) = {
        let row = stage
            .store
            .query_one(
                "SELECT p.partition, p.next_offset FROM positions p JOIN topics USING (topic_no)
                 WHERE name = 'postbacks' AND next_offset > 0 ORDER BY 1 LIMIT 1",
                &[],
            )
            .await
            .unwrap();
        (row.get(0), row.get(1))
    };
    let set = format!(
        "positions set --group attribution --topic postbacks --partition {partition} --reason again --offset 0"
    );
    assert!(stage.refused(&set).await.contains("--again"));
    let moved = stage.ok(&format!("{set} --again")).await;
    assert_eq!(moved["from"], next);
    let reached = format!(
        "SELECT next_offset FROM positions JOIN topics USING (topic_no) WHERE name = 'postbacks' AND partition = {partition}"
    );
    stage.until(&reached, next).await;
    assert_eq!(
        stage
            .count("SELECT count(*) FROM position_changes WHERE reason = 'again'")
            .await,
        1
    );
    assert_eq!(stage.count(DEAD).await, sent, "the same records die once");

    // A stopped partition stays so until somebody resumes it.
    stage
        .store
        .batch_execute("UPDATE ownership SET stopped_reason = 'by hand', stopped_at = now(), epoch = epoch + 1, owner = ''")
        .await
        .unwrap();
    let stopped = stage.ok("positions list --stopped").await;
    assert_eq!(stopped.as_array().unwrap().len(), 4);
    for partition in 0..2 {
        let resumed = stage
            .ok(&format!(
                "positions resume --group attribution --partition {partition}"
            ))
            .await;
        assert_eq!(resumed["was_stopped"], "by hand");
    }
    stage.poison(4).await;
    stage.until(DEAD, sent + 4).await;
    assert!(process.terminate(SOON).await.unwrap().success());
}

#[tokio::test]
async fn topics_grow_once_everything_is_consumed_and_everybody_has_gone() {
    let mut stage = Stage::new("cli-grow").await;
    let (mut process, _) = stage.run("run-1").await;
    let said = stage.refused("topics grow --partitions 5").await;
    assert!(said.contains("still connected"), "{said}");
    assert!(process.terminate(SOON).await.unwrap().success());

    stage.poison(3).await;
    let said = stage.refused("topics grow --partitions 5").await;
    assert!(said.contains("3 records are not consumed"), "{said}");
    let (mut process, _) = stage.run("run-2").await;
    stage.until(DEAD, 3).await;
    assert!(process.terminate(SOON).await.unwrap().success());
    let said = stage.refused("topics grow --partitions 1").await;
    assert!(said.contains("never shrink"), "{said}");
    let grown = stage.ok("topics grow --partitions 5").await;
    assert!(
        grown
            .as_array()
            .unwrap()
            .iter()
            .all(|t| t["partitions"] == 5)
    );
    assert!(grown.to_string().contains("postbacks.2"), "{grown}");
    stage.ok("topics check").await;

    // The new generation is consumed from its beginning, and old letters are still there.
    let (mut process, _) = stage.run("run-3").await;
    stage.poison(20).await;
    stage.until(DEAD, 23).await;
    assert_eq!(
        stage
            .count("SELECT count(DISTINCT partition) FROM ownership")
            .await,
        5
    );

    // What is no record cannot be replayed, and says so; it can be given up.
    let said = stage.say("dlq replay --all").await;
    assert_eq!(said.code, Some(1));
    assert!(
        said.text.contains("no JSON object") && said.text.contains("dlq discard"),
        "{}",
        said.text
    );
    let listed = stage.ok("dlq list --limit 1").await;
    let record = listed[0]["record"].as_str().unwrap().to_owned();
    let shown = stage.ok(&format!("dlq show {record}")).await;
    assert_eq!(shown["payload"], "no record at all");
    assert_eq!(
        stage.ok(&format!("dlq discard {record}")).await["discarded"],
        1
    );
    assert_eq!(stage.ok("dlq discard --all").await["discarded"], 22);
    assert!(
        stage
            .refused("dlq replay --all")
            .await
            .contains("no open dead letter")
    );
    // An event says itself of which workspace it is.
    assert!(
        stage
            .refused("rules explain --event 1-0-0-0 --user u1")
            .await
            .contains("no event `1-0-0-0`: it is not decided yet")
    );
    assert!(process.terminate(SOON).await.unwrap().success());
}

#[tokio::test]
async fn a_deployment_moves_from_the_postgres_log_to_kafka() {
    let Some(kafka) = millrace_tests::kafka::shared().await else {
        return;
    };
    let mut stage = Stage::new("cli-switch").await;
    let (mut process, _) = stage.run("run-1").await;
    stage.poison(2).await;
    stage.until(DEAD, 2).await;
    assert!(process.terminate(SOON).await.unwrap().success());

    stage.deployment.set("log.backend", "kafka");
    stage.deployment.set("log.brokers", kafka.brokers());
    stage.deployment.set(
        "log.prefix",
        format!("{}.", millrace_tests::kafka::group_name("switch")),
    );
    for words in ["run", "topics create", "topics check", "lag"] {
        let said = stage.refused(words).await;
        assert!(said.contains("millrace topics switch"), "{words}: {said}");
    }
    let switched = stage.ok("topics switch").await;
    assert!(
        switched
            .as_array()
            .unwrap()
            .iter()
            .all(|t| t["partitions"] == 2)
    );
    stage.ok("topics check").await;
    let (mut process, doors) = stage.run("run-2").await;
    eventually("both partitions are owned", SOON, async || {
        let owned = stage
            .count("SELECT count(*) FROM positions JOIN topics USING (topic_no) WHERE retired_at IS NULL")
            .await;
        Ok((owned == 4).then_some(()))
    })
    .await
    .unwrap();
    let mut stream = tokio::net::TcpStream::connect(doors).await.unwrap();
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("\"ready\":true"), "{answer}");
    let behind = stage.ok("lag").await;
    let behind = behind.as_array().unwrap();
    assert!(
        !behind.is_empty() && behind.iter().all(|l| l["lag"] == 0),
        "{behind:?}"
    );
    assert!(process.terminate(SOON).await.unwrap().success());
}
