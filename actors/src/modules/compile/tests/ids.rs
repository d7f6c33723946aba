//! Whose an id is, and how it is written.

use super::{GOOD, refused, text};
use crate::modules::compile::{Fault, Rule, compile};
use crate::modules::{Modules, shipped};

#[test]
fn the_module_is_named_as_its_file() {
    refused("id = \"g\"", "id = \"G\"", "id", Rule::ModuleId(text("G")));
    refused("id = \"g\"", "id = \"h\"", "id", Rule::FileName(text("h")));
    refused(
        "protocol = 3",
        "protocol = 0",
        "protocol",
        Rule::Range("at least 1"),
    );
}

#[test]
fn an_id_begins_with_its_module_or_is_a_legacy_one() {
    let owned = |id: &str| Rule::NotOwned(text(id), text("g"));
    refused(
        "id = \"g.thing.late\"\nlabel = \"Late\"\ndesc",
        "id = \"other.late\"\nlabel = \"Late\"\ndesc",
        "trigger.0.id",
        owned("other.late"),
    );
    refused(
        "id = \"old.stream\", label",
        "id = \"new.stream\", label",
        "stream.0.id",
        owned("new.stream"),
    );
    refused(
        "id = \"g.club\"\nparam",
        "id = \"h.club\"\nparam",
        "roster.0.id",
        owned("h.club"),
    );
    refused(
        "id = \"g.club\"\nlabel",
        "id = \"h.club\"\nlabel",
        "audience.0.id",
        owned("h.club"),
    );
    refused(
        "id = \"g.rules\"",
        "id = \"h.rules\"",
        "rule_group.0.id",
        owned("h.rules"),
    );
    refused(
        "id = \"g.thing.late\"\nlabel = \"Late\"\ntrigger",
        "id = \"h.late\"\nlabel = \"Late\"\ntrigger",
        "rule_group.0.rule.0.id",
        owned("h.late"),
    );
    refused(
        "key = \"g.thing.late\"",
        "key = \"h.late\"",
        "template.0.key",
        owned("h.late"),
    );
}

#[test]
fn an_id_is_written_as_ids_are() {
    refused(
        "id = \"g.club.left\"",
        "id = \"g.club-left\"",
        "trigger.2.id",
        Rule::Id(text("g.club-left")),
    );
    refused(
        "\"old.stream\"]",
        "\"old\"]",
        "legacy_ids.0",
        Rule::Id(text("old")),
    );
    refused(
        "id = \"g.rules\"",
        "id = \"g.Rules\"",
        "rule_group.0.id",
        Rule::Id(text("g.Rules")),
    );
}

#[test]
fn the_legacy_list_is_no_bigger_than_it_must_be() {
    refused(
        "\"old.stream\"]",
        "\"old.stream\", \"g.x\"]",
        "legacy_ids.1",
        Rule::LegacyNotNeeded(text("g.x")),
    );
    refused(
        "\"old.stream\"]",
        "\"old.stream\", \"older.one\"]",
        "legacy_ids.1",
        Rule::LegacyUnused(text("older.one")),
    );
}

#[test]
fn nothing_stands_twice() {
    refused(
        "id = \"g.club.left\"",
        "id = \"g.thing.gone\"",
        "trigger.2",
        Rule::Twice(text("g.thing.gone")),
    );
    refused(
        "id = \"left\"",
        "id = \"gone\"",
        "mapping.2",
        Rule::Twice(text("gone")),
    );
    refused(
        "{ kind = \"tick\" }",
        "{ kind = \"club.list\" }",
        "frame.3",
        Rule::Twice(text("club.list")),
    );
    refused(
        "{ name = \"url\", type = \"url\", example = \"/things\" }",
        "{ name = \"thing\", type = \"int\", example = 1 }",
        "trigger.0.variables.1",
        Rule::Twice(text("thing")),
    );
    refused(
        "channels = [\"email\", \"inapp\"",
        "channels = [\"email\", \"email\"",
        "rule_group.0.rule.0.channels.1",
        Rule::Twice(text("email")),
    );
}

/// One module claims what another, or core, holds: the holder is named.
#[test]
fn an_id_has_one_owner() {
    let of = |file: &str, text: &str| (file.to_owned(), compile(file, text).unwrap());
    let second = |text: &str| Modules::assemble(vec![of("g.toml", GOOD), of("h.toml", text)]);
    let header = "id = \"h\"\nlabel = \"H\"\ndescription = \"H.\"\nprotocol = 1\n";
    let held = |found: Result<Modules, Vec<Fault>>| found.unwrap_err().remove(0);
    let stream = format!(
        "{header}legacy_ids = [\"old.stream\"]\nstream = [{{ id = \"old.stream\", label = \"O\", description = \"O\" }}]"
    );
    let fault = held(second(&stream));
    assert_eq!(
        fault.to_string(),
        "h.toml: `stream.old.stream`: `old.stream` is held by the module `g`"
    );
    // A trigger may not claim another's stream either: one namespace.
    let trigger = format!(
        "{header}legacy_ids = [\"old.stream\"]\n[[trigger]]\nid = \"old.stream\"\nlabel = \"O\"\ndescription = \"O\"\nsubject_key = \"s\"\n\
         audience = \"staff\"\nceiling = \"staff\"\nversion = 1\nvariables = [{{ name = \"s\", type = \"int\", required = true, example = 1 }}]"
    );
    assert_eq!(held(second(&trigger)).key, "trigger.old.stream");
    let core = format!(
        "{header}legacy_ids = [\"news.post\"]\nstream = [{{ id = \"news.post\", label = \"O\", description = \"O\" }}]"
    );
    let dir = std::env::temp_dir().join(format!("millrace-modules-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("h.toml"), core).unwrap();
    let fault = held(shipped::load(&[text("h")], Some(&dir)));
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(
        fault.rule,
        Rule::Held(text("news.post"), text("the module `core`"))
    );
    assert!(second(header).is_ok());
}

/// A frame does not say of which module its shard is: two modules of one kind would both read it.
#[test]
fn a_kind_of_frame_has_one_module() {
    let of = |file: &str, text: &str| (file.to_owned(), compile(file, text).unwrap());
    let second = |kind: &str| {
        let text = format!(
            "id = \"h\"\nlabel = \"H\"\ndescription = \"H.\"\nprotocol = 1\nframe = [{{ kind = \"{kind}\" }}]"
        );
        Modules::assemble(vec![of("g.toml", GOOD), of("h.toml", &text)])
    };
    assert_eq!(
        second("tick").unwrap_err(),
        [Fault {
            file: text("h.toml"),
            key: text("frame.tick"),
            rule: Rule::Held(text("tick"), text("the module `g`")),
        }]
    );
    assert!(second("tock").is_ok());
    let shipped: Vec<String> = shipped::SHIPPED
        .iter()
        .map(|(file, _)| text(file.trim_end_matches(".toml")))
        .collect();
    assert!(
        shipped::load(&shipped, None).is_ok(),
        "all may be enabled at once"
    );
}

#[test]
fn an_enabled_module_has_a_manifest_and_stands_once() {
    let of = |enabled: &[&str]| {
        let enabled: Vec<String> = enabled.iter().map(|s| (*s).to_owned()).collect();
        shipped::load(&enabled, None).map_err(|mut f| Box::new(f.remove(0)))
    };
    let missing = of(&["chess"]).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "settings: `modules.enabled.0`: there is no manifest of the module `chess`"
    );
    for bad in ["core", "../uo", "UO", ""] {
        assert!(
            matches!(of(&[bad]).unwrap_err().rule, Rule::ModuleId(_)),
            "{bad}"
        );
    }
    let (first, twice) = (
        shipped::SHIPPED[0].0.trim_end_matches(".toml"),
        of(&["survival", "survival"]).unwrap_err(),
    );
    assert_eq!(
        (twice.key.as_str(), twice.rule.clone()),
        ("modules.enabled.1", Rule::Twice(text("survival")))
    );
    let modules = of(&[first]).unwrap();
    assert!(
        !modules.is_empty()
            && modules.get("core").is_none()
            && modules.trigger("news.post").is_some()
    );
    assert!(of(&[]).unwrap().is_empty());
    let away = shipped::load(&[text("g")], Some(std::path::Path::new("/nowhere"))).unwrap_err();
    assert_eq!(away[0].rule, Rule::NoManifest(text("g")));
}
