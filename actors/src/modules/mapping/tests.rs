use super::{Fired, Member, Scene, Unfit};
use crate::modules::field::Fields;
use crate::modules::variable::VariableType;
use crate::modules::{Module, compile};
use millrace_schemas::time::Micros;
use serde_json::{Value, json};

const GAME: &str = r#"
id = "g"
label = "Game"
description = "A game."
protocol = 1
frame = [{ kind = "thing", key = "id" }, { kind = "tick" }]

[[trigger]]
id = "g.thing"
label = "Thing"
description = "Thing."
subject_key = "thing"
audience = "owner"
ceiling = "owner"
version = 1
variables = [
    { name = "thing", type = "string", required = true, example = "1" },
    { name = "n", type = "int", example = 1 },
    { name = "sum", type = "int", example = 1 },
    { name = "label", type = "string", example = "x" },
    { name = "tail", type = "string", example = "x" },
    { name = "at", type = "datetime", example = "2026-08-30T04:00:00Z" },
    { name = "url", type = "url", example = "/x" },
    { name = "who", type = "string", example = "x" },
    { name = "rows", type = "list", example = [1] },
]

[[mapping]]
id = "thing"
frames = ["thing"]
trigger = "g.thing"
when = [{ path = "deep.ok", eq = true }, { path = "cap", same_as = "base" }]
tracker = "transition"
value = "to"
set = ["late"]
previous = "from"
owner = "owner.acct"
dedupe = "{{ id }}/{{ to }}"
scope = "thing:{{ id }}"

[mapping.vars]
thing = "id"
n = "n"
sum = "{{ n + 1 if n is defined else none }}"
label = "{{ name or 'thing ' ~ id }}"
tail = "{{ ' near ' ~ deep.place if deep.place else '' }}"
at = "frame.at"
url = "/things"
who = "{{ member.slot }}"
rows = "{{ rows[:2] }}"
"#;

fn module(change: &[(&str, &str)]) -> Module {
    let text = change.iter().fold(GAME.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    });
    compile("g.toml", &text).unwrap()
}

fn fire(module: &Module, body: &Value, member: Option<Member<'_>>) -> Result<Fired, Unfit> {
    let mapping = &module.mappings[0];
    let scene = Scene {
        shard: "s1",
        boot: "b1",
        seq: 7,
        kind: "thing",
        key: "1",
        at: Micros(1_000_000),
        body,
        member,
    };
    mapping.fire(module.fires(mapping).unwrap(), &scene)
}

#[test]
fn what_is_there_is_said_with_its_type() {
    let body = json!({"id": 41, "n": 2, "name": "Anvil", "to": "late", "deep": {"place": "town"}, "owner": {"acct": "a"}, "rows": [1, 2, 3]});
    let fired = fire(&module(&[]), &body, None).unwrap();
    assert_eq!(fired.subject, "41");
    assert_eq!(fired.account.as_deref(), Some("a"));
    assert_eq!(fired.dedupe, "s1:41/late");
    assert_eq!(fired.scope, "thing:41");
    assert_eq!(
        Value::Object(fired.vars),
        json!({"thing": "41", "n": 2, "sum": 3, "label": "Anvil", "tail": " near town", "at": "1970-01-01T00:00:01Z",
               "url": "/things", "rows": [1, 2]})
    );
}

#[test]
fn labels_have_a_value_and_fragments_may_be_empty() {
    let fired = fire(
        &module(&[]),
        &json!({"id": "x", "name": null, "deep": null}),
        None,
    )
    .unwrap();
    assert_eq!(fired.account, None);
    assert_eq!(
        Value::Object(fired.vars),
        json!({"thing": "x", "label": "thing x", "tail": "", "at": "1970-01-01T00:00:01Z", "url": "/things", "rows": []})
    );
}

#[test]
fn a_firing_that_breaks_its_declaration_says_how() {
    let unfit = |body: Value| fire(&module(&[]), &body, None).unwrap_err();
    assert_eq!(unfit(json!({})), Unfit::Missing("thing".to_owned()));
    assert_eq!(
        unfit(json!({"id": "x", "n": 1.5})),
        Unfit::Type("n".to_owned(), VariableType::Int)
    );
    assert_eq!(
        unfit(json!({"id": ["x"]})),
        Unfit::Type("thing".to_owned(), VariableType::String)
    );
    assert_eq!(unfit(json!({"id": ""})), Unfit::Subject("thing".to_owned()));
    assert_eq!(unfit(json!([1])), Unfit::Missing("thing".to_owned()));
    let undeclared = json!({"thing": "x", "more": 1});
    let module = module(&[]);
    let checked = module.triggers[0].check(undeclared.as_object().unwrap());
    assert_eq!(checked, Err(Unfit::Undeclared("more".to_owned())));
}

#[test]
fn without_a_dedupe_the_frame_is_the_event_and_of_a_roster_each_member() {
    let plain = module(&[("dedupe = \"{{ id }}/{{ to }}\"\n", "")]);
    let body = json!({"id": "x"});
    assert_eq!(fire(&plain, &body, None).unwrap().dedupe, "s1:b1:7");
    let member = Member {
        slot: "m1",
        account: "a1",
    };
    let fired = fire(&plain, &body, Some(member)).unwrap();
    assert_eq!(fired.dedupe, "s1:b1:7:m1");
    assert_eq!(fired.vars["who"], "m1");
}

/// Two shards with equal ids never meet: what the template says is behind the shard's id, which holds no colon.
#[test]
fn dedupe_is_qualified_by_the_shard() {
    let fired = fire(&module(&[]), &json!({"id": "x", "to": "late"}), None).unwrap();
    assert!(fired.dedupe.starts_with("s1:"));
}

#[test]
fn deciding_reads_the_few_fields_that_it_needs() {
    let module = module(&[]);
    let kind = module.kind("thing").unwrap();
    let body = r#"{"id":"x","noise":{"a":[1,2,{"b":3}]},"from":"early","to":"late","deep":{"ok":true,"more":[1]},"cap":100.0,"base":100}"#;
    let seen = kind.reader.read(body).unwrap();
    let mapping = &module.mappings[0];
    assert!(mapping.applies(&seen));
    assert_eq!(mapping.watched(&seen), Some(&json!("late")));
    assert_eq!(mapping.told_before(&seen), Some(&json!("early")));
    let whole: Value = serde_json::from_str(body).unwrap();
    for path in mapping.decisive() {
        assert_eq!(seen.field(path), path.get(&whole), "{path}");
    }
    assert!(!mapping.applies(&json!({"deep": {"ok": true}, "cap": 1, "base": 2})));
    assert!(!mapping.applies(&json!({})));
}

#[test]
fn a_frame_is_partitioned_by_its_kinds_key() {
    let module = module(&[]);
    let of = |kind: &str, body: &str| module.kind(kind).unwrap().key_of("s1", body);
    assert_eq!(of("thing", r#"{"id":"x"}"#).unwrap().as_deref(), Some("x"));
    assert_eq!(of("thing", r#"{"id":41}"#).unwrap().as_deref(), Some("41"));
    assert_eq!(of("thing", r#"{"id":null}"#).unwrap(), None);
    assert_eq!(of("thing", r#"{"id":[1]}"#).unwrap(), None);
    assert!(of("thing", "{").is_err());
    assert_eq!(of("tick", "{}").unwrap().as_deref(), Some("s1"));
}

#[test]
fn an_expression_that_computes_without_end_ends() {
    let heavy = module(&[(
        "label = \"{{ name or 'thing ' ~ id }}\"",
        "label = \"{{ range(99999) | join(',') | length ~ '' }}\"",
    )]);
    let fired = fire(&heavy, &json!({"id": "x"}), None);
    assert!(fired.is_ok(), "{fired:?}");
}

#[test]
fn a_long_text_is_cut_and_not_refused() {
    let long = "é".repeat(3_000);
    let fired = fire(&module(&[]), &json!({"id": "x", "name": long}), None).unwrap();
    let label = fired.vars["label"].as_str().unwrap();
    assert!(
        label.len() <= crate::modules::variable::MAX_TEXT && label.ends_with("é…"),
        "{}",
        label.len()
    );
}
