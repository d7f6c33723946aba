//! Hits: how often each failpoint was passed and struck, as the processes themselves wrote it down.

use std::collections::BTreeMap;
use std::path::Path;

/// Where a process may be struck: what it does, and the failpoint's name. One group's `batch.before_commit` is not another's.
pub type Point = (&'static str, &'static str);

/// Hits by role and failpoint.
pub type Hits = BTreeMap<(String, String), u64>;

/// How the log of a process's failpoints is called, behind its own name.
const LOG: &str = ".failpoints.log";

/// What the process did whose log this is: `attribution-3.failpoints.log` is of one of attribution.
fn role(file: &str) -> Option<String> {
    let process = file.strip_suffix(LOG)?;
    let role = process.rsplit_once('-').map_or(process, |(role, _)| role);
    Some(role.to_lowercase())
}

/// Reads the failpoint logs of all processes that ran in a folder.
#[must_use]
pub fn read(folder: &Path) -> Hits {
    let mut hits = Hits::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Some(role) = role(&entry.file_name().to_string_lossy()) else {
            continue;
        };
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        for line in text.lines().filter(|l| !l.is_empty()) {
            *hits.entry((role.clone(), line.to_owned())).or_insert(0) += 1;
        }
    }
    hits
}

/// Hits of one.
#[must_use]
pub fn of(hits: &Hits, (role, name): Point) -> u64 {
    let key = (role.to_owned(), name.to_owned());
    hits.get(&key).copied().unwrap_or(0)
}

/// Adds some to others.
pub fn add(all: &mut Hits, more: &Hits) {
    for (point, n) in more {
        *all.entry(point.clone()).or_insert(0) += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_is_of_what_its_process_did() {
        let folder = std::env::temp_dir().join(format!("millrace-hits-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (file, text) in [
            ("thresholds-4.failpoints.log", "batch.before_commit\n"),
            ("thresholds-9.failpoints.log", "batch.before_commit\n"),
            ("Sink-0.failpoints.log", "batch.before_commit\n"),
            ("thresholds-4.log", "batch.before_commit\n"),
        ] {
            std::fs::write(folder.join(file), text).unwrap();
        }
        let hits = read(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let at = |role| of(&hits, (role, "batch.before_commit"));
        assert_eq!((at("thresholds"), at("sink"), at("attribution")), (2, 1, 0));
    }
}
