//! `millrace up`: everything in one process, with a PostgreSQL of its own unless one is named.

use super::Context;
use super::process::{Plan, Process, Roles};
use super::run::attend;
use super::signals::Signals;
use crate::postgres::pool::Database;
use crate::postgres::server::Server;
use crate::runtime::telemetry::Metrics;
use crate::sealing::Seals;
use crate::settings::Settings;
use anyhow::bail;
use serde_json::json;
use std::process::ExitCode;

/// Why the outbox is held after a restore.
pub(super) const RESTORED: &str = "restored from a backup";
/// What a process says then.
pub(super) const HELD: &str = "\n  outbox     held; `millrace outbox list --status scheduled`, then `millrace outbox release --all-held`";

/// Doors, actors and the admin API in this process. Where no database is configured, a PostgreSQL server that is installed here
/// is started on ./data (`database.data_dir`) and stopped with it. Ctrl-C stops in order; a second one at once.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  millrace up\n  MILLRACE_HTTP__DOORS=0.0.0.0:8080 millrace up\n  \
    DATABASE_URL=postgres://millrace@db/millrace millrace up\n  \
    millrace up --after-restore"
)]
pub(super) struct Args {
    /// The database was restored from a backup: nothing leaves until `millrace outbox release --all-held`, since what is due in
    /// it may have been sent after the backup was made.
    #[arg(long)]
    after_restore: bool,
}

/// Everything, running in this process.
pub struct Up {
    process: Process,
    server: Option<Server>,
    settings: Settings,
}

impl Up {
    /// Starts PostgreSQL where none is configured, then everything else. Needs a running actix system.
    ///
    /// # Errors
    /// No PostgreSQL can be found or started; see [`Process::start`].
    pub async fn start(settings: Settings, metrics: Metrics) -> anyhow::Result<Up> {
        Up::start_held(settings, metrics, None).await
    }

    /// As [`Up::start`]; with a reason, nothing leaves the outbox before a person lets it go on.
    ///
    /// # Errors
    /// As [`Up::start`].
    pub async fn start_held(
        mut settings: Settings,
        metrics: Metrics,
        hold: Option<&'static str>,
    ) -> anyhow::Result<Up> {
        let server = match settings.database.url {
            Some(_) => None,
            None => {
                let server = Server::start(&settings.database.data_dir).await?;
                tracing::info!(version = server.version(), data = %server.data().display(), "PostgreSQL is up");
                settings.database.url = Some(server.url().to_owned());
                Some(server)
            }
        };
        match Up::process_on(&settings, server.as_ref(), metrics, hold).await {
            Ok(process) => Ok(Up {
                process,
                server,
                settings,
            }),
            Err(error) => {
                if let Some(server) = server {
                    server.stop().await;
                }
                Err(error)
            }
        }
    }

    async fn process_on(
        settings: &Settings,
        server: Option<&Server>,
        metrics: Metrics,
        hold: Option<&'static str>,
    ) -> anyhow::Result<Process> {
        // Without a key of the operator's, one is kept beside the data.
        let seals =
            Seals::from_environment_or_file(&settings.database.data_dir.join("secret.key"))?;
        Process::start(Plan {
            settings: settings.clone(),
            roles: Roles::ALL,
            also: Vec::new(),
            create_topics: true,
            metrics,
            seals,
            log_disk: server.map(|s| s.data().to_owned()),
            hold,
        })
        .await
    }

    /// The settings in force: the database that was started is in them.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The running process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Resolves when something died that it cannot go on without, with the reason.
    pub async fn failed(&self) -> String {
        match &self.server {
            None => self.process.failed().await,
            Some(server) => tokio::select! {
                why = self.process.failed() => why,
                why = server.ended() => format!("PostgreSQL has ended: {why}"),
            },
        }
    }

    /// Stops everything in order, PostgreSQL last.
    pub async fn stop(self) {
        self.process.stop().await;
        if let Some(server) = self.server {
            server.stop().await;
        }
    }
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let metrics = Metrics::install()?;
    let hold = args.after_restore.then_some(RESTORED);
    let up = tokio::select! {
        up = Up::start_held(context.settings().clone(), metrics, hold) => up?,
        // Dropping the start stops what it has started.
        _ = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    let database = Database::new(&up.settings.database, "cli")?;
    let mut text = up.process.greeting();
    if hold.is_some() {
        text.push_str(HELD);
    }
    context.say(
        &format!(
            "{text}\n  database   {}\n\nnext: `millrace workspace create acme`, then `millrace key create --workspace acme --name me --scopes full`",
            database.address()
        ),
        &json!({"doors": up.process.doors_url(), "admin": up.process.admin_url(), "database": database.address()}),
    )?;
    let failed = attend(context, &mut signals, &up.process, up.failed()).await;
    signals.end_at_once_on_the_next();
    up.stop().await;
    match failed {
        None => Ok(ExitCode::SUCCESS),
        Some(why) => bail!(why),
    }
}
