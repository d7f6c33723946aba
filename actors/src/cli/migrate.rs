//! `millrace migrate`.

use super::Context;
use crate::postgres::migrate;
use serde_json::json;
use std::process::ExitCode;

/// Applies what is missing under a lock and makes the fact tables' daily partitions around today. Safe to run while others
/// run it; `up` and `run` do it themselves when they start.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  DATABASE_URL=postgres://millrace@db/millrace millrace migrate"
)]
pub(super) struct Args {}

pub(super) async fn run(context: &Context, _: Args) -> anyhow::Result<ExitCode> {
    let database = context.database()?;
    let done = migrate::migrate(&database).await?;
    let text = match done.applied.as_slice() {
        [] => format!(
            "{}: up to date at version {}",
            database.address(),
            done.version
        ),
        applied => format!("{}: applied {}", database.address(), applied.join(", ")),
    };
    context.say(
        &format!("{text}; {} daily partitions made", done.partitions),
        &json!({"applied": done.applied, "version": done.version, "partitions_made": done.partitions}),
    )?;
    Ok(ExitCode::SUCCESS)
}
