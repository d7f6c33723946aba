//! The frames' JSON Schemas (`schemas/frames`), their examples, and the manifests that read them, held together.

use super::super::field::Path;
use super::super::mapping::{Member, Scene};
use super::super::module::{Module, RosterChange};
use super::super::source::Source;
use super::load;
use millrace_schemas::time::Micros;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("schemas/frames")
}

fn read(path: &std::path::Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every shipped module but core.
fn each(mut see: impl FnMut(&Module)) {
    let modules = load(&super::ids(None).unwrap(), None).unwrap();
    modules.games().for_each(&mut see);
}

fn schema(module: &str, kind: &str) -> Value {
    read(&folder().join(module).join(format!("{kind}.json")))
}

/// Name and body of every example of that kind.
fn examples(module: &str, kind: &str) -> Vec<(String, Value)> {
    let dir = folder().join(module).join("examples").join(kind);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut all: Vec<(String, Value)> = entries
        .map(|e| e.unwrap().path())
        .map(|p| {
            (
                p.file_stem().unwrap().to_string_lossy().into_owned(),
                read(&p),
            )
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn good(module: &str, kind: &str) -> Vec<(String, Value)> {
    let mut all = examples(module, kind);
    all.retain(|(name, _)| name.starts_with("good-"));
    all
}

#[test]
fn every_kind_has_a_schema_and_examples_that_it_takes_and_refuses() {
    each(|module| {
        let files: BTreeSet<String> = std::fs::read_dir(folder().join(&*module.id))
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
            .collect();
        let kinds: BTreeSet<String> = module.kinds.keys().map(ToString::to_string).collect();
        assert_eq!(files, kinds, "schemas and kinds of {}", module.id);
        for kind in &kinds {
            let validator = jsonschema::validator_for(&schema(&module.id, kind)).unwrap();
            let (mut taken, mut refused) = (0, 0);
            for (name, body) in examples(&module.id, kind) {
                match name.split_once('-').map(|(word, _)| word) {
                    Some("good") => {
                        assert!(
                            validator.is_valid(&body),
                            "{kind}/{name}: {:?}",
                            validator
                                .iter_errors(&body)
                                .map(|e| e.to_string())
                                .collect::<Vec<_>>()
                        );
                        // A shard may say more than is read.
                        let mut more = body.clone();
                        more.as_object_mut()
                            .unwrap()
                            .insert("ofALaterBuild".to_owned(), Value::from(1));
                        assert!(
                            validator.is_valid(&more),
                            "{kind}/{name} with one field more"
                        );
                        taken += 1;
                    }
                    Some("bad") => {
                        assert!(!validator.is_valid(&body), "{kind}/{name} must be refused");
                        refused += 1;
                    }
                    _ => panic!("{kind}/{name} is neither good nor bad"),
                }
            }
            assert!(
                taken > 0 && refused > 0,
                "{kind}: {taken} good, {refused} bad"
            );
        }
    });
}

/// What the demonstration streams is what a shard would.
#[test]
fn the_recorded_session_keeps_to_the_schemas() {
    let path = folder().join("../../config/demo/shard.ndjson");
    let text = std::fs::read_to_string(path).unwrap();
    let mut validators = std::collections::HashMap::new();
    let mut seen = 0;
    for line in text.lines() {
        let frame: Value = serde_json::from_str(line).unwrap();
        let Some(kind) = frame["kind"].as_str() else {
            continue;
        };
        if !folder().join(format!("uo/{kind}.json")).exists() {
            continue;
        }
        let validator = validators.entry(kind.to_owned()).or_insert_with(|| {
            let mut options = jsonschema::options();
            options = options.should_validate_formats(true);
            options.build(&schema("uo", kind)).unwrap()
        });
        let faults: Vec<String> = validator
            .iter_errors(&frame["body"])
            .map(|e| format!("{}: {e}", e.instance_path()))
            .collect();
        assert!(faults.is_empty(), "{faults:?} in {line}");
        seen += 1;
    }
    assert!(seen > 1_500, "{seen}");
}

#[test]
fn every_field_says_where_its_name_is_from() {
    fn look(at: &str, schema: &Value) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let at = format!("{at}.{name}");
            assert!(
                matches!(field["x-source"].as_str(), Some("seed" | "chosen")),
                "{at} is marked neither seed nor chosen"
            );
            assert!(
                field.get("additionalProperties").is_none(),
                "{at} must let unknown fields pass"
            );
            look(&at, field);
            look(&at, &field["items"]);
        }
    }
    each(|module| {
        for kind in module.kinds.keys() {
            look(kind, &schema(&module.id, kind));
        }
    });
}

/// Whether a schema declares the path; what stands below a list of things is declared by the thing.
fn declares(schema: &Value, path: &Path) -> bool {
    let mut at = schema;
    for step in path.steps() {
        at = &at["properties"][step];
        if at.is_null() {
            return false;
        }
    }
    true
}

#[test]
fn every_path_of_a_mapping_is_declared_by_the_frames_it_reads() {
    each(|module| {
        let mut wrong = Vec::new();
        let mut look = |what: &str, kinds: &[&str], path: &Path| {
            let first = path.steps().next().unwrap();
            if matches!(first, "frame" | "member") {
                return;
            }
            // Of a mapping of several kinds an expression may read what only one of them says.
            let declared = kinds
                .iter()
                .filter(|k| declares(&schema(&module.id, k), path))
                .count();
            if declared == 0 {
                wrong.push(format!("{what}: {path}"));
            }
        };
        for mapping in &module.mappings {
            let kinds: Vec<&str> = mapping.frames.iter().map(|f| &**f).collect();
            for kind in &kinds {
                for path in mapping.decisive().chain(&mapping.owner) {
                    look(&mapping.id, &[kind], path);
                }
            }
            for (_, source) in &mapping.vars {
                for path in source.paths() {
                    look(&mapping.id, &kinds, &path);
                }
                if let Source::Path(path) = source {
                    kinds
                        .iter()
                        .for_each(|kind| look(&mapping.id, &[kind], path));
                }
            }
        }
        for kind in module.kinds.values() {
            kind.key
                .iter()
                .for_each(|key| look("key", &[&kind.name], key));
        }
        for roster in &module.rosters {
            for feed in &roster.feeds {
                match &feed.change {
                    RosterChange::Replace {
                        members, account, ..
                    } => {
                        look(&roster.id, &[&feed.frame], members);
                        let of = &schema(&module.id, &feed.frame)["properties"]
                            [members.to_string()]["items"];
                        assert!(declares(of, account), "{}: {account}", roster.id);
                    }
                    RosterChange::Add { account, .. } | RosterChange::Seat { account } => {
                        look(&roster.id, &[&feed.frame], account);
                    }
                    RosterChange::Remove { slot } => look(&roster.id, &[&feed.frame], slot),
                    RosterChange::Clear => {}
                }
            }
        }
        assert!(
            wrong.is_empty(),
            "{}: undeclared paths {wrong:#?}",
            module.id
        );
    });
}

/// What partitions a frame is always there.
#[test]
fn the_key_of_a_kind_is_required() {
    each(|module| {
        for kind in module.kinds.values() {
            let Some(key) = &kind.key else { continue };
            let schema = schema(&module.id, &kind.name);
            let required = schema["required"].as_array().unwrap();
            assert!(
                required.contains(&Value::from(key.to_string())),
                "{}: {key}",
                kind.name
            );
            for (name, body) in good(&module.id, &kind.name) {
                assert!(
                    kind.key_of("s", &body.to_string()).unwrap().is_some(),
                    "{}/{name}",
                    kind.name
                );
            }
        }
    });
}

/// Only what the schema requires: what a shard of an older build sends.
fn least(schema: &Value, body: &Value) -> Value {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let fields = body
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| required.contains(&name.as_str()));
    Value::Object(fields.map(|(k, v)| (k.clone(), v.clone())).collect())
}

/// Every mapping fires from every good example that it applies to, and from what is left of it when only the required fields are
/// there: labels and links have values then too, and no text shows the hole of a missing one.
#[test]
fn every_mapping_fires_whole_from_its_examples() {
    each(|module| {
        for mapping in &module.mappings {
            let trigger = module.fires(mapping).unwrap();
            let mut fired = 0;
            for kind in &mapping.frames {
                let schema = schema(&module.id, kind);
                for (name, whole) in good(&module.id, kind) {
                    for body in [whole.clone(), least(&schema, &whole)] {
                        let watched =
                            mapping.tracker.value().is_none() || mapping.watched(&body).is_some();
                        if !mapping.applies(&body) || !watched {
                            continue;
                        }
                        let scene = Scene {
                            shard: "atlantic",
                            boot: "b",
                            seq: 1,
                            kind,
                            key: "k",
                            at: Micros(1_000_000),
                            body: &body,
                            member: Some(Member {
                                slot: "m",
                                account: "a",
                            }),
                        };
                        let at = format!("{} from {kind}/{name}: {body}", mapping.id);
                        let said = mapping
                            .fire(trigger, &scene)
                            .unwrap_or_else(|e| panic!("{at}: {e}"));
                        for variable in &trigger.variables {
                            let text = said.vars.get(&*variable.name).and_then(Value::as_str);
                            if variable.name.ends_with("Label") || variable.name.ends_with("Url") {
                                assert!(
                                    text.is_some_and(|t| !t.is_empty()),
                                    "{at}: no {}",
                                    variable.name
                                );
                            }
                            let Some(text) = text else { continue };
                            for hole in ["none", "undefined", "  ", "( ", "()", " ,", "null"] {
                                assert!(
                                    !text.contains(hole),
                                    "{at}: {} is {text:?}",
                                    variable.name
                                );
                            }
                        }
                        fired += 1;
                    }
                }
            }
            assert!(fired > 0, "no example fires {}", mapping.id);
        }
    });
}
