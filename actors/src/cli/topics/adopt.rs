//! Topics that were deleted and made anew behind the catalogue, taken as they are now.
//!
//! Each becomes a new generation under the name that it has in the log: offsets begin anew, and a record's id must never be that of
//! another one. The former generation keeps its number, its outcomes and its dead letters; its name is given up.

use super::quiet;
use crate::cli::log::{Log, REMADE, word};
use anyhow::bail;
use millrace_topics::catalogue;
use millrace_topics::contract::TopicRef;
use tokio_postgres::Client;

/// Adopts every such topic; answers their new generations.
pub(super) async fn adopt(
    client: &mut Client,
    log: &Log,
    reason: &str,
) -> anyhow::Result<Vec<TopicRef>> {
    if reason.trim().is_empty() {
        bail!("--reason must say why");
    }
    quiet(client).await?;
    let mut others = Vec::new();
    for topic in catalogue::load(client).await? {
        let Some(id) = log.remade(client, &topic).await? else {
            continue;
        };
        match log.partitions(client, &topic).await? {
            Some(n) if n == topic.partitions => others.push((topic, id)),
            n => bail!(
                "topic `{}` has {} partitions now, and had {}; make it with as many first",
                topic.log_name,
                n.unwrap_or(0),
                topic.partitions
            ),
        }
    }
    if others.is_empty() {
        bail!("every topic is the one that the catalogue knows; `millrace topics check` says more");
    }
    let tx = client.transaction().await?;
    let mut adopted = Vec::new();
    for (old, id) in &others {
        tx.execute(
            "UPDATE topics SET retired_at = now(), log_name = log_name || ' (gone, ' || topic_no || ')' WHERE topic_no = $1",
            &[&old.no],
        )
        .await?;
        let no: i32 = tx
            .query_one(
                "INSERT INTO topics (name, generation, log_name, partitions, log_id, topic_id)
                 SELECT $1, max(generation) + 1, $2, $3, $4, $5 FROM topics WHERE name = $1 RETURNING topic_no",
                &[&old.name, &old.log_name, &old.partitions, &word(log.backend()), &id],
            )
            .await?
            .get(0);
        tx.execute(
            "INSERT INTO position_changes (group_name, partition, topic_no, old_offset, new_offset, reason)
             SELECT group_name, partition, $2, next_offset, 0, $3 FROM positions WHERE topic_no = $1",
            &[&old.no, &no, &reason],
        )
        .await?;
        adopted.push(TopicRef { no, ..old.clone() });
    }
    tx.execute(
        "UPDATE ownership SET stopped_reason = NULL, stopped_at = NULL WHERE strpos(stopped_reason, $1) > 0",
        &[&REMADE],
    )
    .await?;
    tx.commit().await?;
    Ok(adopted)
}
