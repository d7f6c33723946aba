//! The rules that enabled modules bring, seeded when a process that serves the admin API starts or reads them anew, and with each new
//! workspace.

use crate::directory::seeds;
use crate::modules::{Fault, Modules, shipped};
use crate::postgres::Pool;
use crate::runtime::clock::SharedClock;
use crate::settings::Settings;
use anyhow::Context as _;
use std::sync::Arc;

/// What the enabled modules declare.
pub(in crate::cli) fn modules(settings: &Settings) -> anyhow::Result<Arc<Modules>> {
    let own = &settings.modules;
    match shipped::load(&own.enabled, own.dir.as_deref()) {
        Ok(modules) => Ok(Arc::new(modules)),
        Err(faults) => Err(told(&faults)),
    }
}

/// All faults in one error, one a line.
pub(in crate::cli) fn told(faults: &[Fault]) -> anyhow::Error {
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    anyhow::anyhow!("{}", lines.join("\n"))
}

/// Seeds every workspace with the groups that it has not had yet; nothing where no module is enabled.
pub(super) async fn rules(
    pool: &Pool,
    modules: &Modules,
    clock: &SharedClock,
) -> anyhow::Result<()> {
    if modules.is_empty() {
        return Ok(());
    }
    let mut client = pool.get().await.context("seeding rules")?;
    let tx = client.transaction().await?;
    let n = seeds::seed(&tx, modules, None, clock.wall())
        .await
        .context("seeding rules")?;
    tx.commit().await?;
    if n > 0 {
        tracing::info!(rules = n, "rules of modules seeded, all of them disabled");
    }
    Ok(())
}
