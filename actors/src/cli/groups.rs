//! `millrace groups pause|resume|list`: an operator's switch, which consumers look at once a second.

use super::Context;
use super::output::Listing;
use crate::postgres::types::Tz;
use anyhow::bail;
use millrace_topics::catalogue::GROUPS;
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Stop handing records to a group's actors; within a second, everywhere.
    #[command(
        after_help = "Examples:\n  millrace groups pause attribution --reason 'moving the database'"
    )]
    Pause {
        /// The group.
        group: String,
        /// Why, for whoever finds it paused.
        #[arg(long)]
        reason: String,
    },
    /// Go on.
    #[command(after_help = "Examples:\n  millrace groups resume attribution")]
    Resume {
        /// The group.
        group: String,
    },
    /// Every group, its topics, and whether it is paused.
    #[command(after_help = "Examples:\n  millrace groups list")]
    List,
}

/// The group of that name.
pub(super) fn known(name: &str) -> anyhow::Result<&'static str> {
    match GROUPS.iter().find(|g| g.name == name) {
        Some(group) => Ok(group.name),
        None => {
            let names: Vec<&str> = GROUPS.iter().map(|g| g.name).collect();
            bail!("no group `{name}`; there are {}", names.join(", "))
        }
    }
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let client = context.client().await?;
    match args {
        Args::Pause { group, reason } => {
            let group = known(&group)?;
            client
                .execute(
                    "INSERT INTO paused_groups (group_name, reason) VALUES ($1, $2)
                     ON CONFLICT (group_name) DO UPDATE SET reason = excluded.reason",
                    &[&group, &reason],
                )
                .await?;
            context.say(
                &format!("`{group}` is paused; `millrace groups resume {group}` goes on"),
                &json!({"group": group, "paused": true, "reason": reason}),
            )?;
        }
        Args::Resume { group } => {
            let group = known(&group)?;
            let was = client
                .execute("DELETE FROM paused_groups WHERE group_name = $1", &[&group])
                .await?;
            let text = match was {
                0 => format!("`{group}` was not paused"),
                _ => format!("`{group}` goes on"),
            };
            context.say(
                &text,
                &json!({"group": group, "paused": false, "was_paused": was > 0}),
            )?;
        }
        Args::List => {
            let rows = client
                .query(
                    "SELECT group_name, reason, paused_at FROM paused_groups",
                    &[],
                )
                .await?;
            let mut listing = Listing::new(&["group", "topics", "paused", "reason", "since"]);
            for group in GROUPS {
                let row = rows.iter().find(|r| r.get::<_, &str>(0) == group.name);
                listing.row(vec![
                    json!(group.name),
                    json!(group.topics),
                    json!(row.is_some()),
                    json!(row.map(|r| r.get::<_, String>(1))),
                    json!(row.map(|r| r.get::<_, Tz>(2).0.rfc3339())),
                ]);
            }
            context.answer(&listing)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
