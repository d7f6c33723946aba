//! A PostgreSQL server as a child of the test process.

mod disk;

pub use disk::SmallDisk;

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

/// How a server is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// SIGINT: sessions are cut, what is open is rolled back, a clean shutdown.
    Fast,
    /// SIGQUIT: ends at once, recovers at the next start.
    Immediate,
}

/// A server of its own: it may be stopped, killed and started again on the same port and data.
#[derive(Debug)]
pub struct DedicatedServer {
    folder: PathBuf,
    bin: PathBuf,
    port: u16,
    fsync: bool,
    /// Further settings; of one that is set twice the last counts.
    more: Vec<String>,
    child: Option<Child>,
    /// Let go of after the server has ended.
    disk: Option<SmallDisk>,
}

impl DedicatedServer {
    /// Starts one with fsync off. Blocks until it answers; call it outside of async code (`spawn_blocking`).
    ///
    /// # Panics
    /// No PostgreSQL can be found or started.
    #[must_use]
    pub fn start() -> DedicatedServer {
        DedicatedServer::launch(false, &[])
    }

    /// As [`DedicatedServer::start`], with settings of the caller's (`name=value`).
    ///
    /// # Panics
    /// No PostgreSQL can be found or started.
    #[must_use]
    pub fn start_with(settings: &[&str]) -> DedicatedServer {
        DedicatedServer::launch(false, settings)
    }

    /// As [`DedicatedServer::start`], with fsync on.
    ///
    /// # Panics
    /// No PostgreSQL can be found or started.
    #[must_use]
    pub fn start_durable() -> DedicatedServer {
        DedicatedServer::launch(true, &[])
    }

    /// As [`DedicatedServer::start_durable`], with settings of the caller's (`name=value`).
    ///
    /// # Panics
    /// No PostgreSQL can be found or started.
    #[must_use]
    pub fn start_durable_with(settings: &[&str]) -> DedicatedServer {
        DedicatedServer::launch(true, settings)
    }

    /// As [`DedicatedServer::start`], with its data on a file system of its own that holds so many MiB ([`SmallDisk`]).
    ///
    /// # Errors
    /// This process may not mount one: that takes root.
    ///
    /// # Panics
    /// No PostgreSQL can be found or started.
    pub fn start_on_small_disk(mebibytes: u32) -> std::io::Result<DedicatedServer> {
        let folder = new_folder();
        let data = folder.join("data");
        let disk = SmallDisk::mount(&data, mebibytes, other_user())?;
        let small = [
            "shared_buffers=16MB",
            "max_wal_size=64MB",
            "wal_recycle=off",
        ];
        let mut server = DedicatedServer::launch_in(folder, false, &small);
        server.disk = Some(disk);
        Ok(server)
    }

    fn launch(fsync: bool, more: &[&str]) -> DedicatedServer {
        DedicatedServer::launch_in(new_folder(), fsync, more)
    }

    fn launch_in(folder: PathBuf, fsync: bool, more: &[&str]) -> DedicatedServer {
        let bin = binaries();
        let mut initdb = command(&bin.join("initdb"), &folder);
        initdb
            .args(["--no-sync", "--auth=trust", "--username=postgres"])
            .args(["--encoding=UTF8", "--locale=C", "-D", "data"]);
        let out = initdb.output().expect("initdb runs");
        assert!(
            out.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        let mut server = DedicatedServer {
            folder,
            bin,
            port: 0,
            fsync,
            more: more.iter().map(|s| (*s).to_owned()).collect(),
            child: None,
            disk: None,
        };
        // Somebody else may take the free port before the server does.
        for _ in 0..5 {
            server.port = free_port();
            if server.try_start() {
                return server;
            }
        }
        panic!("PostgreSQL did not start: {}", server.log_tail());
    }

    /// `postgres://…` of one of its databases.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its data lies.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The postmaster's process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether its process lives.
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|c| matches!(c.try_wait(), Ok(None)))
    }

    /// Stops it and waits for its end. Blocks.
    pub fn stop(&mut self, mode: StopMode) {
        self.end(match mode {
            StopMode::Fast => libc::SIGINT,
            StopMode::Immediate => libc::SIGQUIT,
        });
    }

    /// SIGKILL, as after a crash: its children notice by themselves.
    pub fn kill(&mut self) {
        self.end(libc::SIGKILL);
    }

    /// Starts it again on the same port and data. Blocks until it answers.
    ///
    /// # Panics
    /// It does not come up within 30 s.
    pub fn start_again(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        // After a SIGKILL the shared memory stays in use until the last child has gone.
        while !self.try_start() {
            assert!(
                Instant::now() < deadline,
                "PostgreSQL did not start again: {}",
                self.log_tail()
            );
        }
    }

    fn try_start(&mut self) -> bool {
        if self.is_running() {
            return true;
        }
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))
            .expect("a log file");
        let durable = if self.fsync { "on" } else { "off" };
        let mut server = command(&self.bin.join("postgres"), &self.folder);
        server
            .args(["-D", "data"])
            .args(["-p", &self.port.to_string()]);
        for setting in [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=200",
            "shared_buffers=64MB",
            "max_wal_size=512MB",
            "autovacuum_naptime=10s",
            "log_checkpoints=off",
            &format!("fsync={durable}"),
            &format!("full_page_writes={durable}"),
        ] {
            server.args(["-c", setting]);
        }
        for setting in &self.more {
            server.args(["-c", setting]);
        }
        server
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let mut child = spawn(server).expect("postgres runs");
        let pid_file = self.folder.join("data/postmaster.pid");
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if !matches!(child.try_wait(), Ok(None)) {
                return false;
            }
            // Its last line says whether connections are taken.
            let text = std::fs::read_to_string(&pid_file).unwrap_or_default();
            let mut lines = text.lines();
            let own = lines.next().and_then(|l| l.trim().parse().ok()) == Some(child.id());
            if own && lines.next_back().is_some_and(|l| l.trim() == "ready") {
                self.child = Some(child);
                return true;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        signal(child.id(), libc::SIGQUIT);
        let _ = child.wait();
        false
    }

    fn end(&mut self, with: i32) {
        if let Some(mut child) = self.child.take() {
            signal(child.id(), with);
            let _ = child.wait();
        }
    }

    /// Everything it has said.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Its disk, if it has one of its own.
    #[must_use]
    pub fn disk(&self) -> Option<&SmallDisk> {
        self.disk.as_ref()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for DedicatedServer {
    fn drop(&mut self) {
        self.stop(StopMode::Immediate);
        self.disk = None;
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The folder of the server binaries: `PG_BIN`, the newest under `/usr/lib/postgresql`, or PATH.
///
/// # Panics
/// There is none.
#[must_use]
pub fn binaries() -> PathBuf {
    let has = |p: &PathBuf| p.join("initdb").is_file() && p.join("postgres").is_file();
    if let Some(bin) = std::env::var_os("PG_BIN") {
        let bin = PathBuf::from(bin);
        assert!(has(&bin), "PG_BIN={}: no initdb there", bin.display());
        return bin;
    }
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| {
            let version = e.file_name().to_str()?.parse().ok()?;
            Some((version, e.path().join("bin")))
        })
        .filter(|(_, p)| has(p))
        .collect();
    versions.sort();
    if let Some((_, bin)) = versions.pop() {
        return bin;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .find(has)
        .expect("a PostgreSQL server: set PG_BIN to the folder of `initdb`")
}

/// A command in `folder`, as another user where this process is root's: PostgreSQL refuses to run as root.
fn command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env("LC_ALL", "C");
    if let Some((uid, gid)) = other_user() {
        command.uid(uid).gid(gid);
    }
    command
}

/// The user to run PostgreSQL as, if this process is root's.
fn other_user() -> Option<(u32, u32)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uid = status
        .lines()
        .find_map(|l| l.strip_prefix("Uid:")?.split_whitespace().nth(1));
    if uid != Some("0") {
        return None;
    }
    let passwd = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    let entry = |name: &str| {
        let mut fields = passwd
            .lines()
            .map(|l| l.split(':'))
            .find_map(|mut f| (f.next() == Some(name)).then_some(f))?
            .skip(1);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Some(
        entry("postgres")
            .or_else(|| entry("nobody"))
            .expect("a user `postgres` or `nobody`"),
    )
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .expect("a free port")
        .port()
}

/// A new folder that the server's user owns. The first call removes what runs that were killed have left behind.
fn new_folder() -> PathBuf {
    const PREFIX: &str = "millrace-test-pg-";
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static SWEPT: OnceLock<()> = OnceLock::new();
    let parent = std::env::temp_dir();
    SWEPT.get_or_init(|| {
        // Without /proc nobody can tell whose they are.
        if !Path::new("/proc/self").exists() {
            return;
        }
        for entry in std::fs::read_dir(&parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let owner = name
                .to_str()
                .and_then(|n| n.strip_prefix(PREFIX)?.split('-').next());
            if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                disk::release(&entry.path().join("data"));
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    });
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = parent.join(format!("{PREFIX}{}-{n}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    if let Some((uid, gid)) = other_user() {
        std::os::unix::fs::chown(&folder, Some(uid), Some(gid)).expect("chown");
    }
    remember(folder.clone());
    folder
}

/// Folders to clear at exit: statics are never dropped.
fn remember(folder: PathBuf) {
    static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    extern "C" fn clear() {
        let folders = FOLDERS
            .lock()
            .map(|mut f| std::mem::take(&mut *f))
            .unwrap_or_default();
        for folder in folders {
            let text =
                std::fs::read_to_string(folder.join("data/postmaster.pid")).unwrap_or_default();
            if let Some(pid) = text.lines().next().and_then(|l| l.trim().parse().ok()) {
                signal(pid, libc::SIGQUIT);
                let deadline = Instant::now() + Duration::from_secs(2);
                while Instant::now() < deadline && folder.join("data/postmaster.pid").exists() {
                    std::thread::park_timeout(Duration::from_millis(5));
                }
            }
            let _ = std::fs::remove_dir_all(&folder);
        }
    }
    let mut folders = FOLDERS.lock().expect("not poisoned");
    if folders.is_empty() {
        #[expect(unsafe_code, reason = "atexit(3) with a function that lives for ever")]
        // SAFETY: `clear` is a plain function without captured state and does not unwind.
        unsafe {
            libc::atexit(clear);
        }
    }
    folders.push(folder);
}

/// Spawns from a thread that lives as long as the process: PR_SET_PDEATHSIG speaks of the parent THREAD, and test threads end
/// before the process does.
pub(crate) fn spawn(command: Command) -> std::io::Result<Child> {
    type Job = (Command, mpsc::Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in queue {
                die_with_parent(&mut command);
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let (answer, child) = mpsc::channel();
    let gone = || std::io::Error::other("the spawning thread has gone");
    spawner
        .lock()
        .map_err(|_| gone())?
        .send((command, answer))
        .map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

#[cfg(target_os = "linux")]
fn die_with_parent(command: &mut Command) {
    #[expect(unsafe_code, reason = "prctl(2) between fork and exec")]
    // SAFETY: prctl is async-signal-safe and touches no memory. SIGQUIT is PostgreSQL's immediate shutdown.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGQUIT) == -1 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command) {}

fn signal(pid: u32, signal: i32) {
    if let Ok(pid) = i32::try_from(pid) {
        #[expect(unsafe_code, reason = "kill(2) on a child of ours")]
        // SAFETY: kill has no memory effects.
        unsafe {
            libc::kill(pid, signal);
        }
    }
}
