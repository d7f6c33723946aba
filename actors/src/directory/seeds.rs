//! The rules that a module brings: each group once a workspace, all of them disabled. The claim on the group comes first, so
//! that of two processes one seeds, and a rule that an operator has deleted does not come back.

use crate::api::faults::ChangeError;
use crate::modules::{Modules, RuleGroup, SeededRule};
use millrace_schemas::ids;
use millrace_schemas::time::Micros;
use serde_json::{Map, Value};
use tokio_postgres::Transaction;

/// Seeds what no workspace, or (`only`) this workspace, has had yet; answers how many rules. Nothing where no module is enabled.
///
/// # Errors
/// The store failed, or no random bytes.
pub async fn seed(
    tx: &Transaction<'_>,
    modules: &Modules,
    only: Option<i32>,
    now: Micros,
) -> Result<usize, ChangeError> {
    let groups: Vec<&RuleGroup> = modules.iter().flat_map(|m| &m.rule_groups).collect();
    if modules.is_empty() || groups.is_empty() {
        return Ok(0);
    }
    let ids: Vec<&str> = groups.iter().map(|g| &*g.id).collect();
    let claimed = tx
        .query(
            "INSERT INTO seeded_rule_groups (workspace_id, group_id)
             SELECT w.workspace_id, g.id FROM workspaces w CROSS JOIN unnest($1::text[]) AS g(id)
             WHERE w.workspace_id = $2 OR ($2::int4 IS NULL AND w.status = 'active')
             ORDER BY 1, 2 ON CONFLICT DO NOTHING RETURNING workspace_id, group_id",
            &[&ids, &only],
        )
        .await?;
    let mut rows = Vec::new();
    for row in &claimed {
        let (workspace, id): (i32, &str) = (row.get(0), row.get(1));
        let group = groups.iter().find(|g| *g.id == *id);
        rows.extend(
            group
                .into_iter()
                .flat_map(|g| &g.rules)
                .map(|rule| (workspace, id, rule)),
        );
    }
    insert(tx, &rows, now).await?;
    Ok(rows.len())
}

async fn insert(
    tx: &Transaction<'_>,
    rows: &[(i32, &str, &SeededRule)],
    now: Micros,
) -> Result<(), ChangeError> {
    // One after the other: a group has a handful, once in a workspace's life, and their order is their position.
    for (workspace, group, rule) in rows {
        let id = format!("ru_{}", ids::encode(ids::mint(now)?));
        let channels: Vec<&str> = rule.channels.iter().map(|c| c.word()).collect();
        let cancel_on: Vec<&str> = rule.cancel_on.iter().map(|c| &**c).collect();
        let keys: Map<String, Value> = rule
            .template_keys
            .iter()
            .map(|(slot, key)| (slot.to_string(), Value::from(&**key)))
            .collect();
        let cap = i32::try_from(rule.hourly_cap).unwrap_or(i32::MAX);
        tx.execute(
            "INSERT INTO rules (rule_id, workspace_id, trigger_id, name, enabled, channels, conditions, audience, delay_s,
                    cooldown_s, hourly_cap, cancel_on, template_keys, seeded_from)
             VALUES ($1, $2, $3, $4, false, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
            &[
                &id,
                workspace,
                &&*rule.trigger,
                &&*rule.label,
                &channels,
                &rule.conditions,
                &rule.audience.word(),
                &i64::from(rule.delay_s),
                &i64::from(rule.cooldown_s),
                &cap,
                &cancel_on,
                &Value::Object(keys),
                group,
            ],
        )
        .await?;
    }
    Ok(())
}
