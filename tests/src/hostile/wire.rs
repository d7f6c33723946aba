//! Sending a request as bytes, and reading what comes back.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long an answer may take: longer than anything in the product may.
const PATIENCE: Duration = Duration::from_secs(120);

/// Largest head of an answer.
const HEADERS: usize = 64;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the connection may be used again.
    pub again: bool,
}

/// How a request goes over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// As it should; an answer is owed.
    Whole,
    /// On a connection of its own, which is then closed for writing: the protocol is broken, or more is sent than will be read.
    Broken,
    /// As [`Manner::Whole`], a few bytes at a time.
    Slow,
}

/// A connection that is opened when it is needed.
pub struct Connection {
    address: SocketAddr,
    open: Option<TcpStream>,
    buffer: Vec<u8>,
}

impl Connection {
    pub fn new(address: SocketAddr) -> Connection {
        Connection {
            address,
            open: None,
            buffer: Vec::new(),
        }
    }

    /// Sends a request and reads its answer; None if none came.
    ///
    /// # Errors
    /// Nobody listens, or no end of waiting.
    pub async fn ask(
        &mut self,
        request: &[u8],
        manner: Manner,
        head: bool,
    ) -> anyhow::Result<(Option<Answer>, bool)> {
        if manner == Manner::Broken {
            self.open = None;
        }
        let reused = self.open.is_some();
        let mut socket = match self.open.take() {
            Some(socket) => socket,
            None => {
                let socket = TcpStream::connect(self.address).await?;
                socket.set_nodelay(true)?;
                socket
            }
        };
        self.buffer.clear();
        let exchange = async {
            // A server that has seen enough closes: what it said before that is still read.
            let _ = write(&mut socket, request, manner).await;
            if manner == Manner::Broken {
                let _ = socket.shutdown().await;
            }
            read(&mut socket, &mut self.buffer, head).await
        };
        let answer = tokio::time::timeout(PATIENCE, exchange)
            .await
            .map_err(|_| anyhow::anyhow!("no answer within {PATIENCE:?}"))?;
        if manner != Manner::Broken && answer.as_ref().is_some_and(|a| a.again) {
            self.open = Some(socket);
        }
        Ok((answer, reused))
    }
}

async fn write(socket: &mut TcpStream, request: &[u8], manner: Manner) -> std::io::Result<()> {
    if manner != Manner::Slow {
        return socket.write_all(request).await;
    }
    for piece in request.chunks(request.len().div_ceil(20).max(1)) {
        socket.write_all(piece).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn read(socket: &mut TcpStream, buffer: &mut Vec<u8>, head: bool) -> Option<Answer> {
    loop {
        if let Some((status, length, again, from)) = parse(buffer) {
            if (100..200).contains(&status) {
                buffer.drain(..from);
                continue;
            }
            let length = if head { 0 } else { length };
            while buffer.len() < from + length {
                if socket.read_buf(buffer).await.ok()? == 0 {
                    return None;
                }
            }
            return Some(Answer {
                status,
                body: buffer[from..from + length].to_vec(),
                again,
            });
        }
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

/// Status, length of the body, whether the connection stays, where the body begins.
fn parse(buffer: &[u8]) -> Option<(u16, usize, bool, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(from) = response.parse(buffer).ok()? else {
        return None;
    };
    let of = |name: &str| {
        let found = response
            .headers
            .iter()
            .find(|h| h.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok().map(str::trim)
    };
    let length = of("content-length").and_then(|v| v.parse().ok());
    let closes = of("connection").is_some_and(|v| v.eq_ignore_ascii_case("close"));
    Some((
        response.code?,
        length.unwrap_or(0),
        !closes && response.version == Some(1),
        from,
    ))
}
