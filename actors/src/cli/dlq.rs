//! `millrace dlq list|show|replay|discard`: records that could not be processed, kept whole.

mod replay;

use super::Context;
use super::context::found;
use super::output::Listing;
use crate::postgres::types::Tz;
use anyhow::bail;
use millrace_schemas::ids::RecordId;
use serde_json::json;
use std::process::ExitCode;
use tokio_postgres::Client;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Dead letters, newest first.
    #[command(
        after_help = "Examples:\n  millrace dlq list\n  millrace dlq list --reason journey_unknown --limit 1000\n  millrace dlq list --status all"
    )]
    List(List),
    /// One dead letter with its payload.
    #[command(after_help = "Examples:\n  millrace dlq show 2-5-18230")]
    Show {
        /// Its record id: TOPIC-PARTITION-OFFSET.
        record: RecordId,
    },
    /// Give dead letters to the log once more. They carry their first coordinates and their first time of acceptance; the actor
    /// that decides them marks them replayed in its own transaction, so that no crash replays one twice.
    #[command(
        after_help = "Examples:\n  millrace dlq replay 2-5-18230 2-5-18231\n  millrace dlq replay --reason journey_unknown"
    )]
    Replay(Select),
    /// Give dead letters up: they stay listed as discarded, and their outcome stays `dead_lettered`.
    #[command(
        after_help = "Examples:\n  millrace dlq discard 2-5-18230\n  millrace dlq discard --reason undecodable"
    )]
    Discard(Select),
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// `open`, `replayed`, `discarded` or `all`.
    #[arg(long, default_value = "open", value_parser = ["open", "replayed", "discarded", "all"])]
    status: String,
    /// This reason alone.
    #[arg(long)]
    reason: Option<String>,
    /// How many at most.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    limit: i64,
}

/// Which dead letters; only open ones are touched.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct Select {
    /// Record ids: TOPIC-PARTITION-OFFSET.
    records: Vec<RecordId>,
    /// All open ones of this reason.
    #[arg(long)]
    reason: Option<String>,
    /// All open ones.
    #[arg(long)]
    all: bool,
}

impl Select {
    fn ids(&self) -> Option<Vec<uuid::Uuid>> {
        (!self.records.is_empty()).then(|| self.records.iter().map(|r| r.to_uuid()).collect())
    }
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    match args {
        Args::List(list) => {
            let client = context.client().await?;
            context.answer(&listing(&client, &list).await?)?;
        }
        Args::Show { record } => show(context, record).await?,
        Args::Replay(select) => return replay::run(context, &select).await,
        Args::Discard(select) => {
            let client = context.client().await?;
            let n = client
                .execute(
                    "UPDATE dead_letters SET status = 'discarded', changed_at = now()
                     WHERE status = 'open' AND ($1::uuid[] IS NULL OR record_id = ANY($1)) AND ($2::text IS NULL OR reason = $2)",
                    &[&select.ids(), &select.reason],
                )
                .await?;
            if n == 0 {
                bail!("no open dead letter fits; `millrace dlq list` shows them");
            }
            context.say(&format!("{n} discarded"), &json!({"discarded": n}))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn listing(client: &Client, list: &List) -> anyhow::Result<Listing> {
    let status = Some(list.status.as_str()).filter(|s| *s != "all");
    let rows = client
        .query(
            "SELECT d.record_id, t.log_name, w.slug, d.reason, d.detail, d.deaths, d.status, d.dead_at, d.accepted_at
             FROM dead_letters d JOIN topics t USING (topic_no) LEFT JOIN workspaces w USING (workspace_id)
             WHERE ($1::text IS NULL OR d.status = $1) AND ($2::text IS NULL OR d.reason = $2)
             ORDER BY d.dead_at DESC, d.record_id DESC LIMIT $3",
            &[&status, &list.reason, &list.limit],
        )
        .await?;
    let mut listing = Listing::new(&[
        "record",
        "topic",
        "workspace",
        "reason",
        "detail",
        "deaths",
        "status",
        "accepted_at",
        "dead_at",
    ]);
    for r in &rows {
        listing.row(vec![
            json!(RecordId::from_uuid(r.get(0)).to_string()),
            json!(r.get::<_, String>(1)),
            json!(r.get::<_, Option<String>>(2)),
            json!(r.get::<_, String>(3)),
            json!(r.get::<_, Option<String>>(4)),
            json!(r.get::<_, i32>(5)),
            json!(r.get::<_, String>(6)),
            json!(r.get::<_, Option<Tz>>(8).map(|t| t.0.rfc3339())),
            json!(r.get::<_, Tz>(7).0.rfc3339()),
        ]);
    }
    Ok(listing)
}

async fn show(context: &Context, record: RecordId) -> anyhow::Result<()> {
    let client = context.client().await?;
    let row = client
        .query_opt(
            "SELECT d.group_name, t.log_name, d.partition, d.\"offset\", d.key, d.payload, d.reason, d.detail, d.status,
                    d.deaths, d.accepted_at, d.dead_at, d.changed_at
             FROM dead_letters d JOIN topics t USING (topic_no) WHERE d.record_id = $1",
            &[&record.to_uuid()],
        )
        .await?;
    let r = found(row, || {
        format!("no dead letter {record}; `millrace dlq list --status all` shows them")
    })?;
    let payload: Vec<u8> = r.get(5);
    // Bytes that are no text are shown as such: they are why it died.
    let payload = match serde_json::from_slice::<serde_json::Value>(&payload) {
        Ok(value) => value,
        Err(_) => json!(payload.escape_ascii().to_string()),
    };
    context.answer_json(&json!({
        "record": record.to_string(),
        "group": r.get::<_, String>(0),
        "topic": r.get::<_, String>(1),
        "partition": r.get::<_, i32>(2),
        "offset": r.get::<_, i64>(3),
        "key": r.get::<_, Vec<u8>>(4).escape_ascii().to_string(),
        "reason": r.get::<_, String>(6),
        "detail": r.get::<_, Option<String>>(7),
        "status": r.get::<_, String>(8),
        "deaths": r.get::<_, i32>(9),
        "accepted_at": r.get::<_, Option<Tz>>(10).map(|t| t.0.rfc3339()),
        "dead_at": r.get::<_, Tz>(11).0.rfc3339(),
        "changed_at": r.get::<_, Option<Tz>>(12).map(|t| t.0.rfc3339()),
        "payload": payload,
    }))
}
