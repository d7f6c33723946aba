//! `millrace users list`: who is in a workspace's directory.

use super::Context;
use super::output::Listing;
use crate::api::workspaces;
use crate::postgres::types::Tz;
use anyhow::Context as _;
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Users of a workspace, newest first, without their addresses.
    #[command(after_help = "Examples:\n  \
        millrace users list --workspace acme\n  \
        millrace users list --workspace acme --role admin\n  \
        millrace --json users list --workspace acme --limit 1000")]
    List(List),
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// The workspace's id.
    #[arg(long)]
    workspace: String,
    /// Those of one role: admin, editor, moderator, user.
    #[arg(long)]
    role: Option<String>,
    /// Those of one status: active, disabled, deleted.
    #[arg(long)]
    status: Option<String>,
    /// How many at most.
    #[arg(long, default_value_t = 100)]
    limit: u32,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let Args::List(args) = args;
    let client = context.client().await?;
    let workspace = workspaces::by_slug(&client, &args.workspace)
        .await
        .with_context(|| format!("no workspace `{}`", args.workspace))?;
    let rows = client
        .query(
            "SELECT u.user_id, u.name, CASE WHEN u.email IS NULL THEN 'none' WHEN u.email_verified THEN 'verified' ELSE 'unverified' END, u.status, u.role, u.zone, u.last_login,
                    (SELECT count(*) FROM links l WHERE l.workspace_id = u.workspace_id AND l.user_id = u.user_id AND l.live)
             FROM users u WHERE u.workspace_id = $1 AND ($2::text IS NULL OR u.role = $2) AND ($3::text IS NULL OR u.status = $3)
             ORDER BY u.created_at DESC, u.user_id LIMIT $4",
            &[&workspace.workspace_id, &args.role, &args.status, &i64::from(args.limit)],
        )
        .await?;
    let mut listing = Listing::new(&[
        "id",
        "name",
        "email",
        "status",
        "role",
        "zone",
        "last_login",
        "links",
    ]);
    for row in &rows {
        let last_login: Option<Tz> = row.try_get(6)?;
        listing.row(vec![
            json!(row.try_get::<_, &str>(0)?),
            json!(row.try_get::<_, Option<&str>>(1)?),
            json!(row.try_get::<_, &str>(2)?),
            json!(row.try_get::<_, &str>(3)?),
            json!(row.try_get::<_, &str>(4)?),
            json!(row.try_get::<_, Option<&str>>(5)?),
            last_login.map_or(Value::Null, |t| json!(t.0.rfc3339())),
            json!(row.try_get::<_, i64>(7)?),
        ]);
    }
    context.answer(&listing)?;
    Ok(ExitCode::SUCCESS)
}
