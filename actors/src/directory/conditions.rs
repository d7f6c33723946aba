//! The conditions of a rule: a small closed grammar over a trigger's declared variables. Pure.
//!
//! `{"var": name, "cmp": operator, "value": literal}`, or `{"op": "and" | "or" | "not", "nodes": [...]}`. Operators go by the
//! variable's declared type; depth and length are bounded, since the tree is walked for every firing. A variable that a firing
//! lacks makes every comparison false, `ne` too; whoever means to ask that asks `present` or `absent`. A tree that cannot be read
//! is false, never "no conditions".

use crate::api::faults::Faults;
use crate::modules::variable::{Variable, VariableType};
use millrace_schemas::time::Micros;
use serde_json::{Map, Value};

/// How deep groups may stand within each other.
pub const DEEPEST: usize = 5;
/// Nodes of a group at most.
pub const WIDEST: usize = 20;
/// Comparisons of a tree at most.
pub const MOST: usize = 50;
/// Literals of `in` at most.
pub const LONGEST_LIST: usize = 50;
/// Longest text of a literal, in bytes.
pub const LONGEST_TEXT: usize = 500;

/// How a variable is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// Equal.
    Eq,
    /// There, and not equal.
    Ne,
    /// One of a list.
    In,
    /// Greater, or later.
    Gt,
    /// At least.
    Gte,
    /// Less, or earlier.
    Lt,
    /// At most.
    Lte,
    /// A text with this text in it, a list with this entry.
    Contains,
    /// There.
    Present,
    /// Not there.
    Absent,
}

impl Operator {
    /// All of them.
    pub const ALL: [Operator; 10] = [
        Operator::Eq,
        Operator::Ne,
        Operator::In,
        Operator::Gt,
        Operator::Gte,
        Operator::Lt,
        Operator::Lte,
        Operator::Contains,
        Operator::Present,
        Operator::Absent,
    ];

    /// Its word in a tree.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Operator::Eq => "eq",
            Operator::Ne => "ne",
            Operator::In => "in",
            Operator::Gt => "gt",
            Operator::Gte => "gte",
            Operator::Lt => "lt",
            Operator::Lte => "lte",
            Operator::Contains => "contains",
            Operator::Present => "present",
            Operator::Absent => "absent",
        }
    }

    /// The operator of that word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Operator> {
        Operator::ALL.into_iter().find(|o| o.word() == word)
    }

    /// Whether a variable of that type can be asked so.
    #[must_use]
    pub const fn suits(self, of: VariableType) -> bool {
        use Operator::{Absent, Contains, Eq, Gt, Gte, In, Lt, Lte, Ne, Present};
        match self {
            Present | Absent => true,
            Eq | Ne => !matches!(of, VariableType::List),
            In => matches!(
                of,
                VariableType::String | VariableType::Url | VariableType::Int | VariableType::Number
            ),
            Gt | Gte | Lt | Lte => matches!(
                of,
                VariableType::Int | VariableType::Number | VariableType::Datetime
            ),
            Contains => matches!(
                of,
                VariableType::String | VariableType::Url | VariableType::List
            ),
        }
    }
}

/// The operators that a variable of that type can be asked with, by their words.
#[must_use]
pub fn operators_of(of: VariableType) -> Vec<&'static str> {
    Operator::ALL
        .into_iter()
        .filter(|o| o.suits(of))
        .map(Operator::word)
        .collect()
}

/// A tree that was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Conditions {
    /// All hold.
    And(Vec<Conditions>),
    /// One holds.
    Or(Vec<Conditions>),
    /// It does not hold.
    Not(Box<Conditions>),
    /// One comparison.
    Compare {
        /// The variable.
        var: String,
        /// How.
        cmp: Operator,
        /// With what; null for `present` and `absent`.
        value: Value,
    },
}

impl Conditions {
    /// Reads a tree, without asking what the trigger declares; `None`: it is none.
    #[must_use]
    pub fn read(tree: &Value) -> Option<Conditions> {
        let mut faults = Faults::new();
        let read = Reading { comparisons: 0 }.node(tree, "", 0, &mut faults);
        read.filter(|_| faults.is_empty())
    }

    /// Reads a tree whose variables and operators must be what the trigger declares. Faults are told under `path`.
    pub fn check(
        tree: &Value,
        path: &str,
        variables: &[Variable],
        faults: &mut Faults,
    ) -> Option<Conditions> {
        let read = Reading { comparisons: 0 }.node(tree, path, 0, faults)?;
        read.declared(path, variables, faults);
        Some(read)
    }

    fn declared(&self, path: &str, variables: &[Variable], faults: &mut Faults) {
        match self {
            Conditions::And(nodes) | Conditions::Or(nodes) => {
                for (i, node) in nodes.iter().enumerate() {
                    node.declared(&format!("{path}/nodes/{i}"), variables, faults);
                }
            }
            Conditions::Not(node) => node.declared(&format!("{path}/nodes/0"), variables, faults),
            Conditions::Compare { var, cmp, value } => {
                let Some(variable) = variables.iter().find(|v| *v.name == **var) else {
                    faults.add(
                        format!("{path}/var"),
                        "undeclared_variable",
                        format!("the trigger declares no variable `{var}`"),
                    );
                    return;
                };
                if !cmp.suits(variable.of) {
                    faults.add(
                        format!("{path}/cmp"),
                        "operator_type",
                        format!(
                            "`{var}` is of type {}, which takes {}",
                            variable.of.word(),
                            operators_of(variable.of).join(", ")
                        ),
                    );
                } else if !literal_fits(*cmp, variable.of, value) {
                    faults.add(
                        format!("{path}/value"),
                        "literal_type",
                        format!("`{var}` is of type {}", variable.of.word()),
                    );
                }
            }
        }
    }

    /// Whether it holds of a firing's variables.
    #[must_use]
    pub fn hold<'a>(&self, lookup: &impl Fn(&str) -> Option<&'a Value>) -> bool {
        match self {
            Conditions::And(nodes) => nodes.iter().all(|n| n.hold(lookup)),
            Conditions::Or(nodes) => nodes.iter().any(|n| n.hold(lookup)),
            Conditions::Not(node) => !node.hold(lookup),
            Conditions::Compare { var, cmp, value } => {
                let found = lookup(var).filter(|v| !v.is_null());
                match (cmp, found) {
                    (Operator::Absent, found) => found.is_none(),
                    (_, None) => false,
                    (Operator::Present, Some(_)) => true,
                    (cmp, Some(found)) => compare(*cmp, found, value),
                }
            }
        }
    }
}

/// Whether a rule's stored conditions hold of a firing's variables: none always do, and what cannot be read never does.
#[must_use]
pub fn hold<'a>(stored: Option<&Value>, lookup: &impl Fn(&str) -> Option<&'a Value>) -> bool {
    match stored {
        None | Some(Value::Null) => true,
        Some(tree) => Conditions::read(tree).is_some_and(|c| c.hold(lookup)),
    }
}

struct Reading {
    comparisons: usize,
}

impl Reading {
    fn node(
        &mut self,
        tree: &Value,
        path: &str,
        depth: usize,
        faults: &mut Faults,
    ) -> Option<Conditions> {
        let Some(object) = tree.as_object() else {
            faults.add(path, "malformed", "a condition is an object");
            return None;
        };
        if object.contains_key("op") {
            return self.group(object, path, depth, faults);
        }
        self.comparisons += 1;
        if self.comparisons > MOST {
            faults.add(
                path,
                "too_long",
                format!("at most {MOST} comparisons in all"),
            );
            return None;
        }
        comparison(object, path, faults)
    }

    fn group(
        &mut self,
        object: &Map<String, Value>,
        path: &str,
        depth: usize,
        faults: &mut Faults,
    ) -> Option<Conditions> {
        if depth >= DEEPEST {
            faults.add(
                path,
                "too_deep",
                format!("groups stand at most {DEEPEST} deep"),
            );
            return None;
        }
        let op = object.get("op").and_then(Value::as_str).unwrap_or_default();
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
        let read: Vec<Conditions> = nodes
            .iter()
            .enumerate()
            .filter_map(|(i, n)| self.node(n, &format!("{path}/nodes/{i}"), depth + 1, faults))
            .collect();
        // One that was refused must not make the rest hold.
        if read.len() != nodes.len() {
            return None;
        }
        match op {
            "and" => Some(Conditions::And(read)),
            "or" => Some(Conditions::Or(read)),
            "not" => {
                let mut read = read.into_iter();
                match (read.next(), read.next()) {
                    (Some(node), None) => Some(Conditions::Not(Box::new(node))),
                    _ => {
                        faults.add(format!("{path}/nodes"), "malformed", "`not` has one node");
                        None
                    }
                }
            }
            _ => {
                faults.add(format!("{path}/op"), "malformed", "`and`, `or` or `not`");
                None
            }
        }
    }
}

fn comparison(object: &Map<String, Value>, path: &str, faults: &mut Faults) -> Option<Conditions> {
    if let Some(other) = object
        .keys()
        .find(|k| !matches!(k.as_str(), "var" | "cmp" | "value"))
    {
        faults.add(
            format!("{path}/{other}"),
            "unknown",
            "a comparison has `var`, `cmp`, `value`",
        );
        return None;
    }
    let Some(var) = object.get("var").and_then(Value::as_str) else {
        faults.add(format!("{path}/var"), "missing", "the variable's name");
        return None;
    };
    let word = object
        .get("cmp")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let Some(cmp) = Operator::of_word(word) else {
        faults.add(
            format!("{path}/cmp"),
            "unknown_operator",
            format!("one of {}", Operator::ALL.map(Operator::word).join(", ")),
        );
        return None;
    };
    let value = object.get("value").cloned().unwrap_or(Value::Null);
    if !is_literal(cmp, &value) {
        faults.add(
            format!("{path}/value"),
            "malformed",
            "a text, number or truth value; for `in` a list of them; nothing for `present` and `absent`",
        );
        return None;
    }
    Some(Conditions::Compare {
        var: var.to_owned(),
        cmp,
        value,
    })
}

fn is_scalar(value: &Value) -> bool {
    match value {
        Value::String(text) => text.len() <= LONGEST_TEXT && !text.contains('\0'),
        Value::Number(_) | Value::Bool(_) => true,
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

fn is_literal(cmp: Operator, value: &Value) -> bool {
    match cmp {
        Operator::Present | Operator::Absent => value.is_null(),
        Operator::In => value.as_array().is_some_and(|all| {
            !all.is_empty() && all.len() <= LONGEST_LIST && all.iter().all(is_scalar)
        }),
        _ => is_scalar(value),
    }
}

/// Whether a literal is of the declared type. A link's literal need not be a link: `contains` asks for a part of it.
fn literal_fits(cmp: Operator, of: VariableType, value: &Value) -> bool {
    let one = |v: &Value| match of {
        VariableType::String | VariableType::Url => v.is_string(),
        VariableType::List => is_scalar(v),
        VariableType::Int | VariableType::Number | VariableType::Bool | VariableType::Datetime => {
            of.admits(v)
        }
    };
    match (cmp, value) {
        (Operator::Present | Operator::Absent, _) => true,
        (Operator::In, Value::Array(all)) => all.iter().all(one),
        (_, value) => one(value),
    }
}

fn compare(cmp: Operator, found: &Value, literal: &Value) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    match cmp {
        Operator::Eq => same(found, literal),
        Operator::Ne => !same(found, literal),
        Operator::In => literal
            .as_array()
            .is_some_and(|all| all.iter().any(|one| same(found, one))),
        Operator::Gt => matches!(order(found, literal), Some(Greater)),
        Operator::Gte => matches!(order(found, literal), Some(Greater | Equal)),
        Operator::Lt => matches!(order(found, literal), Some(Less)),
        Operator::Lte => matches!(order(found, literal), Some(Less | Equal)),
        Operator::Contains => match (found, literal) {
            (Value::String(text), Value::String(part)) => text.contains(part.as_str()),
            (Value::Array(entries), one) => entries.iter().any(|entry| same(entry, one)),
            _ => false,
        },
        Operator::Present | Operator::Absent => false,
    }
}

/// Numbers are equal by value, moments by the moment whatever their offsets.
fn same(a: &Value, b: &Value) -> bool {
    a == b || order(a, b) == Some(std::cmp::Ordering::Equal)
}

/// How two numbers, or two moments, stand to each other.
fn order(a: &Value, b: &Value) -> Option<std::cmp::Ordering> {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => Some(x.cmp(&y)),
            _ => x.as_f64()?.partial_cmp(&y.as_f64()?),
        },
        (Value::String(x), Value::String(y)) => Some(moment(x)?.cmp(&moment(y)?)),
        _ => None,
    }
}

fn moment(text: &str) -> Option<Micros> {
    let plausible = text.len() >= 17 && text.as_bytes().first().is_some_and(u8::is_ascii_digit);
    plausible.then(|| Micros::parse_rfc3339(text).ok())?
}

#[cfg(test)]
mod tests;
