//! What `millrace` can be told at a terminal: one file a command, each with its own words, examples and output.
//!
//! Exit codes: 0 done, 1 failed (or `doctor`, `verify` and `topics check` found something), 2 the words or the settings were wrong.
//! What a command says goes to stdout (as JSON with `--json`), what goes wrong to stderr with what to do next.

use crate::postgres::pool::Database;
use crate::runtime::mount::Mount;
use crate::settings::Settings;
use clap::{Parser, Subcommand};
use millrace_topics::catalogue::GroupSpec;
use millrace_topics::contract::TopicRef;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod bounce;
mod context;
pub mod demo;
mod directory;
mod dlq;
mod doctor;
mod erase;
pub mod feed;
mod groups;
mod key;
mod lag;
mod log;
mod meta;
mod migrate;
mod modules;
mod outbox;
mod output;
mod positions;
pub mod process;
mod rules;
mod run;
mod secrets;
mod signals;
mod topics;
mod trace;
pub mod up;
mod users;
mod verify;
mod workspace;

pub use context::Context;

/// Turns streams of ad clicks, affiliate postbacks and game-server events into booked facts and delivered messages.
#[derive(Debug, Parser)]
#[command(
    name = "millrace",
    version,
    after_help = "Begin with `millrace up`: everything in one process, with a PostgreSQL of its own.\n\
                  Settings: config/millrace.toml, MILLRACE_<SECTION>__<KEY>, DATABASE_URL; `millrace doctor` checks them all.\n\
                  Exit codes: 0 done, 1 failed, 2 wrong words or settings."
)]
struct Words {
    /// The settings file [default: config/millrace.toml, if it is there].
    #[arg(long, global = true, env = "MILLRACE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Answer in JSON, for programs.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything in one process, with a PostgreSQL of its own unless one is named.
    Up(up::Args),
    /// One process of a deployment, by roles.
    Run(run::Args),
    /// Replay real traffic against everything of `up`, and see that it adds up.
    Demo(demo::Args),
    /// Bring the database's schema up to date.
    Migrate(migrate::Args),
    /// Topics of the log: list, create, check, grow, switch the backend.
    #[command(subcommand)]
    Topics(topics::Args),
    /// How far each group is behind the log.
    Lag(lag::Args),
    /// Where each partition stands; set a position, resume what stopped.
    #[command(subcommand)]
    Positions(positions::Args),
    /// Pause and resume consumer groups.
    #[command(subcommand)]
    Groups(groups::Args),
    /// Dead letters: list, show, replay, discard.
    #[command(subcommand)]
    Dlq(dlq::Args),
    /// Messages on their way out: list, show, release, cancel; pause and resume.
    #[command(subcommand)]
    Outbox(outbox::Args),
    /// Everything known of one click, in order.
    Trace(trace::Args),
    /// Why somebody was told of an event, or was not.
    #[command(subcommand)]
    Rules(rules::Args),
    /// What Meta would be told.
    #[command(subcommand)]
    Meta(meta::Args),
    /// Manifests of games: check, list, show.
    #[command(subcommand)]
    Modules(modules::Args),
    /// What a mail server's refusal says of an address.
    #[command(subcommand)]
    Bounce(bounce::Args),
    /// Frames of a shard: stream a recorded session to its feed.
    #[command(subcommand)]
    Feed(feed::Args),
    /// Is everything as it should be, and what to do if not.
    Doctor(doctor::Args),
    /// Recount the store, read-only, and name each difference.
    Verify(verify::Args),
    /// Make and list workspaces.
    #[command(subcommand)]
    Workspace(workspace::Args),
    /// Users of a workspace's directory.
    #[command(subcommand)]
    Users(users::Args),
    /// Users, links and preferences to the log, from a file.
    #[command(subcommand)]
    Directory(directory::Args),
    /// Make, list, rotate and revoke API keys.
    #[command(subcommand)]
    Key(key::Args),
    /// Sealed secrets after a change of their key.
    #[command(subcommand)]
    Secrets(secrets::Args),
    /// Take a person's contact out of everything that is stored.
    Erase(erase::Args),
}

/// Runs the command line.
#[must_use]
pub fn main() -> ExitCode {
    let words = Words::parse();
    // Long-lived commands tell what they do; one answer at a terminal needs no running commentary.
    let quiet = !matches!(words.command, Command::Up(_) | Command::Run(_));
    match prepare(words.config.as_deref(), words.json, quiet) {
        Ok(context) => told(dispatch(words.command, context)),
        Err(code) => code,
    }
}

/// Runs streams with state as `millrace run` runs those of its roles, with the same settings, signals and exit codes: for a
/// program that mounts some of its own. Their topics exist ([`create_topics`]).
#[must_use]
pub fn mounted(streams: Vec<Mount>) -> ExitCode {
    match prepare(None, false, false) {
        Ok(context) => {
            let serving = run::serve(&context, process::Roles::NONE, streams, false);
            told(actix_rt::System::new().block_on(serving))
        }
        Err(code) => code,
    }
}

/// Registers and makes the topics of groups that this program does not know, as `millrace topics create` does for its own.
///
/// # Errors
/// The database or the log is away, or a topic is there with another count.
pub async fn create_topics(
    settings: &Settings,
    groups: &[GroupSpec],
) -> anyhow::Result<Vec<TopicRef>> {
    let client = Context::new(settings.clone(), false).client().await?;
    let database = Database::new(&settings.database, "cli")?;
    let log = log::Log::of(settings, &database)?;
    log::create_topics(&client, &log, &settings.log, groups).await
}

/// Settings read, telemetry at work; or what to exit with, after it was said why.
fn prepare(config: Option<&Path>, json: bool, quiet: bool) -> Result<Context, ExitCode> {
    let refused = |why: &dyn std::fmt::Display| {
        eprintln!("error: {why}");
        ExitCode::from(2)
    };
    let settings = crate::settings::load(config).map_err(|e| refused(&e))?;
    crate::runtime::telemetry::tracing(&settings.telemetry, quiet).map_err(|e| refused(&e))?;
    Ok(Context::new(settings, json).of_file(config))
}

fn told(done: anyhow::Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|e| {
        eprintln!("error: {e:#}");
        ExitCode::FAILURE
    })
}

fn dispatch(command: Command, context: Context) -> anyhow::Result<ExitCode> {
    let command = match command {
        Command::Up(args) => return actix_rt::System::new().block_on(up::run(&context, args)),
        Command::Run(args) => return actix_rt::System::new().block_on(run::run(&context, args)),
        Command::Demo(args) => return actix_rt::System::new().block_on(demo::run(&context, args)),
        other => other,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(async {
        match command {
            // Answered above: they bring their own runtime.
            Command::Up(_) | Command::Run(_) | Command::Demo(_) => Ok(ExitCode::SUCCESS),
            Command::Migrate(args) => migrate::run(&context, args).await,
            Command::Topics(args) => topics::run(&context, args).await,
            Command::Lag(args) => lag::run(&context, args).await,
            Command::Positions(args) => positions::run(&context, args).await,
            Command::Groups(args) => groups::run(&context, args).await,
            Command::Dlq(args) => dlq::run(&context, args).await,
            Command::Outbox(args) => outbox::run(&context, args).await,
            Command::Trace(args) => trace::run(&context, args).await,
            Command::Rules(args) => rules::run(&context, args).await,
            Command::Meta(args) => meta::run(&context, args),
            Command::Modules(args) => modules::run(&context, args),
            Command::Bounce(args) => bounce::run(&context, args),
            Command::Feed(args) => feed::run(&context, args).await,
            Command::Doctor(args) => doctor::run(&context, args).await,
            Command::Verify(args) => verify::run(&context, args).await,
            Command::Workspace(args) => workspace::run(&context, args).await,
            Command::Users(args) => users::run(&context, args).await,
            Command::Directory(args) => directory::run(&context, args).await,
            Command::Key(args) => key::run(&context, args).await,
            Command::Secrets(args) => secrets::run(&context, args).await,
            Command::Erase(args) => erase::run(&context, args).await,
        }
    });
    // Nothing may hold the terminal after the answer.
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use super::Words;
    use clap::CommandFactory;

    #[test]
    fn the_words_fit_together() {
        Words::command().debug_assert();
    }

    /// Every command a person can type says what it does by an example.
    #[test]
    fn every_command_has_an_example() {
        fn look(command: &clap::Command, path: &str) {
            for sub in command.get_subcommands().filter(|s| s.get_name() != "help") {
                let path = format!("{path} {}", sub.get_name());
                assert!(sub.get_about().is_some(), "`{path}` says nothing of itself");
                if sub.has_subcommands() {
                    look(sub, &path);
                } else {
                    let help = sub.get_after_help().map(ToString::to_string);
                    assert!(
                        help.is_some_and(|h| h.contains(&path)),
                        "`{path} --help` has no example"
                    );
                }
            }
        }
        look(&Words::command(), "millrace");
    }
}
