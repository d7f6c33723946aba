//! Requests at the doors, over keep-alive connections, by a thread of its own: as many as they answer, or so many a second.
//!
//! A request that is due keeps its time: what it waits for a connection counts as latency, so that a stall is not hidden by
//! the requests that were not sent meanwhile.

use super::record::Latency;
use super::scenery::{CAMPAIGN, SECRET};
use crate::client;
use anyhow::Context;
use millrace_schemas::ids;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use uuid::Uuid;

/// Clicks that wait for what follows them; so many are answered before the first is followed up.
const FOLLOWED_AFTER: usize = 256;
/// Kept at most.
const KEPT: usize = 4_096;

/// What a request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `GET /c/…`
    Visit,
    /// `GET /pb`
    Postback,
}

/// A request that was accepted, and is followed to its row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub kind: Kind,
    pub click: Uuid,
    /// When it was due to be sent.
    pub due: Instant,
}

/// How fast.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// As fast as they are answered.
    Closed,
    /// So many a second, whatever happens.
    Open(f64),
}

/// What was answered so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub accepted: AtomicU64,
    pub postbacks: AtomicU64,
    pub refused: AtomicU64,
}

/// A running load; stopped when dropped.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

/// What a load needs to know.
#[derive(Clone)]
pub(super) struct Plan {
    pub doors: SocketAddr,
    pub connections: usize,
    pub pace: Pace,
    /// One request of so many is followed to its row.
    pub probe_every: u64,
    pub counts: Arc<Counts>,
    /// From due to answered.
    pub answered: Latency,
    pub probes: mpsc::UnboundedSender<Probe>,
    pub seed: u64,
    /// Names the load: what it books is its own.
    pub name: &'static str,
}

impl Load {
    pub fn start(plan: Plan) -> anyhow::Result<Load> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("load".to_owned())
            .spawn(move || runtime.block_on(run(plan, told)))?;
        Ok(Load {
            stop,
            thread: Some(thread),
        })
    }

    /// Whether it has ended by itself: then [`Load::stop`] says why.
    pub fn ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops it; requests under way are answered first.
    ///
    /// # Errors
    /// A connection broke.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take() {
            None => Ok(()),
            Some(thread) => thread
                .join()
                .map_err(|_| anyhow::anyhow!("the loading thread panicked"))?,
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What the connections share.
struct Shared {
    plan: Plan,
    stop: Arc<AtomicBool>,
    started: Instant,
    next: Cell<u64>,
    clicks: RefCell<VecDeque<Uuid>>,
    rng: RefCell<fastrand::Rng>,
}

async fn run(plan: Plan, stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    let mut sockets = Vec::with_capacity(plan.connections);
    for _ in 0..plan.connections.max(1) {
        let socket = TcpStream::connect(plan.doors).await.context("the doors")?;
        socket.set_nodelay(true)?;
        sockets.push(socket);
    }
    let shared = Rc::new(Shared {
        rng: RefCell::new(fastrand::Rng::with_seed(plan.seed)),
        plan,
        stop,
        started: Instant::now(),
        next: Cell::new(0),
        clicks: RefCell::default(),
    });
    let local = tokio::task::LocalSet::new();
    let tasks: Vec<_> = sockets
        .into_iter()
        .map(|socket| local.spawn_local(connection(socket, Rc::clone(&shared))))
        .collect();
    local
        .run_until(async {
            for task in tasks {
                task.await??;
            }
            anyhow::Ok(())
        })
        .await
}

async fn connection(mut socket: TcpStream, shared: Rc<Shared>) -> anyhow::Result<()> {
    let mut buffer = Vec::with_capacity(4_096);
    while !shared.stop.load(Ordering::Relaxed) {
        let number = shared.next.get();
        shared.next.set(number + 1);
        let due = match shared.plan.pace {
            Pace::Closed => Instant::now(),
            Pace::Open(rate) => {
                let due = shared.started + Duration::from_secs_f64(number as f64 / rate.max(1e-3));
                tokio::time::sleep_until(due.into()).await;
                due
            }
        };
        let asked = shared.ask(number);
        client::send(&mut socket, asked.text.as_bytes()).await?;
        let (status, head) = client::answer(&mut socket, &mut buffer).await?;
        shared.told(&asked, number, due, status, &head);
    }
    Ok(())
}

/// A request.
struct Asked {
    kind: Option<Kind>,
    click: Option<Uuid>,
    text: String,
}

impl Shared {
    /// Eight visits, a beacon and a postback of ten; what follows a visit follows one that was answered a while ago, each once.
    fn ask(&self, number: u64) -> Asked {
        let dice = self.rng.borrow_mut().u8(0..10);
        let mut clicks = self.clicks.borrow_mut();
        let click = match dice {
            8 | 9 if clicks.len() > FOLLOWED_AFTER => clicks.pop_front(),
            _ => None,
        };
        let Some(click) = click else {
            let salt = self.rng.borrow_mut().u64(..);
            return Asked {
                kind: Some(Kind::Visit),
                click: None,
                text: get(&format!(
                    "/c/{CAMPAIGN}?fbclid=IwAR0{salt:016x}{salt:016x}&utm_source=fb&sub1={number}"
                )),
            };
        };
        let id = ids::encode(click);
        match dice {
            8 => Asked {
                kind: None,
                click: Some(click),
                text: String::from_utf8_lossy(&client::post(
                    "/e",
                    &format!(r#"{{"click_id":"{id}","link_id":"{CAMPAIGN}","stage":1}}"#),
                ))
                .into_owned(),
            },
            _ => Asked {
                kind: Some(Kind::Postback),
                click: Some(click),
                text: get(&format!(
                    "/pb?secret={SECRET}&click_id={id}&txid={}{number}&payout=12.50&status=approved",
                    self.plan.name
                )),
            },
        }
    }

    fn told(&self, asked: &Asked, number: u64, due: Instant, status: u16, head: &str) {
        let plan = &self.plan;
        let micros = i64::try_from(due.elapsed().as_micros()).unwrap_or(i64::MAX);
        plan.answered.record(micros);
        if !matches!(status, 200 | 204 | 302) {
            plan.counts.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        plan.counts.accepted.fetch_add(1, Ordering::Relaxed);
        let click = match asked.kind {
            Some(Kind::Visit) => clicked(head),
            _ => asked.click,
        };
        if asked.kind == Some(Kind::Postback) {
            plan.counts.postbacks.fetch_add(1, Ordering::Relaxed);
        }
        let Some(click) = click else { return };
        if asked.kind == Some(Kind::Visit) {
            let mut clicks = self.clicks.borrow_mut();
            if clicks.len() < KEPT {
                clicks.push_back(click);
            }
        }
        if number.is_multiple_of(plan.probe_every.max(1))
            && let Some(kind) = asked.kind
        {
            // Nobody listens: the run is over.
            let _ = plan.probes.send(Probe { kind, click, due });
        }
    }
}

fn get(target: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nhost: soak\r\nuser-agent: Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) AppleWebKit/605.1.15\r\n\r\n"
    )
}

/// The click id that a redirect carries.
fn clicked(head: &str) -> Option<Uuid> {
    let after = head.split_once("?c=")?.1;
    ids::decode(after.get(..26)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_names_its_click() {
        let id = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);
        let head = format!(
            "HTTP/1.1 302 Found\r\nlocation: https://offer.example/?c={}\r\ndate: x",
            ids::encode(id)
        );
        assert_eq!(clicked(&head), Some(id));
        assert_eq!(clicked("HTTP/1.1 404 Not Found"), None);
    }
}
