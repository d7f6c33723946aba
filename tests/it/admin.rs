//! The admin API over real HTTP and real PostgreSQL.

mod crossing;
mod delivery;
mod doors;
pub mod facts;
mod life;
mod lists;
mod mail;
mod outbox;
mod people;
mod plumbing;
mod routes;
mod writes;

use actix_web::{App, HttpServer, web};
use millrace::api::key_store::{self, NewKey};
use millrace::api::keys::KeyCache;
use millrace::api::{ApiState, workspaces};
use millrace::runtime::clock::SystemClock;
use millrace::sealing::Seals;
use millrace_tests::postgres::{TestDatabase, pool};
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;

/// Hexadecimal, 32 bytes.
const SEAL_KEY: &str = "4242424242424242424242424242424242424242424242424242424242424242";

/// A server of the API on a database of its own; stopped when dropped.
struct Api {
    database: TestDatabase,
    address: SocketAddr,
    handle: actix_web::dev::ServerHandle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Api {
    fn drop(&mut self) {
        drop(self.handle.stop(false));
        drop(self.thread.take());
    }
}

/// Serves the API against a database.
fn serve(
    url: String,
    seals: Seals,
) -> (
    SocketAddr,
    actix_web::dev::ServerHandle,
    std::thread::JoinHandle<()>,
) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        actix_rt::System::new().block_on(async move {
            let mut state = ApiState::new(
                pool(&url, 12),
                Arc::new(SystemClock),
                Arc::new(seals),
                Arc::new(KeyCache::new()),
                Some("https://t.example/".to_owned()),
            );
            state.modules = people::modules().into();
            let state = web::Data::new(state);
            let server = HttpServer::new(move || {
                let state = state.clone();
                App::new().configure(move |config| millrace::api::configure(config, state))
            })
            .workers(2)
            .disable_signals()
            .listen(listener)
            .expect("a listener")
            .run();
            tell.send(server.handle()).expect("somebody waits");
            server.await.expect("it ends well");
        });
    });
    (address, told.recv().expect("it starts"), thread)
}

impl Api {
    async fn start() -> Api {
        Api::start_with(Seals::from_texts(Some(SEAL_KEY), None).expect("a key")).await
    }

    async fn start_with(seals: Seals) -> Api {
        let database = TestDatabase::create().await;
        let (address, handle, thread) = serve(database.url().to_owned(), seals);
        Api {
            database,
            address,
            handle,
            thread: Some(thread),
        }
    }

    /// Makes a workspace as the terminal does; its number.
    async fn workspace(&self, slug: &str) -> i32 {
        let mut client = self.database.client().await;
        let tx = client.transaction().await.expect("begins");
        let row = workspaces::create(&tx, slug, "", true, "cli")
            .await
            .expect("a workspace");
        tx.commit().await.expect("commits");
        row.workspace_id
    }

    /// Makes a key as the terminal does.
    async fn key(&self, workspace: Option<i32>, scopes: &[&str]) -> String {
        let mut client = self.database.client().await;
        let tx = client.transaction().await.expect("begins");
        let new = NewKey {
            workspace,
            name: "test".to_owned(),
            scopes: scopes.iter().map(|s| (*s).to_owned()).collect(),
            created_by: "cli".to_owned(),
            ..NewKey::default()
        };
        let (_, key) = key_store::create(&tx, &new, None).await.expect("a key");
        tx.commit().await.expect("commits");
        key.reveal()
    }

    /// A workspace and a caller with a full key of it.
    async fn tenant(&self, slug: &str) -> (i32, Caller) {
        let workspace = self.workspace(slug).await;
        let key = self.key(Some(workspace), &["full"]).await;
        (workspace, self.caller(&key))
    }

    fn caller(&self, key: &str) -> Caller {
        caller(self.address, key)
    }
}

fn caller(address: SocketAddr, key: &str) -> Caller {
    // No TLS is spoken here, but the client wants a provider to be there.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Caller {
        http: reqwest::Client::builder()
            .no_proxy()
            .build()
            .expect("a client"),
        base: format!("http://{address}"),
        key: key.to_owned(),
    }
}

/// Whoever holds a key.
#[derive(Clone)]
struct Caller {
    http: reqwest::Client,
    base: String,
    key: String,
}

/// An answer.
#[derive(Debug)]
struct Reply {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Reply {
    /// The body, after the status was checked.
    #[track_caller]
    fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{:#}", self.body);
        self.body
    }

    /// That it was refused so.
    #[track_caller]
    fn refused(self, status: u16, code: &str) -> Value {
        assert_eq!(
            (self.status, self.body["code"].as_str()),
            (status, Some(code)),
            "{:#}",
            self.body
        );
        assert_eq!(self.header("content-type"), "application/problem+json");
        for member in ["type", "title", "status", "detail", "errors", "request_id"] {
            assert!(!self.body[member].is_null(), "{member}: {:#}", self.body);
        }
        self.body
    }

    fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
    }
}

impl Caller {
    async fn raw(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        headers: &[(&str, &str)],
    ) -> Reply {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if !self.key.is_empty() {
            request = request.bearer_auth(&self.key);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        let answer = request.send().await.expect("an answer");
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let bytes = answer.bytes().await.expect("a body");
        let body = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes).expect("JSON")
        };
        Reply {
            status,
            headers,
            body,
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> Reply {
        let mut all = headers.to_vec();
        if body.is_some() {
            all.push(("content-type", "application/json"));
        }
        self.raw(method, path, body.map(|b| b.to_string().into_bytes()), &all)
            .await
    }

    async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, None, &[]).await
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(Method::POST, path, Some(body), &[]).await
    }

    async fn patch(&self, path: &str, body: Value) -> Reply {
        self.send(Method::PATCH, path, Some(body), &[]).await
    }

    /// All items of a list, page by page.
    async fn all(&self, path: &str) -> Vec<Value> {
        let join = if path.contains('?') { '&' } else { '?' };
        let mut items = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self
                .get(&format!("{path}{join}limit=200{cursor}"))
                .await
                .expect(200);
            items.extend(page["items"].as_array().expect("items").iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return items,
            }
        }
    }
}

/// The id of what was made.
#[track_caller]
fn id_of(body: &Value) -> String {
    body["id"].as_str().expect("an id").to_owned()
}
