//! `millrace positions list|set|resume`: where each partition of each group stands.

use super::Context;
use super::groups::known;
use super::output::Listing;
use crate::postgres::types::Tz;
use anyhow::bail;
use millrace_schemas::time::Micros;
use serde_json::json;
use std::process::ExitCode;
use tokio_postgres::Client;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Positions, owners, and what stopped.
    #[command(
        after_help = "Examples:\n  millrace positions list\n  millrace positions list --group attribution --stopped"
    )]
    List {
        /// One group alone.
        #[arg(long)]
        group: Option<String>,
        /// Stopped partitions alone.
        #[arg(long)]
        stopped: bool,
    },
    /// Move the position of one topic of one partition, and let the partition go on if it was stopped. The move is written
    /// down with its reason. Forward skips records for good; back lets records be decided again (conversions stay single,
    /// visits and clicks are listed twice), and needs `--again`.
    #[command(after_help = "Examples:\n  \
        millrace positions set --group attribution --partition 3 --topic postbacks --offset 18230 --reason 'retention passed the position'")]
    Set(Set),
    /// Let a stopped partition go on from where it stands.
    #[command(
        after_help = "Examples:\n  millrace positions resume --group attribution --partition 3"
    )]
    Resume {
        /// The group.
        #[arg(long)]
        group: String,
        /// The partition.
        #[arg(long)]
        partition: i32,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Set {
    /// The group.
    #[arg(long)]
    group: String,
    /// The partition.
    #[arg(long)]
    partition: i32,
    /// The topic.
    #[arg(long)]
    topic: String,
    /// The next offset to consume.
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..))]
    offset: i64,
    /// Why; kept in `position_changes`.
    #[arg(long)]
    reason: String,
    /// Allow a move back.
    #[arg(long)]
    again: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let mut client = context.client().await?;
    match args {
        Args::List { group, stopped } => list(context, &client, group.as_deref(), stopped).await?,
        Args::Set(set) => {
            let (from, epoch) = move_to(&mut client, &set).await?;
            context.say(
                &format!(
                    "`{}` of `{}` partition {}: {} → {}; its owner starts from there within some seconds",
                    set.topic,
                    set.group,
                    set.partition,
                    from.map_or("nothing".to_owned(), |f| f.to_string()),
                    set.offset
                ),
                &json!({"group": set.group, "partition": set.partition, "topic": set.topic, "from": from,
                        "to": set.offset, "epoch": epoch}),
            )?;
        }
        Args::Resume { group, partition } => {
            let group = known(&group)?;
            let row = client
                .query_opt(
                    "WITH was AS (SELECT stopped_reason FROM ownership WHERE group_name = $1 AND partition = $2 FOR UPDATE)
                     UPDATE ownership o SET stopped_reason = NULL, stopped_at = NULL FROM was
                     WHERE o.group_name = $1 AND o.partition = $2 RETURNING was.stopped_reason",
                    &[&group, &partition],
                )
                .await?;
            let row = super::context::found(row, || {
                format!(
                    "`{group}` has never had a partition {partition}; `millrace positions list` shows them"
                )
            })?;
            let was: Option<String> = row.get(0);
            let text = match &was {
                Some(reason) => {
                    format!("`{group}` partition {partition} goes on; it was stopped: {reason}")
                }
                None => format!("`{group}` partition {partition} was not stopped"),
            };
            context.say(
                &text,
                &json!({"group": group, "partition": partition, "was_stopped": was}),
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(
    context: &Context,
    client: &Client,
    group: Option<&str>,
    stopped: bool,
) -> anyhow::Result<()> {
    let group = group.map(known).transpose()?;
    let rows = client
        .query(
            "SELECT o.group_name, o.partition, t.log_name, p.next_offset, p.consumed, p.replayed, p.stream_time, o.epoch,
                    o.owner, o.claimed_at, o.stopped_reason
             FROM ownership o LEFT JOIN positions p USING (group_name, partition) LEFT JOIN topics t USING (topic_no)
             WHERE ($1::text IS NULL OR o.group_name = $1) AND (NOT $2 OR o.stopped_reason IS NOT NULL)
             ORDER BY o.group_name, o.partition, t.log_name",
            &[&group, &stopped],
        )
        .await?;
    let mut listing = Listing::new(&[
        "group",
        "partition",
        "topic",
        "next_offset",
        "consumed",
        "replayed",
        "stream_time",
        "epoch",
        "owner",
        "claimed_at",
        "stopped",
    ]);
    for r in &rows {
        let stream: Option<i64> = r.get(6);
        listing.row(vec![
            json!(r.get::<_, String>(0)),
            json!(r.get::<_, i32>(1)),
            json!(r.get::<_, Option<String>>(2)),
            json!(r.get::<_, Option<i64>>(3)),
            json!(r.get::<_, Option<i64>>(4)),
            json!(r.get::<_, Option<i64>>(5)),
            json!(stream.filter(|s| *s > 0).map(|s| Micros(s).rfc3339())),
            json!(r.get::<_, i64>(7)),
            json!(r.get::<_, String>(8)),
            json!(r.get::<_, Option<Tz>>(9).map(|t| t.0.rfc3339())),
            json!(r.get::<_, Option<String>>(10)),
        ]);
    }
    context.answer(&listing)
}

/// Fences whoever runs the partition (its epoch moves, and nobody owns it), so that no open batch can move the position back;
/// its host sees that within a second and claims it anew.
async fn move_to(client: &mut Client, set: &Set) -> anyhow::Result<(Option<i64>, i64)> {
    let group = known(&set.group)?;
    if set.reason.trim().is_empty() {
        bail!("--reason must say why");
    }
    let tx = client.transaction().await?;
    let topic = tx
        .query_opt(
            "SELECT topic_no, partitions FROM topics WHERE name = $1 AND retired_at IS NULL",
            &[&set.topic],
        )
        .await?;
    let topic = super::context::found(topic, || {
        format!(
            "no topic `{}`; `millrace topics list` shows them",
            set.topic
        )
    })?;
    let (topic_no, partitions): (i32, i32) = (topic.get(0), topic.get(1));
    if !(0..partitions).contains(&set.partition) {
        bail!("`{}` has partitions 0 to {}", set.topic, partitions - 1);
    }
    tx.execute(
        "INSERT INTO ownership (group_name, partition) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        &[&group, &set.partition],
    )
    .await?;
    let epoch: i64 = tx
        .query_one(
            "UPDATE ownership SET epoch = epoch + 1, owner = '', stopped_reason = NULL, stopped_at = NULL
             WHERE group_name = $1 AND partition = $2 RETURNING epoch",
            &[&group, &set.partition],
        )
        .await?
        .get(0);
    let old: Option<i64> = tx
        .query_opt(
            "SELECT next_offset FROM positions WHERE group_name = $1 AND partition = $2 AND topic_no = $3 FOR UPDATE",
            &[&group, &set.partition, &topic_no],
        )
        .await?
        .map(|r| r.get(0));
    if old.is_some_and(|old| set.offset < old) && !set.again {
        bail!(
            "{} lies before the stored position {}: records between would be decided again; say --again if that is meant",
            set.offset,
            old.unwrap_or_default()
        );
    }
    tx.execute(
        "INSERT INTO positions (group_name, partition, topic_no, next_offset, first_offset) VALUES ($1, $2, $3, $4, $4)
         ON CONFLICT (group_name, partition, topic_no) DO UPDATE SET next_offset = excluded.next_offset",
        &[&group, &set.partition, &topic_no, &set.offset],
    )
    .await?;
    tx.execute(
        "INSERT INTO position_changes (group_name, partition, topic_no, old_offset, new_offset, reason)
         VALUES ($1, $2, $3, $4, $5, $6)",
        &[&group, &set.partition, &topic_no, &old, &set.offset, &set.reason],
    )
    .await?;
    tx.commit().await?;
    Ok((old, epoch))
}
