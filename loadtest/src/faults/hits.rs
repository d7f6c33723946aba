//! Hits: how often each failpoint was passed and struck, as the processes themselves wrote it down.

use std::collections::BTreeMap;
use std::path::Path;

/// Hits by name.
pub type Hits = BTreeMap<String, u64>;

/// Reads the failpoint logs of all processes that ran in a folder.
#[must_use]
pub fn read(folder: &Path) -> Hits {
    let mut hits = Hits::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().ends_with(".failpoints.log") {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        for line in text.lines().filter(|l| !l.is_empty()) {
            *hits.entry(line.to_owned()).or_insert(0) += 1;
        }
    }
    hits
}

/// Adds some to others.
pub fn add(all: &mut Hits, more: &Hits) {
    for (name, n) in more {
        *all.entry(name.clone()).or_insert(0) += n;
    }
}
