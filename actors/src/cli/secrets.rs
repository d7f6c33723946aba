//! `millrace secrets reseal`: after a change of MILLRACE_SECRET_KEY.

use super::Context;
use crate::sealing::stored;
use anyhow::Context as _;
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Seal every secret under MILLRACE_SECRET_KEY that MILLRACE_SECRET_KEY_OLD still opens. May run at any time and be run
    /// again; a secret that is rotated meanwhile stays the new one. Exit code 1 if some do not open.
    #[command(after_help = "Examples:\n  \
        MILLRACE_SECRET_KEY=$NEW MILLRACE_SECRET_KEY_OLD=$FORMER millrace secrets reseal\n\n\
        A change of key in three steps, so that no process ever meets a secret that it cannot open:\n  \
        1. restart every process with the new key as MILLRACE_SECRET_KEY_OLD: it opens, and seals nothing\n  \
        2. restart every process with the new key as MILLRACE_SECRET_KEY and the former as MILLRACE_SECRET_KEY_OLD\n  \
        3. `millrace secrets reseal`; once `millrace doctor` says so, take MILLRACE_SECRET_KEY_OLD away")]
    Reseal,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let Args::Reseal = args;
    let client = context.client().await?;
    let seals = context.seals().0?;
    let done = stored::reseal(&client, &seals)
        .await
        .context("run it again: what is resealed stays so")?;
    for (secret, why) in &done.shut {
        eprintln!("{} stays as it is: {why}", secret.name());
    }
    let shut: Vec<_> = done
        .shut
        .iter()
        .map(|(secret, why)| json!({"secret": secret.name(), "reason": why.to_string()}))
        .collect();
    context.say(
        &format!(
            "{} resealed, {} were under the current key already, {} do not open",
            done.resealed,
            done.current + done.moved,
            shut.len()
        ),
        &json!({"resealed": done.resealed, "current": done.current + done.moved, "shut": shut}),
    )?;
    Ok(match done.shut.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
