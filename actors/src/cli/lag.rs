//! `millrace lag`: how far each group is behind the log.

use super::Context;
use super::log::{Ends, Log};
use super::output::Listing;
use millrace_topics::catalogue::{self, GROUPS};
use millrace_topics::contract::TopicRef;
use serde_json::json;
use std::collections::HashMap;
use std::process::ExitCode;
use tokio_postgres::Client;

/// Records that each group has not consumed, by the stored positions (the only ones that count; the log's own committed
/// offsets are a report).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  millrace lag\n  millrace lag --partitions\n  millrace --json lag"
)]
pub(super) struct Args {
    /// One row a partition instead of one a topic.
    #[arg(long)]
    partitions: bool,
}

/// What one partition of one topic has before it.
#[derive(Clone, Debug)]
pub(super) struct Lag {
    pub group: &'static str,
    pub topic: String,
    pub partition: i32,
    pub position: i64,
    pub end: i64,
    pub lag: i64,
    /// Records the log dropped before they were consumed.
    pub lost: i64,
    pub stopped: Option<String>,
}

/// Positions against the log's ends, for every group.
pub(super) async fn measure(
    client: &Client,
    log: &Log,
    topics: &[TopicRef],
) -> anyhow::Result<Vec<Lag>> {
    // Ends first: what is consumed in between makes the lag smaller, never negative sense.
    let ends: HashMap<(i32, i32), Ends> = log
        .ends(client, topics)
        .await?
        .into_iter()
        .map(|e| ((e.topic_no, e.partition), e))
        .collect();
    let mut all = Vec::new();
    for group in GROUPS {
        let rows = client
            .query(
                "SELECT partition, topic_no, next_offset FROM positions WHERE group_name = $1",
                &[&group.name],
            )
            .await?;
        let positions: HashMap<(i32, i32), i64> = rows
            .iter()
            .map(|r| ((r.get(1), r.get(0)), r.get(2)))
            .collect();
        let rows = client
            .query(
                "SELECT partition, stopped_reason FROM ownership WHERE group_name = $1 AND stopped_reason IS NOT NULL",
                &[&group.name],
            )
            .await?;
        let stopped: HashMap<i32, String> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
        for topic in topics
            .iter()
            .filter(|t| group.topics.contains(&t.name.as_str()))
        {
            for partition in 0..topic.partitions {
                let at = (topic.no, partition);
                let position = positions.get(&at).copied().unwrap_or(0);
                let (low, high) = ends.get(&at).map_or((0, 0), |e| (e.low, e.high));
                all.push(Lag {
                    group: group.name,
                    topic: topic.name.clone(),
                    partition,
                    position,
                    end: high,
                    lag: (high - position.max(low)).max(0),
                    lost: (low - position).max(0),
                    stopped: stopped.get(&partition).cloned(),
                });
            }
        }
    }
    Ok(all)
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let client = context.client().await?;
    let log = Log::of(context.settings(), &context.database()?)?;
    super::log::belong(&client, log.backend()).await?;
    let topics = catalogue::load(&client).await?;
    let all = measure(&client, &log, &topics).await?;
    if args.partitions {
        let mut listing = Listing::new(&[
            "group",
            "topic",
            "partition",
            "position",
            "end",
            "lag",
            "lost",
            "stopped",
        ]);
        for l in &all {
            listing.row(vec![
                json!(l.group),
                json!(l.topic),
                json!(l.partition),
                json!(l.position),
                json!(l.end),
                json!(l.lag),
                json!(l.lost),
                json!(l.stopped),
            ]);
        }
        context.answer(&listing)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut listing = Listing::new(&[
        "group",
        "topic",
        "partitions",
        "lag",
        "most_behind",
        "lost",
        "stopped",
    ]);
    for group in GROUPS {
        for topic in group.topics {
            let of: Vec<&Lag> = all
                .iter()
                .filter(|l| l.group == group.name && l.topic == *topic)
                .collect();
            if of.is_empty() {
                continue;
            }
            let worst = of.iter().max_by_key(|l| l.lag).filter(|l| l.lag > 0);
            let stopped: Vec<i32> = of
                .iter()
                .filter(|l| l.stopped.is_some())
                .map(|l| l.partition)
                .collect();
            listing.row(vec![
                json!(group.name),
                json!(topic),
                json!(of.len()),
                json!(of.iter().map(|l| l.lag).sum::<i64>()),
                json!(worst.map(|l| l.partition)),
                json!(of.iter().map(|l| l.lost).sum::<i64>()),
                json!(stopped),
            ]);
        }
    }
    context.answer(&listing)?;
    Ok(ExitCode::SUCCESS)
}
