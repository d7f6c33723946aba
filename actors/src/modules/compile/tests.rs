mod ids;
mod mappings;
mod rules;
mod triggers;

use super::{Rule, compile};

/// A module with one of everything, and no fault.
const GOOD: &str = r#"
id = "g"
label = "Game"
description = "A game."
protocol = 3
legacy_ids = ["old.stream"]
frame = [
    { kind = "thing.moved", key = "thing" },
    { kind = "thing.gone", key = "thing" },
    { kind = "club.list", key = "club" },
    { kind = "tick" },
]
stream = [
    { id = "old.stream", label = "Old", description = "Old." },
    { id = "g.thing.late", label = "Late", description = "Late." },
]

[[roster]]
id = "g.club"
param = "club"
feeds = [{ frame = "club.list", change = "replace", param = "club", members = "members", account = "acct", slot = "id" }]

[[audience]]
id = "g.club"
label = "Club"
description = "A club."
ceiling = "members"
roster = "g.club"
params = [{ id = "club", type = "string", required = true }]

[[trigger]]
id = "g.thing.late"
label = "Late"
description = "A thing is late."
subject_key = "thing"
audience = "owner"
ceiling = "owner"
version = 1
variables = [
    { name = "thing", type = "string", required = true, example = "1" },
    { name = "url", type = "url", example = "/things" },
]

[[trigger]]
id = "g.thing.gone"
label = "Gone"
description = "A thing is gone."
subject_key = "thing"
audience = "subscribers"
ceiling = "authenticated"
version = 1
variables = [{ name = "thing", type = "string", required = true, example = "1" }]

[[trigger]]
id = "g.club.left"
label = "Left"
description = "Somebody left."
subject_key = "club"
audience = "members"
ceiling = "members"
version = 1
variables = [{ name = "club", type = "string", required = true, example = "1" }]

[[mapping]]
id = "late"
frames = ["thing.moved"]
trigger = "g.thing.late"
when = [{ path = "real", ne = false }]
tracker = "crossing"
value = "left"
thresholds = [1.0, 5.0]
hysteresis = 0.5
direction = "falling"
owner = "acct"
dedupe = "{{ thing }}:{{ left }}"

[mapping.vars]
thing = "thing"
url = "/things"

[[mapping]]
id = "gone"
frames = ["thing.moved", "thing.gone"]
trigger = "g.thing.gone"
tracker = "transition"
value = "state"
set = ["gone"]
vars = { thing = "{{ thing }}" }

[[mapping]]
id = "left"
frames = ["club.list"]
trigger = "g.club.left"
tracker = "roster"
change = "left"
roster = "g.club"
recipients = true
vars = { club = "club" }

[[template]]
key = "g.thing.late"
channel = "email"
trigger = "g.thing.late"
seed_version = 1

[[rule_group]]
id = "g.rules"

[[rule_group.rule]]
id = "g.thing.late"
label = "Late"
trigger = "g.thing.late"
channels = ["email", "inapp", "push"]
delay_s = 900
cooldown_s = 3600
hourly_cap = 100
cancel_on = ["g.thing.gone"]
template_keys = { email = "g.thing.late", digest = "notify.digest" }
"#;

fn faults(text: &str) -> Vec<(String, Rule)> {
    let found = compile("g.toml", text).err().unwrap_or_default();
    assert!(found.iter().all(|f| f.file == "g.toml"));
    found.into_iter().map(|f| (f.key, f.rule)).collect()
}

/// The faults of [`GOOD`] with one piece of it replaced.
fn with(from: &str, to: &str) -> Vec<(String, Rule)> {
    assert!(GOOD.contains(from), "`{from}` is not in the good manifest");
    faults(&GOOD.replacen(from, to, 1))
}

/// That change is refused, first of all with this key and this rule.
#[track_caller]
fn refused(from: &str, to: &str, key: &str, rule: Rule) {
    let found = with(from, to);
    assert!(
        found.contains(&(key.to_owned(), rule.clone())),
        "expected `{key}`: {rule}\nfound {found:#?}"
    );
}

fn text(words: &str) -> String {
    words.to_owned()
}

#[test]
fn a_manifest_without_faults_is_a_module() {
    assert_eq!(faults(GOOD), []);
    let module = compile("config/modules/g.toml", GOOD).unwrap();
    assert_eq!((module.triggers.len(), module.mappings.len()), (3, 3));
    let kind = module.kind("thing.moved").unwrap();
    assert_eq!(kind.mappings, [0, 1]);
    assert!(module.kind("thing.other").is_none());
}

#[test]
fn the_form_is_told_with_its_key() {
    let found = with("protocol = 3", "protocol = \"3\"");
    assert!(
        matches!(&found[..], [(key, Rule::Shape(_))] if key == "protocol"),
        "{found:?}"
    );
    let found = with("label = \"Game\"", "lable = \"Game\"");
    assert!(
        matches!(&found[..], [(_, Rule::Shape(why)), ..] if why.contains("lable")),
        "{found:?}"
    );
    let found = faults("id = [");
    assert!(matches!(&found[..], [(_, Rule::Shape(_))]), "{found:?}");
    let found = with(
        "version = 1\nvariables = [{ name = \"club\"",
        "version = -1\nvariables = [{ name = \"club\"",
    );
    assert!(
        matches!(&found[..], [(key, Rule::Shape(_))] if key.contains("trigger")),
        "{found:?}"
    );
}

#[test]
fn every_fault_is_told_at_once_by_file_key_and_rule() {
    let text = GOOD
        .replacen("ceiling = \"owner\"\n", "", 1)
        .replacen("owner = \"acct\"\n", "", 1);
    let found = compile("config/modules/g.toml", &text).unwrap_err();
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "config/modules/g.toml: `trigger.0.ceiling`: must be there: no ceiling is safe to guess",
            "config/modules/g.toml: `mapping.0.owner`: the trigger is for its owner, so the mapping must say where the account stands",
        ]
    );
}
