//! Who sends to the doors: a client that numbers what it sends, sends again what got no answer, and remembers what was
//! acknowledged. And what must become of it ([`expected`]): the log says what was accepted, this book what was promised.
//!
//! Everything it sends carries its own identity (a visit's id, a click's page, a transaction), so that sending again never makes
//! two of one.

mod expected;
mod http;

pub use expected::{Expected, expected};
pub use http::{Reply, request, request_with};

use millrace::api::key_store::{self, NewKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

/// The campaign that is served.
pub const CAMPAIGN: &str = "cp1";
/// Its offer.
pub const OFFER: &str = "of_1";
/// The offer's network.
pub const NETWORK: &str = "nw_door";
const SECRET: &str = "a-network-s-secret";
/// What each conversion pays, in cents.
pub const CENTS: i64 = 425;

/// Visitors that come together.
const TOGETHER: usize = 5;
/// Between two such groups of one sender.
const PACE: Duration = Duration::from_millis(100);

/// Makes workspace `no` with a campaign, an offer and a network; a key that may send. `pixel` is attached to the campaign.
///
/// # Errors
/// The store's.
pub async fn set(store: &mut Client, no: i32, pixel: Option<&str>) -> anyhow::Result<String> {
    store
        .execute(
            "INSERT INTO workspaces (workspace_id, slug, name) OVERRIDING SYSTEM VALUE VALUES ($1, 'doors-' || $1::int4, '')",
            &[&no],
        )
        .await?;
    let digest = Sha256::digest(SECRET).to_vec();
    store
        .execute(
            "INSERT INTO networks (network_id, workspace_id, name, secret_digest) VALUES ($1, $2, 'N', $3)",
            &[&NETWORK, &no, &digest],
        )
        .await?;
    store
        .execute(
            "INSERT INTO offers (offer_id, workspace_id, name, url_template, network_id)
             VALUES ($1, $2, 'O', 'https://shop.example/?c={click_id}', $3)",
            &[&OFFER, &no, &NETWORK],
        )
        .await?;
    let pixels: Vec<Value> = pixel.map(|id| json!({"pixel": id})).into_iter().collect();
    let routing = json!({"offers": [{"offer": OFFER, "weight": 1}], "pixels": pixels});
    store
        .execute(
            "INSERT INTO campaigns (campaign_id, workspace_id, name, routing) VALUES ($1, $2, 'C', $3)",
            &[&CAMPAIGN, &no, &routing],
        )
        .await?;
    let new = NewKey {
        workspace: Some(no),
        name: "feed".into(),
        scopes: vec!["ingest:write".into()],
        created_by: "test".into(),
        ..NewKey::default()
    };
    let tx = store.transaction().await?;
    let (_, key) = key_store::create(&tx, &new, None)
        .await
        .map_err(|e| anyhow::anyhow!("no key: {e:?}"))?;
    tx.commit().await?;
    Ok(key.reveal())
}

/// Something that a door has acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Promised {
    /// A visit, by its id.
    Visit(u128),
    /// A click on a page.
    Click(String, i16),
    /// A postback, by its transaction.
    Postback(String),
}

/// What a client knows.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// Everything acknowledged.
    pub promised: Vec<Promised>,
    /// Requests that a door answered.
    pub answered: u64,
    /// Requests that nobody answered, or that were told to come again.
    pub again: u64,
    /// Answers that no fault can explain; there may be none.
    pub refused: Vec<String>,
}

struct Shared {
    at: SocketAddr,
    key: String,
    name: String,
    enough: AtomicBool,
    book: Mutex<Book>,
}

impl Shared {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends until somebody takes it: the reply, or none if it was refused for good.
    async fn insist(&self, method: &str, path: &str, body: &str) -> Option<Reply> {
        loop {
            match request(self.at, Some(&self.key), method, path, body).await {
                Ok(reply) if (200..300).contains(&reply.status) => {
                    self.book().answered += 1;
                    return Some(reply);
                }
                Ok(reply) if reply.status < 500 => {
                    let what = format!("{method} {path}: {} {}", reply.status, reply.body);
                    self.book().refused.push(what);
                    return None;
                }
                Ok(_) | Err(_) => {
                    self.book().again += 1;
                    // A person's patience, not a promise: a door that is down is asked some times a second.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Sends lines until each was accepted; their answers, in their order.
    async fn insist_on_lines(&self, stream: &str, lines: &[Value]) -> Option<Vec<Value>> {
        let path = format!("/v1/batch/{stream}");
        let mut answers = vec![Value::Null; lines.len()];
        loop {
            let open: Vec<usize> = (0..lines.len()).filter(|i| answers[*i].is_null()).collect();
            if open.is_empty() {
                return Some(answers);
            }
            let texts: Vec<String> = open.iter().map(|i| lines[*i].to_string()).collect();
            let reply = self.insist("POST", &path, &texts.join("\n")).await?;
            let said: Value = serde_json::from_str(&reply.body).unwrap_or_default();
            for (at, answer) in open.into_iter().zip(said["lines"].as_array()?) {
                if answer["status"] == "accepted" {
                    answers[at] = answer.clone();
                } else if answer["status"] != "unavailable" {
                    let what = format!("{path}: {answer}");
                    self.book().refused.push(what);
                    return None;
                }
            }
        }
    }

    /// A group of visitors: they visit, click, and some buy.
    async fn group(&self, sender: usize, n: usize) -> Option<()> {
        let name = |k: usize| format!("{}-{sender}-{n}-{k}", self.name);
        let visits: Vec<Value> = (0..TOGETHER)
            .map(|k| {
                json!({"id": name(k), "campaign": CAMPAIGN, "direct": k == 0, "user_agent": "a browser",
                       "source_url": "https://t.example/c/cp1", "params": {"sub1": "x"}})
            })
            .collect();
        let taken = self.insist_on_lines("visits", &visits).await?;
        let id = |k: usize| taken[k]["click_id"].as_str().unwrap_or_default().to_owned();
        let promised = taken.iter().filter_map(|line| {
            let visit: uuid::Uuid = line["visit_id"].as_str()?.parse().ok()?;
            Some(Promised::Visit(visit.as_u128()))
        });
        self.book().promised.extend(promised);
        let clicks: Vec<Value> = (1..TOGETHER)
            .map(|k| json!({"id": format!("{}-c", name(k)), "campaign": CAMPAIGN, "click_id": id(k)}))
            .collect();
        self.insist_on_lines("clicks", &clicks).await?;
        let promised = (1..TOGETHER).map(|k| Promised::Click(id(k), 0));
        self.book().promised.extend(promised);
        // One more page by the beacon, one conversion by the batch, one by the network itself.
        let beacon = json!({"click_id": id(1), "link_id": CAMPAIGN, "stage": 1}).to_string();
        self.insist("POST", "/e", &beacon).await?;
        self.book().promised.push(Promised::Click(id(1), 1));
        let paid = format!("{}.{:02}", CENTS / 100, CENTS % 100);
        let postback = json!({"id": format!("{}-p", name(2)), "network": NETWORK, "click_id": id(2), "payout": paid,
                              "txid": format!("{}-p", name(2))});
        self.insist_on_lines("postbacks", &[postback]).await?;
        let txid = format!("{}-q", name(3));
        let path = format!(
            "/pb?secret={SECRET}&click_id={}&payout={paid}&txid={txid}",
            id(3)
        );
        self.insist("GET", &path, "").await?;
        let promised = [
            Promised::Postback(format!("{}-p", name(2))),
            Promised::Postback(txid),
        ];
        self.book().promised.extend(promised);
        Some(())
    }
}

/// Senders at work.
pub struct DoorClient {
    shared: Arc<Shared>,
    senders: Vec<JoinHandle<()>>,
}

impl DoorClient {
    /// Starts `senders` of them; `name` makes their numbers their own.
    #[must_use]
    pub fn start(at: SocketAddr, key: String, name: &str, senders: usize) -> DoorClient {
        let shared = Arc::new(Shared {
            at,
            key,
            name: name.to_owned(),
            enough: AtomicBool::new(false),
            book: Mutex::default(),
        });
        let senders = (0..senders)
            .map(|sender| {
                let shared = shared.clone();
                tokio::spawn(async move {
                    let mut pace = tokio::time::interval(PACE);
                    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                    for n in 0.. {
                        pace.tick().await;
                        let go_on = shared.group(sender, n).await.is_some();
                        if !go_on || shared.enough.load(Ordering::SeqCst) {
                            return;
                        }
                    }
                })
            })
            .collect();
        DoorClient { shared, senders }
    }

    /// What is known so far.
    #[must_use]
    pub fn book(&self) -> Book {
        self.shared.book().clone()
    }

    /// Requests that were answered, and that have to be sent again.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let book = self.shared.book();
        (book.answered, book.again)
    }

    /// Lets every sender bring what it has begun to its end.
    ///
    /// # Errors
    /// A sender was not answered in time.
    pub async fn finish(mut self, within: Duration) -> anyhow::Result<Book> {
        self.shared.enough.store(true, Ordering::SeqCst);
        for sender in self.senders.drain(..) {
            match tokio::time::timeout(within, sender).await {
                Ok(ended) => ended?,
                Err(_) => anyhow::bail!("a sender was not answered within {within:?}"),
            }
        }
        Ok(self.book())
    }
}

impl Drop for DoorClient {
    fn drop(&mut self) {
        for sender in &self.senders {
            sender.abort();
        }
    }
}
