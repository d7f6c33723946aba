//! One request on a connection of its own.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long a sender waits before it gives a request up. What was accepted may be there all the same.
const PATIENCE: Duration = Duration::from_secs(8);

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// Sends a request: status and body, or that nobody answered.
///
/// # Errors
/// Nobody did.
pub async fn request(
    at: SocketAddr,
    key: Option<&str>,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<Reply> {
    let lines = [("Content-Type", "application/x-ndjson")];
    request_with(at, key, &lines, method, path, body).await
}

/// Sends a request with headers of its own: status and body, or that nobody answered.
///
/// # Errors
/// Nobody did.
pub async fn request_with(
    at: SocketAddr,
    key: Option<&str>,
    headers: &[(&str, &str)],
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<Reply> {
    let talk = async {
        let mut socket = tokio::net::TcpStream::connect(at).await?;
        let mut more = key.map_or(String::new(), |k| format!("Authorization: Bearer {k}\r\n"));
        for (name, value) in headers {
            more.push_str(&format!("{name}: {value}\r\n"));
        }
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n{more}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await?;
        let status = answer
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .ok_or_else(|| std::io::Error::other("no status"))?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .ok_or_else(|| std::io::Error::other("half an answer"))?;
        // A door that dies within its answer has not answered.
        let length = head.lines().find_map(|l| {
            let (name, value) = l.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().ok())?
        });
        if length.is_some_and(|n| n != body.len()) {
            return Err(std::io::Error::other("half an answer"));
        }
        Ok(Reply {
            status,
            body: body.to_owned(),
        })
    };
    tokio::time::timeout(PATIENCE, talk)
        .await
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}
