//! `millrace rules`: which there are, and why somebody was told, or was not.

use super::Context;
use super::context::found;
use super::output::Listing;
use super::process::seeding;
use crate::api::workspaces;
use crate::directory::rules::{Rule, SavedSegment};
use crate::engagement::{explain, undecided};
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
    /// The rules of a workspace, in rule order: whom they tell of what, whether they are switched on, and why one of them sleeps.
    #[command(after_help = "Examples:\n  \
        millrace rules list --workspace acme\n  \
        millrace rules list --workspace acme --enabled\n  \
        millrace --json rules list --workspace acme --trigger MODULE.THE.TRIGGER")]
    List(List),
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// The workspace's id.
    #[arg(long)]
    workspace: String,
    /// Those of this trigger alone.
    #[arg(long)]
    trigger: Option<String>,
    /// Those that are switched on alone.
    #[arg(long)]
    enabled: bool,
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
    match args {
        Args::Explain(args) => explain(context, args).await,
        Args::List(args) => list(context, args).await,
    }
}

async fn explain(context: &Context, args: Explain) -> anyhow::Result<ExitCode> {
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
    let why = match &event {
        Some(_) => String::new(),
        None => undecided::why(&client, ws, &args.event).await?,
    };
    let (ws, event) = found(event, || {
        let place = args.workspace.as_ref();
        let place = place.map_or_else(String::new, |slug| format!(" in `{slug}`"));
        format!("no event `{}`{place}: {why}", args.event)
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

/// Rules of the workspace `$1`, in rule order; of the trigger `$2` alone where one is named, enabled ones alone where `$3` says so.
const RULES: &str = "
SELECT r.rule_id, r.trigger_id, r.name, r.enabled, r.channels, r.audience, r.segment_id, s.expression, r.delay_s, r.cooldown_s,
       r.hourly_cap, r.cancel_on
FROM rules r LEFT JOIN segments s ON s.segment_id = r.segment_id AND s.workspace_id = r.workspace_id
WHERE r.workspace_id = $1 AND ($2::text IS NULL OR r.trigger_id = $2) AND (r.enabled OR NOT $3)
ORDER BY r.position";

async fn list(context: &Context, args: List) -> anyhow::Result<ExitCode> {
    let modules = seeding::modules(context.settings())?;
    let client = context.client().await?;
    let workspace = workspaces::by_slug(&client, &args.workspace)
        .await
        .with_context(|| format!("no workspace `{}`", args.workspace))?;
    let rows = client
        .query(
            RULES,
            &[&workspace.workspace_id, &args.trigger, &args.enabled],
        )
        .await?;
    let mut listing = Listing::new(&[
        "rule",
        "trigger",
        "enabled",
        "channels",
        "audience",
        "delay_s",
        "cooldown_s",
        "cap",
        "cancel_on",
        "dormant",
        "name",
    ]);
    for row in &rows {
        let rule = Rule {
            trigger_id: row.get(1),
            channels: row.get(4),
            audience: row.get(5),
            segment_id: row.get(6),
            cancel_on: row.get(11),
            ..Rule::default()
        };
        let saved = rule.segment_id.clone().zip(row.get(7));
        let saved = saved.map(|(id, expression)| SavedSegment { id, expression });
        let sleeps = rule.dormancy(&modules, saved.as_ref());
        let sleeps: Vec<String> = sleeps
            .into_iter()
            .map(|why| format!("{} {}", why.code, why.id))
            .collect();
        // Where the rule names nobody, whom its trigger is for.
        let own = || modules.trigger(&rule.trigger_id).map(|t| t.audience.word());
        let audience = rule.segment_id.as_deref().or(rule.audience.as_deref());
        listing.row(vec![
            json!(row.get::<_, &str>(0)),
            json!(rule.trigger_id),
            json!(row.get::<_, bool>(3)),
            json!(rule.channels),
            json!(audience.or_else(own)),
            json!(row.get::<_, i64>(8)),
            json!(row.get::<_, i64>(9)),
            json!(row.get::<_, i32>(10)),
            json!(rule.cancel_on),
            json!(sleeps),
            json!(row.get::<_, &str>(2)),
        ]);
    }
    context.answer(&listing)?;
    Ok(ExitCode::SUCCESS)
}
