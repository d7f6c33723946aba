//! Mappings: trackers, paths, expressions.

use super::{refused, text, with};
use crate::modules::compile::Rule;
use millrace_schemas::ceiling::Ceiling;

#[test]
fn a_mapping_names_what_is_declared() {
    refused(
        "frames = [\"club.list\"]",
        "frames = [\"club.lists\"]",
        "mapping.2.frames.0",
        Rule::Unknown("frame", text("club.lists")),
    );
    refused(
        "frames = [\"club.list\"]",
        "frames = []",
        "mapping.2.frames",
        Rule::Missing("at least one kind"),
    );
    refused(
        "trigger = \"g.club.left\"",
        "trigger = \"g.club.gone\"",
        "mapping.2.trigger",
        Rule::Unknown("trigger", text("g.club.gone")),
    );
    refused(
        "vars = { club = \"club\" }",
        "vars = { club = \"club\", more = \"x\" }",
        "mapping.2.vars.more",
        Rule::Unknown("variable", text("more")),
    );
    refused(
        "vars = { club = \"club\" }",
        "vars = {}",
        "mapping.2.vars",
        Rule::NoSource(text("club")),
    );
    refused(
        "roster = \"g.club\"\nrecipients",
        "roster = \"g.clubs\"\nrecipients",
        "mapping.2.roster",
        Rule::Unknown("roster", text("g.clubs")),
    );
    refused(
        "id = \"left\"",
        "id = \"left!\"",
        "mapping.2.id",
        Rule::Name(text("left!")),
    );
}

#[test]
fn a_mapping_s_roster_is_kept_by_its_frames_key_and_changed_by_what_its_tracker_watches() {
    let other = |key: &str| Rule::RosterOther(text(key), text("club"));
    for (frame, key) in [
        ("thing.moved", "thing"),
        ("tick", "none: the shard as a whole"),
    ] {
        let frames = format!("frames = [\"{frame}\"]");
        let from = "frames = [\"club.list\"]";
        refused(from, &frames, "mapping.2.roster", other(key));
        refused(
            from,
            &frames,
            "mapping.2.frames.0",
            Rule::NotFed(text(frame), text("g.club")),
        );
    }
    // Of the same key, and yet it changes no list.
    refused(
        "{ frame = \"club.list\", change",
        "{ frame = \"club.gone\", change",
        "mapping.2.frames.0",
        Rule::NotFed(text("club.list"), text("g.club")),
    );
}

#[test]
fn a_mapping_says_for_whom() {
    refused("owner = \"acct\"\n", "", "mapping.0.owner", Rule::NoOwner);
    refused(
        "recipients = true\n",
        "",
        "mapping.2.recipients",
        Rule::NoRecipients,
    );
    refused(
        "owner = \"acct\"\n",
        "owner = \"acct\"\nceiling = \"everyone\"\n",
        "mapping.0.ceiling",
        Rule::Widens(Ceiling::Everyone, Ceiling::Owner),
    );
    refused(
        "id = \"gone\"\n",
        "id = \"gone\"\nrecipients = true\n",
        "mapping.1.roster",
        Rule::Missing("the roster of the recipients"),
    );
    refused(
        "id = \"gone\"\n",
        "id = \"gone\"\nroster = \"g.club\"\n",
        "mapping.1.roster",
        Rule::TrackerRefuses(text("transition")),
    );
}

#[test]
fn a_former_owner_is_an_owner() {
    refused(
        "id = \"gone\"\n",
        "id = \"gone\"\nformer_owner = true\n",
        "mapping.1.owner",
        Rule::Missing("`former_owner` needs it"),
    );
}

#[test]
fn a_tracker_has_what_it_needs_and_nothing_else() {
    refused(
        "set = [\"gone\"]\n",
        "",
        "mapping.1.set",
        Rule::TrackerNeeds(text("transition")),
    );
    refused(
        "set = [\"gone\"]",
        "set = []",
        "mapping.1.set",
        Rule::Range("at least one value"),
    );
    refused(
        "value = \"left\"\n",
        "",
        "mapping.0.value",
        Rule::TrackerNeeds(text("crossing")),
    );
    refused(
        "set = [\"gone\"]",
        "set = [\"gone\"]\ntop = 3",
        "mapping.1.top",
        Rule::TrackerRefuses(text("transition")),
    );
    refused(
        "change = \"left\"\n",
        "",
        "mapping.2.change",
        Rule::TrackerNeeds(text("roster")),
    );
    refused(
        "tracker = \"crossing\"",
        "tracker = \"always\"",
        "mapping.0.thresholds",
        Rule::TrackerRefuses(text("always")),
    );
    refused(
        "[1.0, 5.0]",
        "[5.0, 1.0]",
        "mapping.0.thresholds",
        Rule::Range("one or more numbers in ascending order"),
    );
    refused(
        "[1.0, 5.0]",
        "[nan]",
        "mapping.0.thresholds",
        Rule::Range("one or more numbers in ascending order"),
    );
    refused(
        "hysteresis = 0.5",
        "hysteresis = -0.5",
        "mapping.0.hysteresis",
        Rule::Range("0 or more"),
    );
    let top = "tracker = \"top_changed\"\nvalue = \"list\"\ntop = 0";
    refused(
        "tracker = \"transition\"\nvalue = \"state\"\nset = [\"gone\"]",
        top,
        "mapping.1.top",
        Rule::Range("1 to 1000"),
    );
    let found = with("tracker = \"crossing\"", "tracker = \"sometimes\"");
    assert!(
        matches!(&found[..], [(key, Rule::Word(word, _))] if key == "mapping.0.tracker" && word == "sometimes"),
        "{found:?}"
    );
    let found = with("direction = \"falling\"", "direction = \"down\"");
    assert!(
        matches!(&found[..], [(key, Rule::Word(word, _))] if key == "mapping.0.direction" && word == "down"),
        "{found:?}"
    );
}

#[test]
fn a_tracker_with_a_memory_is_kept_by_the_partition_key() {
    refused(
        "tracker = \"crossing\"",
        "tracker = \"crossing\"\nkey = \"other\"",
        "mapping.0.key",
        Rule::TrackerKey(text("thing")),
    );
    refused(
        "{ kind = \"thing.gone\", key = \"thing\" }",
        "{ kind = \"thing.gone\" }",
        "mapping.1.frames",
        Rule::KeysDiffer(text("thing"), text("the shard as a whole")),
    );
    assert_eq!(
        with(
            "tracker = \"crossing\"",
            "tracker = \"crossing\"\nkey = \"thing\""
        ),
        []
    );
}

#[test]
fn paths_and_expressions_are_read_at_load() {
    refused(
        "key = \"club\"",
        "key = \"club[0]\"",
        "frame.2.key",
        Rule::Path(text("club[0]")),
    );
    refused(
        "value = \"left\"",
        "value = \"left..right\"",
        "mapping.0.value",
        Rule::Path(text("left..right")),
    );
    refused(
        "owner = \"acct\"",
        "owner = \"an acct\"",
        "mapping.0.owner",
        Rule::Path(text("an acct")),
    );
    refused(
        "{ kind = \"tick\" }",
        "{ kind = \"tick tock\" }",
        "frame.3.kind",
        Rule::FrameKind(text("tick tock")),
    );
    for bad in [
        "{{ thing",
        "thing }}",
        "{% if thing %}",
        "{{ thing + }}",
        "{{ }}",
    ] {
        let found = with(
            "dedupe = \"{{ thing }}:{{ left }}\"",
            &format!("dedupe = \"{bad}\""),
        );
        assert!(
            matches!(&found[..], [(key, Rule::Expression(_))] if key == "mapping.0.dedupe"),
            "{bad}: {found:?}"
        );
        let found = with(
            "vars = { club = \"club\" }",
            &format!("vars = {{ club = \"{bad}\" }}"),
        );
        assert!(
            found
                .iter()
                .any(|(key, rule)| key == "mapping.2.vars.club"
                    && matches!(rule, Rule::Expression(_))),
            "{bad}: {found:?}"
        );
    }
    refused(
        "{ path = \"real\", ne = false }",
        "{ path = \"real\" }",
        "mapping.0.when.0",
        Rule::OneComparison,
    );
    refused(
        "{ path = \"real\", ne = false }",
        "{ path = \"real\", ne = false, present = true }",
        "mapping.0.when.0",
        Rule::OneComparison,
    );
}
