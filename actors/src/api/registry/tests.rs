//! What the build promises of the registry; each rule broken turns one of these red.

use super::*;
use crate::api::schema::unclassed;
use crate::api::scopes;
use std::collections::BTreeSet;

const VERBS: &[&str] = &[
    "list", "get", "create", "update", "replace", "delete", "set", "revoke", "rotate", "test",
    "replay", "bulk", "enable", "disable", "cancel", "release", "pause", "resume", "emit",
];

#[test]
fn every_schema_compiles() {
    assert_eq!(registry().len(), operations::all().len());
}

#[test]
fn ids_are_unique_and_say_a_verb_and_a_noun() {
    let mut seen = BTreeSet::new();
    for op in registry().iter().map(|r| &r.operation) {
        let id = op.id;
        assert!(seen.insert(id), "{id} twice");
        assert!(find_exempt(id).is_none(), "{id} is exempt too");
        let good = (3..=64).contains(&id.len())
            && id.starts_with(|c: char| c.is_ascii_lowercase())
            && id
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        assert!(good, "{id}");
        let verb = id.split_once('_').map(|(v, _)| v);
        assert!(
            id == "whoami" || verb.is_some_and(|v| VERBS.contains(&v)),
            "{id}"
        );
        assert!(!op.summary.is_empty(), "{id} has no summary");
    }
    let exempt: BTreeSet<_> = EXEMPT.iter().map(|e| e.id).collect();
    assert_eq!(exempt.len(), EXEMPT.len());
}

#[test]
fn methods_and_paths_are_unique_and_parameters_declared() {
    let mut seen = BTreeSet::new();
    for e in EXEMPT {
        for m in e.methods {
            assert!(seen.insert((e.path, *m)), "{}", e.id);
        }
    }
    for op in registry().iter().map(|r| &r.operation) {
        assert!(
            seen.insert((op.path, op.method)),
            "{} {}",
            op.method.name(),
            op.path
        );
        assert!(op.path.starts_with("/v1/"), "{}", op.id);
        let declared: Vec<_> = op.params.iter().map(|p| p.name).collect();
        assert_eq!(names_in(op.path), declared, "{}", op.id);
    }
}

#[test]
fn scopes_exist_and_places_agree() {
    for op in registry().iter().map(|r| &r.operation) {
        match op.scope {
            None => assert_eq!(op.place, Place::Actor, "{}", op.id),
            Some(scope) => {
                assert!(scopes::find(scope).is_some(), "{}: {scope}", op.id);
                assert_eq!(
                    scope.starts_with("ops:"),
                    op.place == Place::Deployment,
                    "{}",
                    op.id
                );
            }
        }
    }
}

#[test]
fn effects_agree_with_methods() {
    for op in registry().iter().map(|r| &r.operation) {
        let id = op.id;
        match op.method {
            Method::Get => assert_eq!(op.effect, Effect::Read, "{id}"),
            Method::Put => assert!(
                op.writes() && op.precondition == Precondition::Required,
                "{id}"
            ),
            Method::Patch => assert!(
                op.writes() && op.precondition == Precondition::Honoured,
                "{id}"
            ),
            Method::Delete => {
                assert!(
                    op.effect == Effect::Destructive && op.precondition == Precondition::Required,
                    "{id}"
                );
            }
            Method::Post => {}
        }
        if op.list {
            assert_eq!(op.effect, Effect::Read, "{id}");
        }
    }
}

#[test]
fn every_field_of_an_answer_is_classed() {
    for r in registry() {
        assert_eq!(
            unclassed(&r.output),
            Vec::<String>::new(),
            "{}",
            r.operation.id
        );
    }
}

#[test]
fn inputs_refuse_unknown_fields_and_no_names_clash() {
    for r in registry() {
        let id = r.operation.id;
        let mut names = BTreeSet::new();
        let bodies = r.body.iter().map(|b| &b.schema);
        for schema in std::iter::once(&r.query.schema).chain(bodies) {
            assert_eq!(
                schema.get("additionalProperties"),
                Some(&Value::Bool(false)),
                "{id}"
            );
            for name in schema
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                assert!(
                    names.insert(name.0.clone()),
                    "{id}: {} in query and body",
                    name.0
                );
            }
        }
        for p in r.operation.params {
            assert!(
                names.insert(p.name.to_owned()),
                "{id}: {} in path and elsewhere",
                p.name
            );
        }
        for reserved in ["limit", "cursor", "count", "dry_run", "idempotency_key"] {
            assert!(
                !names.contains(reserved),
                "{id}: {reserved} is the plumbing's"
            );
        }
    }
}
