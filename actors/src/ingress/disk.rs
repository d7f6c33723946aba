//! The disk watermark: doors close before the disk that holds the log is full, since a full one loses what was accepted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the free space is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// Whether the disk is low, as seen within the last second.
#[derive(Debug, Default)]
pub struct DiskWatch {
    low: AtomicBool,
}

impl DiskWatch {
    /// Watches the disk under `path` from now on; without a path (the log is on other machines) or with a watermark of 0
    /// it is never low. Needs a tokio runtime.
    #[must_use]
    pub fn start(path: Option<PathBuf>, watermark: u64) -> Arc<DiskWatch> {
        let watch = Arc::new(DiskWatch::default());
        let Some(path) = path.filter(|_| watermark > 0) else {
            return watch;
        };
        watch.look(&path, watermark);
        let weak = Arc::downgrade(&watch);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(EVERY);
            loop {
                tick.tick().await;
                let Some(watch) = weak.upgrade() else { return };
                watch.look(&path, watermark);
            }
        });
        watch
    }

    /// Whether doors are to answer 503.
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    fn look(&self, path: &Path, watermark: u64) {
        let free = match rustix::fs::statvfs(path) {
            Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot see the disk's free space");
                return;
            }
        };
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!("disk_free_bytes").set(free as f64);
        let low = free < watermark;
        if low != self.low.swap(low, Ordering::Relaxed) {
            if low {
                tracing::error!(free, watermark, "disk low: the doors are closed");
            } else {
                tracing::info!(free, watermark, "disk no longer low: the doors are open");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_follows_the_watermark() {
        let watch = DiskWatch::default();
        let here = std::env::temp_dir();
        watch.look(&here, u64::MAX);
        assert!(watch.is_low());
        watch.look(&here, 1);
        assert!(!watch.is_low());
        watch.look(Path::new("/no/such/place"), u64::MAX);
        assert!(!watch.is_low());
    }
}
