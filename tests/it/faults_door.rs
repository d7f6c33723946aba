//! A door is killed between taking a batch, the log's acknowledgement and its own answer. Whoever got no answer sends again:
//! what was accepted is there, and nothing is there twice.

use crate::faults::{kafka, now, on_kafka, seed, turn, with_words};
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::generator::Rng;
use millrace_tests::process::{Process, eventually, free_address};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BATCHES: usize = 24;
const LINES: usize = 40;

/// A POST of its own connection: status and body, or that nobody answered.
async fn post(at: SocketAddr, key: &str, body: &str) -> std::io::Result<(u16, String)> {
    let mut socket = tokio::net::TcpStream::connect(at).await?;
    let request = format!(
        "POST /v1/batch/visits HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .ok_or_else(|| std::io::Error::other("no status"))?;
    Ok((status, answer))
}

/// A workspace with a campaign; a key that may send.
async fn a_sender(deployment: &Deployment) -> anyhow::Result<String> {
    let cli = |name: &str, args: &[&str]| -> anyhow::Result<_> {
        Ok(deployment.launch(name)?.args(args.iter().copied()))
    };
    cli("workspace", &["workspace", "create", "acme"])?
        .run(PATIENCE)
        .await?;
    let args = [
        "--json",
        "key",
        "create",
        "--workspace",
        "acme",
        "--name",
        "s",
        "--scopes",
        "ingest:write",
    ];
    let said = cli("key", &args)?.run(PATIENCE).await?;
    let said: Value = said
        .find('{')
        .and_then(|at| serde_json::from_str(&said[at..]).ok())
        .ok_or_else(|| anyhow::anyhow!("no JSON in {said}"))?;
    let store = deployment.store().await;
    store
        .batch_execute(
            "INSERT INTO offers (offer_id, workspace_id, name, url_template)
                 SELECT 'of_1', workspace_id, 'o', 'https://shop.example/?c={click_id}' FROM workspaces;
             INSERT INTO campaigns (campaign_id, workspace_id, name, routing)
                 SELECT 'cp1', workspace_id, 'c', '{\"offers\": [{\"offer\": \"of_1\", \"weight\": 1}]}' FROM workspaces",
        )
        .await?;
    let key = ["key", "secret", "token"]
        .iter()
        .find_map(|k| said[k].as_str());
    key.map(str::to_owned)
        .ok_or_else(|| anyhow::anyhow!("no key in {said}"))
}

async fn started(
    deployment: &Deployment,
    name: &str,
    at: SocketAddr,
    points: &[(&str, String)],
) -> anyhow::Result<Process> {
    let mut launch = deployment
        .launch(name)?
        .args(["run", "--roles", "doors"])
        .setting("http.doors", at)
        .setting("http.admin", at);
    for (point, action) in points {
        launch = launch.failpoint(point, action);
    }
    let mut process = launch.spawn()?;
    eventually("an open door", PATIENCE, async || {
        if let Some(status) = process.ended() {
            anyhow::bail!("{name} ended with {status}:\n{}", process.last_words(20));
        }
        Ok(tokio::net::TcpStream::connect(at).await.ok().map(drop))
    })
    .await?;
    Ok(process)
}

async fn run(deployment: &Deployment, rng: &mut Rng) -> anyhow::Result<()> {
    let key = a_sender(deployment).await?;
    let at = free_address()?;
    let mut points = vec![
        "batch_door.before_produce",
        "batch_door.produced",
        "batch_door.produced",
    ];
    let mut armed = |rng: &mut Rng| -> Vec<(&str, String)> {
        let next = points.pop().into_iter();
        next.map(|point| (point, format!("abort@{}", 1 + rng.below(6))))
            .collect()
    };
    let mut door = started(deployment, "door-0", at, &armed(rng)).await?;
    let (mut died, mut accepted, mut sent_again) = (0, 0, 0);
    for batch in 0..BATCHES {
        let lines: Vec<String> = (0..LINES)
            .map(|i| {
                json!({"id": format!("{batch}-{i}"), "campaign": "cp1", "params": {"sub1": "x"}})
                    .to_string()
            })
            .collect();
        let body = lines.join("\n");
        eventually("an answer", PATIENCE, async || {
            if door.ended().is_some() {
                anyhow::ensure!(
                    door.killed_by() == Some(libc::SIGKILL),
                    "{}",
                    door.last_words(20)
                );
                died += 1;
                door = started(deployment, &format!("door-{died}"), at, &armed(rng)).await?;
            }
            match post(at, &key, &body).await {
                Ok((200, _)) => Ok(Some(())),
                Ok((503, _)) | Err(_) => {
                    sent_again += 1;
                    Ok(None)
                }
                Ok((_, answer)) => anyhow::bail!("{answer}"),
            }
        })
        .await?;
        accepted += LINES as i64;
    }
    anyhow::ensure!(died == 3, "the door died {died} times");
    let store = deployment.store().await;
    let mut consumer = deployment.attribution("consumer")?.spawn()?;
    let counts = eventually("all visits", PATIENCE, async || {
        let row = store
            .query_one(
                "SELECT count(*), count(DISTINCT (click_key, visit_id)),
                        (SELECT coalesce(sum(n), 0)::bigint FROM outcomes WHERE outcome = 1) FROM visits",
                &[],
            )
            .await?;
        let counts: (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        // Two batches were produced and not answered: their second sending are duplicates, and the last to be seen.
        let all = counts.0 >= accepted && counts.2 >= 2 * LINES as i64;
        Ok(all.then_some(counts))
    })
    .await?;
    anyhow::ensure!(
        counts == (accepted, accepted, 2 * LINES as i64),
        "visits, distinct, duplicates: {counts:?} of {accepted} accepted, {sent_again} sent again"
    );
    consumer.terminate(PATIENCE).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_door_is_killed_around_the_log_s_acknowledgement() {
    let _turn = turn().await;
    let mut rng = Rng::new(seed() ^ now().cast_unsigned());
    let deployment = Deployment::start("door-pglog", Log::Postgres, 2)
        .await
        .unwrap();
    let result = run(&deployment, &mut rng).await;
    with_words(&deployment, result);
    let Some(kafka) = kafka().await else { return };
    let deployment = on_kafka(kafka, "door-kafka", 2).await.unwrap();
    let result = run(&deployment, &mut rng).await;
    with_words(&deployment, result);
}
