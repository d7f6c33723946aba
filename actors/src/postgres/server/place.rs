//! The folders of a supervised server: whose they are, who uses them now, what a crash left there.

use super::{ServerError, io};
use sha2::{Digest, Sha256};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest folder of a UNIX socket: the whole path has 104 bytes at least everywhere, `/.s.PGSQL.5432` among them.
const SOCKET_FOLDER: usize = 88;
/// The server's log is begun anew at this size.
const LOG_LIMIT: u64 = 16 << 20;
const URL_FILE: &str = "database.url";

/// Where one server's files are.
pub(super) struct Place {
    /// `database.data_dir`.
    data_dir: PathBuf,
    /// The folder of everything of the server; `data_dir`, unless its user cannot get there.
    pub base: PathBuf,
    /// The cluster (PGDATA).
    pub cluster: PathBuf,
    /// The socket's folder.
    pub run: PathBuf,
    /// The server's log.
    pub log: PathBuf,
    /// The user it runs as, where this process is root's.
    user: Option<(u32, u32)>,
}

impl Place {
    /// Makes the folders that are missing.
    pub fn prepare(data_dir: &Path) -> Result<Place, ServerError> {
        std::fs::create_dir_all(data_dir).map_err(io("making", data_dir))?;
        let data_dir = data_dir.canonicalize().map_err(io("finding", data_dir))?;
        let user = match rustix::process::geteuid().is_root() {
            true => Some(other_user()?),
            false => None,
        };
        let base = match user {
            // A checkout below /root is closed to every other user: the data go where they can be reached.
            Some(user) if !reachable(&data_dir, user) => {
                let base = Path::new("/var/lib/millrace").join(digest(&data_dir));
                tracing::info!(folder = %base.display(), "PostgreSQL's user cannot enter the data folder; its data lie here");
                base
            }
            _ => data_dir.clone(),
        };
        std::fs::create_dir_all(&base).map_err(io("making", &base))?;
        let mut run = base.join("run");
        if run.as_os_str().len() > SOCKET_FOLDER {
            run = std::env::temp_dir().join(format!("millrace-{}", digest(&base)));
        }
        let place = Place {
            cluster: base.join("postgres"),
            log: base.join("postgres.log"),
            data_dir,
            run,
            base,
            user,
        };
        place.make_private(&place.run)?;
        Ok(place)
    }

    /// A folder that the server's user alone may enter. One that is there already must be its own.
    pub fn make_private(&self, folder: &Path) -> Result<(), ServerError> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Ok(()) => {
                if let Some((uid, gid)) = self.user {
                    chown(folder, Some(uid), Some(gid)).map_err(io("giving away", folder))?;
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(io("making", folder)(e)),
        }
        let found = std::fs::symlink_metadata(folder).map_err(io("looking at", folder))?;
        let owner = self
            .user
            .map_or(rustix::process::geteuid().as_raw(), |(uid, _)| uid);
        if !found.is_dir() || found.uid() != owner || found.permissions().mode() & 0o077 != 0 {
            return Err(io("using", folder)(std::io::Error::other(
                "it is not a folder of PostgreSQL's user alone; remove it",
            )));
        }
        Ok(())
    }

    /// Takes the folder for this process.
    pub fn lock(&self) -> Result<File, ServerError> {
        let path = self.data_dir.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(io("opening", &path))?;
        // Whoever asks `running_url` holds it for an instant.
        let deadline = Instant::now() + Duration::from_millis(300);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(std::fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(std::fs::TryLockError::WouldBlock) => {
                    return Err(ServerError::InUse(self.data_dir.clone()));
                }
                Err(std::fs::TryLockError::Error(e)) => return Err(io("locking", &path)(e)),
            }
        }
    }

    /// Major version of the data, if there are any.
    pub fn version(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.cluster.join("PG_VERSION")).ok()?;
        Some(text.trim().to_owned())
    }

    /// After a crash: waits for a server that is still going down, and removes a pid file whose number now belongs to somebody
    /// else (PostgreSQL would take that for a running server; common in containers). The lock is held: no other `up` lives.
    pub fn clear_remains(&self) -> Result<(), ServerError> {
        let pid_file = self.cluster.join("postmaster.pid");
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut asked = false;
        loop {
            let Ok(text) = std::fs::read_to_string(&pid_file) else {
                return Ok(());
            };
            let pid = text.lines().next().and_then(|l| l.trim().parse().ok());
            // Without /proc the server's own check has to do.
            if !Path::new("/proc/self").exists() {
                return Ok(());
            }
            let ours = pid.is_some_and(|pid: u32| {
                std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == self.cluster)
            });
            if !ours {
                return std::fs::remove_file(&pid_file).map_err(io("removing", &pid_file));
            }
            if !asked {
                tracing::info!(pid, "waiting for the PostgreSQL of a former run to stop");
                super::send(pid, rustix::process::Signal::INT);
                asked = true;
            }
            if Instant::now() > deadline {
                return Err(io("waiting for the end of the server in", &self.cluster)(
                    std::io::ErrorKind::TimedOut.into(),
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A program as the server's user.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.base).env("LC_ALL", "C");
        for (name, _) in std::env::vars_os() {
            // PGDATA, PGOPTIONS … of somebody's shell are none of its business.
            if name.as_bytes().starts_with(b"PG") {
                command.env_remove(&name);
            }
        }
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// The server's log, to append to.
    pub fn open_log(&self) -> Result<File, ServerError> {
        if std::fs::metadata(&self.log).is_ok_and(|m| m.len() > LOG_LIMIT) {
            let _ = std::fs::rename(&self.log, self.log.with_extension("log.old"));
        }
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.log)
            .map_err(io("opening", &self.log))
    }

    /// The address of one of its databases.
    pub fn url(&self, database: &str) -> String {
        let folder = percent_encoding::percent_encode(
            self.run.as_os_str().as_bytes(),
            percent_encoding::NON_ALPHANUMERIC,
        );
        format!("postgres://{}@{folder}:5432/{database}", super::NAME)
    }

    /// Leaves the address where other commands look while this process runs.
    pub fn publish(&self, url: &str) -> Result<(), ServerError> {
        let path = self.data_dir.join(URL_FILE);
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(io("writing", &path))?;
        file.write_all(url.as_bytes()).map_err(io("writing", &path))
    }

    /// Takes the address back.
    pub fn withdraw(&self) {
        let _ = std::fs::remove_file(self.data_dir.join(URL_FILE));
    }
}

/// The database of the `millrace up` that runs on `data_dir`, if one does.
#[must_use]
pub fn running_url(data_dir: &Path) -> Option<String> {
    let url = std::fs::read_to_string(data_dir.join(URL_FILE)).ok()?;
    // A killed `up` leaves the file but not the lock.
    let lock = File::open(data_dir.join("lock")).ok()?;
    matches!(lock.try_lock(), Err(std::fs::TryLockError::WouldBlock)).then_some(url)
}

/// PostgreSQL refuses to run as root: the user `postgres`, else `nobody`.
fn other_user() -> Result<(u32, u32), ServerError> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let entry = |name: &str| {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            if fields.next() != Some(name) {
                return None;
            }
            let mut ids = fields.skip(1);
            Some((ids.next()?.parse().ok()?, ids.next()?.parse().ok()?))
        })
    };
    entry("postgres")
        .or_else(|| entry("nobody"))
        .ok_or(ServerError::NoUser)
}

/// Whether the user may enter the folder, by the bits of it and all folders above.
fn reachable(folder: &Path, (uid, gid): (u32, u32)) -> bool {
    folder.ancestors().all(|step| {
        std::fs::metadata(step).is_ok_and(|m| {
            let mode = m.permissions().mode();
            let bit = match (m.uid() == uid, m.gid() == gid) {
                (true, _) => 0o100,
                (_, true) => 0o010,
                _ => 0o001,
            };
            mode & bit != 0
        })
    })
}

/// A short name for a path.
fn digest(path: &Path) -> String {
    Sha256::digest(path.as_os_str().as_bytes())
        .iter()
        .take(8)
        .map(|b| format!("{b:02x}"))
        .collect()
}
