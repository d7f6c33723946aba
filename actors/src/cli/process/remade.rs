//! Watches that the topics are the ones that the catalogue knows. One that was deleted and made anew has offsets of its own: the
//! positions of its groups mean nothing in it, so their partitions stop, red, until a person has said what to do.

use crate::cli::log::{self, Log};
use crate::postgres::pool::Database;
use millrace_topics::catalogue::GROUPS;
use millrace_topics::contract::TopicRef;
use std::time::Duration;
use tokio_postgres::Client;

/// How often it is asked.
const EVERY: Duration = Duration::from_secs(10);

/// Fences whoever owns a partition, and lets nobody own it again.
const STOP: &str =
    "UPDATE ownership SET stopped_reason = $2, stopped_at = now(), epoch = epoch + 1, owner = ''
     WHERE group_name = $1 AND stopped_reason IS NULL";

/// Looks again and again, until dropped.
pub(super) async fn watch(database: Database, log: Log, topics: Vec<TopicRef>) {
    let mut held: Option<Client> = None;
    loop {
        tokio::time::sleep(EVERY).await;
        let client = match held.take().filter(|c| !c.is_closed()) {
            Some(client) => Some(client),
            None => database.single().await.ok().map(|(client, _)| client),
        };
        if let Some(client) = client {
            match look(&client, &log, &topics).await {
                Ok(()) => held = Some(client),
                Err(error) => tracing::debug!(%error, "the topics could not be looked at"),
            }
        }
    }
}

async fn look(client: &Client, log: &Log, topics: &[TopicRef]) -> anyhow::Result<()> {
    for topic in topics {
        if log.remade(client, topic).await?.is_none() {
            continue;
        }
        let why = log::remade(topic);
        for group in GROUPS.iter().filter(|g| g.topics.contains(&&*topic.name)) {
            let stopped = client.execute(STOP, &[&group.name, &why]).await?;
            if stopped > 0 {
                tracing::error!(group = group.name, stopped, %why, "partitions stopped");
            }
        }
    }
    Ok(())
}
