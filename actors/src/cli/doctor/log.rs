//! The log and its topics.

use super::Findings;
use crate::cli::Context;
use crate::cli::lag::{self, Lag};
use crate::cli::log::{self, Log};
use crate::postgres::pool::Database;
use millrace_topics::catalogue::{self, GROUPS};
use millrace_topics::contract::TopicRef;
use std::time::Duration;
use tokio_postgres::Client;

/// How long the log may take to answer. The administrator of Kafka would go on trying for longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Topics, and how far each group is behind; empty where that cannot be asked.
pub(super) async fn look(
    context: &Context,
    database: &Database,
    client: &Client,
    findings: &mut Findings,
) -> Vec<Lag> {
    let log = match Log::of(context.settings(), database) {
        Ok(log) => log,
        Err(e) => {
            findings.fail(
                "log",
                format!("{e:#}"),
                "name the brokers: MILLRACE_LOG__BROKERS=host:9092",
            );
            return Vec::new();
        }
    };
    let topics = match topics(client, &log, findings).await {
        Ok(topics) => topics,
        Err(e) => {
            findings.broken("topics", &e);
            return Vec::new();
        }
    };
    let mut good = !topics.is_empty();
    let mut reached = false;
    for topic in &topics {
        match tokio::time::timeout(PATIENCE, log.agrees(client, topic)).await {
            Ok(Ok(())) => reached = true,
            Ok(Err(e)) => {
                good = false;
                findings.fail(
                    "topics",
                    format!("{e:#}"),
                    "`millrace topics create` makes what is missing; a count is mended by making the topics anew (`millrace topics grow`)",
                );
            }
            Err(_) => {
                findings.fail(
                    "log",
                    format!("{} does not answer within {} s", log.name(), PATIENCE.as_secs()),
                    "are the brokers up, is log.brokers right, do log.properties name the right security.protocol?",
                );
                return Vec::new();
            }
        }
    }
    if reached {
        findings.ok("log", format!("{} answers", log.name()));
    }
    if !good {
        return Vec::new();
    }
    let text: Vec<String> = topics
        .iter()
        .map(|t| format!("{} {}", t.log_name, t.partitions))
        .collect();
    findings.ok(
        "topics",
        format!("all there, of equal counts: {}", text.join(", ")),
    );
    match tokio::time::timeout(PATIENCE, lag::measure(client, &log, &topics)).await {
        Ok(Ok(lags)) => lags,
        Ok(Err(e)) => {
            findings.broken("log", &e);
            Vec::new()
        }
        Err(_) => {
            findings.fail(
                "log",
                "its ends cannot be read in time",
                "is every broker up?",
            );
            Vec::new()
        }
    }
}

/// The catalogue's topics, if they fit the settings and each other; empty if not.
async fn topics(
    client: &Client,
    log: &Log,
    findings: &mut Findings,
) -> anyhow::Result<Vec<TopicRef>> {
    if let Err(e) = log::belong(client, log.backend()).await {
        findings.fail(
            "topics",
            format!("{e:#}"),
            "set log.backend back, or run `millrace topics switch`",
        );
        return Ok(Vec::new());
    }
    let topics = catalogue::load(client).await?;
    for group in GROUPS {
        if let Err(e) = catalogue::group_topics(&topics, group) {
            findings.fail(
                "topics",
                e.to_string(),
                "`millrace topics create` makes what is missing, `millrace topics grow` makes counts equal",
            );
            return Ok(Vec::new());
        }
    }
    Ok(topics)
}
