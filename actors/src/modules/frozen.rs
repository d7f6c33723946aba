//! The declarations of modules in one committed file (`manifest.json`): what a reviewer sees when a manifest changes, and what a check
//! compares with. Texts for people, conditions and expressions are not in it; ids, types, ceilings and keys are.

use super::compile::{Fault, Rule};
use super::module::{AudienceSource, Module, Trigger, TriggerKind};
use super::registry::Modules;
use serde_json::{Map, Value, json};

/// How the committed file is called, beside the manifests.
pub const FILE: &str = "manifest.json";

/// The declarations of all modules.
#[must_use]
pub fn freeze(modules: &Modules) -> Value {
    named(modules.iter().map(|m| (&*m.id, module(m))))
}

/// As the file holds it.
#[must_use]
pub fn text(frozen: &Value) -> String {
    format!("{frozen:#}\n")
}

/// Compares what is committed with what the manifests say now. `file` is how the committed one is called in faults.
#[must_use]
pub fn drift(file: &str, committed: &str, modules: &Modules) -> Vec<Fault> {
    let now = freeze(modules);
    let before: Value = match serde_json::from_str(committed) {
        Ok(before) => before,
        Err(e) => {
            return vec![Fault {
                file: file.to_owned(),
                key: String::new(),
                rule: Rule::Shape(e.to_string()),
            }];
        }
    };
    let mut faults = unraised(file, &before, modules);
    differ(file, "", &before, &now, &mut faults);
    faults
}

/// A renamed variable, or one of another type, breaks every stored body that uses it: the trigger's version must say so.
fn unraised(file: &str, before: &Value, modules: &Modules) -> Vec<Fault> {
    let mut faults = Vec::new();
    for trigger in modules.triggers() {
        let of = |value: &Value, name: &str| value.get(name).cloned().unwrap_or_default();
        let stood = of(&of(&of(before, &trigger.module), "triggers"), &trigger.id);
        if of(&stood, "version") != json!(trigger.version) {
            continue;
        }
        for (name, declared) in stood
            .get("variables")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let kept = trigger
                .variable(name)
                .is_some_and(|v| of(declared, "type") == v.of.word());
            if !kept {
                faults.push(Fault {
                    file: file.to_owned(),
                    key: format!("{}.triggers.{}.version", trigger.module, trigger.id),
                    rule: Rule::VersionNotRaised(name.clone()),
                });
            }
        }
    }
    faults
}

fn differ(file: &str, key: &str, before: &Value, now: &Value, faults: &mut Vec<Fault>) {
    if before == now {
        return;
    }
    if let (Value::Object(a), Value::Object(b)) = (before, now) {
        let more = b.keys().filter(|name| !a.contains_key(*name));
        for name in a.keys().chain(more) {
            let key = match key {
                "" => name.clone(),
                above => format!("{above}.{name}"),
            };
            let (a, b) = (a.get(name), b.get(name));
            differ(
                file,
                &key,
                a.unwrap_or(&Value::Null),
                b.unwrap_or(&Value::Null),
                faults,
            );
        }
        return;
    }
    faults.push(Fault {
        file: file.to_owned(),
        key: key.to_owned(),
        rule: Rule::Drift(brief(before), brief(now)),
    });
}

/// A value in a sentence.
fn brief(value: &Value) -> String {
    match value {
        Value::Null => "not there".to_owned(),
        Value::Object(fields) => format!("a table of {} keys", fields.len()),
        other => other.to_string(),
    }
}

fn named<'a>(entries: impl Iterator<Item = (&'a str, Value)>) -> Value {
    Value::Object(
        entries
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    )
}

fn module(module: &Module) -> Value {
    let roster = |place: usize| module.rosters.get(place).map_or("", |r| &*r.id);
    let fired = |place: usize| module.triggers.get(place).map_or("", |t| &*t.id);
    json!({
        "protocol": module.protocol,
        "frames": named(module.kinds.values().map(|k| (&*k.name, json!(k.key.as_ref().map(ToString::to_string))))),
        "streams": named(module.streams.iter().map(|s| (&*s.id, json!({
            "personal": s.personal, "requires_linked_account": s.requires_linked_account,
        })))),
        "triggers": named(module.triggers.iter().map(|t| (&*t.id, trigger(t)))),
        "mappings": named(module.mappings.iter().map(|m| (&*m.id, json!({
            "frames": m.frames, "trigger": fired(m.trigger), "tracker": m.tracker.word(),
        })))),
        "rosters": named(module.rosters.iter().map(|r| (&*r.id, json!({
            "param": r.param, "frames": r.feeds.iter().map(|f| &f.frame).collect::<Vec<_>>(),
        })))),
        "audiences": named(module.audiences.iter().map(|a| (&*a.id, json!({
            "ceiling": a.ceiling,
            "of": match a.source { AudienceSource::Roster(place) => roster(place), AudienceSource::Linked => "links" },
            "params": named(a.params.iter().map(|p| (&*p.id, json!({
                "type": if p.int { "int" } else { "string" }, "required": p.required,
            })))),
        })))),
        "templates": named(module.templates.iter().map(|t| (&*t.key, json!({
            "channel": t.channel, "trigger": fired(t.trigger), "seed_version": t.seed_version,
        })))),
        "rule_groups": named(module.rule_groups.iter().map(|g| (&*g.id, named(g.rules.iter().map(|r| (&*r.id, json!({
            "trigger": r.trigger, "channels": r.channels, "audience": r.audience, "delay_s": r.delay_s,
            "cooldown_s": r.cooldown_s, "hourly_cap": r.hourly_cap, "cancel_on": r.cancel_on,
        }))))))),
    })
}

fn trigger(trigger: &Trigger) -> Value {
    let variables = trigger
        .variables
        .iter()
        .map(|v| (&*v.name, json!({"type": v.of, "required": v.required})));
    let modes: Map<String, Value> = trigger
        .default_modes
        .iter()
        .map(|(channel, mode)| (channel.word().to_owned(), json!(mode)))
        .collect();
    json!({
        "kind": match trigger.kind { TriggerKind::Event => "event", TriggerKind::Scheduled => "scheduled" },
        "subject_key": trigger.subject_key(),
        "audience": trigger.audience,
        "ceiling": trigger.ceiling,
        "version": trigger.version,
        "max_age_s": trigger.max_age_s,
        "default_modes": modes,
        "modes": trigger.modes,
        "variables": named(variables),
    })
}

#[cfg(test)]
mod tests {
    use super::{drift, freeze, text};
    use crate::modules::compile::Rule;
    use crate::modules::{Modules, compile};

    fn of(trigger: &str) -> Modules {
        let manifest = format!(
            "id = \"g\"\nlabel = \"G\"\ndescription = \"G\"\nprotocol = 1\n[[trigger]]\nid = \"g.a\"\nlabel = \"A\"\n\
             description = \"A\"\nsubject_key = \"s\"\naudience = \"staff\"\nceiling = \"staff\"\n{trigger}"
        );
        let module = compile("g.toml", &manifest).unwrap();
        Modules::assemble(vec![("g.toml".to_owned(), module)]).unwrap()
    }

    const FIRST: &str = "version = 1\nvariables = [{ name = \"s\", type = \"string\", required = true, example = \"1\" }, { name = \"n\", type = \"int\", example = 1 }]";

    fn found(before: &str, now: &str) -> Vec<(String, Rule)> {
        let committed = text(&freeze(&of(before)));
        let faults = drift("manifest.json", &committed, &of(now));
        assert!(faults.iter().all(|f| f.file == "manifest.json"));
        faults.into_iter().map(|f| (f.key, f.rule)).collect()
    }

    #[test]
    fn nothing_changed_is_no_drift() {
        assert_eq!(found(FIRST, FIRST), []);
    }

    #[test]
    fn a_change_is_named_by_its_key() {
        let wider = FIRST.replace("version = 1", "version = 1\nmax_age_s = 60");
        let key = "g.triggers.g.a.max_age_s".to_owned();
        assert_eq!(
            found(FIRST, &wider),
            [(key, Rule::Drift("not there".to_owned(), "60".to_owned()))]
        );
    }

    #[test]
    fn a_renamed_or_retyped_variable_raises_the_version() {
        let retyped = FIRST.replace("\"int\", example = 1", "\"string\", example = \"1\"");
        let renamed = FIRST.replace("\"n\"", "\"m\"");
        for changed in [&retyped, &renamed] {
            let faults = found(FIRST, changed);
            let key = "g.triggers.g.a.version".to_owned();
            assert_eq!(faults[0], (key, Rule::VersionNotRaised("n".to_owned())));
            // With the version raised what is left is that nobody committed it.
            let raised = changed.replace("version = 1", "version = 2");
            let faults = found(FIRST, &raised);
            assert!(!faults.is_empty());
            assert!(
                faults
                    .iter()
                    .all(|(_, rule)| matches!(rule, Rule::Drift(..))),
                "{faults:?}"
            );
        }
        // One variable more breaks nothing, and is drift alone.
        let more = FIRST.replace(" }]", " }, { name = \"x\", type = \"int\", example = 1 }]");
        assert!(
            found(FIRST, &more)
                .iter()
                .all(|(_, rule)| matches!(rule, Rule::Drift(..)))
        );
    }

    #[test]
    fn what_is_no_json_is_said_so() {
        let faults = drift("manifest.json", "{", &of(FIRST));
        assert!(matches!(faults[0].rule, Rule::Shape(_)));
    }
}
