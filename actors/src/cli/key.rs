//! `millrace key create|list|rotate|revoke`: API keys, at the terminal without a key.

use super::Context;
use super::output::Listing;
use crate::api::faults::ChangeError;
use crate::api::key_store::{self, KeyRow, NewKey, Within};
use crate::api::keys::ApiKey;
use crate::api::workspaces;
use anyhow::Context as _;
use millrace_schemas::time::Micros;
use serde_json::json;
use std::collections::HashMap;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Make a key and show its secret once.
    #[command(after_help = "Examples:\n  \
        millrace key create --workspace acme --name console --scopes full\n  \
        millrace key create --workspace acme --name ingest --scopes events:write --cidr 10.0.0.0/8 --expires-at 2027-01-01T00:00:00Z\n  \
        millrace key create --name monitoring --scopes ops:read     (a key of the deployment: ops:* alone)")]
    Create(Create),
    /// Keys of a workspace, or of the deployment.
    #[command(after_help = "Examples:\n  millrace key list --workspace acme\n  millrace key list")]
    List {
        /// The workspace's id; without it, keys of the deployment.
        #[arg(long)]
        workspace: Option<String>,
    },
    /// Give a key a new secret, shown once; the old one works on for `--overlap`.
    #[command(after_help = "Examples:\n  \
        millrace key rotate rk_0123456789ab\n  \
        millrace key rotate rk_0123456789ab --overlap 0     (the old one is known to others: it ends now)")]
    Rotate {
        /// `rk_…`, the part before the dot.
        id: String,
        /// How long the old secret works too, in seconds; at most a week.
        #[arg(long, default_value_t = 3_600)]
        overlap: i64,
    },
    /// Revoke a key; it stops working everywhere within a second.
    #[command(after_help = "Examples:\n  millrace key revoke rk_0123456789ab")]
    Revoke {
        /// `rk_…`, the part before the dot.
        id: String,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Create {
    /// The workspace's id; without it, the key is the deployment's and holds `ops:*` scopes alone.
    #[arg(long)]
    workspace: Option<String>,
    /// What it is for.
    #[arg(long)]
    name: String,
    /// Scopes by name, separated by commas, or `full`.
    #[arg(long, value_delimiter = ',', required = true)]
    scopes: Vec<String>,
    /// A network it may be used from; may be repeated [default: from everywhere].
    #[arg(long = "cidr")]
    cidrs: Vec<String>,
    /// When it ends by itself, as RFC 3339.
    #[arg(long)]
    expires_at: Option<String>,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let mut client = context.client().await?;
    let slugs: HashMap<i32, String> = workspaces::list(&client)
        .await?
        .into_iter()
        .map(|w| (w.workspace_id, w.slug))
        .collect();
    match args {
        Args::Create(new) => {
            let workspace = number(&client, new.workspace.as_deref()).await?;
            let expires_at = new.expires_at.as_deref().map(Micros::parse_rfc3339);
            let expires_at = expires_at
                .transpose()
                .map_err(|e| anyhow::anyhow!("--expires-at: {e}"))?;
            let wanted = NewKey {
                workspace,
                name: new.name,
                scopes: new.scopes,
                expires_at,
                cidrs: new.cidrs,
                created_by: "cli".to_owned(),
            };
            let tx = client.transaction().await?;
            let (row, key) = key_store::create(&tx, &wanted, None).await?;
            tx.commit().await?;
            show(context, &key, describe(&row, &slugs))?;
        }
        Args::Rotate { id, overlap } => {
            let tx = client.transaction().await?;
            let rotated = key_store::rotate(&tx, Within::Anywhere, &id, overlap, "cli").await;
            let (row, key) = match rotated {
                Err(ChangeError::NotFound) => return Err(unknown(&id)),
                other => other?,
            };
            tx.commit().await?;
            show(context, &key, describe(&row, &slugs))?;
        }
        Args::List { workspace } => {
            let workspace = number(&client, workspace.as_deref()).await?;
            let mut listing = Listing::new(&[
                "id",
                "workspace",
                "name",
                "scopes",
                "state",
                "last_used_at",
                "expires_at",
                "created_at",
            ]);
            for row in key_store::list(&client, workspace).await? {
                let value = describe(&row, &slugs);
                let columns = [
                    "id",
                    "workspace",
                    "name",
                    "scopes",
                    "state",
                    "last_used_at",
                    "expires_at",
                    "created_at",
                ];
                listing.row(
                    columns
                        .iter()
                        .map(|c| value.get(*c).cloned().unwrap_or_default())
                        .collect(),
                );
            }
            context.answer(&listing)?;
        }
        Args::Revoke { id } => {
            let tx = client.transaction().await?;
            let row = match key_store::revoke(&tx, Within::Anywhere, &id, "cli").await {
                Err(ChangeError::NotFound) => return Err(unknown(&id)),
                other => other?,
            };
            tx.commit().await?;
            context.say(
                &format!("{} is revoked", row.key_id),
                &describe(&row, &slugs),
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn unknown(id: &str) -> anyhow::Error {
    anyhow::anyhow!("no key `{id}`; `millrace key list --workspace ID` shows them")
}

/// The key alone on stdout, so that it can be put into a variable; the advice beside it.
fn show(context: &Context, key: &ApiKey, mut value: serde_json::Value) -> anyhow::Result<()> {
    if let Some(object) = value.as_object_mut() {
        object.insert("key".to_owned(), json!(key.reveal()));
    }
    if !context.json() {
        eprintln!("the key, shown once; it is stored as a hash alone:");
    }
    context.say(&key.reveal(), &value)
}

async fn number(
    client: &tokio_postgres::Client,
    slug: Option<&str>,
) -> anyhow::Result<Option<i32>> {
    let Some(slug) = slug else { return Ok(None) };
    let row = workspaces::by_slug(client, slug)
        .await
        .with_context(|| format!("no workspace `{slug}`; `millrace workspace list` shows them"))?;
    Ok(Some(row.workspace_id))
}

fn describe(row: &KeyRow, slugs: &HashMap<i32, String>) -> serde_json::Value {
    let time = |t: Option<Micros>| t.map(Micros::rfc3339);
    let state = match row.revoked_at {
        Some(_) => "revoked",
        None => "live",
    };
    json!({
        "id": row.key_id, "workspace": row.workspace.and_then(|w| slugs.get(&w)), "name": row.name,
        "scopes": row.scopes, "cidrs": row.cidrs, "state": state, "last_used_at": time(row.last_used_at),
        "expires_at": time(row.expires_at), "revoked_at": time(row.revoked_at), "created_by": row.created_by,
        "created_at": row.created_at.rfc3339(),
    })
}
