//! `millrace run --roles …`: production roles against DATABASE_URL and the configured log.

use super::Context;
use super::process::{Plan, Process, Roles};
use super::signals::{Asked, Signals};
use super::up::{HELD, RESTORED};
use crate::runtime::mount::Mount;
use crate::runtime::telemetry::Metrics;
use crate::sealing::Seals;
use anyhow::bail;
use serde_json::json;
use std::pin::pin;
use std::process::ExitCode;

/// One process of a deployment. It needs DATABASE_URL and topics that exist (`millrace topics create`); it brings the schema up
/// to date by itself. SIGTERM drains: doors refuse, partitions are handed over within 2 s, the producer empties its queue.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    millrace run --roles doors\n  \
    millrace run --roles attribution,delivery\n  \
    millrace run --after-restore\n  \
    MILLRACE_LOG__BACKEND=kafka MILLRACE_LOG__BROKERS=kafka:9092 \\\n    \
    DATABASE_URL='postgres://millrace@db/millrace?sslmode=verify-full' millrace run")]
pub(super) struct Args {
    /// What this process does: any of doors, attribution, delivery, admin, thresholds, engagement, recipients, directory, or all.
    #[arg(long, default_value = "all")]
    roles: Roles,
    /// The database was restored from a backup: nothing leaves, from any process, until `millrace outbox release --all-held`,
    /// since what is due in it may have been sent after the backup was made. Start the first process so.
    #[arg(long)]
    after_restore: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    if context.settings().database.url.is_none() {
        bail!("no database: set DATABASE_URL, or use `millrace up`, which starts one");
    }
    serve(context, args.roles, Vec::new(), args.after_restore).await
}

/// A process of these roles and streams, until a signal ends it or a part of it dies.
pub(super) async fn serve(
    context: &Context,
    roles: Roles,
    also: Vec<Mount>,
    after_restore: bool,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let plan = Plan {
        settings: context.settings().clone(),
        roles,
        also,
        create_topics: false,
        metrics: Metrics::install()?,
        seals: Seals::from_environment()?,
        log_disk: None,
        hold: after_restore.then_some(RESTORED),
    };
    let process = tokio::select! {
        process = Process::start(plan) => process?,
        _ = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    let mut text = process.greeting();
    if after_restore {
        text.push_str(HELD);
    }
    context.say(
        &text,
        &json!({"doors": process.doors_url(), "admin": process.admin_url(), "roles": roles.name()}),
    )?;
    let failed = attend(context, &mut signals, &process, process.failed()).await;
    signals.end_at_once_on_the_next();
    process.stop().await;
    match failed {
        None => Ok(ExitCode::SUCCESS),
        Some(why) => bail!(why),
    }
}

/// Until a signal ends the process or a part of it dies: why, then. SIGHUP meanwhile has the modules read anew.
pub(super) async fn attend(
    context: &Context,
    signals: &mut Signals,
    process: &Process,
    failed: impl Future<Output = String>,
) -> Option<String> {
    let mut failed = pin!(failed);
    loop {
        tokio::select! {
            asked = signals.asked() => match asked {
                Asked::Reload => process.reload(context.modules_now()),
                Asked::End(signal) => {
                    tracing::info!(signal, "stopping; once more ends at once");
                    return None;
                }
            },
            why = &mut failed => return Some(why),
        }
    }
}
