//! The wall clock, injected. Nothing else in the product asks the machine for the time of day.

use millrace_schemas::time::Micros;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A source of wall-clock time.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn wall(&self) -> Micros;
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> Micros {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }
}

/// The clock of this process: the machine's, or in the proving build the one whose offset a file names.
#[must_use]
pub fn from_environment() -> SharedClock {
    #[cfg(feature = "proving")]
    if let Some(path) = std::env::var_os("MILLRACE_CLOCK_FILE") {
        return Arc::new(FileClock { path: path.into() });
    }
    Arc::new(SystemClock)
}

/// The machine's clock shifted by the microseconds that a file holds: tests move the time of running processes with it.
#[cfg(feature = "proving")]
pub struct FileClock {
    path: std::path::PathBuf,
}

#[cfg(feature = "proving")]
impl Clock for FileClock {
    fn wall(&self) -> Micros {
        let shift: i64 = std::fs::read_to_string(&self.path)
            .ok()
            .and_then(|t| t.trim().parse().ok())
            .unwrap_or(0);
        Micros(SystemClock.wall().0.saturating_add(shift))
    }
}

/// A clock that tests set.
#[derive(Debug, Default)]
pub struct ManualClock(std::sync::atomic::AtomicI64);

impl ManualClock {
    /// A clock standing at `now`.
    #[must_use]
    pub fn at(now: Micros) -> Arc<ManualClock> {
        Arc::new(ManualClock(std::sync::atomic::AtomicI64::new(now.0)))
    }

    /// Moves it.
    pub fn set(&self, now: Micros) {
        self.0.store(now.0, std::sync::atomic::Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Micros {
        Micros(self.0.load(std::sync::atomic::Ordering::SeqCst))
    }
}
