//! `millrace rules explain`: why somebody was told, or was not.

use super::Context;
use super::context::found;
use super::output::Listing;
use crate::api::workspaces;
use crate::engagement::explain;
use anyhow::{Context as _, bail};
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Gate by gate, why a user was told of an event or was not: what the gates stored when they decided.
    #[command(after_help = "Examples:\n  \
        millrace rules explain --event 3-0-7-0 --user u1\n  \
        millrace --json rules explain --workspace acme --event 3-0-7-0 --user u1")]
    Explain(Explain),
}

#[derive(Debug, clap::Args)]
pub(super) struct Explain {
    /// The workspace's id [default: the one that has the event].
    #[arg(long)]
    workspace: Option<String>,
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
    let ws = match &args.workspace {
        Some(slug) => {
            let named = workspaces::by_slug(&client, slug).await;
            let named = named.with_context(|| format!("no workspace `{slug}`"))?;
            Some(named.workspace_id)
        }
        None => match *explain::workspaces_of(&client, &args.event).await? {
            [] => None,
            [one] => Some(one),
            _ => bail!(
                "more than one workspace has an event `{}`: say which with --workspace",
                args.event
            ),
        },
    };
    let event = match ws {
        Some(ws) => explain::event(&client, ws, &args.event)
            .await?
            .map(|event| (ws, event)),
        None => None,
    };
    let (ws, event) = found(event, || {
        let place = args.workspace.as_ref();
        let place = place.map_or_else(String::new, |slug| format!(" in `{slug}`"));
        format!(
            "no event `{}`{place}: it is not decided yet (`millrace lag`), was rejected, or is older than events are kept",
            args.event
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
    let lines = explain::explain(&client, ws, &event, &args.user).await?;
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
