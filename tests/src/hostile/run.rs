//! Many connections at once, and the books afterwards.

use super::requests::{Maker, Request};
use super::stage::Stage;
use super::tally::Tally;
use super::wire::{Answer, Connection, Manner};
use crate::deployment::PATIENCE;
use crate::process::eventually;
use anyhow::ensure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Statuses that a hostile request may well get.
const SANE: &[u16] = &[
    200, 201, 202, 204, 302, 400, 401, 403, 404, 405, 408, 409, 411, 412, 413, 414, 415, 417, 426,
    428, 429, 431, 503, 505,
];

/// What a run came to.
#[derive(Debug)]
pub struct Ended {
    /// Answers.
    pub tally: Tally,
    /// How long the requests took.
    pub took: Duration,
    /// Resident memory of the product in bytes: before, and twenty times on the way.
    pub memory: Vec<u64>,
    /// Records of clicks and postbacks in the log: what the doors accepted.
    pub produced: i64,
    /// Frames in the log.
    pub frames: i64,
    /// Records of all topics in the log, what streams emitted among them.
    pub records: i64,
    /// Outcomes counted.
    pub outcomes: i64,
    /// Outcomes by name.
    pub by_outcome: Vec<(String, i64)>,
}

impl Ended {
    /// Greatest growth of memory between the first fifth and the last, in bytes.
    #[must_use]
    pub fn growth(&self) -> i64 {
        let n = self.memory.len();
        let early = self.memory.iter().take(n.div_ceil(5)).max();
        let late = self.memory.iter().skip(n - n.div_ceil(5)).max();
        let of = |v: Option<&u64>| i64::try_from(v.copied().unwrap_or(0)).unwrap_or(i64::MAX);
        of(late) - of(early)
    }
}

/// Sends `count` bodies to doors, and on the way whatever else the generator asks, from a seed over `connections` connections, waits until everything accepted has its outcome, and counts.
///
/// # Errors
/// The process died, did not answer, or did not come to an end.
pub async fn run(
    stage: &mut Stage,
    count: u64,
    seed: u64,
    connections: u64,
    progress: impl Fn(u64) + Send + Sync + 'static,
) -> anyhow::Result<Ended> {
    let done = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let watch = {
        let (done, over, pid) = (Arc::clone(&done), Arc::clone(&over), stage.process.pid());
        tokio::spawn(async move {
            let mut memory = vec![resident(pid)];
            let step = (count / 20).max(1);
            while !over.load(Ordering::Relaxed) {
                let n = done.load(Ordering::Relaxed);
                progress(n);
                if n >= memory.len() as u64 * step {
                    memory.push(resident(pid));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            memory.push(resident(pid));
            memory
        })
    };
    let started = Instant::now();
    let tasks: Vec<_> = (0..connections)
        .map(|i| {
            let share = count / connections + u64::from(i < count % connections);
            let maker = Maker::new(
                seed.wrapping_mul(1_000_003).wrapping_add(i),
                stage.known.clone(),
            );
            tokio::spawn(one(stage.address, maker, share, Arc::clone(&done)))
        })
        .collect();
    let mut tally = Tally::default();
    let mut failed = None;
    for task in tasks {
        match task.await? {
            Ok(one) => tally.add(one),
            Err(error) => failed = Some(error),
        }
    }
    let took = started.elapsed();
    over.store(true, Ordering::Relaxed);
    let memory = watch.await?;
    if let Some(status) = stage.process.ended() {
        anyhow::bail!("it died of it: {status}\n{}", stage.process.last_words(40));
    }
    if let Some(error) = failed {
        return Err(error.context(stage.process.last_words(20)));
    }
    ensure!(
        !stage.process.log_text().contains("panicked at"),
        "something panicked:\n{}",
        stage.process.last_words(60)
    );
    let books = settle(stage).await?;
    Ok(Ended {
        tally,
        took,
        memory,
        produced: books.produced,
        frames: books.frames,
        records: books.records,
        outcomes: books.outcomes,
        by_outcome: stage.outcomes().await?,
    })
}

/// What the store counts.
#[derive(Clone, Copy, Debug, Default)]
struct Books {
    records: i64,
    consumed: i64,
    outcomes: i64,
    produced: i64,
    frames: i64,
    /// Records for other topics that are still to be handed to the log.
    emits: i64,
}

/// Waits until as many outcomes are counted as there are records.
async fn settle(stage: &Stage) -> anyhow::Result<Books> {
    let store = stage.deployment.store().await;
    let sql = "WITH heads AS (SELECT name, next_offset FROM log_heads JOIN topics USING (topic_no))
               SELECT (SELECT coalesce(sum(next_offset), 0) FROM heads)::bigint,
                      (SELECT coalesce(sum(consumed), 0) FROM positions)::bigint,
                      (SELECT coalesce(sum(n), 0) FROM outcomes)::bigint,
                      (SELECT coalesce(sum(next_offset), 0) FROM heads WHERE name IN ('clicks', 'postbacks'))::bigint,
                      (SELECT coalesce(sum(next_offset), 0) FROM heads WHERE name = 'frames')::bigint,
                      (SELECT count(*) FROM emits)";
    let mut last = Books::default();
    let within = PATIENCE * 4;
    let waited = eventually("everything accepted has its outcome", within, async || {
        let row = store.query_one(sql, &[]).await?;
        last = Books {
            records: row.get(0),
            consumed: row.get(1),
            outcomes: row.get(2),
            produced: row.get(3),
            frames: row.get(4),
            emits: row.get(5),
        };
        let even = last.records == last.consumed && last.records <= last.outcomes;
        Ok((even && last.emits == 0).then_some(()))
    })
    .await;
    if let Err(error) = waited {
        anyhow::bail!("{error}: {last:?}\n{}", stage.process.last_words(30));
    }
    Ok(last)
}

/// Resident memory, in bytes; 0 where it cannot be told.
fn resident(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: u64 = text
        .split_whitespace()
        .nth(1)
        .and_then(|t| t.parse().ok())
        .unwrap_or(0);
    pages * 4_096
}

/// One connection's share.
async fn one(
    address: std::net::SocketAddr,
    mut maker: Maker,
    share: u64,
    done: Arc<AtomicU64>,
) -> anyhow::Result<Tally> {
    let mut connection = Connection::new(address);
    let mut tally = Tally::default();
    let mut sent = 0;
    while sent < share {
        let request = maker.next();
        let head = request.bytes.starts_with(b"HEAD ");
        let (mut answer, reused) = connection.ask(&request.bytes, request.manner, head).await?;
        if answer.is_none() && reused && request.manner != Manner::Broken {
            // The server had closed it meanwhile, as it may; or it has taken the request and closed.
            tally.unsure += request.records;
            tally.frames += request.frames;
            answer = connection
                .ask(&request.bytes, request.manner, head)
                .await?
                .0;
        }
        tally.frames += request.frames;
        note(&mut tally, &request, answer);
        if request.to_a_door {
            *tally.bodies.entry(request.route).or_default() += 1;
            sent += 1;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(tally)
}

fn note(tally: &mut Tally, request: &Request, answer: Option<Answer>) {
    if request.manner == Manner::Broken {
        tally.broken += 1;
    }
    let Some(answer) = answer else {
        tally.answered(&request.route, 0);
        tally.unsure += request.records;
        if request.manner != Manner::Broken {
            tally.wrong(
                &format!("{}: no answer", request.route),
                &request.bytes,
                b"",
            );
        }
        return;
    };
    tally.answered(&request.route, answer.status);
    if !SANE.contains(&answer.status) {
        let what = format!("{}: {}", request.route, answer.status);
        tally.wrong(&what, &request.bytes, &answer.body);
    }
    tally.accepted += accepted(request, &answer);
}

/// How many records the door says it has accepted.
fn accepted(request: &Request, answer: &Answer) -> u64 {
    if request.records == 0 {
        return 0;
    }
    let kept = || answer.body.windows(17).any(|w| w == b"received and kept");
    match answer.status {
        200 if request.batch => {
            let said: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            said["accepted"].as_u64().unwrap_or(0)
        }
        200 | 204 | 302 => 1,
        400 if kept() => 1,
        _ => 0,
    }
}
