//! Triggers and their variables.

use super::{refused, text, with};
use crate::modules::compile::Rule;
use millrace_schemas::ceiling::Ceiling;

#[test]
fn a_trigger_says_whom_it_may_reach() {
    let why = "no ceiling is safe to guess";
    refused(
        "ceiling = \"owner\"\nversion",
        "version",
        "trigger.0.ceiling",
        Rule::Missing(why),
    );
    refused(
        "audience = \"owner\"\n",
        "",
        "trigger.0.audience",
        Rule::Missing("whom a rule begins with"),
    );
    refused(
        "audience = \"owner\"",
        "audience = \"staff\"",
        "trigger.0.audience",
        Rule::Ceiling(Ceiling::Staff, Ceiling::Owner),
    );
    // Fewer people is not less exposure.
    refused(
        "ceiling = \"owner\"",
        "ceiling = \"staff\"",
        "trigger.0.audience",
        Rule::Ceiling(Ceiling::Owner, Ceiling::Staff),
    );
    refused(
        "ceiling = \"members\"\nroster",
        "roster",
        "audience.0.ceiling",
        Rule::Missing(why),
    );
    let found = with("ceiling = \"owner\"", "ceiling = \"computed\"");
    assert!(
        matches!(&found[..], [(key, Rule::Word(word, _))] if key == "trigger.0.ceiling" && word == "computed"),
        "{found:?}"
    );
}

#[test]
fn a_trigger_has_kind_version_and_texts() {
    let found = with(
        "id = \"g.club.left\"",
        "id = \"g.club.left\"\nkind = \"hourly\"",
    );
    assert!(
        matches!(&found[..], [(key, Rule::Word(word, _))] if key == "trigger.2.kind" && word == "hourly"),
        "{found:?}"
    );
    refused(
        "id = \"g.club.left\"",
        "id = \"g.club.left\"\nkind = \"scheduled\"",
        "mapping.2.trigger",
        Rule::Scheduled(text("g.club.left")),
    );
    refused(
        "version = 1\nvariables = [{ name = \"club\"",
        "variables = [{ name = \"club\"",
        "trigger.2.version",
        Rule::Missing("a whole number of at least 1"),
    );
    refused(
        "label = \"Gone\"",
        "label = \" \"",
        "trigger.1.label",
        Rule::Empty,
    );
    refused(
        "label = \"Gone\"",
        "label = \"Gone\"\nmax_age_s = 0",
        "trigger.1.max_age_s",
        Rule::Range("at least 1"),
    );
}

#[test]
fn a_subject_is_a_required_variable_and_a_stable_id() {
    refused(
        "subject_key = \"club\"\n",
        "",
        "trigger.2.subject_key",
        Rule::Missing("which variable names what it is about"),
    );
    refused(
        "subject_key = \"club\"",
        "subject_key = \"clubs\"",
        "trigger.2.subject_key",
        Rule::Subject(text("clubs")),
    );
    refused(
        "subject_key = \"thing\"",
        "subject_key = \"url\"",
        "trigger.0.subject_key",
        Rule::SubjectType(text("url")),
    );
    refused(
        "\"club\", type = \"string\", required = true, example",
        "\"club\", type = \"string\", example",
        "trigger.2.subject_key",
        Rule::SubjectType(text("club")),
    );
    refused(
        "vars = { club = \"club\" }",
        "vars = { club = \"club.displayName\" }",
        "mapping.2.vars.club",
        Rule::SubjectName(text("club.displayName")),
    );
    refused(
        "vars = { club = \"club\" }",
        "vars = { club = \"{{ title or club }}\" }",
        "mapping.2.vars.club",
        Rule::SubjectName(text("title")),
    );
}

#[test]
fn a_variable_has_a_type_and_an_example_of_it() {
    refused(
        ", example = \"/things\"",
        "",
        "trigger.0.variables.1.example",
        Rule::NoExample,
    );
    refused(
        "example = \"/things\"",
        "example = \"//evil.test/things\"",
        "trigger.0.variables.1.example",
        Rule::Example("url", ", which is site-relative (`/…`)"),
    );
    refused(
        "type = \"url\", example = \"/things\"",
        "type = \"datetime\", example = \"today\"",
        "trigger.0.variables.1.example",
        Rule::Example("datetime", ", which is RFC 3339 with an offset"),
    );
    refused(
        "name = \"url\"",
        "name = \"the url\"",
        "trigger.0.variables.1.name",
        Rule::Name(text("the url")),
    );
    let found = with("type = \"url\"", "type = \"html\"");
    assert!(
        matches!(&found[..], [(key, Rule::Word(word, _))] if key == "trigger.0.variables.1.type" && word == "html"),
        "{found:?}"
    );
}

#[test]
fn what_holds_by_default_may_be_chosen() {
    let trigger = "id = \"g.club.left\"";
    let silent = Rule::ModeOfChannel(text("instant"), text("inapp"));
    refused(
        trigger,
        &format!("{trigger}\nmodes = [\"off\", \"digest\"]"),
        "trigger.2.modes",
        silent,
    );
    refused(
        trigger,
        &format!(
            "{trigger}\nmodes = [\"off\", \"digest\"]\ndefault_modes = {{ inapp = \"instant\" }}"
        ),
        "trigger.2.default_modes.inapp",
        Rule::DefaultMode(text("instant")),
    );
    let found = with(
        trigger,
        &format!(
            "{trigger}\ndefault_modes = {{ fax = \"off\", email = \"hourly\" }}\nmodes = [\"never\"]"
        ),
    );
    let words: Vec<&str> = found
        .iter()
        .filter_map(|(_, r)| match r {
            Rule::Word(word, _) => Some(word.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(words, ["never", "hourly", "fax"]);
    assert_eq!(
        with(
            trigger,
            &format!(
                "{trigger}\nmodes = [\"off\", \"digest\"]\ndefault_modes = {{ inapp = \"digest\" }}"
            )
        ),
        []
    );
}
