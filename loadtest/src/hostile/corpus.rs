//! What is learned in a run, and what of it the repository keeps.

use super::fuzz::Place;
use anyhow::ensure;
use millrace_tests::fuzzing::{Target, corpus};
use std::path::PathBuf;
use std::process::Command;

/// What a target keeps at most beside its named inputs, in bytes.
const MOST: u64 = 40 << 10;

/// What a target has learned on this machine.
pub(super) fn learned(place: &Place, target: &Target) -> anyhow::Result<PathBuf> {
    let folder = place.work.join(target.name);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The kept inputs of a target.
pub(super) fn kept(target: &Target) -> PathBuf {
    corpus().join(target.name)
}

/// Takes, smallest first, the fewest inputs that reach what all of them together reach; named ones stay whatever they reach.
pub(super) fn keep(place: &Place, target: &Target) -> anyhow::Result<()> {
    let fewest = place.work.join(format!("{}-fewest", target.name));
    if fewest.exists() {
        std::fs::remove_dir_all(&fewest)?;
    }
    std::fs::create_dir_all(&fewest)?;
    let out = Command::new(&place.program)
        .args(["-set_cover_merge=1", "-rss_limit_mb=2048"])
        .arg(&fewest)
        .arg(kept(target))
        .arg(learned(place, target)?)
        .env("MILLRACE_FUZZ_TARGET", target.name)
        .output()?;
    ensure!(
        out.status.success(),
        "{}: {}",
        target.name,
        String::from_utf8_lossy(&out.stderr)
    );
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&fewest)? {
        let entry = entry?;
        found.push((entry.metadata()?.len(), entry.path()));
    }
    found.sort();
    let to = kept(target);
    let mut named = Vec::new();
    for entry in std::fs::read_dir(&to)? {
        let path = entry?.path();
        // What the fuzzer made is called by its digest.
        if path.file_name().is_some_and(|n| n.len() == 40) {
            std::fs::remove_file(&path)?;
        } else {
            named.push(std::fs::read(&path)?);
        }
    }
    let mut left = MOST;
    for (bytes, path) in found {
        let data = std::fs::read(&path)?;
        let (Some(rest), Some(name)) = (left.checked_sub(bytes), path.file_name()) else {
            break;
        };
        if !named.contains(&data) {
            std::fs::write(to.join(name), data)?;
            left = rest;
        }
    }
    Ok(())
}
