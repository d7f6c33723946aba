//! A stand-in for a mail server: it takes mail over SMTP, keeps it, shows it, and misbehaves as it is told. It keeps to RFC 5321 as
//! far as a client of one recipient needs, and decides nothing about the product.

mod session;

use super::Reply;
use rustls::ServerConfig;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A step of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The greeting.
    Greeting,
    /// `STARTTLS`.
    StartTls,
    /// `AUTH`.
    Auth,
    /// `MAIL FROM`.
    Mail,
    /// `RCPT TO`.
    Rcpt,
    /// `DATA`.
    Data,
    /// The end of the message.
    Body,
}

/// How to misbehave, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// This reply at that step; a message that has come by then is not taken.
    Say(Step, String),
    /// No reply at that step: the connection is closed. At [`Step::Body`] the message was taken.
    Die(Step),
    /// No reply at that step, and the connection stays open.
    Stall(Step),
    /// The message is taken; then this is said unasked, as to an idle client, and the connection is closed.
    Farewell(String),
}

impl Act {
    fn step(&self) -> Step {
        match self {
            Act::Say(step, _) | Act::Die(step) | Act::Stall(step) => *step,
            Act::Farewell(_) => Step::Body,
        }
    }
}

/// How its connections are secured.
#[derive(Clone, Default)]
pub enum Secured {
    /// Not at all.
    #[default]
    No,
    /// From the first byte.
    Tls(Arc<ServerConfig>),
    /// By STARTTLS; before it, it takes anything, so that what is said too early is seen.
    StartTls(Arc<ServerConfig>),
}

/// A message that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caught {
    /// The envelope's sender.
    pub from: String,
    /// The envelope's recipients.
    pub to: Vec<String>,
    /// The message, dots undone.
    pub data: Vec<u8>,
    /// On which connection, counted from 0.
    pub connection: usize,
}

impl Caught {
    /// A header's value with its folds, the first of its name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        let text = String::from_utf8_lossy(&self.data);
        let (head, _) = text.split_once("\r\n\r\n")?;
        let mut lines = head.split("\r\n").peekable();
        while let Some(line) = lines.next() {
            let Some((found, value)) = line.split_once(':') else {
                continue;
            };
            if !found.eq_ignore_ascii_case(name) {
                continue;
            }
            let mut value = value.trim_start().to_owned();
            while let Some(more) = lines.next_if(|l| l.starts_with([' ', '\t'])) {
                value.push_str("\r\n");
                value.push_str(more);
            }
            return Some(value);
        }
        None
    }
}

#[derive(Default)]
struct State {
    caught: Vec<Caught>,
    script: VecDeque<Act>,
    refused: HashMap<String, String>,
    login: Option<(String, String)>,
    connections: usize,
    /// Keeps counts alone: a run of many thousands would fill the memory.
    counts_only: bool,
    /// How long each reply takes.
    latency: Duration,
    taken: usize,
    secured: Secured,
    /// Commands that were said in the clear.
    overheard: Vec<String>,
}

/// What it has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailCounts {
    /// Messages that were taken.
    pub taken: usize,
    /// Message-IDs among them.
    pub message_ids: usize,
    /// Connections that were made.
    pub connections: usize,
}

/// The server; it has a thread of its own and ends when it is dropped.
pub struct Mail {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Mail {
    /// Listens on a free port of loopback.
    ///
    /// # Errors
    /// No port could be bound.
    pub fn start() -> std::io::Result<Mail> {
        Mail::start_secured(Secured::No)
    }

    /// As [`Mail::start`], secured.
    ///
    /// # Errors
    /// No port could be bound.
    pub fn start_secured(secured: Secured) -> std::io::Result<Mail> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State {
            secured,
            ..State::default()
        }));
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let own = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name("mail".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        _ = accept(listener, own) => {}
                        _ = stopped => {}
                    }
                });
                runtime.shutdown_background();
            })?;
        Ok(Mail {
            state,
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn open(&self) -> MutexGuard<'_, State> {
        open(&self.state)
    }

    /// The next transactions (or connections, for the greeting and the login) go like this, one each; then all is well again.
    pub fn script(&self, acts: impl IntoIterator<Item = Act>) {
        self.open().script.extend(acts);
    }

    /// Mail to this address gets this reply from now on.
    pub fn refuse(&self, address: &str, reply: &str) {
        let mut state = self.open();
        state.refused.insert(address.to_owned(), reply.to_owned());
    }

    /// Asks for this login from now on.
    pub fn ask_for(&self, user: &str, password: &str) {
        self.open().login = Some((user.to_owned(), password.to_owned()));
    }

    /// Keeps no messages from now on, and counts them alone.
    pub fn count_only(&self) {
        self.open().counts_only = true;
    }

    /// Takes so long for each reply from now on.
    pub fn take_so_long(&self, latency: Duration) {
        self.open().latency = latency;
    }

    /// Commands that it heard in the clear so far.
    #[must_use]
    pub fn overheard(&self) -> Vec<String> {
        self.open().overheard.clone()
    }

    /// What was taken so far.
    #[must_use]
    pub fn caught(&self) -> Vec<Caught> {
        self.open().caught.clone()
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> MailCounts {
        let state = self.open();
        let ids: BTreeSet<String> = state
            .caught
            .iter()
            .filter_map(|c| c.header("Message-ID"))
            .collect();
        MailCounts {
            taken: state.taken,
            message_ids: ids.len(),
            connections: state.connections,
        }
    }

    /// What a browser is shown: `/` lists the messages, `/<n>` is one of them.
    #[must_use]
    pub fn page(&self, path: &str) -> Reply {
        let state = self.open();
        let wanted = path.trim_matches('/');
        if wanted.is_empty() {
            let all: Vec<serde_json::Value> = state
                .caught
                .iter()
                .enumerate()
                .map(|(n, c)| {
                    let header = |name| c.header(name);
                    json!({"url": format!("/{n}"), "to": c.to, "from": c.from, "subject": header("Subject"),
                           "message_id": header("Message-ID")})
                })
                .collect();
            return Reply::new(200, json!({ "messages": all }));
        }
        let found = wanted.parse().ok().and_then(|n: usize| state.caught.get(n));
        match found {
            Some(c) => Reply::new(
                200,
                json!({"from": c.from, "to": c.to, "message": String::from_utf8_lossy(&c.data)}),
            ),
            None => Reply::new(404, json!({"error": "no such message"})),
        }
    }

    /// How many messages each recipient got.
    #[must_use]
    pub fn by_recipient(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for to in self.open().caught.iter().flat_map(|c| &c.to) {
            *all.entry(to.clone()).or_default() += 1;
        }
        all
    }
}

impl Drop for Mail {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn open(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: std::net::TcpListener, state: Arc<Mutex<State>>) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (socket, _) = listener.accept().await?;
        let state = Arc::clone(&state);
        let connection = {
            let mut state = open(&state);
            state.connections += 1;
            state.connections - 1
        };
        tokio::spawn(async move {
            // A client that goes away is no fault of the server's.
            let _ = session::serve(socket, state, connection).await;
        });
    }
}
