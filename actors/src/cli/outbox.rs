//! `millrace outbox list|show|release|cancel|pause|resume|destinations`: what is to leave, what has left, what could not.

mod switch;

use super::Context;
use super::context::found;
use super::output::Listing;
use crate::api::workspaces;
use crate::delivery::ledger::{self, Filter, Refused};
use crate::runtime::clock;
use anyhow::{Context as _, bail};
use millrace_schemas::ids;
use millrace_schemas::time::Micros;
use serde_json::json;
use std::collections::HashMap;
use std::process::ExitCode;
use tokio_postgres::Client;
use uuid::Uuid;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Messages, newest first.
    #[command(after_help = "Examples:\n  \
        millrace outbox list\n  \
        millrace outbox list --status failed --channel meta --since 2026-01-31T00:00:00Z\n  \
        millrace outbox list --destination wh_01k9vq3w5e8z4d7m2s6x0a1b2c --limit 1000")]
    List(List),
    /// One message: its frozen payload and every attempt.
    #[command(after_help = "Examples:\n  millrace outbox show 01k9vq3w5e8z4d7m2s6x0a1b2c")]
    Show {
        /// Its id.
        #[arg(value_parser = delivery_id)]
        id: Uuid,
    },
    /// Make messages due now that failed, were called off or are unknown, under their own ids; or let the outbox go on after a
    /// restore.
    #[command(after_help = "Examples:\n  \
        millrace outbox release 01k9vq3w5e8z4d7m2s6x0a1b2c 01k9vq3w5e8z4d7m2s6x0a1b2d\n  \
        millrace outbox release 01k9vq3w5e8z4d7m2s6x0a1b2c --may-repeat\n  \
        millrace outbox release --all-held")]
    Release(Release),
    /// Call messages off that have not been sent.
    #[command(after_help = "Examples:\n  millrace outbox cancel 01k9vq3w5e8z4d7m2s6x0a1b2c")]
    Cancel {
        /// Their ids.
        #[arg(required = true, value_parser = delivery_id)]
        ids: Vec<Uuid>,
    },
    /// Send nothing to a destination, by a channel, or at all; what waits stays, within a second, everywhere.
    #[command(after_help = "Examples:\n  \
        millrace outbox pause wh_01k9vq3w5e8z4d7m2s6x0a1b2c --reason 'they are moving'\n  \
        millrace outbox pause --channel meta --reason 'the app is in review'\n  \
        millrace outbox pause --all --reason 'the provider moves'")]
    Pause(switch::Pause),
    /// Go on.
    #[command(after_help = "Examples:\n  \
        millrace outbox resume wh_01k9vq3w5e8z4d7m2s6x0a1b2c\n  \
        millrace outbox resume --channel meta\n  \
        millrace outbox resume --all")]
    Resume(switch::What),
    /// Whom messages go to, what waits for each, and what is paused.
    #[command(
        after_help = "Examples:\n  millrace outbox destinations\n  millrace outbox destinations --paused"
    )]
    Destinations {
        /// Those alone to which nothing is sent now.
        #[arg(long)]
        paused: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// Those of one status.
    #[arg(long, value_parser = ["scheduled", "sending", "sent", "failed", "cancelled", "suppressed", "bounced", "unknown"])]
    status: Option<String>,
    /// Those of one channel.
    #[arg(long)]
    channel: Option<String>,
    /// Those to one destination: `px_…`, `wh_…`, or its number.
    #[arg(long)]
    destination: Option<String>,
    /// Those of one workspace, by its id.
    #[arg(long)]
    workspace: Option<String>,
    /// Written at or after, as RFC 3339.
    #[arg(long, value_parser = moment)]
    since: Option<Micros>,
    /// Written before, as RFC 3339.
    #[arg(long, value_parser = moment)]
    until: Option<Micros>,
    /// How many at most.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    limit: i64,
}

/// Which messages.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct Which {
    /// Ids of messages.
    #[arg(value_parser = delivery_id)]
    ids: Vec<Uuid>,
    /// Everything that `up --after-restore`, or `outbox pause --all`, holds.
    #[arg(long)]
    all_held: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Release {
    #[command(flatten)]
    which: Which,
    /// They may arrive twice: needed for what is `unknown` where the receiver cannot tell a second one from the first.
    #[arg(long, requires = "ids")]
    may_repeat: bool,
}

fn delivery_id(text: &str) -> Result<Uuid, String> {
    ids::decode(text).ok_or_else(|| {
        "want an id of 26 characters, as `millrace outbox list` shows them".to_owned()
    })
}

fn moment(text: &str) -> Result<Micros, String> {
    Micros::parse_rfc3339(text).map_err(|e| e.to_string())
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let mut client = context.client().await?;
    match args {
        Args::List(list) => context.answer(&listing(&client, list).await?)?,
        Args::Show { id } => show(context, &client, id).await?,
        Args::Release(release) if release.which.all_held => {
            return switch::let_go(context, &client).await;
        }
        Args::Release(release) => {
            let repeat = release.may_repeat;
            return each(
                context,
                &mut client,
                &release.which.ids,
                Act::Release(repeat),
            )
            .await;
        }
        Args::Cancel { ids } => return each(context, &mut client, &ids, Act::Cancel).await,
        Args::Pause(pause) => return switch::pause(context, &client, pause).await,
        Args::Resume(what) => return switch::resume(context, &client, what).await,
        Args::Destinations { paused } => {
            context.answer(&switch::destinations(&client, paused).await?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Slugs of workspaces by number.
pub(super) async fn slugs(client: &Client) -> anyhow::Result<HashMap<i32, String>> {
    let all = workspaces::list(client).await?;
    Ok(all.into_iter().map(|w| (w.workspace_id, w.slug)).collect())
}

async fn listing(client: &Client, list: List) -> anyhow::Result<Listing> {
    let workspace = match &list.workspace {
        None => None,
        Some(slug) => {
            let found = workspaces::by_slug(client, slug).await;
            Some(
                found
                    .with_context(|| format!("no workspace `{slug}`"))?
                    .workspace_id,
            )
        }
    };
    let filter = Filter {
        workspace,
        status: list.status,
        channel: list.channel,
        destination: list.destination,
        since: list.since,
        until: list.until,
        before: None,
    };
    let slugs = slugs(client).await?;
    let mut listing = Listing::new(&[
        "id",
        "workspace",
        "channel",
        "destination",
        "status",
        "reason",
        "attempts",
        "cause",
        "created_at",
        "due_at",
        "ended_at",
    ]);
    for d in ledger::list(client, &filter, list.limit).await? {
        listing.row(vec![
            json!(ids::encode(d.id)),
            json!(slugs.get(&d.workspace)),
            json!(d.channel),
            json!(d.destination),
            json!(d.status),
            json!(d.status_reason),
            json!(d.attempts),
            json!(d.cause.to_string()),
            json!(d.created_at.rfc3339()),
            json!(d.due_at.map(Micros::rfc3339)),
            json!(d.ended_at.map(Micros::rfc3339)),
        ]);
    }
    Ok(listing)
}

async fn show(context: &Context, client: &Client, id: Uuid) -> anyhow::Result<()> {
    let whole = found(ledger::show(client, None, id).await?, || {
        "no such message; `millrace outbox list` shows what is there".to_owned()
    })?;
    let slugs = slugs(client).await?;
    let d = whole.delivery;
    let payload: serde_json::Value =
        serde_json::from_str(&whole.payload).unwrap_or_else(|_| json!(whole.payload));
    let attempts: Vec<_> = whole
        .attempts
        .iter()
        .map(|a| {
            json!({"at": a.at.rfc3339(), "attempt": a.attempt, "result": a.result, "code": a.code,
                   "duration_ms": a.duration_ms, "target": a.target, "excerpt": a.excerpt})
        })
        .collect();
    context.answer_json(&json!({
        "id": ids::encode(d.id),
        "workspace": slugs.get(&d.workspace),
        "channel": d.channel,
        "destination": d.destination,
        "destination_no": d.destination_no,
        "subject": d.subject,
        "cause": d.cause.to_string(),
        "status": d.status,
        "reason": d.status_reason,
        "attempts": d.attempts,
        "created_at": d.created_at.rfc3339(),
        "due_at": d.due_at.map(Micros::rfc3339),
        "unsure_since": d.unsure_since.map(Micros::rfc3339),
        "ended_at": d.ended_at.map(Micros::rfc3339),
        "payload": payload,
        "log": attempts,
    }))
}

#[derive(Clone, Copy)]
enum Act {
    Cancel,
    Release(bool),
}

/// Each in a transaction of its own: what is refused stops none of the others.
async fn each(
    context: &Context,
    client: &mut Client,
    ids: &[Uuid],
    act: Act,
) -> anyhow::Result<ExitCode> {
    let wall = clock::from_environment().wall();
    let (mut done, mut refused) = (0_usize, Vec::new());
    for id in ids {
        let tx = client.transaction().await?;
        let result = match act {
            Act::Cancel => ledger::cancel(&tx, None, *id, wall).await,
            Act::Release(may_repeat) => ledger::release(&tx, None, *id, may_repeat, wall).await,
        };
        match result {
            Ok(()) => {
                tx.commit().await?;
                done += 1;
            }
            Err(Refused::Store(e)) => return Err(e.into()),
            Err(why) => refused.push((ids::encode(*id), advice(&why))),
        }
    }
    let word = match act {
        Act::Cancel => "cancelled",
        Act::Release(_) => "released",
    };
    for (id, why) in &refused {
        eprintln!("{id} is not {word}: {why}");
    }
    let refused_json: Vec<_> = refused
        .iter()
        .map(|(id, why)| json!({"id": id, "reason": why}))
        .collect();
    context.say(
        &format!("{done} {word}"),
        &json!({word: done, "refused": refused_json}),
    )?;
    if done == 0 {
        bail!("none was {word}");
    }
    Ok(match refused.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn advice(why: &Refused) -> String {
    match why {
        Refused::MayRepeat => format!("{why}; `--may-repeat` sends it all the same"),
        Refused::BeingSent => format!("{why}; try again then"),
        other => other.to_string(),
    }
}
