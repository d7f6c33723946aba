//! A segment as one statement of set operations over ids of users.

use crate::directory::audience::core_audience;
use crate::directory::segment::{Leaf, Param, Segment};
use crate::modules::{AudienceSource, Modules, Roster};
use millrace_schemas::ceiling::Ceiling;
use std::collections::BTreeSet;
use tokio_postgres::types::ToSql;

/// The staff of the workspace `$1`.
pub(super) const STAFF: &str =
    "SELECT user_id FROM users WHERE workspace_id = $1 AND role <> 'user'";
/// Its admins.
pub(super) const ADMIN: &str =
    "SELECT user_id FROM users WHERE workspace_id = $1 AND role = 'admin'";
const EVERYBODY: &str = "SELECT user_id FROM users WHERE workspace_id = $1";

/// The parameter by which any audience over a roster may be narrowed to one shard.
const SHARD: &str = "shard";

/// A statement in the making: `$1` is the workspace.
pub(super) struct Set {
    pub(super) params: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Set {
    pub(super) fn of(ws: i32) -> Set {
        Set {
            params: vec![Box::new(ws)],
        }
    }

    fn bind(&mut self, text: &str) -> String {
        self.params.push(Box::new(text.to_owned()));
        format!("${}", self.params.len())
    }

    pub(super) fn subscribers(&mut self, id: &str) -> String {
        let id = self.bind(id);
        format!(
            "SELECT user_id FROM preferences WHERE workspace_id = $1 AND stream_id = {id} AND mode <> 'off'"
        )
    }

    /// The ids of a segment's users; `None`: an audience of it is declared by nobody.
    pub(super) fn segment(&mut self, modules: &Modules, segment: &Segment) -> Option<String> {
        match segment {
            Segment::Audience(leaf) => self.leaf(modules, leaf),
            Segment::Or(nodes) => self.joined(modules, nodes, "UNION"),
            Segment::And { kept, without } => {
                let kept = self.joined(modules, kept, "INTERSECT")?;
                if without.is_empty() {
                    return Some(kept);
                }
                let without = self.joined(modules, without, "UNION")?;
                Some(format!("({kept}) EXCEPT ({without})"))
            }
        }
    }

    fn joined(&mut self, modules: &Modules, nodes: &[Segment], by: &str) -> Option<String> {
        let sets: Option<Vec<String>> = nodes
            .iter()
            .map(|n| Some(format!("({})", self.segment(modules, n)?)))
            .collect();
        Some(sets?.join(&format!(" {by} ")))
    }

    fn leaf(&mut self, modules: &Modules, leaf: &Leaf) -> Option<String> {
        match core_audience(&leaf.audience) {
            Some(Ceiling::Staff) => return Some(STAFF.to_owned()),
            Some(Ceiling::Admin) => return Some(ADMIN.to_owned()),
            Some(_) => return Some(EVERYBODY.to_owned()),
            None => {}
        }
        let (module, audience) = modules.audience(&leaf.audience)?;
        let id = self.bind(&module.id);
        let given = |name: &str| {
            leaf.params
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, v)| v.text())
        };
        let shard = given(SHARD);
        match audience.source {
            AudienceSource::Linked => {
                let shard = self.narrowed("l.shard", shard);
                Some(format!(
                    "SELECT l.user_id FROM links l WHERE l.workspace_id = $1 AND l.module = {id} AND l.live{shard}"
                ))
            }
            AudienceSource::Roster(at) => {
                let roster = module.rosters.get(at)?;
                let name = self.bind(&roster.id);
                let param = roster_param(roster).and_then(given);
                let param = self.narrowed("m.param", param);
                let shard = self.narrowed("m.shard", shard);
                Some(format!(
                    "SELECT l.user_id FROM roster_members m JOIN links l ON l.workspace_id = m.workspace AND l.module = m.module \
                     AND l.shard = m.shard AND l.account = m.account AND l.live \
                     WHERE m.workspace = $1 AND m.module = {id} AND m.roster = {name}{param}{shard}"
                ))
            }
        }
    }

    fn narrowed(&mut self, column: &str, value: Option<String>) -> String {
        match value {
            Some(value) => format!(" AND {column} = {}", self.bind(&value)),
            None => String::new(),
        }
    }
}

/// The audience's parameter that names one list of the roster.
fn roster_param(roster: &Roster) -> Option<&str> {
    roster.param.as_deref().filter(|_| roster.keyed)
}

/// Audiences of a segment that take other parameters than they are given: without one they would be a wider set.
pub(super) fn unfit(modules: &Modules, segment: &Segment) -> BTreeSet<String> {
    segment
        .leaves()
        .into_iter()
        .filter(|leaf| params_of(modules, leaf).is_err())
        .map(|leaf| leaf.audience.clone())
        .collect()
}

/// What is wrong with an audience's parameters: which, a code, and words.
pub(crate) fn params_of(
    modules: &Modules,
    leaf: &Leaf,
) -> Result<(), (String, &'static str, String)> {
    let declared = match modules.audience(&leaf.audience) {
        Some((_, audience)) if core_audience(&leaf.audience).is_none() => &*audience.params,
        _ => &[],
    };
    for param in declared {
        let given = leaf.params.iter().find(|(name, _)| **name == *param.id);
        match given {
            None if param.required => {
                return Err((
                    param.id.to_string(),
                    "missing",
                    "it must be filled in".to_owned(),
                ));
            }
            Some((_, Param::Text(_))) if param.int => {
                return Err((
                    param.id.to_string(),
                    "wrong_type",
                    "a whole number".to_owned(),
                ));
            }
            Some((_, Param::Int(_))) if !param.int => {
                return Err((param.id.to_string(), "wrong_type", "a text".to_owned()));
            }
            _ => {}
        }
    }
    match leaf
        .params
        .iter()
        .find(|(name, _)| declared.iter().all(|p| *p.id != **name))
    {
        Some((name, _)) => Err((
            name.clone(),
            "unknown",
            format!("`{}` has no such parameter", leaf.audience),
        )),
        None => Ok(()),
    }
}
