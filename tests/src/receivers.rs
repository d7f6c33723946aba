//! HTTP receivers on loopback: one writes down what it is sent and answers as it is told ([`Receiver`]), one only counts and is
//! fast ([`CountingReceiver`]). Both are stopped when dropped.

mod counting;
mod wire;

pub use counting::{Arrivals, CountingReceiver, by_header, by_member};

use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Received {
    /// `GET`, `POST` …
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Header names (lower case) and values.
    pub headers: Vec<(String, String)>,
    /// The body, byte for byte.
    pub body: Bytes,
    /// When it was complete.
    pub at: SystemTime,
    /// On which of the receiver's connections it came, counted from 0.
    pub connection: usize,
}

impl Received {
    /// A header's value; the first, where there are several.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(n, _)| n == name);
        found.next().map(|(_, value)| value.as_str())
    }
}

/// How an answer leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// As it should.
    #[default]
    Whole,
    /// Not at all: the connection is reset once the request is there.
    Reset,
    /// Its head and so many bytes of its body; then the connection is reset.
    ResetWithin(usize),
    /// Its head and so many bytes of its body; then nothing, while the connection stays open.
    StallWithin(usize),
    /// Its head, then its body a byte at a time, each after such a pause.
    Drip(Duration),
}

/// How to answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
    /// How long to wait before answering.
    pub after: Duration,
    /// How it leaves.
    pub manner: Manner,
}

impl Answer {
    /// A bare status.
    #[must_use]
    pub fn status(status: u16) -> Answer {
        Answer {
            status,
            ..Answer::default()
        }
    }

    /// With a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Answer {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a body.
    #[must_use]
    pub fn saying(mut self, body: &str) -> Answer {
        body.clone_into(&mut self.body);
        self
    }

    /// After a while.
    #[must_use]
    pub fn after(mut self, after: Duration) -> Answer {
        self.after = after;
        self
    }

    /// In this manner.
    #[must_use]
    pub fn in_manner(mut self, manner: Manner) -> Answer {
        self.manner = manner;
        self
    }
}

struct Book {
    received: Mutex<Vec<Received>>,
    script: Mutex<VecDeque<Answer>>,
    otherwise: Mutex<Answer>,
}

impl wire::Answering for Book {
    fn answer(&self, request: Received) -> Answer {
        open(&self.received).push(request);
        let scripted = open(&self.script).pop_front();
        scripted.unwrap_or_else(|| open(&self.otherwise).clone())
    }
}

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A receiver that keeps whole requests.
pub struct Receiver {
    book: Arc<Book>,
    server: wire::Server,
}

impl Receiver {
    /// Starts one on a free port; it answers 200 until told otherwise.
    ///
    /// # Errors
    /// No port could be bound.
    pub fn start() -> anyhow::Result<Receiver> {
        let book = Arc::new(Book {
            received: Mutex::default(),
            script: Mutex::default(),
            otherwise: Mutex::new(Answer::status(200)),
        });
        Ok(Receiver {
            server: wire::Server::start(book.clone())?,
            book,
        })
    }

    /// Its URL with a path (`/hook`).
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address)
    }

    /// The next requests get these answers, one each, in order; then the usual one again.
    pub fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        open(&self.book.script).extend(answers);
    }

    /// What requests get from now on that no script answers.
    pub fn answer_all(&self, answer: Answer) {
        *open(&self.book.otherwise) = answer;
    }

    /// What came so far.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        open(&self.book.received).clone()
    }

    /// Waits until at least `n` requests came.
    ///
    /// # Errors
    /// They did not in time.
    pub async fn wait_for(&self, n: usize, within: Duration) -> anyhow::Result<Vec<Received>> {
        crate::process::eventually(&format!("{n} requests"), within, async || {
            let all = self.received();
            Ok((all.len() >= n).then_some(all))
        })
        .await
    }
}
