//! A file system that is soon full: one in memory, of a few MiB. It takes root to mount one.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mounted one; let go of when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Mounts one of so many MiB on a new folder, which belongs to `owner`.
    pub(super) fn mount(
        at: &Path,
        mebibytes: u32,
        owner: Option<(u32, u32)>,
    ) -> io::Result<SmallDisk> {
        std::fs::create_dir_all(at)?;
        let (uid, gid) = owner.unwrap_or_default();
        let options = format!("size={mebibytes}m,mode=0700,uid={uid},gid={gid}");
        let out = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(at)
            .stdin(Stdio::null())
            .output()?;
        if out.status.success() {
            Ok(SmallDisk { at: at.to_owned() })
        } else {
            let said = String::from_utf8_lossy(&out.stderr);
            Err(io::Error::other(said.trim().to_owned()))
        }
    }

    fn filler(&self) -> PathBuf {
        self.at.join("filler")
    }

    /// Takes all that is left of it.
    ///
    /// # Errors
    /// The file could not be written, for another reason than that it is full.
    pub fn fill(&self) -> io::Result<()> {
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.filler())?;
        // In ever smaller pieces, to the last page.
        for size in [1 << 20, 64 << 10, 4 << 10] {
            let piece = vec![0_u8; size];
            loop {
                match file.write_all(&piece) {
                    Ok(()) => {}
                    Err(e) if e.kind() == io::ErrorKind::StorageFull => break,
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }

    /// Gives back what [`SmallDisk::fill`] took.
    ///
    /// # Errors
    /// The file could not be removed.
    pub fn free(&self) -> io::Result<()> {
        std::fs::remove_file(self.filler())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        release(&self.at);
    }
}

/// Unmounts what is mounted there, if anything is; one that is still used goes as soon as it is not.
pub(super) fn release(at: &Path) {
    let mounted = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let here = at.to_string_lossy();
    if mounted.lines().any(|l| l.split(' ').nth(1) == Some(&*here)) {
        let _ = Command::new("umount").arg("-l").arg(at).status();
    }
}

#[cfg(test)]
mod tests {
    use super::super::DedicatedServer;

    #[test]
    fn a_full_disk_stops_a_server_from_writing_until_it_is_freed() {
        let server = match DedicatedServer::start_on_small_disk(160) {
            Ok(server) => server,
            Err(why) => {
                eprintln!("not run: needs root ({why})");
                return;
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let client = crate::postgres::connect(&server.url("postgres")).await;
            let disk = server.disk().unwrap();
            client
                .batch_execute("CREATE TABLE t (x text)")
                .await
                .unwrap();
            disk.fill().unwrap();
            let write = "INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 1000)";
            let refused = client.batch_execute(write).await.unwrap_err();
            let code = refused.as_db_error().unwrap().code().code().to_owned();
            assert_eq!(code, "53100", "{refused:?}");
            disk.free().unwrap();
            client.batch_execute(write).await.unwrap();
        });
    }
}
