//! HTTP receivers on loopback that write down what they are sent and answer as they are told.

use actix_web::http::StatusCode;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use bytes::Bytes;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Received {
    /// `GET`, `POST` …
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Header names (lower case) and values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

/// How to answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
    /// How long to wait before answering.
    pub after: Duration,
}

impl Answer {
    /// A bare status.
    #[must_use]
    pub fn status(status: u16) -> Answer {
        Answer {
            status,
            headers: Vec::new(),
            body: String::new(),
            after: Duration::ZERO,
        }
    }
}

#[derive(Default)]
struct Book {
    received: Mutex<Vec<Received>>,
    script: Mutex<VecDeque<Answer>>,
}

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A receiver; stopped when dropped.
pub struct Receiver {
    address: SocketAddr,
    book: Arc<Book>,
    handle: actix_web::dev::ServerHandle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Receiver {
    /// Starts one on a free port; it answers 200 until told otherwise.
    ///
    /// # Errors
    /// No port could be bound.
    pub fn start() -> anyhow::Result<Receiver> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let book = Arc::new(Book::default());
        let shared = book.clone();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            actix_rt::System::new().block_on(async move {
                let server = HttpServer::new(move || {
                    App::new()
                        .app_data(web::Data::from(shared.clone()))
                        .app_data(web::PayloadConfig::new(64 << 20))
                        .default_service(web::to(take))
                })
                .workers(1)
                .disable_signals()
                .listen(listener);
                let server = match server {
                    Ok(server) => server.run(),
                    Err(error) => return drop(tell.send(Err(error))),
                };
                drop(tell.send(Ok(server.handle())));
                if let Err(error) = server.await {
                    tracing::warn!(%error, "a receiver ended");
                }
            });
        });
        Ok(Receiver {
            address,
            book,
            handle: told.recv()??,
            thread: Some(thread),
        })
    }

    /// Its URL with a path (`/hook`).
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The next requests get these answers, one each, in order; then 200 again.
    pub fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        open(&self.book.script).extend(answers);
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

impl Drop for Receiver {
    fn drop(&mut self) {
        // The command is queued by the call itself; the server's own thread carries it out.
        drop(self.handle.stop(false));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

async fn take(request: HttpRequest, body: Bytes, book: web::Data<Book>) -> HttpResponse {
    let headers = request
        .headers()
        .iter()
        .map(|(name, value)| {
            (
                name.as_str().to_owned(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        })
        .collect();
    open(&book.received).push(Received {
        method: request.method().to_string(),
        target: request.uri().to_string(),
        headers,
        body,
    });
    let answer = open(&book.script)
        .pop_front()
        .unwrap_or_else(|| Answer::status(200));
    if !answer.after.is_zero() {
        tokio::time::sleep(answer.after).await;
    }
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = HttpResponse::build(status);
    for (name, value) in answer.headers {
        response.insert_header((name, value));
    }
    response.body(answer.body)
}
