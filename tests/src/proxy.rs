//! A TCP proxy that misbehaves on demand: cuts, stalls, delays, and eats the reply to a COMMIT.
//!
//! It reads just enough of PostgreSQL's protocol (version 3, without TLS) to see message borders, what statements a connection
//! has sent or prepared, and the server's `CommandComplete` of a COMMIT: at that moment the server has committed and
//! the client does not know it. Other protocols pass through unread.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

/// What is spoken through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// PostgreSQL's, without TLS: COMMIT replies can be eaten.
    Postgres,
    /// Anything else.
    Opaque,
}

#[derive(Debug)]
struct Control {
    target: Mutex<SocketAddr>,
    protocol: Protocol,
    refuse: AtomicBool,
    latency_us: AtomicU64,
    stalled: watch::Sender<bool>,
    /// Counts cuts; a connection older than the count is closed.
    cuts: watch::Sender<u64>,
    /// COMMIT replies still to be eaten, each after so many others have passed.
    to_eat: Mutex<VecDeque<u32>>,
    /// Only COMMITs of connections that have sent this text are counted and eaten.
    marker: Mutex<Option<String>>,
    eaten: AtomicU32,
    connections: AtomicU64,
}

/// A running proxy; closed when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    control: Arc<Control>,
    // Dropping it ends the proxy's thread.
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Proxy {
    /// Starts a proxy on a free port before `target`.
    ///
    /// # Errors
    /// No port could be bound.
    pub fn start(target: SocketAddr, protocol: Protocol) -> io::Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let control = Arc::new(Control {
            target: Mutex::new(target),
            protocol,
            refuse: AtomicBool::new(false),
            latency_us: AtomicU64::new(0),
            stalled: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
            to_eat: Mutex::new(VecDeque::new()),
            marker: Mutex::new(None),
            eaten: AtomicU32::new(0),
            connections: AtomicU64::new(0),
        });
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let shared = control.clone();
        std::thread::spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    result = accept(listener, shared) => {
                        if let Err(error) = result {
                            tracing::warn!(%error, "a proxy ended");
                        }
                    }
                    _ = stopped => {}
                }
            });
        });
        Ok(Proxy {
            address,
            control,
            _stop: stop,
        })
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where new connections lead to from now on.
    pub fn retarget(&self, target: SocketAddr) {
        *lock(&self.control.target) = target;
    }

    /// Closes all connections at once (new ones are taken).
    pub fn cut(&self) {
        self.control.cuts.send_modify(|n| *n += 1);
    }

    /// Closes new connections right after they are taken, or takes them again.
    pub fn refuse(&self, refuse: bool) {
        self.control.refuse.store(refuse, Ordering::SeqCst);
    }

    /// Holds back all bytes in both directions (connections stay open, nobody is told), or lets them go on.
    pub fn stall(&self, stall: bool) {
        self.control.stalled.send_replace(stall);
    }

    /// Delays each piece of data in both directions.
    pub fn latency(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.control.latency_us.store(micros, Ordering::SeqCst);
    }

    /// Eats the reply of one COMMIT, after `skip` others have passed: the server has committed, both sides are closed. Calls
    /// add up.
    pub fn eat_commit_reply(&self, skip: u32) {
        lock(&self.control.to_eat).push_back(skip);
    }

    /// Only COMMITs of connections that have sent or prepared a statement with this text are skipped or eaten.
    pub fn eat_only_after(&self, marker: &str) {
        *lock(&self.control.marker) = Some(marker.to_owned());
    }

    /// COMMIT replies eaten so far.
    #[must_use]
    pub fn eaten(&self) -> u32 {
        self.control.eaten.load(Ordering::SeqCst)
    }

    /// Connections taken so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.control.connections.load(Ordering::SeqCst)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, control: Arc<Control>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (client, _) = listener.accept().await?;
        if control.refuse.load(Ordering::SeqCst) {
            continue;
        }
        control.connections.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(connection(client, control.clone()));
    }
}

async fn connection(mut client: TcpStream, control: Arc<Control>) {
    let mut cuts = control.cuts.subscribe();
    let target = *lock(&control.target);
    let talk = async {
        let mut server = TcpStream::connect(target).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        if control.protocol == Protocol::Postgres {
            startup(&mut client, &mut server).await?;
        }
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let spoken = Arc::new(Mutex::new(Spoken::default()));
        let up = pump(from_client, to_server, &control, Reader::client(&spoken));
        let down = pump(from_server, to_client, &control, Reader::server(&spoken));
        // The first side to close closes both: a half-closed session is of no use to either protocol.
        tokio::select! { r = up => r, r = down => r }
    };
    tokio::select! {
        result = talk => if let Err(error) = result {
            tracing::debug!(%error, "a proxied connection ended");
        },
        _ = cuts.changed() => {}
    }
}

/// Passes the client's startup message; a wish for encryption before it is declined here, so that the rest can be read.
async fn startup(client: &mut TcpStream, server: &mut TcpStream) -> io::Result<()> {
    const SSL: u32 = 80_877_103;
    const GSS: u32 = 80_877_104;
    loop {
        let length = client.read_u32().await?;
        let code = client.read_u32().await?;
        if length == 8 && (code == SSL || code == GSS) {
            client.write_all(b"N").await?;
            continue;
        }
        let mut rest = vec![0; (length as usize).saturating_sub(8).min(1 << 20)];
        client.read_exact(&mut rest).await?;
        server.write_u32(length).await?;
        server.write_u32(code).await?;
        return server.write_all(&rest).await;
    }
}

/// The statements a connection has sent or prepared.
#[derive(Debug, Default)]
struct Spoken {
    statements: HashSet<String>,
}

/// Cuts a stream into messages and reads those that matter.
struct Reader<'a> {
    from_server: bool,
    spoken: &'a Mutex<Spoken>,
    buffer: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn client(spoken: &'a Arc<Mutex<Spoken>>) -> Reader<'a> {
        Reader {
            from_server: false,
            spoken,
            buffer: Vec::new(),
        }
    }

    fn server(spoken: &'a Arc<Mutex<Spoken>>) -> Reader<'a> {
        Reader {
            from_server: true,
            ..Reader::client(spoken)
        }
    }

    /// Takes data in; answers what may be passed on, and whether the connection ends after that.
    fn take(&mut self, data: &[u8], control: &Control) -> (Vec<u8>, bool) {
        self.buffer.extend_from_slice(data);
        let mut passed = 0;
        while let Some(head) = self.buffer.get(passed..passed + 5) {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let end = passed + 1 + length;
            let Some(message) = self.buffer.get(passed..end) else {
                break;
            };
            let (kind, body) = (message[0], &message[5..]);
            if self.from_server {
                if kind == b'C' && body.starts_with(b"COMMIT") && self.is_to_be_eaten(control) {
                    control.eaten.fetch_add(1, Ordering::SeqCst);
                    return (self.buffer.drain(..passed).collect(), true);
                }
            } else {
                self.listen(kind, body);
            }
            passed = end;
        }
        (self.buffer.drain(..passed).collect(), false)
    }

    fn listen(&self, kind: u8, body: &[u8]) {
        let text = match kind {
            b'Q' => body.split(|b| *b == 0).next(),
            // Name of the statement, then its text.
            b'P' => body.split(|b| *b == 0).nth(1),
            _ => return,
        };
        let text = String::from_utf8_lossy(text.unwrap_or_default());
        lock(self.spoken).statements.insert(text.into_owned());
    }

    fn is_to_be_eaten(&self, control: &Control) -> bool {
        if let Some(marker) = lock(&control.marker).as_deref()
            && !lock(self.spoken)
                .statements
                .iter()
                .any(|s| s.contains(marker))
        {
            return false;
        }
        let mut to_eat = lock(&control.to_eat);
        match to_eat.front_mut() {
            None => false,
            Some(0) => {
                to_eat.pop_front();
                true
            }
            Some(skip) => {
                *skip -= 1;
                false
            }
        }
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    control: &Control,
    mut reader: Reader<'_>,
) -> io::Result<()> {
    let mut stalled = control.stalled.subscribe();
    let mut data = vec![0; 64 << 10];
    loop {
        let n = from.read(&mut data).await?;
        if n == 0 {
            return Ok(());
        }
        // The sender of the switch lives as long as the proxy.
        if stalled.wait_for(|s| !s).await.is_err() {
            return Ok(());
        }
        let latency = Duration::from_micros(control.latency_us.load(Ordering::SeqCst));
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        if control.protocol == Protocol::Opaque {
            to.write_all(&data[..n]).await?;
            continue;
        }
        let (pass, end) = reader.take(&data[..n], control);
        to.write_all(&pass).await?;
        if end {
            return Ok(());
        }
    }
}
