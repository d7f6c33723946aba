//! The build that is upgraded from: the commit named in `loadtest/UPGRADE_FROM`, built once, in a work tree and a target folder of
//! its own. A migration that takes something away raises the schema's floor to its own version, below which programs refuse to
//! start, and moves that commit to one at or above it; a test here holds migrations to that.

use anyhow::{Context as _, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds it, unless that was done before; where its program is. Takes minutes the first time.
///
/// # Errors
/// The commit is not there, may not run on this schema, or does not build.
pub fn build() -> anyhow::Result<PathBuf> {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = crate_folder.parent().context("a workspace")?;
    let commit = std::fs::read_to_string(crate_folder.join("UPGRADE_FROM"))?;
    let commit = commit.trim();
    let short = commit.get(..12).unwrap_or(commit);
    let (floor, newest) = (floor(root)?, newest_of(root, commit)?);
    ensure!(
        newest >= floor,
        "loadtest/UPGRADE_FROM names {short}, whose programs know the schema up to version {newest}; below {floor} they may not \
         run on this one's: name a later commit"
    );
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

/// The version of a migration by its file's name.
fn version_of(name: &str) -> Option<u32> {
    name.strip_prefix('V')?.split_once("__")?.0.parse().ok()
}

/// Words of SQL in capitals, without comments.
fn words(sql: &str) -> Vec<String> {
    sql.lines()
        .map(|line| line.split("--").next().unwrap_or_default())
        .flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .filter(|word| !word.is_empty())
        .map(str::to_uppercase)
        .collect()
}

/// Whether it writes its own version into the floor.
fn raises_the_floor(sql: &str, version: u32) -> bool {
    let words = words(sql);
    let own = version.to_string();
    words.contains(&"SCHEMA_FLOOR".to_owned()) && words.contains(&own)
}

/// The oldest version of the schema that a program may know and still run on this one's.
fn floor(root: &Path) -> anyhow::Result<u32> {
    let mut floor = 0;
    for entry in std::fs::read_dir(root.join("migrations"))? {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(version) = version_of(&name.to_string_lossy())
            && raises_the_floor(&std::fs::read_to_string(entry.path())?, version)
        {
            floor = floor.max(version);
        }
    }
    Ok(floor)
}

/// The newest version of the schema that the programs of a commit know.
fn newest_of(root: &Path, commit: &str) -> anyhow::Result<u32> {
    let listed = Command::new("git")
        .current_dir(root)
        .args(["ls-tree", "--name-only", commit, "migrations/"])
        .output()?;
    ensure!(
        listed.status.success(),
        "commit {commit}, named in loadtest/UPGRADE_FROM, is not here"
    );
    let names = String::from_utf8_lossy(&listed.stdout);
    let versions = names
        .lines()
        .filter_map(|line| version_of(line.strip_prefix("migrations/")?));
    Ok(versions.max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The migration that brought the floor; what came before it is history.
    const FLOOR: u32 = 13;

    /// What a migration takes away from programs that know the schema as it was.
    fn takes_away(sql: &str) -> Vec<String> {
        let words = words(sql);
        let at = |i: Option<usize>| i.and_then(|i| words.get(i)).map_or("", String::as_str);
        let mut found = Vec::new();
        for (i, word) in words.iter().enumerate() {
            let (before, next) = (at(i.checked_sub(1)), at(i.checked_add(1)));
            let taken = match word.as_str() {
                "DROP" => {
                    // A temporary table's end, and what no statement of a program names.
                    let harmless = ["INDEX", "CONSTRAINT", "TRIGGER", "DEFAULT", "NOT"];
                    before != "COMMIT" && !harmless.contains(&next)
                }
                "RENAME" => true,
                "SET" => next == "NOT",
                // ALTER COLUMN x TYPE, ALTER x TYPE, SET DATA TYPE; not ALTER TYPE, which adds a value.
                "TYPE" => before == "DATA" || ["COLUMN", "ALTER"].contains(&at(i.checked_sub(2))),
                _ => false,
            };
            if taken {
                found.push(format!("{before} {word} {next}"));
            }
        }
        found
    }

    #[test]
    fn a_migration_that_takes_something_away_raises_the_floor() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
        let mut newest = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let version = version_of(&name).unwrap_or_else(|| panic!("{name}: no version"));
            newest = newest.max(version);
            let sql = std::fs::read_to_string(&path).unwrap();
            let taken = takes_away(&sql);
            assert!(
                version <= FLOOR || taken.is_empty() || raises_the_floor(&sql, version),
                "{name} takes something away ({}): it must say `UPDATE schema_floor SET version = {version}`, and \
                 loadtest/UPGRADE_FROM must move to a commit that has it",
                taken.join("; ")
            );
        }
        assert!(newest >= FLOOR, "{newest}");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let floor = floor(&root).unwrap();
        assert!((FLOOR..=newest).contains(&floor), "{floor}");
    }

    #[test]
    fn what_takes_away_is_told_from_what_adds() {
        for sql in [
            "ALTER TABLE visits DROP COLUMN journey;",
            "ALTER TABLE visits DROP journey;",
            "drop table rejects;",
            "ALTER TABLE visits RENAME COLUMN a TO b;",
            "ALTER TABLE visits ALTER COLUMN a SET NOT NULL;",
            "ALTER TABLE visits\n    ALTER COLUMN a TYPE bigint;",
            "ALTER TABLE visits ALTER a SET DATA TYPE bigint;",
        ] {
            assert!(!takes_away(sql).is_empty(), "{sql}");
        }
        for sql in [
            "CREATE TABLE t (type text NOT NULL);",
            "-- DROP TABLE t\nCREATE INDEX i ON t (type);",
            "ALTER TABLE t ADD COLUMN type text;",
            "ALTER TYPE mood ADD VALUE 'fine';",
            "DROP INDEX i; ALTER TABLE t ALTER COLUMN a DROP NOT NULL, ALTER COLUMN b DROP DEFAULT;",
            "CREATE TEMP TABLE t (a int) ON COMMIT DROP;",
            "UPDATE t SET a = 1;",
        ] {
            assert_eq!(takes_away(sql), Vec::<String>::new(), "{sql}");
        }
        let raised = "DROP TABLE t; UPDATE schema_floor SET version = 14;";
        assert!(raises_the_floor(raised, 14) && !raises_the_floor(raised, 15));
        assert!(!raises_the_floor("-- schema_floor 14\nDROP TABLE t;", 14));
    }
}
