//! A PostgreSQL server as a supervised child, for `millrace up` without `DATABASE_URL`.
//!
//! It listens on a UNIX socket in a folder that its own user alone may enter, and on no port: whoever can reach the socket is
//! that user or root already, so no password is needed and none can leak. It runs in a process group of its own (Ctrl-C at the
//! terminal must reach the actors first, the store last) and dies with this process.

mod binaries;
mod place;

pub use binaries::Binaries;
use place::Place;
pub use place::running_url;

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// The role and the database that are made.
const NAME: &str = "millrace";
/// Recovery after a crash may take a while; it is reported in the log file.
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Settings of the server: durable, and large enough for one machine's traffic.
const SETTINGS: &[&str] = &[
    "listen_addresses=",
    "max_connections=100",
    "shared_buffers=256MB",
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "wal_compression=on",
    "max_wal_size=4GB",
    "checkpoint_timeout=15min",
    "checkpoint_completion_target=0.9",
    "jit=off",
    "timezone=UTC",
    "log_timezone=UTC",
    "log_min_messages=warning",
    // Without details: that of a duplicate key quotes the key, and an address may be one.
    "log_error_verbosity=terse",
    "log_checkpoints=off",
    "log_line_prefix=%m [%p] %a ",
];

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No binaries.
    #[error(
        "no PostgreSQL server found ({0}); install one (Debian, Ubuntu: `apt-get install postgresql`; macOS: \
         `brew install postgresql@17`), point PG_BIN at the folder of `initdb`, or set DATABASE_URL"
    )]
    NotFound(String),
    /// The data were made by another major version.
    #[error(
        "the data in {folder} belong to PostgreSQL {data}, but only {found} was found; install version {data} or move \
         the data with pg_upgrade"
    )]
    Version {
        /// The cluster's folder.
        folder: PathBuf,
        /// Version of the data.
        data: String,
        /// Version of the binaries.
        found: String,
    },
    /// Another `millrace up` uses the folder.
    #[error(
        "another `millrace up` is running on {0}; stop it, or choose another folder by `database.data_dir`"
    )]
    InUse(PathBuf),
    /// A file could not be read or written.
    #[error("{doing} {path}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Root may not run PostgreSQL, and nobody else is there.
    #[error(
        "PostgreSQL does not run as root, and there is no user `postgres` or `nobody` to run it as; set DATABASE_URL"
    )]
    NoUser,
    /// A program failed.
    #[error("{program} failed: {output}")]
    Failed {
        /// Which.
        program: &'static str,
        /// The end of what it said.
        output: String,
    },
    /// It was asked for its database and refused.
    #[error("the new server does not answer: {0}")]
    Answer(String),
}

fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ServerError {
    let path = path.to_owned();
    move |source| ServerError::Io {
        doing,
        path,
        source,
    }
}

/// A running server.
pub struct Server {
    url: String,
    place: Place,
    version: String,
    child: Arc<Mutex<Option<u32>>>,
    ended: watch::Receiver<Option<String>>,
    // Held as long as this process uses the folder.
    _lock: File,
}

impl Server {
    /// Starts a server on `data_dir`, making the data first where there are none. About 0.6–1 s from an empty folder.
    ///
    /// # Errors
    /// [`ServerError`] says what to do.
    pub async fn start(data_dir: &Path) -> Result<Server, ServerError> {
        let data_dir = data_dir.to_owned();
        let (tell, told) = oneshot::channel();
        // PR_SET_PDEATHSIG speaks of the parent THREAD: this one lives until the server has ended.
        std::thread::Builder::new()
            .name("postgres".to_owned())
            .spawn(move || supervise(&data_dir, tell))
            .map_err(io("starting a thread for", Path::new("postgres")))?;
        let server = told
            .await
            .map_err(|_| ServerError::Answer("its thread is gone".to_owned()))??;
        create_database(&server.place).await?;
        server.place.publish(&server.url)?;
        Ok(server)
    }

    /// `postgres://…` of its database; holds no secret.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where its data lie.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.place.cluster
    }

    /// Its version, as `15.8`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Resolves when the server has ended, with what it said last.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "its thread is gone".to_owned(),
        }
    }

    /// Stops it (fast shutdown: sessions are cut, a checkpoint is written) and waits for its end.
    pub async fn stop(&self) {
        self.place.withdraw();
        self.signal(rustix::process::Signal::INT);
        if tokio::time::timeout(STOP_LIMIT, self.ended())
            .await
            .is_err()
        {
            tracing::warn!("PostgreSQL did not stop in time; it recovers at the next start");
            self.signal(rustix::process::Signal::QUIT);
            self.ended().await;
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        // The lock is held, so that the id cannot be given to another process between look and signal.
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        send(*child, signal);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.place.withdraw();
        self.signal(rustix::process::Signal::INT);
    }
}

fn send(pid: Option<u32>, signal: rustix::process::Signal) {
    let pid = pid
        .and_then(|p| i32::try_from(p).ok())
        .and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// The life of the supervising thread: start, tell, wait for the end.
fn supervise(data_dir: &Path, tell: oneshot::Sender<Result<Server, ServerError>>) {
    let (mut child, server, ended) = match launch(data_dir) {
        Ok(started) => started,
        Err(e) => {
            let _ = tell.send(Err(e));
            return;
        }
    };
    let slot = server.child.clone();
    let log = server.place.log.clone();
    // If nobody listens any more, dropping the server stops it.
    let _ = tell.send(Ok(server));
    // Waiting without reaping comes first: the id stays ours until the slot is empty.
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let _ = waitid(
            WaitId::Pid(pid),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        );
    }
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let how = child
        .wait()
        .map_or_else(|e| e.to_string(), |s| s.to_string());
    let _ = ended.send(Some(format!("{how}; {}", tail(&log))));
}

type Launched = (Child, Server, watch::Sender<Option<String>>);

fn launch(data_dir: &Path) -> Result<Launched, ServerError> {
    let place = Place::prepare(data_dir)?;
    let lock = place.lock()?;
    let binaries = Binaries::find(place.version().as_deref(), &place.cluster)?;
    place.clear_remains()?;
    if place.version().is_none() {
        initdb(&place, &binaries)?;
    }
    let deadline = Instant::now() + START_LIMIT;
    let child = loop {
        match start(&place, &binaries, deadline)? {
            Some(child) => break child,
            // The children of a killed server hold its shared memory for a moment.
            None if Instant::now() < deadline && tail(&place.log).contains("shared memory") => {
                std::thread::sleep(Duration::from_millis(50));
            }
            None => {
                return Err(ServerError::Failed {
                    program: "postgres",
                    output: tail(&place.log),
                });
            }
        }
    };
    let (ended, watching) = watch::channel(None);
    let server = Server {
        url: place.url(NAME),
        version: binaries.version.clone(),
        child: Arc::new(Mutex::new(Some(child.id()))),
        place,
        ended: watching,
        _lock: lock,
    };
    Ok((child, server, ended))
}

/// Makes the data beside their place and moves them there, so that an interrupted start leaves nothing half made.
fn initdb(place: &Place, binaries: &Binaries) -> Result<(), ServerError> {
    let fresh = place.base.join("postgres.new");
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh).map_err(io("removing", &fresh))?;
    }
    place.make_private(&fresh)?;
    let mut command = place.command(&binaries.program("initdb"));
    command
        .args(["--auth-local=trust", "--auth-host=reject"])
        .args(["--username", NAME, "--encoding=UTF8", "--locale=C"])
        .arg("--no-instructions")
        .arg("-D")
        .arg(&fresh);
    let out = command
        .output()
        .map_err(io("running", &binaries.program("initdb")))?;
    if !out.status.success() {
        return Err(ServerError::Failed {
            program: "initdb",
            output: last_lines(&String::from_utf8_lossy(&out.stderr)),
        });
    }
    std::fs::rename(&fresh, &place.cluster).map_err(io("moving", &fresh))
}

/// Starts the server and waits until it takes connections; `None`: it ended first.
fn start(
    place: &Place,
    binaries: &Binaries,
    deadline: Instant,
) -> Result<Option<Child>, ServerError> {
    let log = place.open_log()?;
    let mut command = place.command(&binaries.program("postgres"));
    command.arg("-D").arg(&place.cluster);
    command
        .arg("-c")
        .arg(format!("unix_socket_directories={}", place.run.display()));
    for setting in SETTINGS {
        command.args(["-c", setting]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0);
    die_with_parent(&mut command);
    let mut child = command
        .spawn()
        .map_err(io("running", &binaries.program("postgres")))?;
    let pid_file = place.cluster.join("postmaster.pid");
    loop {
        match child.try_wait() {
            Ok(None) => {}
            _ => return Ok(None),
        }
        // Its first line is the process, its last says whether connections are taken.
        let text = std::fs::read_to_string(&pid_file).unwrap_or_default();
        let mut lines = text.lines();
        let own = lines.next().and_then(|l| l.trim().parse().ok()) == Some(child.id());
        if own && lines.next_back().is_some_and(|l| l.trim() == "ready") {
            return Ok(Some(child));
        }
        if Instant::now() > deadline {
            send(Some(child.id()), rustix::process::Signal::QUIT);
            let _ = child.wait();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The kernel sends SIGINT (fast shutdown) when the supervising thread, that is this process, ends in whatever way.
#[cfg(target_os = "linux")]
fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    #[expect(unsafe_code, reason = "a call between fork and exec")]
    // SAFETY: prctl(2) and getppid(2) are async-signal-safe and touch no memory of ours. std runs this after setuid, which
    // would clear the setting.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::INT))?;
            // Died between fork and prctl: nobody would ever signal.
            if rustix::process::getppid() != Some(parent) {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command) {}

async fn create_database(place: &Place) -> Result<(), ServerError> {
    let say = |e: tokio_postgres::Error| ServerError::Answer(super::pool::chain(&e));
    let (client, connection) =
        tokio_postgres::connect(&place.url("postgres"), tokio_postgres::NoTls)
            .await
            .map_err(say)?;
    let driver = tokio::spawn(connection);
    let there = client
        .query_opt("SELECT 1 FROM pg_database WHERE datname = $1", &[&NAME])
        .await
        .map_err(say)?;
    if there.is_none() {
        client
            .batch_execute(&format!("CREATE DATABASE {NAME}"))
            .await
            .map_err(say)?;
    }
    drop(client);
    let _ = driver.await;
    Ok(())
}

/// The end of the server's log.
fn tail(log: &Path) -> String {
    let mut text = Vec::new();
    if let Ok(mut file) = File::open(log) {
        use std::io::{Seek, SeekFrom};
        let size = file.metadata().map_or(0, |m| m.len());
        let _ = file.seek(SeekFrom::Start(size.saturating_sub(2_000)));
        let _ = file.read_to_end(&mut text);
    }
    last_lines(&String::from_utf8_lossy(&text))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    let from = lines.len().saturating_sub(4);
    lines.get(from..).unwrap_or_default().join(" | ")
}
