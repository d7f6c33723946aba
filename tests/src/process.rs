//! The processes of a test: the product's command line with its environment, its log in a file, signals, deadlines.
//!
//! A child never outlives the test process: it asks the kernel to be killed with its parent. The kernel means the parent's
//! *thread*, so every child is spawned by one thread that lives as long as the process does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(10);

/// Polls until `check` answers with something.
///
/// # Errors
/// `what` was not to be seen before the deadline.
pub async fn eventually<T, F>(what: &str, within: Duration, mut check: F) -> anyhow::Result<T>
where
    F: AsyncFnMut() -> anyhow::Result<Option<T>>,
{
    let until = Instant::now() + within;
    loop {
        if let Some(found) = check().await? {
            return Ok(found);
        }
        anyhow::ensure!(Instant::now() < until, "not within {within:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// A free port of loopback. Another process may take it before it is used; a caller that can, tries again.
///
/// # Errors
/// No socket could be bound.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0))?.local_addr()
}

/// A free port of loopback that stays free while nobody listens on it, for a server that goes away and comes back: it lies below
/// those that the system hands out by itself.
///
/// # Errors
/// None was found.
pub fn lasting_address() -> io::Result<SocketAddr> {
    const TRIES: usize = 200;
    for _ in 0..TRIES {
        let mut random = [0; 2];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let port = 16_000 + u16::from_le_bytes(random) % 16_000;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(io::Error::from(io::ErrorKind::AddrInUse))
}

/// The product built for proving; it stands beside the test binary.
///
/// # Errors
/// It is not there.
pub fn product() -> io::Result<PathBuf> {
    let me = std::env::current_exe()?;
    me.ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("millrace-proving"))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!(
                    "no millrace-proving near {}: cargo build -p millrace-tests",
                    me.display()
                ),
            )
        })
}

/// A process about to be started.
#[derive(Clone, Debug)]
pub struct Launch {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    environment: BTreeMap<String, OsString>,
    directory: PathBuf,
    run_as: Option<(u32, u32)>,
}

impl Launch {
    /// A program; `directory` is its working directory and takes its log `<name>.log`.
    #[must_use]
    pub fn program(name: &str, program: &Path, directory: &Path) -> Launch {
        Launch {
            name: name.to_owned(),
            program: program.to_owned(),
            args: Vec::new(),
            environment: BTreeMap::new(),
            directory: directory.to_owned(),
            run_as: None,
        }
    }

    /// The product's command line, with nothing of the caller's own settings.
    ///
    /// # Errors
    /// It was not built.
    pub fn product(name: &str, directory: &Path) -> io::Result<Launch> {
        Ok(Launch::program(name, &product()?, directory)
            .env("RUST_LOG", "info")
            .env("RUST_BACKTRACE", "1"))
    }

    /// With another program (an older build), everything else as it is.
    #[must_use]
    pub fn with_program(mut self, program: &Path) -> Launch {
        program.clone_into(&mut self.program);
        self
    }

    /// Appends an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Launch {
        self.args.push(arg.into());
        self
    }

    /// Appends arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: Into<OsString>>(mut self, args: I) -> Launch {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Launch {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// Sets a key of `millrace.toml` by its environment name: `setting("log.backend", "kafka")`.
    #[must_use]
    pub fn setting(self, key: &str, value: impl ToString) -> Launch {
        let name = format!("MILLRACE_{}", key.to_uppercase().replace('.', "__"));
        self.env(&name, value.to_string())
    }

    /// Arms a failpoint: `failpoint("batch.before_commit", "abort@3")`.
    #[must_use]
    pub fn failpoint(self, name: &str, action: &str) -> Launch {
        let armed = format!("{name}={action}");
        let all = match self.environment.get("MILLRACE_FAILPOINTS") {
            Some(had) => format!("{};{armed}", had.to_string_lossy()),
            None => armed,
        };
        let log = self
            .directory
            .join(format!("{}.failpoints.log", self.name))
            .into_os_string();
        self.env("MILLRACE_FAILPOINTS", all)
            .env("MILLRACE_FAILPOINT_LOG", log)
    }

    /// Switches safeguards off: `sabotage("fence")`.
    #[must_use]
    pub fn sabotage(self, what: &str) -> Launch {
        self.env("MILLRACE_SABOTAGE", what)
    }

    /// Lets the process read its clock's shift (microseconds) from a file.
    #[must_use]
    pub fn clock(self, file: &Path) -> Launch {
        self.env("MILLRACE_CLOCK_FILE", file.as_os_str())
    }

    /// Runs it as another user and group.
    #[must_use]
    pub fn run_as(mut self, uid: u32, gid: u32) -> Launch {
        self.run_as = Some((uid, gid));
        self
    }

    /// Starts it. Standard output and error go, appended, to its log.
    ///
    /// # Errors
    /// It could not be started.
    pub fn spawn(&self) -> io::Result<Process> {
        std::fs::create_dir_all(&self.directory)?;
        let log = self.directory.join(format!("{}.log", self.name));
        let out = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out);
        // What the caller's shell happens to set must not decide a test.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("MILLRACE_") || text.starts_with("PG") || text == "DATABASE_URL" {
                command.env_remove(&name);
            }
        }
        command.envs(&self.environment);
        if let Some((uid, gid)) = self.run_as {
            command.uid(uid).gid(gid);
        }
        let child = spawn_with_parent(command)?;
        tracing::debug!(name = self.name, pid = child.id(), "started");
        Ok(Process {
            name: self.name.clone(),
            child,
            log,
            status: None,
        })
    }

    /// Starts it and waits for its end.
    ///
    /// # Errors
    /// It could not be started, did not end in time, or ended badly; the end of its log is in the message.
    pub async fn run(&self, within: Duration) -> anyhow::Result<String> {
        let mut process = self.spawn()?;
        let status = process.wait(within).await?;
        let text = process.log_text();
        anyhow::ensure!(
            status.success(),
            "{} ended with {status}:\n{}",
            self.name,
            tail(&text, 30)
        );
        Ok(text)
    }
}

/// Spawns a child that the kernel kills when this process ends, however it ends.
///
/// # Errors
/// It could not be started.
pub fn spawn_with_parent(mut command: Command) -> io::Result<Child> {
    type Job = (Command, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<std::sync::Mutex<Sender<Job>>> = OnceLock::new();
    #[cfg(target_os = "linux")]
    die_with_parent(&mut command);
    #[cfg(not(target_os = "linux"))]
    let _ = &mut command;
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, inbox) = channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                // The asker waits for it; nobody is left to tell otherwise.
                let _ = answer.send(command.spawn());
            }
        });
        std::sync::Mutex::new(jobs)
    });
    let (answer, result) = channel();
    let gone = |_| io::Error::other("the spawning thread ended");
    spawner
        .lock()
        .map_err(|_| io::Error::other("the spawning thread is poisoned"))?
        .send((command, answer))
        .map_err(|_| io::Error::other("the spawning thread ended"))?;
    result.recv().map_err(gone)?
}

#[cfg(target_os = "linux")]
#[expect(
    unsafe_code,
    reason = "prctl between fork and exec is async-signal-safe and touches no memory of ours"
)]
fn die_with_parent(command: &mut Command) {
    // SAFETY: only prctl(2) is called in the child, which is async-signal-safe; nothing is allocated.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        });
    }
}

/// A running process; killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    status: Option<ExitStatus>,
}

impl Process {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Its name in this test.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a signal (`libc::SIGSTOP` …). Nothing happens to one that has ended.
    #[expect(
        unsafe_code,
        reason = "kill(2) on a child that was not yet waited for, so the id is still its"
    )]
    pub fn signal(&mut self, signal: i32) {
        if self.ended().is_none() {
            // SAFETY: kill has no memory effects; the child has not been reaped.
            unsafe {
                libc::kill(self.pid(), signal);
            }
        }
    }

    /// SIGKILL, and waits until the kernel has buried it.
    ///
    /// # Errors
    /// Waiting failed.
    pub fn kill(&mut self) -> io::Result<()> {
        if self.ended().is_none() {
            self.child.kill()?;
            self.status = Some(self.child.wait()?);
        }
        Ok(())
    }

    /// SIGSTOP, and waits until it stands still.
    ///
    /// # Errors
    /// It did not stop.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.signal(libc::SIGSTOP);
        let within = Duration::from_secs(30);
        eventually("stopped", within, async || {
            Ok(self.is_stopped().then_some(()))
        })
        .await
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        self.signal(libc::SIGCONT);
    }

    /// SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// It did not end in time.
    pub async fn terminate(&mut self, within: Duration) -> anyhow::Result<ExitStatus> {
        self.signal(libc::SIGTERM);
        self.wait(within).await
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It did not end in time; the end of its log is in the message.
    pub async fn wait(&mut self, within: Duration) -> anyhow::Result<ExitStatus> {
        let until = Instant::now() + within;
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            if Instant::now() >= until {
                anyhow::bail!(
                    "{} did not end within {within:?}:\n{}",
                    self.name,
                    tail(&self.log_text(), 30)
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Whether it was killed by a signal (a failpoint's `abort` kills with SIGKILL).
    pub fn killed_by(&mut self) -> Option<i32> {
        self.ended().and_then(|s| s.signal())
    }

    /// Whether it stands still after SIGSTOP (its own, or a failpoint's `stop`).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))
            .ok()
            .and_then(|stat| {
                stat.rsplit_once(") ")
                    .map(|(_, rest)| rest.starts_with('T'))
            })
            .unwrap_or(false)
    }

    /// Everything it has said.
    #[must_use]
    pub fn log_text(&self) -> String {
        std::fs::read(&self.log)
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .unwrap_or_default()
    }

    /// The last lines of what it has said.
    #[must_use]
    pub fn last_words(&self, lines: usize) -> String {
        tail(&self.log_text(), lines)
    }

    /// Waits until its log holds a text.
    ///
    /// # Errors
    /// It did not in time, or the process ended before.
    pub async fn wait_for_log(&mut self, text: &str, within: Duration) -> anyhow::Result<()> {
        let what = format!("`{text}` in the log of {}", self.name);
        eventually(&what, within, async || {
            if self.log_text().contains(text) {
                return Ok(Some(()));
            }
            if let Some(status) = self.ended() {
                anyhow::bail!(
                    "{} ended with {status} before it said `{text}`:\n{}",
                    self.name,
                    self.last_words(30)
                );
            }
            Ok(None)
        })
        .await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.kill().is_err() {
            tracing::warn!(name = self.name, "could not be killed");
        }
    }
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A directory of this process, removed at its end unless `MILLRACE_KEEP` is set.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one; the name is for people.
    ///
    /// # Errors
    /// The directory could not be made.
    pub fn new(name: &str) -> io::Result<Scratch> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let no = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("millrace-{name}-{}-{no}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::env::var_os("MILLRACE_KEEP").is_some() {
            eprintln!("kept: {}", self.0.display());
        } else if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "could not be removed");
        }
    }
}
