//! Room on disks: what is free, what a folder takes.

use anyhow::{Context, ensure};
use std::path::Path;

/// Bytes free for everybody where a path lies.
///
/// # Errors
/// There is no such path.
pub fn free(path: &Path) -> anyhow::Result<u64> {
    let stat = rustix::fs::statvfs(path).with_context(|| path.display().to_string())?;
    Ok(stat.f_bavail * stat.f_frsize)
}

/// Fails unless so many bytes are free where temporary files go.
///
/// # Errors
/// There are fewer.
pub fn need(bytes: u64) -> anyhow::Result<()> {
    let folder = std::env::temp_dir();
    let free = free(&folder)?;
    ensure!(
        free >= bytes,
        "{} has {:.1} GB free; this needs about {:.1} GB",
        folder.display(),
        gb(free),
        gb(bytes)
    );
    Ok(())
}

/// Bytes that the files below a folder take. What vanishes meanwhile counts for nothing.
#[must_use]
pub fn used(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(meta) = entry.path().symlink_metadata() else {
            continue;
        };
        sum += meta.blocks() * 512;
        if meta.is_dir() {
            sum += used(&entry.path());
        }
    }
    sum
}

/// For tables.
#[must_use]
pub fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_takes_what_its_files_take() {
        let folder = std::env::temp_dir().join(format!("millrace-disk-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("in")).expect("a folder");
        std::fs::write(folder.join("in/file"), vec![1_u8; 100_000]).expect("a file");
        let seen = used(&folder);
        std::fs::remove_dir_all(&folder).expect("removed");
        assert!((100_000..200_000).contains(&seen), "{seen}");
        assert!(free(&std::env::temp_dir()).expect("room") > 0);
    }
}
