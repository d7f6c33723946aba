//! Where the server's programs are.

use super::ServerError;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs of one PostgreSQL installation.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
    /// Its version, as `15.8`.
    pub version: String,
}

impl Binaries {
    /// `PG_BIN`; the newest under `/usr/lib/postgresql` (Debian) and Homebrew's folders; PATH. Where there are data already,
    /// their major version decides.
    ///
    /// # Errors
    /// There is none, or none of that version.
    pub fn find(data_version: Option<&str>, cluster: &Path) -> Result<Binaries, ServerError> {
        let looked: Vec<PathBuf> = match std::env::var_os("PG_BIN") {
            Some(bin) => vec![PathBuf::from(bin)],
            None => installed(),
        };
        let mut other = None;
        for folder in &looked {
            if !folder.join("initdb").is_file() {
                continue;
            }
            let Some(version) = version(folder) else {
                continue;
            };
            let found = Binaries {
                folder: folder.clone(),
                version,
            };
            if data_version.is_none_or(|v| found.version.split('.').next() == Some(v)) {
                return Ok(found);
            }
            other.get_or_insert(found);
        }
        match (data_version, other) {
            (Some(data), Some(found)) => Err(ServerError::Version {
                folder: cluster.to_owned(),
                data: data.to_owned(),
                found: found.version,
            }),
            _ => Err(ServerError::NotFound(match std::env::var_os("PG_BIN") {
                Some(bin) => format!("PG_BIN={}: no `initdb` there", bin.to_string_lossy()),
                None => "looked in /usr/lib/postgresql/*/bin and PATH".to_owned(),
            })),
        }
    }

    /// One of the programs.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

fn installed() -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for (parent, prefix) in [
        ("/usr/lib/postgresql", ""),
        ("/opt/homebrew/opt", "postgresql@"),
        ("/usr/local/opt", "postgresql@"),
    ] {
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        versions.extend(entries.filter_map(|entry| {
            let name = entry.file_name();
            let version = name.to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        }));
    }
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    let path = std::env::var_os("PATH").unwrap_or_default();
    versions
        .into_iter()
        .map(|(_, folder)| folder)
        .chain(std::env::split_paths(&path))
        .collect()
}

/// `postgres (PostgreSQL) 15.8 (Debian …)`.
fn version(folder: &Path) -> Option<String> {
    let out = Command::new(folder.join("postgres"))
        .arg("--version")
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    text.split_whitespace().nth(2).map(str::to_owned)
}
