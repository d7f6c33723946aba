//! `millrace bounce classify`: would this refusal suppress its recipient's address? Needs neither settings nor a database.

use super::{Context, output};
use crate::delivery::email::bounce;
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// `suppress` or `keep`, and why.
    #[command(after_help = "Examples:\n  \
        millrace bounce classify '550 5.1.1 No such user'\n  \
        millrace bounce classify '554 5.7.1 Relay access denied'\n  \
        millrace --json bounce classify \"$(cat reply.txt)\"\n\
        Only a permanent reply that says of the mailbox itself that it is not there suppresses an address.")]
    Classify {
        /// The mail server's reply to one recipient, with its code; of several lines, all of them.
        reply: String,
    },
}

pub(super) fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let Args::Classify { reply } = args;
    let verdict = bounce::classify(&reply);
    let text = if context.json() {
        json!({"verdict": verdict.word(), "reason": verdict.code(), "why": verdict.to_string()})
            .to_string()
    } else {
        format!("{}  {}: {verdict}", verdict.word(), verdict.code())
    };
    output::print(&text);
    Ok(ExitCode::SUCCESS)
}
