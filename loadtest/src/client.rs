//! A load generator for one door: keep-alive connections, one request under way on each, a bounded count. One thread, so that
//! it can share a core with the broker; requests are made beforehand.

use anyhow::{Context, ensure};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What a run saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// From the first request to the last answer.
    pub took: Duration,
    /// Sorted latencies, in microseconds.
    pub micros: Vec<u32>,
    /// Answers whose status was not the wanted one, and the first of them.
    pub unwanted: u64,
    /// The first unwanted answer's head.
    pub first_unwanted: Option<String>,
}

impl Seen {
    /// Requests a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.micros.len() as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// A latency by its share, in milliseconds: `quantile(0.99)`.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let at =
            ((self.micros.len() as f64 * share) as usize).min(self.micros.len().saturating_sub(1));
        self.micros.get(at).map_or(0.0, |m| f64::from(*m) / 1_000.0)
    }
}

/// A `POST` of a JSON body as it goes over the wire.
#[must_use]
pub fn post(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends each request once over `connections` connections and waits for all answers.
///
/// # Errors
/// The server is away or breaks a connection.
pub async fn run(
    address: SocketAddr,
    requests: Rc<Vec<Vec<u8>>>,
    connections: usize,
    want: u16,
) -> anyhow::Result<Seen> {
    let next = Rc::new(RefCell::new(0_usize));
    let seen = Rc::new(RefCell::new(Seen::default()));
    let mut sockets = Vec::with_capacity(connections);
    for _ in 0..connections {
        let socket = TcpStream::connect(address).await.context("connecting")?;
        socket.set_nodelay(true)?;
        sockets.push(socket);
    }
    let started = Instant::now();
    let local = tokio::task::LocalSet::new();
    let tasks: Vec<_> = sockets
        .into_iter()
        .map(|socket| {
            let (requests, next, seen) = (requests.clone(), next.clone(), seen.clone());
            local
                .spawn_local(async move { connection(socket, &requests, &next, &seen, want).await })
        })
        .collect();
    local
        .run_until(async {
            for task in tasks {
                task.await??;
            }
            anyhow::Ok(())
        })
        .await?;
    let mut seen = seen.take();
    seen.took = started.elapsed();
    seen.micros.sort_unstable();
    Ok(seen)
}

async fn connection(
    mut socket: TcpStream,
    requests: &[Vec<u8>],
    next: &RefCell<usize>,
    seen: &RefCell<Seen>,
    want: u16,
) -> anyhow::Result<()> {
    let mut buffer = Vec::with_capacity(4_096);
    loop {
        let at = next.replace_with(|n| *n + 1);
        let Some(request) = requests.get(at) else {
            return Ok(());
        };
        let started = Instant::now();
        send(&mut socket, request).await?;
        let (status, head) = answer(&mut socket, &mut buffer).await?;
        let micros = u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX);
        let mut seen = seen.borrow_mut();
        seen.micros.push(micros);
        if status != want {
            seen.unwanted += 1;
            if seen.first_unwanted.is_none() {
                seen.first_unwanted = Some(head);
            }
        }
    }
}

/// Writes a request whole.
///
/// # Errors
/// The connection broke.
pub async fn send(socket: &mut TcpStream, request: &[u8]) -> anyhow::Result<()> {
    socket.write_all(request).await.context("writing")
}

/// Reads one answer whole. Its text comes back only if its status is no 2xx.
///
/// # Errors
/// The connection broke, or what came is no answer.
pub async fn answer(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> anyhow::Result<(u16, String)> {
    buffer.clear();
    loop {
        let n = socket.read_buf(buffer).await.context("reading")?;
        ensure!(n > 0, "the server closed a connection");
        let Some(end) = buffer.windows(4).position(|w| w == b"\r\n\r\n") else {
            continue;
        };
        let head = std::str::from_utf8(buffer.get(..end).unwrap_or_default())?;
        let status: u16 = head
            .get(9..12)
            .unwrap_or_default()
            .parse()
            .context("a status")?;
        let length = head
            .lines()
            .filter_map(|l| l.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .map_or(Ok(0), |(_, v)| v.trim().parse::<usize>())?;
        let mut missing = (end + 4 + length).saturating_sub(buffer.len());
        while missing > 0 {
            let n = socket.read_buf(buffer).await?;
            ensure!(n > 0, "the server closed a connection");
            missing = missing.saturating_sub(n);
        }
        let text = match status {
            200..300 => String::new(),
            _ => String::from_utf8_lossy(buffer).into_owned(),
        };
        return Ok((status, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_request_is_sent_once_and_counted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            use std::io::{Read, Write};
            for socket in listener.incoming() {
                let mut socket = socket.expect("a connection");
                std::thread::spawn(move || {
                    let mut buffer = [0_u8; 1_024];
                    while socket.read(&mut buffer).is_ok_and(|n| n > 0) {
                        let _ = socket.write_all(b"HTTP/1.1 204 No Content\r\ndate: x\r\n\r\n");
                    }
                });
            }
        });
        let requests = Rc::new(
            (0..100)
                .map(|i| post("/e", &i.to_string()))
                .collect::<Vec<_>>(),
        );
        let seen = run(address, requests, 4, 204).await.expect("answers");
        assert_eq!((seen.micros.len(), seen.unwanted), (100, 0));
        assert!(seen.quantile(0.99) > 0.0);
    }
}
