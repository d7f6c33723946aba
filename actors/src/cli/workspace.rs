//! `millrace workspace create|list`: at the terminal without a key, so that a first deployment can begin.

use super::Context;
use super::output::Listing;
use crate::api::workspaces;
use crate::directory::seeds;
use crate::runtime::clock::{Clock as _, SystemClock};
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Make a workspace.
    #[command(after_help = "Examples:\n  millrace workspace create acme --name 'Acme Media'")]
    Create(Create),
    /// All workspaces.
    #[command(
        after_help = "Examples:\n  millrace workspace list\n  millrace --json workspace list"
    )]
    List,
}

#[derive(Debug, clap::Args)]
pub(super) struct Create {
    /// Its id: 2 to 40 of a-z, 0-9 and `-`, beginning with a letter. Never changed, never reused.
    id: String,
    /// Its name [default: the id].
    #[arg(long, default_value = "")]
    name: String,
    /// Keep visitors' addresses beside their hashes.
    #[arg(long)]
    store_ip: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let mut client = context.client().await?;
    match args {
        Args::Create(new) => {
            let tx = client.transaction().await?;
            let made = workspaces::create(&tx, &new.id, &new.name, new.store_ip, "cli").await?;
            // As the admin API does: the rules of enabled modules come with the workspace, all of them disabled.
            let modules = super::process::seeding::modules(context.settings())?;
            let now = SystemClock.wall();
            seeds::seed(&tx, &modules, Some(made.workspace_id), now).await?;
            tx.commit().await?;
            context.say(
                &format!(
                    "workspace `{}` made; next: `millrace key create --workspace {} --name NAME --scopes full`",
                    made.slug, made.slug
                ),
                &json!({"id": made.slug, "name": made.name, "store_ip": made.store_ip,
                        "created_at": made.created_at.rfc3339()}),
            )?;
        }
        Args::List => {
            let mut listing = Listing::new(&["id", "name", "status", "store_ip", "created_at"]);
            for w in workspaces::list(&client).await? {
                listing.row(vec![
                    json!(w.slug),
                    json!(w.name),
                    json!(w.status),
                    json!(w.store_ip),
                    json!(w.created_at.rfc3339()),
                ]);
            }
            context.answer(&listing)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
