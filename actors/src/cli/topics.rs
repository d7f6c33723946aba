//! `millrace topics list|create|check|grow|switch|adopt`.
//!
//! Growing makes a new generation of every topic of a group rather than more partitions of the old ones: the key of a record
//! decides its partition, so old records would lie where the new count does not look for them. State needs no move: it is
//! keyed by key, not by partition. The same step changes the backend.

mod adopt;

use super::Context;
use super::log::{self, Log};
use super::output::Listing;
use crate::settings::Backend;
use anyhow::bail;
use millrace_topics::catalogue::{self, GROUPS};
use millrace_topics::contract::TopicRef;
use serde_json::json;
use std::process::ExitCode;
use tokio_postgres::Client;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// The live topics and what the log says of them.
    #[command(after_help = "Examples:\n  millrace topics list")]
    List,
    /// Make every topic that is missing (with `log.partitions` partitions, or as many as its group has).
    #[command(after_help = "Examples:\n  millrace topics create\n  \
        MILLRACE_LOG__BACKEND=kafka MILLRACE_LOG__BROKERS=kafka:9092 MILLRACE_LOG__REPLICATION=3 millrace topics create")]
    Create,
    /// Are all topics there, with equal counts in a group, in the log as in the catalogue? Exit code 1 if not.
    #[command(after_help = "Examples:\n  millrace topics check")]
    Check,
    /// Give the topics more partitions, as a new generation. Stop every process first (doors, then, once `millrace lag` says
    /// 0, the rest): nothing may be under way.
    #[command(after_help = "Examples:\n  millrace topics grow --partitions 32")]
    Grow {
        /// Partitions of each topic from now on; never fewer than now.
        #[arg(long, value_parser = clap::value_parser!(i32).range(1..=4096))]
        partitions: i32,
    },
    /// Move to the log that the settings name now, as a new generation of every topic. Conditions as for `grow`.
    #[command(
        after_help = "Examples:\n  MILLRACE_LOG__BACKEND=kafka MILLRACE_LOG__BROKERS=kafka:9092 millrace topics switch"
    )]
    Switch,
    /// Take topics as they are now that were deleted and made anew in Kafka behind our back, and read them from their beginning,
    /// each as a new generation. What was unread in the former ones is lost. Stop every process first.
    #[command(
        after_help = "Examples:\n  millrace topics adopt --reason 'the cluster was set up again on Monday'"
    )]
    Adopt {
        /// Why; kept in `position_changes`.
        #[arg(long)]
        reason: String,
    },
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let database = context.database()?;
    let settings = context.settings();
    let mut client = context.client().await?;
    match args {
        Args::List => {
            let log = current_log(context, &client).await?;
            list(context, &client, &log).await?;
        }
        Args::Create => {
            let log = Log::of(settings, &database)?;
            let topics = log::create_topics(&client, &log, &settings.log, GROUPS).await?;
            let text: Vec<String> = topics
                .iter()
                .map(|t| format!("{} ({} partitions)", t.log_name, t.partitions))
                .collect();
            context.say(
                &format!("in {}: {}", log.name(), text.join(", ")),
                &describe(&topics),
            )?;
        }
        Args::Check => {
            let log = Log::of(settings, &database)?;
            let topics = log::live_topics(&client, &log).await?;
            for topic in &topics {
                log.agrees(&client, topic).await?;
            }
            context.say(
                &format!(
                    "{} topics are as they should be in {}",
                    topics.len(),
                    log.name()
                ),
                &describe(&topics),
            )?;
        }
        Args::Grow { partitions } => {
            let log = Log::of(settings, &database)?;
            log::belong(&client, log.backend()).await?;
            let topics = renew(context, &mut client, &log, &log, Some(partitions)).await?;
            context.say(
                &format!("every topic has {partitions} partitions now; start the processes again"),
                &describe(&topics),
            )?;
        }
        Args::Switch => {
            let new = Log::of(settings, &database)?;
            let old = current_log(context, &client).await?;
            if old.backend() == new.backend() {
                bail!("the topics are in {} already", new.name());
            }
            let topics = renew(context, &mut client, &old, &new, None).await?;
            context.say(
                &format!(
                    "the topics are in {} now; start the processes again",
                    new.name()
                ),
                &describe(&topics),
            )?;
        }
        Args::Adopt { reason } => {
            let log = Log::of(settings, &database)?;
            log::belong(&client, log.backend()).await?;
            let adopted = adopt::adopt(&mut client, &log, &reason).await?;
            context.say(
                &format!(
                    "{} topics are read from their beginning; start the processes again",
                    adopted.len()
                ),
                &describe(&adopted),
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(topics: &[TopicRef]) -> serde_json::Value {
    topics
        .iter()
        .map(|t| json!({"topic": t.name, "log_name": t.log_name, "topic_no": t.no, "partitions": t.partitions}))
        .collect()
}

/// The log in which the live topics were made; the configured one where there are none.
async fn current_log(context: &Context, client: &Client) -> anyhow::Result<Log> {
    let row = client
        .query_opt(
            "SELECT log_id FROM topics WHERE retired_at IS NULL AND log_id IS NOT NULL LIMIT 1",
            &[],
        )
        .await?;
    let backend = match row.map(|r| r.get::<_, String>(0)).as_deref() {
        Some("kafka") => Backend::Kafka,
        Some(_) => Backend::Postgres,
        None => context.settings().log.backend,
    };
    Log::on(backend, context.settings(), &context.database()?)
}

async fn list(context: &Context, client: &Client, log: &Log) -> anyhow::Result<()> {
    let topics = catalogue::load(client).await?;
    let ends = log.ends(client, &topics).await?;
    let mut listing = Listing::new(&[
        "topic",
        "log_name",
        "topic_no",
        "group",
        "partitions",
        "kept",
        "written",
    ]);
    for t in &topics {
        let group = GROUPS.iter().find(|g| g.topics.contains(&t.name.as_str()));
        let of = ends.iter().filter(|e| e.topic_no == t.no);
        let (kept, written) = of.fold((0, 0), |(k, w), e| (k + e.high - e.low, w + e.high));
        listing.row(vec![
            json!(t.name),
            json!(t.log_name),
            json!(t.no),
            json!(group.map(|g| g.name)),
            json!(t.partitions),
            json!(kept),
            json!(written),
        ]);
    }
    context.answer(&listing)
}

/// Retires every live topic and registers its next generation in `new`, in one transaction, once nothing is under way in `old`.
async fn renew(
    context: &Context,
    client: &mut Client,
    old: &Log,
    new: &Log,
    partitions: Option<i32>,
) -> anyhow::Result<Vec<TopicRef>> {
    let settings = &context.settings().log;
    let before = catalogue::load(client).await?;
    if before.is_empty() {
        bail!(
            "there are no topics yet; `millrace topics create` makes them with log.partitions partitions"
        );
    }
    if let Some(count) = partitions {
        if let Some(t) = before.iter().find(|t| t.partitions > count) {
            bail!(
                "`{}` has {} partitions; counts never shrink",
                t.name,
                t.partitions
            );
        }
        if before.iter().all(|t| t.partitions == count) {
            bail!("every topic has {count} partitions already");
        }
    }
    quiet(client).await?;
    drained(client, old, &before).await?;
    let tx = client.transaction().await?;
    // A second `grow` waits here and then finds its work done.
    tx.batch_execute("LOCK TABLE topics IN EXCLUSIVE MODE")
        .await?;
    let mut made = Vec::new();
    for topic in &before {
        let retired = tx
            .execute(
                "UPDATE topics SET retired_at = now() WHERE topic_no = $1 AND retired_at IS NULL",
                &[&topic.no],
            )
            .await?;
        if retired == 0 {
            bail!("somebody else has just changed the topics; look at `millrace topics list`");
        }
        let count = partitions.unwrap_or(topic.partitions);
        let next = catalogue::register(&tx, &topic.name, &settings.prefix, count).await?;
        tx.execute(
            "UPDATE topics SET log_id = $2 WHERE topic_no = $1",
            &[&next.no, &log::word(new.backend())],
        )
        .await?;
        made.push(next);
    }
    // In Kafka the new topics come first: if the transaction fails, empty topics are left over and found by the next try.
    if matches!(new, Log::Kafka(_)) {
        let (other, _driver) = context.database()?.single().await?;
        for topic in &made {
            new.create(&other, topic, settings.replication).await?;
        }
    }
    tx.commit().await?;
    if matches!(new, Log::Postgres(_)) {
        for topic in &made {
            new.create(client, topic, settings.replication).await?;
        }
    }
    let topics = log::live_topics(client, new).await?;
    new.remember(client, &topics).await?;
    Ok(topics)
}

/// Fails while another process of Millrace is connected to the database.
async fn quiet(client: &Client) -> anyhow::Result<()> {
    let rows = client
        .query(
            "SELECT DISTINCT application_name FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'millrace/%'
               AND application_name NOT LIKE '%:' || $1 ORDER BY 1",
            &[&std::process::id().to_string()],
        )
        .await?;
    if rows.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = rows.iter().map(|r| r.get(0)).collect();
    bail!(
        "these are still connected: {}; stop the doors, wait until `millrace lag` says 0, stop the rest",
        names.join(", ")
    )
}

/// Fails unless every group has consumed all of its topics and relayed all of its emits.
async fn drained(client: &Client, log: &Log, topics: &[TopicRef]) -> anyhow::Result<()> {
    let lag = super::lag::measure(client, log, topics).await?;
    let behind: i64 = lag.iter().map(|l| l.lag).sum();
    if behind > 0 {
        bail!(
            "{behind} records are not consumed yet; start `millrace run` without the doors until `millrace lag` says 0"
        );
    }
    let waiting: i64 = client
        .query_one("SELECT count(*) FROM emits", &[])
        .await?
        .get(0);
    if waiting > 0 {
        bail!(
            "{waiting} emitted records are not relayed yet; start `millrace run` without the doors until they are"
        );
    }
    Ok(())
}
