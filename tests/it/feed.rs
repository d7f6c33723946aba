//! The sidecar feed over real sockets, with shards, tokens and standings in a real database; the log is in memory, so that a
//! test says when it acknowledges.

mod command;
mod faults;
mod kill;
mod lives;
mod memory;
mod session;

use actix_web::web;
use futures::{SinkExt, StreamExt};
use millrace::api::keys::ApiKey;
use millrace::ingress::disk::DiskWatch;
use millrace::ingress::feed::FeedSetup;
use millrace::ingress::feed::kinds::Mapped;
use millrace::ingress::keys::StoredKeys;
use millrace::ingress::server;
use millrace::ingress::snapshot::SnapshotHandle;
use millrace::ingress::state::{DoorSetup, DoorState};
use millrace::runtime::clock::SystemClock;
use millrace::settings::Http;
use millrace_schemas::frame::Frame;
use millrace_tests::deployment::PATIENCE;
use millrace_tests::postgres::TestDatabase;
use millrace_topics::contract::{
    Acknowledgement, BoxFuture, Outgoing, Position, ProduceError, Producer, TopicRef,
};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

type Sender = oneshot::Sender<Result<Position, ProduceError>>;

/// A log in memory that acknowledges when it is told to.
#[derive(Default)]
struct HeldLog(Mutex<Held>);

#[derive(Default)]
struct Held {
    records: Vec<Outgoing>,
    waiting: Vec<Sender>,
    holds: bool,
    /// Refuses this record (from 0) and all after it.
    fails_from: Option<usize>,
    /// Refuses this record alone (from 0), once.
    fails_at: Option<usize>,
}

impl HeldLog {
    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acknowledges nothing from now on.
    fn hold(&self) {
        self.held().holds = true;
    }

    /// Acknowledges everything, and what waits.
    fn release(&self) {
        let mut held = self.held();
        held.holds = false;
        for sender in held.waiting.drain(..) {
            let _ = sender.send(Ok(Position {
                partition: 0,
                offset: 0,
            }));
        }
    }

    fn fail_from(&self, at: Option<usize>) {
        self.held().fails_from = at;
    }

    fn fail_at(&self, at: usize) {
        self.held().fails_at = Some(at);
    }

    fn count(&self) -> usize {
        self.held().records.len()
    }

    /// Boots and sequences, in the order of the log.
    fn sequences(&self) -> Vec<(String, u64)> {
        self.frames().into_iter().map(|f| (f.boot, f.seq)).collect()
    }

    fn frames(&self) -> Vec<Frame> {
        self.held()
            .records
            .iter()
            .map(|r| {
                let frame: Frame = serde_json::from_slice(&r.payload).expect("a frame");
                assert_eq!(r.key, frame.log_key().as_bytes());
                frame
            })
            .collect()
    }
}

impl Producer for HeldLog {
    fn produce(&self, record: Outgoing) -> Acknowledgement {
        let (sender, receiver) = oneshot::channel();
        let mut held = self.held();
        if held.fails_from.is_some_and(|n| held.records.len() >= n) {
            let _ = sender.send(Err(ProduceError::Unavailable("away".into())));
            return receiver;
        }
        if held.fails_at == Some(held.records.len()) {
            held.fails_at = None;
            let _ = sender.send(Err(ProduceError::Unavailable("full".into())));
            return receiver;
        }
        held.records.push(record);
        if held.holds {
            held.waiting.push(sender);
        } else {
            let _ = sender.send(Ok(Position {
                partition: 0,
                offset: 0,
            }));
        }
        receiver
    }

    fn health(&self, _: Duration) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn close(&self, _: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Doors with a feed, of one process.
struct Doors {
    state: DoorState,
    log: Arc<HeldLog>,
    handle: actix_web::dev::ServerHandle,
    base: String,
}

/// A database with two shards, and a token of each.
struct Stand {
    database: TestDatabase,
    tokens: Vec<String>,
}

impl Stand {
    async fn new() -> Stand {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let database = TestDatabase::create().await;
        let client = database.client().await;
        client
            .batch_execute(
                "INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme');
                 INSERT INTO shards (shard_id, workspace_id, name, module, protocol)
                 VALUES ('atlantic', 1, 'A', 'game', 5), ('pacific', 1, 'P', 'game', 5)",
            )
            .await
            .expect("shards");
        let mut tokens = Vec::new();
        for shard in ["atlantic", "pacific"] {
            let token = ApiKey::generate_as("ft_").expect("random bytes");
            client
                .execute(
                    "INSERT INTO shard_tokens (token_id, workspace_id, shard_id, name, secret_digest, created_by)
                     VALUES ($1, 1, $2, 'T', $3, 'test')",
                    &[&token.id(), &shard, &token.digest().as_slice()],
                )
                .await
                .expect("a token");
            tokens.push(token.reveal());
        }
        Stand { database, tokens }
    }

    async fn doors(&self) -> Doors {
        self.doors_with(Duration::from_secs(60), Duration::from_secs(30))
            .await
    }

    /// Doors whose configuration is never looked at again by itself.
    async fn doors_at_rest(&self) -> Doors {
        let (idle, ack_timeout) = (Duration::from_secs(60), Duration::from_secs(30));
        self.doors_of(idle, ack_timeout, false).await
    }

    async fn doors_with(&self, idle: Duration, ack_timeout: Duration) -> Doors {
        self.doors_of(idle, ack_timeout, true).await
    }

    /// A process of doors: kinds that begin with `m.` are mapped, under the text at `id`.
    async fn doors_of(&self, idle: Duration, ack_timeout: Duration, fresh: bool) -> Doors {
        let log = Arc::new(HeldLog::default());
        let topic = |no, name: &str| TopicRef {
            no,
            name: name.to_owned(),
            log_name: name.to_owned(),
            partitions: 4,
        };
        let snapshot = SnapshotHandle::empty(Duration::from_secs(600));
        snapshot
            .refresh(self.database.pool())
            .await
            .expect("configuration");
        if fresh {
            snapshot.keep_fresh(self.database.pool().clone());
        }
        let http = Http {
            doors: ([127, 0, 0, 1], 0).into(),
            ..Http::default()
        };
        let state = DoorState::new(DoorSetup {
            producer: log.clone(),
            clicks: topic(1, "clicks"),
            postbacks: topic(2, "postbacks"),
            snapshot,
            keys: Arc::new(StoredKeys {
                pool: self.database.pool().clone(),
            }),
            clock: Arc::new(SystemClock),
            http: http.clone(),
            ack_timeout,
            disk: Arc::new(DiskWatch::default()),
            feed: FeedSetup {
                frames: Some(topic(3, "frames")),
                kinds: Arc::new(|module, kind, body| {
                    let body: Value = serde_json::from_str(body).expect("JSON");
                    match (module, kind.starts_with("m."), body["id"].as_str()) {
                        ("game", true, Some(id)) => Mapped::Under(id.to_owned()),
                        ("game", true, None) => Mapped::OfShard,
                        _ => Mapped::No,
                    }
                }),
                idle,
                pool: Some(self.database.pool().clone()),
            },
            stopped: Arc::new(Vec::new),
            metrics: None,
        })
        .expect("settings read");
        let nothing = |_: &mut web::ServiceConfig| {};
        let (running, addresses) = server::serve(&http, state.clone(), nothing).expect("binds");
        let handle = running.handle();
        actix_rt::spawn(running);
        Doors {
            state,
            log,
            handle,
            base: format!("ws://{}", addresses[0]),
        }
    }
}

impl Doors {
    fn url(&self, shard: &str) -> String {
        format!("{}/feed/{shard}", self.base)
    }

    async fn connect(&self, shard: &str, token: &str) -> Sidecar {
        Sidecar::connect(&self.url(shard), token)
            .await
            .expect("connected")
    }

    async fn close(self) {
        self.state.end_feeds(PATIENCE).await;
        self.handle.stop(false).await;
    }
}

/// The other end.
struct Sidecar(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Sidecar {
    /// Connects; the status if it is refused.
    async fn connect(url: &str, token: &str) -> Result<Sidecar, u16> {
        let mut request = url.into_client_request().expect("a URL");
        let bearer = format!("Bearer {token}").parse().expect("a header");
        request.headers_mut().insert("authorization", bearer);
        match tokio_tungstenite::connect_async(request).await {
            Ok((socket, _)) => Ok(Sidecar(socket)),
            Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
            Err(other) => panic!("{other}"),
        }
    }

    async fn say(&mut self, message: &Value) {
        self.raw(&message.to_string()).await;
    }

    async fn raw(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.expect("sent");
    }

    async fn hello(&mut self, boot: &str, seq: u64) -> u64 {
        self.say(&json!({"type": "hello", "protocol": 5, "boot": boot, "seq": seq}))
            .await;
        let said = self.hear().await;
        assert_eq!(
            (said["type"].as_str(), said["boot"].as_str()),
            (Some("welcome"), Some(boot)),
            "{said}"
        );
        said["seq"].as_u64().expect("a sequence")
    }

    /// Frames of a mapped kind, `from..=to`.
    async fn frames(&mut self, from: u64, to: u64) {
        for seq in from..=to {
            let frame = frame(seq, "m.thing");
            self.0
                .feed(Message::text(frame.to_string()))
                .await
                .expect("fed");
        }
        self.0.flush().await.expect("flushed");
    }

    async fn message(&mut self) -> Message {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.0.next())
                .await
                .expect("in time")
                .expect("the connection stands")
                .expect("a message");
            if !matches!(message, Message::Ping(_) | Message::Pong(_)) {
                return message;
            }
        }
    }

    async fn hear(&mut self) -> Value {
        match self.message().await {
            Message::Text(text) => serde_json::from_str(&text).expect("JSON"),
            other => panic!("{other:?}"),
        }
    }

    /// Hears acknowledgements up to this one, and nothing else.
    async fn acknowledged(&mut self, seq: u64) {
        let mut last = 0;
        while last < seq {
            let said = self.hear().await;
            assert_eq!(said["type"], "ack", "{said}");
            let next = said["seq"].as_u64().expect("a sequence");
            assert!(next > last && next <= seq, "{last} {said}");
            last = next;
        }
    }

    /// Hears a refusal; its sequence and code.
    async fn refused(&mut self) -> (u64, String, Value) {
        loop {
            let said = self.hear().await;
            if said["type"] == "ack" {
                continue;
            }
            assert_eq!(said["type"], "refused", "{said}");
            return (
                said["seq"].as_u64().expect("a sequence"),
                said["code"].as_str().expect("a code").to_owned(),
                said,
            );
        }
    }

    /// Hears the end: its type, code, last sequence, and the code of closing.
    async fn ended(&mut self) -> (String, String, u64, u16) {
        loop {
            let said = self.hear().await;
            if said["type"] == "ack" {
                continue;
            }
            let Message::Close(Some(close)) = self.message().await else {
                panic!("no close behind {said}");
            };
            let text = |name: &str| said[name].as_str().expect("a text").to_owned();
            return (
                text("type"),
                text("code"),
                said["seq"].as_u64().expect("a sequence"),
                close.code.into(),
            );
        }
    }
}

/// A workspace with a shard of module `uo`, and its feed token.
async fn atlantic(store: &tokio_postgres::Client) -> anyhow::Result<ApiKey> {
    let token = ApiKey::generate_as("ft_")?;
    store
        .batch_execute(
            "INSERT INTO workspaces (slug, name) VALUES ('acme', 'Acme');
             INSERT INTO shards (shard_id, workspace_id, name, module, protocol) VALUES ('atlantic', 1, 'A', 'uo', 5)",
        )
        .await?;
    store
        .execute(
            "INSERT INTO shard_tokens (token_id, workspace_id, shard_id, name, secret_digest, created_by)
             VALUES ($1, 1, 'atlantic', 'T', $2, 'test')",
            &[&token.id(), &token.digest().as_slice()],
        )
        .await?;
    Ok(token)
}

fn frame(seq: u64, kind: &str) -> Value {
    json!({"seq": seq, "kind": kind, "body": {"id": format!("t{}", seq % 7), "n": seq}})
}
