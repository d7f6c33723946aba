//! What flows: stopped partitions, owners that are gone, pauses, dead letters.

use super::Findings;
use crate::cli::lag::Lag;
use crate::runtime::core::NEWER;
use millrace_topics::catalogue::{GROUPS, OF_MODULES};
use std::collections::BTreeSet;
use tokio_postgres::Client;

pub(super) async fn look(
    client: &Client,
    lags: &[Lag],
    findings: &mut Findings,
) -> anyhow::Result<()> {
    stopped(client, findings).await?;
    owners(client, lags, findings).await?;
    for l in lags.iter().filter(|l| l.lost > 0) {
        findings.fail(
            "lag",
            format!(
                "the log dropped {} records of `{}` partition {} before `{}` consumed them",
                l.lost, l.topic, l.partition, l.group
            ),
            "`millrace positions set --reason …` goes on from what is left; lengthen the topic's retention",
        );
    }
    let paused = client
        .query("SELECT group_name, reason FROM paused_groups", &[])
        .await?;
    for r in &paused {
        let (group, reason): (String, String) = (r.get(0), r.get(1));
        findings.warn(
            "groups",
            format!("`{group}` is paused: {reason}"),
            &format!("`millrace groups resume {group}` goes on"),
        );
    }
    let row = client
        .query_one(
            "SELECT count(*), coalesce(min(dead_at) < now() - interval '7 days', false) FROM dead_letters WHERE status = 'open'",
            &[],
        )
        .await?;
    match (row.get::<_, i64>(0), row.get::<_, bool>(1)) {
        (0, _) => findings.ok("dead letters", "none is open"),
        (n, old) => findings.warn(
            "dead letters",
            format!(
                "{n} open{}",
                if old {
                    ", the oldest for more than a week"
                } else {
                    ""
                }
            ),
            "`millrace dlq list` shows them; replay or discard them",
        ),
    }
    Ok(())
}

async fn stopped(client: &Client, findings: &mut Findings) -> anyhow::Result<()> {
    let rows = client
        .query(
            "SELECT group_name, partition, stopped_reason FROM ownership WHERE stopped_reason IS NOT NULL ORDER BY 1, 2",
            &[],
        )
        .await?;
    for r in &rows {
        let (group, partition, reason): (String, i32, String) = (r.get(0), r.get(1), r.get(2));
        let resume = format!("`millrace positions resume --group {group} --partition {partition}`");
        let advice = match reason.starts_with(NEWER) {
            true => format!(
                "nothing is lost: upgrade the processes of group `{group}` first, then {resume}"
            ),
            false => format!(
                "mend the cause, then {resume} (or `positions set`, where the position itself is wrong)"
            ),
        };
        findings.fail(
            "partitions",
            format!("`{group}` partition {partition} is stopped: {reason}"),
            &advice,
        );
    }
    Ok(())
}

/// An owner is alive as long as its process is connected: `millrace/<role>/<host>:<pid>`.
async fn owners(client: &Client, lags: &[Lag], findings: &mut Findings) -> anyhow::Result<()> {
    let rows = client
        .query(
            "SELECT DISTINCT application_name FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'millrace/%'",
            &[],
        )
        .await?;
    let connected: Vec<String> = rows.iter().map(|r| r.get(0)).collect();
    // The name may have been cut; the process's number never is.
    let lives = |owner: &str| {
        let pid = owner.rsplit(':').next().unwrap_or(owner);
        connected
            .iter()
            .any(|name| name.rsplit(':').next() == Some(pid))
    };
    for group in GROUPS {
        let behind: i64 = lags
            .iter()
            .filter(|l| l.group == group.name)
            .map(|l| l.lag)
            .sum();
        let rows = client
            .query(
                "SELECT partition, owner FROM ownership WHERE group_name = $1 AND owner <> '' ORDER BY 1",
                &[&group.name],
            )
            .await?;
        let owned: Vec<(i32, String)> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
        let gone: BTreeSet<&str> = owned
            .iter()
            .filter(|(_, owner)| !lives(owner))
            .map(|(_, owner)| owner.as_str())
            .collect();
        let alive = owned.iter().any(|(_, owner)| lives(owner));
        match (alive, behind) {
            (true, _) if gone.is_empty() => {
                findings.ok(
                    "groups",
                    format!("`{}` is consumed, {behind} records behind", group.name),
                );
            }
            (true, _) => findings.warn(
                "groups",
                format!(
                    "`{}`: owners that are gone: {}",
                    group.name,
                    gone.into_iter().collect::<Vec<_>>().join(", ")
                ),
                "another process takes over within some seconds; if it stays so, look at its log",
            ),
            // A deployment without modules has no work for it, and needs no process of it.
            (false, 0) if owned.is_empty() && OF_MODULES.contains(&group.name) => {}
            (false, 0) => findings.warn(
                "groups",
                format!("nobody consumes `{}`; nothing waits", group.name),
                &format!(
                    "start `millrace run --roles {}`, or `millrace up`",
                    group.name
                ),
            ),
            (false, _) => findings.fail(
                "groups",
                format!(
                    "nobody consumes `{}`, and {behind} records wait",
                    group.name
                ),
                &format!(
                    "start `millrace run --roles {}`, or `millrace up`",
                    group.name
                ),
            ),
        }
    }
    Ok(())
}
