use super::{Conditions, DEEPEST, LONGEST_LIST, MOST, Operator, WIDEST, hold};
use crate::api::faults::Faults;
use crate::modules::variable::{Variable, VariableType};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn declared() -> Vec<Variable> {
    VariableType::ALL
        .into_iter()
        .map(|of| Variable {
            name: of.word().into(),
            of,
            required: false,
            example: Value::Null,
        })
        .collect()
}

/// The codes with which a tree is refused, and where.
fn refused(tree: &Value) -> Vec<(String, String)> {
    let mut faults = Faults::new();
    let read = Conditions::check(tree, "/conditions", &declared(), &mut faults);
    let faults = faults.into_vec();
    assert!(
        read.is_some() || !faults.is_empty(),
        "{tree}: refused without a word"
    );
    faults.into_iter().map(|f| (f.code, f.path)).collect()
}

fn holds(tree: &Value, vars: &Value) -> bool {
    hold(Some(tree), &|name: &str| vars.get(name))
}

#[test]
fn each_refusal_has_its_name_and_place() {
    let compare =
        |var: &str, cmp: &str, value: Value| json!({"var": var, "cmp": cmp, "value": value});
    let mut deep = compare("bool", "eq", json!(true));
    for _ in 0..=DEEPEST {
        deep = json!({"op": "and", "nodes": [deep]});
    }
    let wide = json!({"op": "or", "nodes": vec![compare("bool", "eq", json!(true)); WIDEST + 1]});
    let ten = json!({"op": "or", "nodes": vec![compare("bool", "eq", json!(true)); WIDEST]});
    let long = json!({"op": "or", "nodes": vec![ten; MOST / WIDEST + 1]});
    for (tree, code, path) in [
        (json!("x"), "malformed", "/conditions"),
        (json!([]), "malformed", "/conditions"),
        (
            json!({"cmp": "eq", "value": 1}),
            "missing",
            "/conditions/var",
        ),
        (
            json!({"var": "int", "cmp": "eq", "value": 1, "or": 2}),
            "unknown",
            "/conditions/or",
        ),
        (
            compare("int", "like", json!(1)),
            "unknown_operator",
            "/conditions/cmp",
        ),
        (
            compare("nothing", "eq", json!(1)),
            "undeclared_variable",
            "/conditions/var",
        ),
        (
            compare("int", "contains", json!(1)),
            "operator_type",
            "/conditions/cmp",
        ),
        (
            compare("string", "gt", json!("a")),
            "operator_type",
            "/conditions/cmp",
        ),
        (
            compare("list", "eq", json!("a")),
            "operator_type",
            "/conditions/cmp",
        ),
        (
            compare("bool", "in", json!([true])),
            "operator_type",
            "/conditions/cmp",
        ),
        (
            compare("int", "gt", json!("5")),
            "literal_type",
            "/conditions/value",
        ),
        (
            compare("int", "eq", json!(5.5)),
            "literal_type",
            "/conditions/value",
        ),
        (
            compare("datetime", "lt", json!("tomorrow")),
            "literal_type",
            "/conditions/value",
        ),
        (
            compare("int", "in", json!([1, "2"])),
            "literal_type",
            "/conditions/value",
        ),
        (
            compare("int", "in", json!(1)),
            "malformed",
            "/conditions/value",
        ),
        (
            compare("int", "in", json!(vec![1; LONGEST_LIST + 1])),
            "malformed",
            "/conditions/value",
        ),
        (
            compare("int", "eq", json!(null)),
            "malformed",
            "/conditions/value",
        ),
        (
            compare("string", "present", json!("x")),
            "malformed",
            "/conditions/value",
        ),
        (
            compare("string", "eq", json!("a\u{0}")),
            "malformed",
            "/conditions/value",
        ),
        (
            json!({"op": "xor", "nodes": [compare("bool", "eq", json!(true))]}),
            "malformed",
            "/conditions/op",
        ),
        (
            json!({"op": "and", "nodes": []}),
            "malformed",
            "/conditions/nodes",
        ),
        (json!({"op": "and"}), "malformed", "/conditions/nodes"),
        (
            json!({"op": "not", "nodes": [compare("bool", "eq", json!(true)), compare("bool", "eq", json!(true))]}),
            "malformed",
            "/conditions/nodes",
        ),
        (
            json!({"op": "and", "nodes": [compare("bool", "eq", json!(true)), compare("int", "gt", json!(true))]}),
            "literal_type",
            "/conditions/nodes/1/value",
        ),
        (wide, "malformed", "/conditions/nodes"),
    ] {
        assert_eq!(
            refused(&tree),
            [(code.to_owned(), path.to_owned())],
            "{tree}"
        );
        if !matches!(
            code,
            "undeclared_variable" | "operator_type" | "literal_type"
        ) {
            assert!(!holds(&tree, &json!({})), "{tree}: unreadable, and holds");
        }
    }
    assert!(refused(&deep).iter().any(|(code, _)| code == "too_deep"));
    assert!(refused(&long).iter().any(|(code, _)| code == "too_long"));
    assert!(!holds(&deep, &json!({"bool": true})));
}

#[test]
fn every_type_takes_its_operators() {
    for (tree, vars, want) in [
        (
            json!({"var": "int", "cmp": "gte", "value": 5}),
            json!({"int": 5}),
            true,
        ),
        (
            json!({"var": "int", "cmp": "gt", "value": 5}),
            json!({"int": 5}),
            false,
        ),
        (
            json!({"var": "number", "cmp": "lt", "value": 5.5}),
            json!({"number": 5}),
            true,
        ),
        (
            json!({"var": "number", "cmp": "eq", "value": 5}),
            json!({"number": 5.0}),
            true,
        ),
        (
            json!({"var": "string", "cmp": "in", "value": ["a", "b"]}),
            json!({"string": "b"}),
            true,
        ),
        (
            json!({"var": "string", "cmp": "contains", "value": "ee"}),
            json!({"string": "been"}),
            true,
        ),
        (
            json!({"var": "list", "cmp": "contains", "value": 2}),
            json!({"list": [1, 2]}),
            true,
        ),
        (
            json!({"var": "bool", "cmp": "ne", "value": true}),
            json!({"bool": false}),
            true,
        ),
        (
            json!({"var": "datetime", "cmp": "eq", "value": "2026-01-01T00:00:00Z"}),
            json!({"datetime": "2026-01-01T02:00:00+02:00"}),
            true,
        ),
        (
            json!({"var": "datetime", "cmp": "lt", "value": "2026-01-01T00:00:00Z"}),
            json!({"datetime": "2025-12-31T23:59:59Z"}),
            true,
        ),
        (
            json!({"var": "int", "cmp": "absent"}),
            json!({"int": null}),
            true,
        ),
        (
            json!({"var": "int", "cmp": "present"}),
            json!({"int": 0}),
            true,
        ),
    ] {
        assert_eq!(refused(&tree), [], "{tree}");
        assert_eq!(holds(&tree, &vars), want, "{tree} of {vars}");
    }
    assert!(hold(None, &|_: &str| None) && hold(Some(&Value::Null), &|_: &str| None));
}

#[test]
fn what_is_absent_makes_every_comparison_false() {
    for cmp in Operator::ALL {
        let value = match cmp {
            Operator::In => json!(["x"]),
            Operator::Present | Operator::Absent => json!(null),
            _ => json!("x"),
        };
        let tree = json!({"var": "gone", "cmp": cmp.word(), "value": value});
        assert_eq!(holds(&tree, &json!({})), cmp == Operator::Absent, "{tree}");
    }
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf = (0..4i64, 0..3i64, 0..6usize).prop_map(|(var, value, cmp)| {
        let cmp = ["eq", "ne", "gt", "lte", "present", "absent"][cmp];
        let value = if matches!(cmp, "present" | "absent") {
            Value::Null
        } else {
            json!(value)
        };
        json!({"var": format!("v{var}"), "cmp": cmp, "value": value})
    });
    leaf.prop_recursive(3, 24, 3, |inner| {
        (0..3usize, proptest::collection::vec(inner, 1..4)).prop_map(|(op, mut nodes)| {
            if op == 2 {
                nodes.truncate(1);
            }
            json!({"op": (["and", "or", "not"][op]), "nodes": nodes})
        })
    })
}

proptest! {
    /// De Morgan, and double negation.
    #[test]
    fn negation_is_negation(nodes in proptest::collection::vec(tree(), 1..4), vars in proptest::collection::vec(0..3i64, 4)) {
        let vars: Value = Value::Object(vars.iter().enumerate().filter(|(i, _)| i % 3 != 2)
            .map(|(i, v)| (format!("v{i}"), json!(v))).collect::<Map<_, _>>());
        let not = |t: Value| json!({"op": "not", "nodes": [t]});
        let negated: Vec<Value> = nodes.iter().cloned().map(not).collect();
        let all = json!({"op": "and", "nodes": nodes});
        let read = |t: &Value| Conditions::read(t).map(|c| c.hold(&|n: &str| vars.get(n)));
        prop_assert_eq!(read(&not(all.clone())), read(&json!({"op": "or", "nodes": negated})));
        prop_assert_eq!(read(&all).map(|h| !h), read(&not(all)));
    }

    /// Whatever is stored there, asking never panics.
    #[test]
    fn anything_may_be_stored(text in ".{0,80}") {
        let tree = serde_json::from_str(&text).unwrap_or(Value::String(text));
        let _ = hold(Some(&tree), &|_: &str| None);
    }
}
