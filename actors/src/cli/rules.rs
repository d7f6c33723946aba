//! `millrace rules explain`: why somebody was told, or was not.

use super::Context;
use super::context::found;
use super::output::Listing;
use crate::api::workspaces;
use crate::engagement::explain;
use anyhow::Context as _;
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Gate by gate, why a user was told of an event or was not: what the gates stored when they decided.
    #[command(after_help = "Examples:\n  \
        millrace rules explain --workspace acme --event 3-0-7-0 --user u1\n  \
        millrace --json rules explain --workspace acme --event 3-0-7-0 --user u1")]
    Explain(Explain),
}

#[derive(Debug, clap::Args)]
pub(super) struct Explain {
    /// The workspace's id.
    #[arg(long)]
    workspace: String,
    /// The event's id.
    #[arg(long)]
    event: String,
    /// The user's id.
    #[arg(long)]
    user: String,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let Args::Explain(args) = args;
    let client = context.client().await?;
    let workspace = workspaces::by_slug(&client, &args.workspace)
        .await
        .with_context(|| format!("no workspace `{}`", args.workspace))?;
    let event = explain::event(&client, workspace.workspace_id, &args.event).await?;
    let event = found(event, || {
        format!(
            "no event `{}` in `{}`: it is not decided yet (`millrace lag`), was rejected, or is older than events are kept",
            args.event, args.workspace
        )
    })?;
    if !context.json() {
        eprintln!(
            "`{}` of `{}` on shard `{}`, accepted {}",
            event.trigger,
            event.subject,
            event.shard,
            event.accepted_at.rfc3339()
        );
    }
    let lines = explain::explain(&client, workspace.workspace_id, &event, &args.user).await?;
    let mut listing = Listing::new(&["rule", "channel", "gate", "verdict", "reason", "says"]);
    for l in lines {
        listing.row(vec![
            json!(l.rule),
            json!(l.channel),
            json!(l.gate),
            json!(l.verdict),
            json!(l.reason),
            json!(l.says),
        ]);
    }
    context.answer(&listing)?;
    Ok(ExitCode::SUCCESS)
}
