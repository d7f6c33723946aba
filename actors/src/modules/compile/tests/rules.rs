//! Rosters, audiences, templates, seeded rules.

use super::{refused, text, with};
use crate::modules::compile::Rule;
use millrace_schemas::ceiling::Ceiling;

#[test]
fn a_roster_is_fed_by_frames_of_its_own_key() {
    refused(
        "param = \"club\", members",
        "param = \"id\", members",
        "roster.0.feeds.0.param",
        Rule::RosterKey(text("club")),
    );
    refused(
        "frame = \"club.list\", change",
        "frame = \"tick\", change",
        "roster.0.feeds.0.param",
        Rule::RosterKey(text("none: the shard as a whole")),
    );
    refused(
        "frame = \"club.list\", change",
        "frame = \"none\", change",
        "roster.0.feeds.0.frame",
        Rule::Unknown("frame", text("none")),
    );
    refused(
        "members = \"members\", account",
        "account",
        "roster.0.feeds.0.members",
        Rule::Missing("this change needs it"),
    );
    refused(
        "change = \"replace\"",
        "change = \"clear\"",
        "roster.0.feeds.0.members",
        Rule::TrackerRefuses(text("clear")),
    );
    let none =
        "roster]]\nid = \"g.club\"\nparam = \"club\"\nfeeds = []\n\n[[roster]]\nid = \"g.other\"";
    refused(
        "roster]]\nid = \"g.club\"",
        none,
        "roster.0.feeds",
        Rule::Missing("a roster that no frame changes is empty for ever"),
    );
    refused(
        "roster = \"g.club\"\nparams",
        "roster = \"g.clubs\"\nparams",
        "audience.0.roster",
        Rule::Unknown("roster", text("g.clubs")),
    );
    refused(
        "roster = \"g.club\"\nparams",
        "params",
        "audience.0.roster",
        Rule::Missing("who answers it: either a roster, or `linked = true`"),
    );
    refused(
        "params = [{ id = \"club\", type = \"string\", required = true }]",
        "",
        "audience.0.params",
        Rule::Unknown("parameter but the roster's own,", text("club")),
    );
}

/// Partitions that each hold one key's frames would write one list over each other.
#[test]
fn a_list_has_one_writer() {
    let kept = "param = \"club\"\nfeeds = [{ frame = \"club.list\", change = \"replace\", param = \"club\", members = \"members\", account = \"acct\", slot = \"id\" }]";
    let at = "roster.0.feeds.0.change";
    let shared = Rule::RosterShared(text("club"));
    for feed in [
        "change = \"replace\", members = \"members\", account = \"acct\"",
        "change = \"add\", account = \"acct\"",
        "change = \"clear\"",
    ] {
        let feeds = format!("feeds = [{{ frame = \"club.list\", {feed} }}]");
        refused(kept, &feeds, at, shared.clone());
    }
    for feed in [
        "frame = \"club.list\", change = \"seat\", account = \"acct\"",
        "frame = \"tick\", change = \"add\", account = \"acct\"",
    ] {
        let found = with(kept, &format!("feeds = [{{ {feed} }}]"));
        assert!(found.iter().all(|(key, _)| key != at), "{found:?}");
    }
}

#[test]
fn a_seeded_rule_s_conditions_are_what_a_rule_s_may_be() {
    let conditions = "rule_group.0.rule.0.conditions";
    for (tree, key, why) in [
        (
            "{ var = \"colour\", cmp = \"eq\", value = \"red\" }",
            ".var",
            "the trigger declares no variable `colour`",
        ),
        (
            "{ op = \"and\", nodes = [{ var = \"thing\", cmp = \"eq\", value = 7 }] }",
            ".nodes.0.value",
            "`thing` is of type string",
        ),
        (
            "{ op = \"maybe\", nodes = [{ var = \"thing\", cmp = \"present\" }] }",
            ".op",
            "`and`, `or` or `not`",
        ),
        ("7", "", "a condition is an object"),
    ] {
        refused(
            "delay_s = 900",
            &format!("delay_s = 900\nconditions = {tree}"),
            &format!("{conditions}{key}"),
            Rule::Conditions(text(why)),
        );
    }
    let found = with(
        "delay_s = 900",
        "delay_s = 900\nconditions = { var = \"thing\", cmp = \"eq\", value = \"7\" }",
    );
    assert_eq!(found, []);
}

#[test]
fn a_seeded_rule_is_disabled_and_within_its_ceiling() {
    let rule = "rule_group.0.rule.0";
    refused(
        "delay_s = 900",
        "delay_s = 900\nenabled = true",
        &format!("{rule}.enabled"),
        Rule::Enabled,
    );
    refused(
        "delay_s = 900",
        "audience = \"everyone\"",
        &format!("{rule}.audience"),
        Rule::Ceiling(Ceiling::Everyone, Ceiling::Owner),
    );
    refused(
        "hourly_cap = 100",
        "hourly_cap = 0",
        &format!("{rule}.hourly_cap"),
        Rule::Range("at least 1"),
    );
    refused(
        "delay_s = 900",
        "delay_s = 2592001",
        &format!("{rule}.delay_s"),
        Rule::Range("at most 30 days"),
    );
    refused(
        "trigger = \"g.thing.late\"\nchannels",
        "trigger = \"g.thing.lost\"\nchannels",
        &format!("{rule}.trigger"),
        Rule::Unknown("trigger", text("g.thing.lost")),
    );
    refused(
        "channels = [\"email\", \"inapp\", \"push\"]",
        "channels = []",
        &format!("{rule}.channels"),
        Rule::Missing("at least one channel"),
    );
    refused(
        "{ id = \"g.thing.late\", label = \"Late\", description = \"Late.\" },",
        "",
        &format!("{rule}.channels.2"),
        Rule::NoStream(text("g.thing.late")),
    );
}

#[test]
fn triggers_that_cancel_each_other_share_their_subject() {
    let other = Rule::CancelSubject(
        text("g.thing.late"),
        text("thing"),
        text("g.club.left"),
        text("club"),
    );
    refused(
        "cancel_on = [\"g.thing.gone\"]",
        "cancel_on = [\"g.club.left\"]",
        "rule_group.0.rule.0.cancel_on.0",
        other,
    );
    refused(
        "cancel_on = [\"g.thing.gone\"]",
        "cancel_on = [\"g.nothing\"]",
        "rule_group.0.rule.0.cancel_on.0",
        Rule::Unknown("trigger", text("g.nothing")),
    );
}

#[test]
fn a_template_is_for_one_channel_and_one_trigger() {
    let keys = "template_keys = { email = \"g.thing.late\", digest = \"notify.digest\" }";
    let at = |slot: &str| format!("rule_group.0.rule.0.template_keys.{slot}");
    refused(
        keys,
        "template_keys = { inapp = \"g.thing.late\" }",
        &at("inapp"),
        Rule::TemplateChannel(text("g.thing.late"), text("email")),
    );
    refused(
        keys,
        "template_keys = { email = \"g.thing.later\" }",
        &at("email"),
        Rule::Unknown("template", text("g.thing.later")),
    );
    refused(
        keys,
        "template_keys = { email = \"g.thing_late\" }",
        &at("email"),
        Rule::TemplateKey(text("g.thing_late")),
    );
    refused(
        "channel = \"email\"\ntrigger = \"g.thing.late\"",
        "channel = \"email\"\ntrigger = \"g.thing.gone\"",
        &at("email"),
        Rule::TemplateTrigger(text("g.thing.late"), text("g.thing.gone")),
    );
    refused(
        "channel = \"email\"\ntrigger = \"g.thing.late\"",
        "channel = \"email\"\ntrigger = \"g.none\"",
        "template.0.trigger",
        Rule::Unknown("trigger", text("g.none")),
    );
    refused(
        "key = \"g.thing.late\"",
        "key = \"g.thing_late\"",
        "template.0.key",
        Rule::TemplateKey(text("g.thing_late")),
    );
    refused(
        "seed_version = 1",
        "seed_version = 0",
        "template.0.seed_version",
        Rule::Range("at least 1"),
    );
    let found = with(keys, "template_keys = { fax = \"g.thing.late\" }");
    assert!(
        matches!(&found[..], [(_, Rule::Word(word, _))] if word == "fax"),
        "{found:?}"
    );
}
