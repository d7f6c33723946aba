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
        if let Some(got) = parse(buffer) {
            if (100..200).contains(&got.status) {
                buffer.drain(..got.from);
                continue;
            }
            let body = if head {
                Some(Vec::new())
            } else if got.chunked {
                dechunked(&buffer[got.from..])
            } else {
                let end = got.from + got.length.unwrap_or(0);
                buffer.get(got.from..end).map(<[u8]>::to_vec)
            };
            if let Some(body) = body {
                return Some(Answer {
                    status: got.status,
                    body,
                    again: got.again,
                });
            }
        }
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

/// A body in chunks, once its end is there.
fn dechunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        let from = end + 2;
        let chunk = rest.get(from..from.checked_add(size)?.checked_add(2)?)?;
        if size == 0 {
            return Some(out);
        }
        out.extend_from_slice(&chunk[..size]);
        rest = &rest[from + size + 2..];
    }
}

/// The head of an answer.
struct Head {
    status: u16,
    /// Of the body, if it is said.
    length: Option<usize>,
    chunked: bool,
    /// Whether the connection stays.
    again: bool,
    /// Where the body begins.
    from: usize,
}

fn parse(buffer: &[u8]) -> Option<Head> {
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
    let chunked = of("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked"));
    let closes = of("connection").is_some_and(|v| v.eq_ignore_ascii_case("close"));
    let status = response.code?;
    // Where the end of a body is not told, nothing can be read behind it.
    let ends = length.is_some() || chunked || matches!(status, 204 | 304);
    Some(Head {
        status,
        length,
        chunked,
        again: !closes && ends && response.version == Some(1),
        from,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_in_chunks_is_whole_or_not_there_yet() {
        let whole = b"5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\n";
        assert_eq!(dechunked(whole).as_deref(), Some(&b"hello!"[..]));
        for n in 0..whole.len() {
            assert_eq!(dechunked(&whole[..n]), None, "{n}");
        }
    }
}
