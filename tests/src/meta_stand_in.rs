//! A stand-in for Meta's Conversions API that behaves as Meta does and counts for itself.
//!
//! It knows datasets by their tokens, refuses a whole request for one bad event (error 100 with a subcode and, if told so, the
//! event's index), refuses what is older than seven days, knows an event again by (dataset, name, id), and can be told to answer
//! late, with errors, in pieces or not at all. Its counts are its own: a recount against them proves what really arrived.
//!
//! Self-contained and cheap: one thread, HTTP/1.1 by hand, an event costs two passes of a JSON reader and one entry of a table.

mod rules;
mod server;

pub use rules::{Refusal, check};

use bytes::Bytes;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// What it counts, of one dataset or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that named a dataset.
    pub requests: u64,
    /// Requests that were refused as a whole, scripted failures included.
    pub refused_requests: u64,
    /// Events in requests that were taken, duplicates included.
    pub received: u64,
    /// Events that were not known before.
    pub unique: u64,
    /// Events that were.
    pub duplicates: u64,
    /// Events in requests that were refused.
    pub refused: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.requests += other.requests;
        self.refused_requests += other.refused_requests;
        self.received += other.received;
        self.unique += other.unique;
        self.duplicates += other.duplicates;
        self.refused += other.refused;
    }
}

/// How a request goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This status and body, with `Retry-After` if there is one; nothing is taken.
    Status {
        /// The status.
        status: u16,
        /// The header's text.
        retry_after: Option<String>,
        /// The body.
        body: String,
    },
    /// Meta's error object under this status; nothing is taken.
    Error {
        /// The status; Meta likes to say 400, and sometimes 200.
        status: u16,
        /// `error.code`.
        code: u64,
        /// `error.error_subcode`.
        subcode: Option<u64>,
    },
    /// An error whose text repeats the whole request body; nothing is taken.
    Echo,
    /// The events are taken, and the connection is reset before a byte of the answer.
    ResetBeforeAnswer,
    /// The events are taken, and the connection is reset in the middle of the answer's body.
    ResetMidBody,
    /// The connection is reset with nothing taken.
    ResetUntaken,
    /// The events are taken; the answer's body comes in so many pieces with this pause between them.
    SlowBody {
        /// Pieces.
        pieces: usize,
        /// Between two of them.
        pause: Duration,
    },
    /// The events are taken, and no answer comes.
    Hang,
    /// The events are taken, and this count is told.
    WrongCount(u64),
    /// The events are taken, and the answer holds no receipt.
    NoReceipt,
    /// The events are taken, and the answer's body is that many bytes of nothing.
    HugeBody(usize),
}

impl Fault {
    /// A bare status.
    #[must_use]
    pub fn status(status: u16) -> Fault {
        Fault::Status {
            status,
            retry_after: None,
            body: String::new(),
        }
    }

    /// An error object under status 400.
    #[must_use]
    pub fn code(code: u64, subcode: Option<u64>) -> Fault {
        Fault::Error {
            status: 400,
            code,
            subcode,
        }
    }

    fn takes(&self) -> bool {
        !matches!(
            self,
            Fault::Status { .. } | Fault::Error { .. } | Fault::Echo | Fault::ResetUntaken
        )
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The request line's target.
    pub target: String,
    /// All headers as text.
    pub head: String,
    /// The body.
    pub body: Bytes,
}

struct Dataset {
    token: String,
    app_secret: Option<String>,
    counts: Counts,
}

struct State {
    datasets: HashMap<String, Dataset>,
    /// Datasets that nobody made are made by their first request, with whatever token it brings.
    open: bool,
    names_index: bool,
    latency: Duration,
    script: VecDeque<Fault>,
    /// Events by a digest of dataset, name and id: how often each came.
    known: HashMap<u128, u32>,
    keep: usize,
    seen: VecDeque<Seen>,
    shift_secs: i64,
}

struct Shared {
    state: Mutex<State>,
    /// Requests answered so far, for whoever waits.
    answered: watch::Sender<u64>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn now_secs(&self) -> i64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX) + self.shift_secs
    }
}

/// A stand-in that listens on loopback; stopped when dropped.
pub struct MetaStandIn {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl MetaStandIn {
    /// Starts one on a free port. It answers at once, names indices, and knows no dataset.
    ///
    /// # Errors
    /// No port could be bound.
    pub fn start() -> anyhow::Result<MetaStandIn> {
        MetaStandIn::start_at(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Starts one at an address, such as that of one that was stopped.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn start_at(address: SocketAddr) -> anyhow::Result<MetaStandIn> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                datasets: HashMap::new(),
                open: false,
                names_index: true,
                latency: Duration::ZERO,
                script: VecDeque::new(),
                known: HashMap::new(),
                keep: 16,
                seen: VecDeque::new(),
                shift_secs: 0,
            }),
            answered: watch::Sender::new(0),
        });
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let serving = shared.clone();
        let thread = std::thread::Builder::new()
            .name("meta-stand-in".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    tokio::select! {
                        served = server::serve(listener, serving) => {
                            if let Err(error) = served {
                                tracing::warn!(%error, "the stand-in for Meta ended");
                            }
                        }
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(MetaStandIn {
            address,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What to set `delivery.meta.graph_url` to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes a dataset. With an app secret, requests must prove that they know it.
    pub fn dataset(&self, id: &str, token: &str, app_secret: Option<&str>) {
        let mut state = self.shared.state();
        let counts = state.datasets.get(id).map(|d| d.counts).unwrap_or_default();
        let dataset = Dataset {
            token: token.to_owned(),
            app_secret: app_secret.map(str::to_owned),
            counts,
        };
        state.datasets.insert(id.to_owned(), dataset);
    }

    /// Takes any dataset with any token from now on.
    pub fn open_to_all(&self) {
        self.shared.state().open = true;
    }

    /// Whether the refusal of a request names the bad event's index.
    pub fn name_index(&self, names: bool) {
        self.shared.state().names_index = names;
    }

    /// How long each answer takes from now on. Events are taken at its beginning.
    pub fn latency(&self, latency: Duration) {
        self.shared.state().latency = latency;
    }

    /// Its clock stands so many seconds ahead of the machine's.
    pub fn shift_clock(&self, secs: i64) {
        self.shared.state().shift_secs = secs;
    }

    /// The next requests go wrong like this, one each, in order.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.state().script.extend(faults);
    }

    /// Keeps the last `n` requests (16 unless told; 0 for load).
    pub fn keep(&self, n: usize) {
        let mut state = self.shared.state();
        state.keep = n;
        let surplus = state.seen.len().saturating_sub(n);
        state.seen.drain(..surplus);
    }

    /// The requests that it kept, oldest first.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.state().seen.iter().cloned().collect()
    }

    /// What it counted, over all datasets.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let state = self.shared.state();
        let mut all = Counts::default();
        for dataset in state.datasets.values() {
            all.add(&dataset.counts);
        }
        all
    }

    /// What it counted of one dataset.
    #[must_use]
    pub fn counts_of(&self, dataset: &str) -> Counts {
        let state = self.shared.state();
        state
            .datasets
            .get(dataset)
            .map(|d| d.counts)
            .unwrap_or_default()
    }

    /// How often an event arrived, under its own name and id.
    #[must_use]
    pub fn times(&self, dataset: &str, name: &str, id: &str) -> u32 {
        let key = server::key(dataset, name, id);
        self.shared
            .state()
            .known
            .get(&key)
            .copied()
            .unwrap_or_default()
    }

    /// Waits until the counts are as wanted; looks after each answer.
    ///
    /// # Errors
    /// They are not in time.
    pub async fn wait_for(
        &self,
        what: &str,
        within: Duration,
        wanted: impl Fn(&Counts) -> bool,
    ) -> anyhow::Result<Counts> {
        let mut answered = self.shared.answered.subscribe();
        let waiting = async {
            loop {
                let counts = self.counts();
                if wanted(&counts) {
                    return counts;
                }
                if answered.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(within, waiting)
            .await
            .map_err(|_| anyhow::anyhow!("not within {within:?}: {what}; {:?}", self.counts()))
    }
}

impl Drop for MetaStandIn {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
