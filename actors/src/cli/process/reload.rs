//! Manifests read anew while the process runs: the whole set, or none of it.

use super::seeding;
use crate::modules::Live;
use crate::postgres::Pool;
use crate::runtime::clock::SharedClock;
use crate::settings;
use anyhow::bail;

/// What a reload needs of a running process.
pub(super) struct Reload {
    pub live: Live,
    /// Whether what modules need was started.
    pub began_with_one: bool,
    /// Where rules of new modules are seeded; none: this process does not serve the admin API.
    pub seeds: Option<Pool>,
    pub clock: SharedClock,
}

impl Reload {
    /// Puts the manifests of these settings in force. Each batch, request and frame is decided by one set, the one before or this one.
    /// Refused are settings that cannot be read, a set with any fault (each is said, and named by file, key and rule), and the first
    /// module of a process that began without one, since nothing of engagement runs in it: then the set before stays, and
    /// `modules_stale` is 1 until a reload succeeds.
    pub fn modules(&self, wanted: anyhow::Result<settings::Modules>) {
        let done = wanted.and_then(|wanted| self.replace(&wanted));
        let result = if done.is_ok() { "applied" } else { "refused" };
        self.tell(done.is_ok());
        if let Err(error) = done {
            for fault in format!("{error:#}").lines() {
                tracing::error!(%fault, "modules are not read anew; those before stay in force");
            }
        }
        // Last: whoever sees it counted finds everything said.
        metrics::counter!("module_reloads_total", "result" => result).increment(1);
    }

    /// Exports whether the set in force is the one that was asked for last.
    pub fn tell(&self, current: bool) {
        metrics::gauge!("modules_stale").set(if current { 0.0 } else { 1.0 });
    }

    fn replace(&self, wanted: &settings::Modules) -> anyhow::Result<()> {
        if !self.began_with_one && !wanted.enabled.is_empty() {
            bail!("no module was enabled when this process began: restart it");
        }
        let modules = self
            .live
            .reload(&wanted.enabled, wanted.dir.as_deref())
            .map_err(|faults| seeding::told(&faults))?;
        let ids: Vec<&str> = modules.games().map(|m| &*m.id).collect();
        tracing::info!(modules = ids.join(", "), "modules read anew and in force");
        if let Some(pool) = self.seeds.clone() {
            let clock = self.clock.clone();
            actix_rt::spawn(async move {
                if let Err(error) = seeding::rules(&pool, &modules, &clock).await {
                    tracing::warn!(error = %format!("{error:#}"), "rules of modules are not seeded; the next reload or start does it");
                }
            });
        }
        Ok(())
    }
}
