//! A receiver for many requests: it keeps no more of them than how often each message came.

use super::wire::{self, Answering};
use super::{Answer, Received, open};
use hashbrown::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What names the message within a request.
type Key = Box<dyn Fn(&Received) -> Option<String> + Send + Sync>;

/// The message is named by a header, such as `webhook-id`.
pub fn by_header(name: &'static str) -> impl Fn(&Received) -> Option<String> + Send + Sync {
    move |request| request.header(name).map(str::to_owned)
}

/// The message is named by a member of the JSON object that is its body.
pub fn by_member(name: &'static str) -> impl Fn(&Received) -> Option<String> + Send + Sync {
    move |request| {
        let body: serde_json::Value = serde_json::from_slice(&request.body).ok()?;
        match body.get(name)? {
            serde_json::Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }
}

/// What came, by message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// How often each message came.
    pub times: HashMap<String, u32>,
    /// Requests that named no message.
    pub nameless: u64,
}

impl Arrivals {
    /// All requests that named a message.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.times.values().map(|n| u64::from(*n)).sum()
    }

    /// Messages that came more than once, in order, and how often.
    #[must_use]
    pub fn repeated(&self) -> Vec<(&str, u32)> {
        let more = self.times.iter().filter(|(_, n)| **n > 1);
        let mut more: Vec<_> = more.map(|(id, n)| (id.as_str(), *n)).collect();
        more.sort_unstable();
        more
    }
}

struct Count {
    key: Key,
    arrivals: Mutex<Arrivals>,
    answer: Mutex<Answer>,
    requests: AtomicU64,
}

impl Answering for Count {
    fn answer(&self, request: Received) -> Answer {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let key = (self.key)(&request);
        {
            let mut arrivals = open(&self.arrivals);
            match key {
                Some(key) => *arrivals.times.entry(key).or_default() += 1,
                None => arrivals.nameless += 1,
            }
        }
        open(&self.answer).clone()
    }
}

/// A receiver that counts.
pub struct CountingReceiver {
    count: Arc<Count>,
    server: wire::Server,
}

impl CountingReceiver {
    /// Starts one on a free port; it answers 200 after `latency`.
    ///
    /// # Errors
    /// No port could be bound.
    pub fn start(
        latency: Duration,
        key: impl Fn(&Received) -> Option<String> + Send + Sync + 'static,
    ) -> anyhow::Result<CountingReceiver> {
        let count = Arc::new(Count {
            key: Box::new(key),
            arrivals: Mutex::default(),
            answer: Mutex::new(Answer::status(200).after(latency)),
            requests: AtomicU64::new(0),
        });
        Ok(CountingReceiver {
            server: wire::Server::start(count.clone())?,
            count,
        })
    }

    /// Its URL with a path (`/hook`).
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address)
    }

    /// What every request gets from now on.
    pub fn answer_all(&self, answer: Answer) {
        *open(&self.count.answer) = answer;
    }

    /// Requests so far; cheap.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.count.requests.load(Ordering::Relaxed)
    }

    /// What came so far.
    #[must_use]
    pub fn arrivals(&self) -> Arrivals {
        open(&self.count.arrivals).clone()
    }

    /// Waits until at least `n` different messages came.
    ///
    /// # Errors
    /// They did not in time.
    pub async fn wait_for(&self, n: usize, within: Duration) -> anyhow::Result<Arrivals> {
        crate::process::eventually(&format!("{n} messages"), within, async || {
            let enough = open(&self.count.arrivals).times.len() >= n;
            Ok(enough.then(|| self.arrivals()))
        })
        .await
    }
}
