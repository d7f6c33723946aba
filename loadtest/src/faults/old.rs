//! The build that is upgraded from: the commit named in `loadtest/UPGRADE_FROM`, built once, in a work tree and a target folder of
//! its own. Each contracting migration moves that commit.

use anyhow::{Context as _, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds it, unless that was done before; where its program is. Takes minutes the first time.
///
/// # Errors
/// The commit is not there, or does not build.
pub fn build() -> anyhow::Result<PathBuf> {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = crate_folder.parent().context("a workspace")?;
    let commit = std::fs::read_to_string(crate_folder.join("UPGRADE_FROM"))?;
    let commit = commit.trim();
    let short = commit.get(..12).unwrap_or(commit);
    let folder = root.join("target/upgrade");
    let program = folder.join(format!("millrace-proving-{short}"));
    if program.is_file() {
        return Ok(program);
    }
    println!("building {short} to upgrade from: a few minutes, once");
    std::fs::create_dir_all(&folder)?;
    let tree = folder.join("tree");
    let mut checkout = Command::new("git");
    if tree.join(".git").exists() {
        checkout
            .current_dir(&tree)
            .args(["checkout", "--quiet", "--detach", commit]);
    } else {
        // A work tree that somebody has removed by hand is still in the list.
        drop(
            Command::new("git")
                .current_dir(root)
                .args(["worktree", "prune"])
                .status(),
        );
        checkout
            .current_dir(root)
            .args(["worktree", "add", "--quiet", "--force", "--detach"])
            .arg(&tree)
            .arg(commit);
    }
    ensure!(
        checkout.status()?.success(),
        "commit {commit} cannot be checked out"
    );
    let target = folder.join("build");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(&tree)
        .env("CARGO_TARGET_DIR", &target)
        .args([
            "build",
            "-q",
            "--locked",
            "-p",
            "millrace-tests",
            "--bin",
            "millrace-proving",
        ])
        .status()?;
    ensure!(status.success(), "commit {commit} does not build");
    // Whole or not at all: a copy that was cut short would be believed the next time.
    let half = folder.join("millrace-proving.new");
    std::fs::copy(target.join("debug/millrace-proving"), &half)?;
    std::fs::rename(&half, &program)?;
    Ok(program)
}
