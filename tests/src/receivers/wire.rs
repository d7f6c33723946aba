//! HTTP/1.1 as far as receivers need it, by hand: what is to break here must break at a byte of our choosing.

use super::{Answer, Manner, Received};
use bytes::{Buf, Bytes, BytesMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Headers of one request at most.
const HEADERS: usize = 64;
/// Largest request, in bytes.
const LARGEST: usize = 64 << 20;

/// Whoever answers requests. Called from the server's one thread.
pub(super) trait Answering: Send + Sync + 'static {
    fn answer(&self, request: Received) -> Answer;
}

/// A server with a thread of its own; stopped when dropped, with all its connections.
pub(super) struct Server {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub fn start(by: Arc<dyn Answering>) -> anyhow::Result<Server> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    ended = accept(listener, by) => {
                        if let Err(error) = ended {
                            tracing::warn!(%error, "a receiver ended");
                        }
                    }
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        Ok(Server {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

async fn accept(listener: std::net::TcpListener, by: Arc<dyn Answering>) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    for connection in 0.. {
        let (socket, _) = listener.accept().await?;
        let by = Arc::clone(&by);
        tokio::spawn(async move {
            // A client that goes away is no fault of the receiver's.
            let _ = serve(socket, by, connection).await;
        });
    }
    Ok(())
}

async fn serve(
    mut socket: TcpStream,
    by: Arc<dyn Answering>,
    connection: usize,
) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = BytesMut::with_capacity(16 << 10);
    while let Some((request, last)) = read(&mut socket, &mut buffer, connection).await? {
        let answer = by.answer(request);
        if !answer.after.is_zero() {
            tokio::time::sleep(answer.after).await;
        }
        if !write(&mut socket, &answer).await? || last {
            break;
        }
    }
    Ok(())
}

/// The next request, and whether the client wants it to be the last. None: the client is done.
async fn read(
    socket: &mut TcpStream,
    buffer: &mut BytesMut,
    connection: usize,
) -> std::io::Result<Option<(Received, bool)>> {
    let bad = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
    loop {
        if let Some(parsed) = parse(buffer).map_err(|e| bad(&e))? {
            let (head, mut request, length) = parsed;
            if length > LARGEST {
                return Err(bad("too large"));
            }
            buffer.advance(head);
            while buffer.len() < length {
                buffer.reserve(length - buffer.len());
                if socket.read_buf(buffer).await? == 0 {
                    return Ok(None);
                }
            }
            request.body = buffer.split_to(length).freeze();
            request.at = SystemTime::now();
            request.connection = connection;
            let last = request
                .header("connection")
                .is_some_and(|v| v.eq_ignore_ascii_case("close"));
            return Ok(Some((request, last)));
        }
        if socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// The head's length, the request without its body, and the body's length; none while the head is not whole.
fn parse(buffer: &[u8]) -> Result<Option<(usize, Received, usize)>, String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let length = match head.parse(buffer).map_err(|e| e.to_string())? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(length) => length,
    };
    let headers: Vec<(String, String)> = head
        .headers
        .iter()
        .map(|h| {
            let value = String::from_utf8_lossy(h.value).into_owned();
            (h.name.to_ascii_lowercase(), value)
        })
        .collect();
    let request = Received {
        method: head.method.unwrap_or_default().to_owned(),
        target: head.path.unwrap_or_default().to_owned(),
        headers,
        body: Bytes::new(),
        at: SystemTime::UNIX_EPOCH,
        connection: 0,
    };
    if request.header("transfer-encoding").is_some() {
        return Err("a body without a length is not understood here".to_owned());
    }
    let body = match request.header("content-length") {
        Some(text) => text.parse().map_err(|_| "content-length".to_owned())?,
        None => 0,
    };
    Ok(Some((length, request, body)))
}

/// Whether the connection is good for another request.
async fn write(socket: &mut TcpStream, answer: &Answer) -> std::io::Result<bool> {
    if answer.manner == Manner::Reset {
        return reset(socket).map(|()| false);
    }
    let mut out = Vec::with_capacity(256 + answer.body.len());
    out.extend_from_slice(format!("HTTP/1.1 {} Told\r\n", answer.status).as_bytes());
    for (name, value) in &answer.headers {
        out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    out.extend_from_slice(format!("content-length: {}\r\n\r\n", answer.body.len()).as_bytes());
    let body = answer.body.as_bytes();
    match answer.manner {
        Manner::Whole | Manner::Reset => {
            out.extend_from_slice(body);
            socket.write_all(&out).await?;
            return Ok(true);
        }
        Manner::ResetWithin(n) | Manner::StallWithin(n) => {
            out.extend_from_slice(&body[..n.min(body.len())]);
            socket.write_all(&out).await?;
        }
        Manner::Drip(pause) => {
            socket.write_all(&out).await?;
            for byte in body.chunks(1) {
                tokio::time::sleep(pause).await;
                socket.write_all(byte).await?;
            }
            return Ok(true);
        }
    }
    if matches!(answer.manner, Manner::StallWithin(_)) {
        // Until the client hangs up.
        let mut nothing = [0u8; 1];
        let _ = socket.read(&mut nothing).await;
        return Ok(false);
    }
    // What was written must be there before the reset overtakes it.
    tokio::time::sleep(Duration::from_millis(20)).await;
    reset(socket).map(|()| false)
}

/// Closes with a reset instead of an end.
fn reset(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_zero_linger()
}
