//! What a batch of firings leaves in the store: marks, and what fired.

use super::decide::{Said, Verdict};
use super::rules::Rule;
use crate::postgres::copy::Rows;
use crate::postgres::types::Tz;
use crate::runtime::session::Session;
use hashbrown::HashMap;
use millrace_schemas::firing::Firing;
use millrace_schemas::ids::RecordId;
use millrace_schemas::time::Micros;
use tokio_postgres::Error;
use uuid::Uuid;

/// Tables of what fired, partitioned by the day of acceptance.
pub const FACT_TABLES: &[&str] = &["firings", "firing_rules"];

/// Marks only ever move forwards: a firing that comes again from among the dead calls off no more than it did.
pub const MARK: &str = "
INSERT INTO cancel_marks (key, firing_pos, marked_at) SELECT k.key, k.pos, $3 FROM unnest($1::uuid[], $2::uuid[]) AS k(key, pos)
ON CONFLICT (key) DO UPDATE SET firing_pos = excluded.firing_pos, marked_at = excluded.marked_at
WHERE cancel_marks.firing_pos < excluded.firing_pos";
const FIRED: &str = "COPY firings (firing_pos, accepted_at, workspace_id, firing_id, trigger_id, module, shard, subject, scope,
     dedupe, owner, recipients, vars, at, notices) FROM STDIN BINARY";
const SAID: &str = "COPY firing_rules (firing_pos, accepted_at, rule_id, rule_version, gate, reason, reached, capped)
     FROM STDIN BINARY";

/// Marks, each key once with its greatest position, in sorted order.
///
/// # Errors
/// The store's.
pub async fn mark(
    session: &Session,
    marks: &HashMap<Uuid, Uuid>,
    wall: Micros,
) -> Result<(), Error> {
    if marks.is_empty() {
        return Ok(());
    }
    let mut all: Vec<(Uuid, Uuid)> = marks.iter().map(|(k, pos)| (*k, *pos)).collect();
    all.sort_unstable();
    let (keys, positions): (Vec<Uuid>, Vec<Uuid>) = all.into_iter().unzip();
    session
        .execute(MARK, &[&keys, &positions, &Tz(wall)])
        .await?;
    Ok(())
}

/// A firing that was decided.
pub struct Fired<'a> {
    /// Where it stands.
    pub pos: RecordId,
    /// The day that it is stored under.
    pub accepted_at: Micros,
    /// What fired.
    pub firing: &'a Firing,
    /// Its trigger's rules.
    pub rules: &'a [Rule],
    /// What became of it.
    pub verdict: &'a Verdict,
}

/// What fired, and what the gates said.
///
/// # Errors
/// The store's.
pub async fn fired<'a>(
    session: &Session,
    all: impl Iterator<Item = Fired<'a>>,
) -> Result<(), Error> {
    let (mut rows, mut said) = (Rows::new(), Rows::new());
    for f in all {
        let (pos, firing) = (f.pos.to_uuid(), f.firing);
        rows.row(15).uuid(pos).time(f.accepted_at).i32(firing.ws);
        rows.text(&firing.id)
            .text(&firing.trigger)
            .text(&firing.module)
            .text(&firing.shard)
            .text(&firing.subject)
            .text(&firing.scope)
            .text(&firing.dedupe)
            .opt_text(firing.owner.as_deref());
        match &firing.recipients {
            Some(users) => rows.texts(users),
            None => rows.null(),
        };
        let vars = serde_json::to_string(&firing.vars).unwrap_or_else(|_| "{}".to_owned());
        rows.text(&vars).time(firing.at);
        rows.i32(i32::try_from(f.verdict.users.len()).unwrap_or(i32::MAX));
        for s in &f.verdict.said {
            put(&mut said, pos, f.accepted_at, f.rules, s);
        }
    }
    session.copy(FIRED, rows).await?;
    session.copy(SAID, said).await?;
    Ok(())
}

fn put(rows: &mut Rows, pos: Uuid, accepted_at: Micros, rules: &[Rule], said: &Said) {
    let Some(rule) = rules.get(said.rule) else {
        return;
    };
    rows.row(8).uuid(pos).time(accepted_at);
    rows.text(&rule.id).i64(rule.version);
    rows.i16(said.gate).text(said.reason);
    rows.i32(i32::try_from(said.reached).unwrap_or(i32::MAX))
        .bool(said.capped);
}
