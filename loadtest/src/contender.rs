//! The two that consume: the product's own program, and the bare loop of this one. Each runs as a process of its own, so that
//! its CPU time is its own.

use anyhow::{Context, ensure};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Who consumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// `millrace run --roles attribution`.
    Product,
    /// The same without its command line: `loadtest product-consume`.
    Embedded,
    /// `loadtest bare-consume`.
    Bare,
}

/// What both are told.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Records a transaction.
    pub batch: usize,
    /// Arbiters of the product, consumers of the bare loop.
    pub arbiters: usize,
    /// Partitions of both topics.
    pub partitions: i32,
    /// Clicks of a partition's slice.
    pub slice_clicks: usize,
}

/// A running program; it is ended with this value.
pub struct Running {
    child: Child,
    name: &'static str,
    log: PathBuf,
    done: bool,
}

/// The product's program: `MILLRACE_BIN`, else the one beside this program, which is built first, so that it is of the sources that a
/// section names however this program was started.
///
/// # Errors
/// It does not build, or is not there.
pub fn product() -> anyhow::Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|e| format!("{e:#}")));
    built.clone().map_err(anyhow::Error::msg)
}

fn build() -> anyhow::Result<PathBuf> {
    // What stands there now is what is measured, whatever is committed while it is.
    crate::machine::commit();
    if let Some(path) = std::env::var_os("MILLRACE_BIN") {
        return Ok(path.into());
    }
    let release = !cfg!(debug_assertions);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "-q", "--locked", "-p", "millrace"]);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    // Where this program stands, whatever else is set: what is built is what is measured.
    let here = std::env::current_exe()?;
    if let Some(target) = here.parent().and_then(std::path::Path::parent) {
        build.arg("--target-dir").arg(target);
    }
    if release {
        build.arg("--release");
    }
    let built = build
        .status()
        .context("cargo is not there; MILLRACE_BIN names a program that is built already")?;
    ensure!(built.success(), "the product does not build");
    let path = std::env::current_exe()?.with_file_name("millrace");
    ensure!(
        path.is_file(),
        "{} is not built: cargo build{} -p millrace",
        path.display(),
        if release { " --release" } else { "" }
    );
    Ok(path)
}

/// `millrace run --roles attribution`, ready to be started.
///
/// # Errors
/// The program is not there.
pub fn attribution(brokers: &str, database: &str, tuning: &Tuning) -> anyhow::Result<Command> {
    let mut command = Command::new(product()?);
    command
        .args(["run", "--roles", "attribution"])
        .env("DATABASE_URL", database)
        .env("MILLRACE_LOG__BACKEND", "kafka")
        .env("MILLRACE_LOG__BROKERS", brokers)
        .env("MILLRACE_RUNTIME__BATCH_RECORDS", tuning.batch.to_string())
        .env("MILLRACE_RUNTIME__ARBITERS", tuning.arbiters.to_string())
        .env(
            "MILLRACE_ATTRIBUTION__SLICE_CLICKS",
            tuning.slice_clicks.to_string(),
        )
        .env("MILLRACE_HTTP__DOORS", "127.0.0.1:0")
        .env("MILLRACE_HTTP__ADMIN", "127.0.0.1:0")
        .env("RUST_LOG", "warn");
    Ok(command)
}

/// What `millrace verify --log` says of a store and of the ends of its topics: nothing.
///
/// # Errors
/// It finds something, or cannot look.
pub fn verify(database: &str, brokers: &str, prefix: &str) -> anyhow::Result<()> {
    let out = Command::new(product()?)
        .args(["verify", "--log"])
        .env("DATABASE_URL", database)
        .env("MILLRACE_LOG__BACKEND", "kafka")
        .env("MILLRACE_LOG__BROKERS", brokers)
        .env("MILLRACE_LOG__PREFIX", prefix)
        .output()?;
    let [said, complaint] = [&out.stdout, &out.stderr].map(|o| String::from_utf8_lossy(o));
    ensure!(out.status.success(), "`millrace verify`: {said}{complaint}");
    Ok(())
}

impl Contender {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Contender::Product | Contender::Embedded => "product",
            Contender::Bare => "bare loop",
        }
    }

    /// The group under which it keeps its positions.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            Contender::Product | Contender::Embedded => {
                millrace_topics::catalogue::ATTRIBUTION.name
            }
            Contender::Bare => crate::bare::GROUP,
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// The program is not there.
    pub fn start(self, brokers: &str, database: &str, tuning: &Tuning) -> anyhow::Result<Running> {
        let command = match self {
            Contender::Product => attribution(brokers, database, tuning)?,
            Contender::Embedded => {
                let mut command = Command::new(std::env::current_exe()?);
                command
                    .arg("product-consume")
                    .args(["--brokers", brokers, "--database", database])
                    .args(["--arbiters", &tuning.arbiters.to_string()])
                    .args(["--slice-clicks", &tuning.slice_clicks.to_string()])
                    .args(["--batch", &tuning.batch.to_string()]);
                command
            }
            Contender::Bare => {
                let mut command = Command::new(std::env::current_exe()?);
                command
                    .arg("bare-consume")
                    .args(["--brokers", brokers, "--database", database])
                    .args(["--consumers", &tuning.arbiters.to_string()])
                    .args(["--batch", &tuning.batch.to_string()]);
                command
            }
        };
        Running::start(command, self.name())
    }
}

impl Running {
    /// Starts a program with its output in a file of its own; it dies with this process.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut command: Command, name: &'static str) -> anyhow::Result<Running> {
        // Several of one name may run at once.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let log = std::env::temp_dir().join(format!(
            "millrace-loadtest-{}-{}-{}.log",
            std::process::id(),
            name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        let file = std::fs::File::create(&log)?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        #[expect(unsafe_code, reason = "prctl(2) between fork and exec")]
        // SAFETY: prctl is async-signal-safe and touches no memory.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command
            .spawn()
            .with_context(|| format!("starting the {name}"))?;
        Ok(Running {
            child,
            name,
            log,
            done: false,
        })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails if it ended with an error.
    ///
    /// # Errors
    /// Its last words.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            self.done = true;
            ensure!(
                status.success(),
                "the {} ended: {status}\n{}",
                self.name,
                self.last_words()
            );
        }
        Ok(())
    }

    /// Whether it has said this.
    #[must_use]
    pub fn said(&self, what: &str) -> bool {
        std::fs::read_to_string(&self.log).is_ok_and(|text| text.contains(what))
    }

    /// Where it says that it answers `/metrics` and the admin API.
    #[must_use]
    pub fn admin(&self) -> Option<SocketAddr> {
        self.address("admin API")
    }

    /// Where it says that its doors answer.
    #[must_use]
    pub fn doors(&self) -> Option<SocketAddr> {
        self.address("doors")
    }

    fn address(&self, what: &str) -> Option<SocketAddr> {
        let text = std::fs::read_to_string(&self.log).ok()?;
        let line = text.lines().find(|l| l.trim_start().starts_with(what))?;
        line.split_once("http://")?.1.trim().parse().ok()
    }

    /// SIGKILL, and waits until it is buried.
    ///
    /// # Errors
    /// The machine's.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if !self.done {
            self.child.kill()?;
            self.child.wait()?;
            self.done = true;
        }
        Ok(())
    }

    /// What it said last.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(20);
        lines.get(from..).unwrap_or_default().join("\n")
    }

    /// Asks it to end and waits, at most 20 s.
    ///
    /// # Errors
    /// It does not end.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        if self.done {
            return Ok(());
        }
        #[expect(unsafe_code, reason = "kill(2) on a child of ours")]
        // SAFETY: kill has no memory effects.
        unsafe {
            libc::kill(i32::try_from(self.child.id())?, libc::SIGTERM);
        }
        let until = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < until, "the {} does not end", self.name);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.done = true;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.done {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = std::fs::remove_file(&self.log);
    }
}
