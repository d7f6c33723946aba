//! The door is killed before the log has a frame, and after the log has it and before the sidecar hears of it: whatever is sent
//! again is there once by its numbers.

use super::atlantic;
use super::session::path;
use millrace_schemas::frame::{Frame, ReplayWindow};
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::process::{Process, eventually, lasting_address};
use millrace_tests::shard_session::{FRAMES, KINDS};
use millrace_topics::contract::TopicRef;
use millrace_topics::pglog;
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

async fn door(deployment: &Deployment, turn: usize, at: SocketAddr) -> anyhow::Result<Process> {
    let mut launch = deployment
        .launch(&format!("door-{turn}"))?
        .args(["run", "--roles", "doors"])
        .setting("http.doors", at)
        .setting("http.admin", at);
    launch = match turn {
        0 => launch.failpoint("feed_door.produced", "abort@3"),
        1 => launch.failpoint("feed_door.before_produce", "abort@300"),
        2 => launch.failpoint("feed_door.produced", "abort@1"),
        _ => launch,
    };
    let mut process = launch.spawn()?;
    process.wait_for_log("millrace is up", PATIENCE).await?;
    Ok(process)
}

/// Every frame of the log: by partition, in order.
async fn logged(deployment: &Deployment) -> anyhow::Result<Vec<(i32, Frame)>> {
    let client = deployment.store().await;
    let row = client
        .query_one(
            "SELECT topic_no, log_name, partitions FROM topics WHERE name = 'frames'",
            &[],
        )
        .await?;
    let topic = TopicRef {
        no: row.get(0),
        name: "frames".to_owned(),
        log_name: row.get(1),
        partitions: row.get(2),
    };
    let mut all = Vec::new();
    for mark in pglog::watermarks(&client, &[topic]).await? {
        for offset in mark.low..mark.high {
            let record = pglog::record_at(&client, mark.topic_no, mark.partition, offset).await?;
            let (_, payload) = record.ok_or_else(|| anyhow::anyhow!("a hole in the log"))?;
            all.push((mark.partition, serde_json::from_slice(&payload)?));
        }
    }
    Ok(all)
}

async fn run(deployment: &Deployment) -> anyhow::Result<()> {
    let token = atlantic(&deployment.store().await).await?;
    let at = lasting_address()?;
    let mut doors = door(deployment, 0, at).await?;
    let mut sender = deployment
        .launch("sender")?
        .args(["--json", "feed", "send"])
        .arg(path())
        .args(["--url", &format!("http://{at}/feed/atlantic")])
        .args(["--token", &token.reveal(), "--rate", "800"])
        .spawn()?;
    let mut died = 0;
    let status = eventually("everything is sent", PATIENCE * 2, async || {
        if doors.ended().is_some() {
            anyhow::ensure!(
                doors.killed_by() == Some(libc::SIGKILL),
                "{}",
                doors.last_words(20)
            );
            died += 1;
            doors = door(deployment, died, at).await?;
        }
        Ok(sender.ended())
    })
    .await?;
    anyhow::ensure!(status.code() == Some(0), "{}", sender.last_words(20));
    anyhow::ensure!(died == 3, "the door died {died} times");
    anyhow::ensure!(doors.terminate(PATIENCE).await?.code() == Some(0));
    let frames = logged(deployment).await?;
    let mut windows: HashMap<i32, ReplayWindow> = HashMap::new();
    let mut new = BTreeSet::new();
    let mut again = 0;
    for (partition, frame) in frames {
        anyhow::ensure!(KINDS.contains(&&*frame.kind), "{}", frame.kind);
        let first = windows
            .entry(partition)
            .or_default()
            .admit(&frame.boot, frame.seq);
        let unseen = new.insert((frame.boot, frame.seq));
        anyhow::ensure!(first == unseen, "a window was wrong of {}", frame.seq);
        again += usize::from(!unseen);
    }
    let text = std::fs::read_to_string(path())?;
    let mapped = text
        .lines()
        .filter(|l| {
            KINDS
                .iter()
                .any(|k| l.contains(&format!("\"kind\":\"{k}\"")))
        })
        .count();
    anyhow::ensure!(
        new.len() == mapped && mapped > FRAMES / 2,
        "{} of {mapped} frames are in the log",
        new.len()
    );
    anyhow::ensure!(
        again > 0,
        "nothing was ever sent twice: the kill proved nothing"
    );
    Ok(())
}

#[tokio::test]
async fn a_door_is_killed_between_the_log_and_the_sidecar() {
    let mut deployment = Deployment::start("feed-kill", Log::Postgres, 2)
        .await
        .unwrap();
    deployment.set("modules.enabled", "uo");
    let result = run(&deployment).await;
    result.unwrap_or_else(|e| panic!("{e:#}\n{}", deployment.last_words()));
}
