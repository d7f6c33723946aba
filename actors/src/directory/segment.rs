//! A saved audience: a tree of and, or, not over audiences, and what it may reach. Pure.
//!
//! `{"audience": id, "params": {…}}`, or `{"op": "and" | "or" | "not", "nodes": [...]}`.
//!
//! - A segment's ceiling is the narrowest that it contains, whether it intersects or unites: a ceiling says what an expression is
//!   allowed to reach, not what it will: a rule that uses it reaches no part that is wider. Where two are incomparable there is none,
//!   and the segment is refused.
//! - `not` stands only beside others within an `and`: what it takes away, it takes from what they leave. By itself it would mean
//!   everybody else, which is how a narrow audience becomes a broadcast. It contributes no ceiling, since taking away widens nothing.
//! - An audience that nobody declares any more makes the whole segment dormant, within a `not` too: taken for nobody there, it
//!   would reach more people than it did.

use crate::api::faults::Faults;
use millrace_schemas::ceiling::{Ceiling, Incomparable};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// How deep groups may stand within each other.
pub const DEEPEST: usize = 5;
/// Nodes of a group at most.
pub const WIDEST: usize = 20;
/// Audiences of a tree at most.
pub const MOST: usize = 50;

/// One audience of a tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leaf {
    /// Its id.
    pub audience: String,
    /// What the operator filled in, by name, as text.
    pub params: Vec<(String, Param)>,
}

/// A parameter's value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Param {
    /// A whole number.
    Int(i64),
    /// Text.
    Text(String),
}

impl Param {
    /// As rosters keep it.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Param::Int(n) => n.to_string(),
            Param::Text(text) => text.clone(),
        }
    }
}

/// A tree that was read: `not` stands where it may.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// One audience.
    Audience(Leaf),
    /// Those in all of `kept` (one at least) and in none of `without`.
    And {
        /// In all of these.
        kept: Vec<Segment>,
        /// In none of these.
        without: Vec<Segment>,
    },
    /// Those in any.
    Or(Vec<Segment>),
}

/// Why a segment has no ceiling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCeiling {
    /// These audiences nobody declares.
    #[error("nobody declares the audience {}", .0.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", "))]
    Dormant(BTreeSet<String>),
    /// No ceiling contains the other.
    #[error(transparent)]
    Incomparable(#[from] Incomparable),
}

impl Segment {
    /// Reads a tree; `None`: it is none.
    #[must_use]
    pub fn read(tree: &Value) -> Option<Segment> {
        let mut faults = Faults::new();
        let read = Segment::check(tree, "", &mut faults);
        read.filter(|_| faults.is_empty())
    }

    /// Reads a tree. Faults are told under `path`.
    pub fn check(tree: &Value, path: &str, faults: &mut Faults) -> Option<Segment> {
        let mut reading = Reading { leaves: 0 };
        match reading.node(tree, path, 0, faults)? {
            Node::Set(segment) => Some(segment),
            Node::Without(_) => {
                bare_not(path, faults);
                None
            }
        }
    }

    /// Every audience it names, within `not` too.
    pub fn leaves(&self) -> Vec<&Leaf> {
        let mut all = Vec::new();
        self.collect(true, &mut all);
        all
    }

    fn collect<'a>(&'a self, taken_away_too: bool, all: &mut Vec<&'a Leaf>) {
        match self {
            Segment::Audience(leaf) => all.push(leaf),
            Segment::Or(nodes) => {
                for node in nodes {
                    node.collect(taken_away_too, all);
                }
            }
            Segment::And { kept, without } => {
                for node in kept {
                    node.collect(taken_away_too, all);
                }
                for node in without.iter().filter(|_| taken_away_too) {
                    node.collect(true, all);
                }
            }
        }
    }

    /// The narrowest ceiling that it contains, by what audiences are declared with.
    ///
    /// # Errors
    /// [`NoCeiling`].
    pub fn ceiling(
        &self,
        declared: impl Fn(&str) -> Option<Ceiling>,
    ) -> Result<Ceiling, NoCeiling> {
        let unknown: BTreeSet<String> = self
            .leaves()
            .into_iter()
            .filter(|leaf| declared(&leaf.audience).is_none())
            .map(|leaf| leaf.audience.clone())
            .collect();
        if !unknown.is_empty() {
            return Err(NoCeiling::Dormant(unknown));
        }
        let mut kept = Vec::new();
        self.collect(false, &mut kept);
        let ceilings = kept.into_iter().filter_map(|leaf| declared(&leaf.audience));
        // Every group keeps one audience at least, so that there is one.
        Ceiling::meet_all(ceilings)?.ok_or_else(|| NoCeiling::Dormant(BTreeSet::new()))
    }

    /// The same without what reaches beyond a ceiling: of a union, the parts that are not within it go, since the narrower part would
    /// else lend its ceiling to the wider one. Of an intersection one that is within is enough. What is taken away stays whole.
    /// `None`: nothing is left. Within its own ceiling ([`Segment::ceiling`]) something always is.
    #[must_use]
    pub fn within<F: Fn(&str) -> Option<Ceiling>>(
        &self,
        ceiling: Ceiling,
        declared: &F,
    ) -> Option<Segment> {
        match self {
            Segment::Audience(leaf) => declared(&leaf.audience)
                .is_some_and(|of| ceiling.permits(of))
                .then(|| self.clone()),
            Segment::Or(nodes) => {
                let nodes = nodes.iter().filter_map(|n| n.within(ceiling, declared));
                let nodes: Vec<Segment> = nodes.collect();
                (!nodes.is_empty()).then_some(Segment::Or(nodes))
            }
            Segment::And { kept, without } => {
                let mut bounded: Option<(usize, Segment)> = None;
                for (at, node) in kept.iter().enumerate() {
                    match node.within(ceiling, declared) {
                        Some(whole) if whole == *node => return Some(self.clone()),
                        Some(part) if bounded.is_none() => bounded = Some((at, part)),
                        _ => {}
                    }
                }
                let (at, part) = bounded?;
                let mut kept = kept.clone();
                *kept.get_mut(at)? = part;
                Some(Segment::And {
                    kept,
                    without: without.clone(),
                })
            }
        }
    }

    /// Who is in it, by who is in each audience: what the store's own set operations must answer too.
    #[must_use]
    pub fn members<U: Ord + Clone>(&self, of: &impl Fn(&Leaf) -> BTreeSet<U>) -> BTreeSet<U> {
        match self {
            Segment::Audience(leaf) => of(leaf),
            Segment::Or(nodes) => nodes.iter().flat_map(|n| n.members(of)).collect(),
            Segment::And { kept, without } => {
                let mut kept = kept.iter().map(|n| n.members(of));
                let first = kept.next().unwrap_or_default();
                let all = kept.fold(first, |a, b| a.intersection(&b).cloned().collect());
                without
                    .iter()
                    .map(|n| n.members(of))
                    .fold(all, |a, b| a.difference(&b).cloned().collect())
            }
        }
    }
}

fn bare_not(path: &str, faults: &mut Faults) {
    faults.add(
        path,
        "bare_not",
        "`not` stands only within an `and` that has something else: there is no set to take it from",
    );
}

enum Node {
    Set(Segment),
    Without(Segment),
}

struct Reading {
    leaves: usize,
}

impl Reading {
    fn node(
        &mut self,
        tree: &Value,
        path: &str,
        depth: usize,
        faults: &mut Faults,
    ) -> Option<Node> {
        let Some(object) = tree.as_object() else {
            faults.add(path, "malformed", "an audience or a group is an object");
            return None;
        };
        if object.contains_key("op") {
            return self.group(object, path, depth, faults);
        }
        self.leaves += 1;
        if self.leaves > MOST {
            faults.add(path, "too_long", format!("at most {MOST} audiences in all"));
            return None;
        }
        leaf(object, path, faults).map(|leaf| Node::Set(Segment::Audience(leaf)))
    }

    fn group(
        &mut self,
        object: &Map<String, Value>,
        path: &str,
        depth: usize,
        faults: &mut Faults,
    ) -> Option<Node> {
        if depth >= DEEPEST {
            faults.add(
                path,
                "too_deep",
                format!("groups stand at most {DEEPEST} deep"),
            );
            return None;
        }
        let nodes = object.get("nodes").and_then(Value::as_array);
        let Some(nodes) = nodes.filter(|n| !n.is_empty() && n.len() <= WIDEST) else {
            faults.add(
                format!("{path}/nodes"),
                "malformed",
                format!("a group has 1 to {WIDEST} nodes"),
            );
            return None;
        };
        if object.len() != 2 {
            faults.add(
                path,
                "malformed",
                "a group has `op` and `nodes` and nothing else",
            );
            return None;
        }
        let (mut sets, mut without) = (Vec::new(), Vec::new());
        for (i, node) in nodes.iter().enumerate() {
            match self.node(node, &format!("{path}/nodes/{i}"), depth + 1, faults) {
                Some(Node::Set(set)) => sets.push(set),
                Some(Node::Without(set)) => without.push((i, set)),
                None => return None,
            }
        }
        let op = object.get("op").and_then(Value::as_str).unwrap_or_default();
        if op != "and"
            && let Some((i, _)) = without.first()
        {
            bare_not(&format!("{path}/nodes/{i}"), faults);
            return None;
        }
        match op {
            "and" if sets.is_empty() => {
                bare_not(path, faults);
                None
            }
            "and" => Some(Node::Set(Segment::And {
                kept: sets,
                without: without.into_iter().map(|(_, set)| set).collect(),
            })),
            "or" => Some(Node::Set(Segment::Or(sets))),
            "not" => match (sets.pop(), sets.is_empty()) {
                (Some(set), true) => Some(Node::Without(set)),
                _ => {
                    faults.add(format!("{path}/nodes"), "malformed", "`not` has one node");
                    None
                }
            },
            _ => {
                faults.add(format!("{path}/op"), "malformed", "`and`, `or` or `not`");
                None
            }
        }
    }
}

fn leaf(object: &Map<String, Value>, path: &str, faults: &mut Faults) -> Option<Leaf> {
    if let Some(other) = object
        .keys()
        .find(|k| !matches!(k.as_str(), "audience" | "params"))
    {
        faults.add(
            format!("{path}/{other}"),
            "unknown",
            "an audience has `audience` and `params`",
        );
        return None;
    }
    let Some(audience) = object.get("audience").and_then(Value::as_str) else {
        faults.add(format!("{path}/audience"), "missing", "the audience's id");
        return None;
    };
    let mut params = Vec::new();
    let given = match object.get("params") {
        None | Some(Value::Null) => &Map::new(),
        Some(Value::Object(given)) => given,
        Some(_) => {
            faults.add(format!("{path}/params"), "malformed", "an object");
            return None;
        }
    };
    for (name, value) in given {
        let param = match value {
            Value::String(text) if text.len() <= 200 && !text.contains('\0') => {
                Some(Param::Text(text.clone()))
            }
            Value::Number(n) => n.as_i64().map(Param::Int),
            _ => None,
        };
        let Some(param) = param else {
            faults.add(
                format!("{path}/params/{name}"),
                "malformed",
                "a text of at most 200 bytes or a whole number",
            );
            return None;
        };
        params.push((name.clone(), param));
    }
    params.sort();
    Some(Leaf {
        audience: audience.to_owned(),
        params,
    })
}

#[cfg(test)]
mod tests;
