//! Mappings: trackers, conditions, sources of variables.

use super::Names;
use super::fault::{Faults, Rule};
use crate::modules::condition::{Condition, Test};
use crate::modules::field::Path;
use crate::modules::ids;
use crate::modules::manifest::{ConditionEntry, MappingEntry};
use crate::modules::mapping::Mapping;
use crate::modules::module::{Trigger, TriggerKind};
use crate::modules::source::{Source, Text};
use crate::modules::tracker::{Direction, RosterEvent, Tracker};
use millrace_schemas::ceiling::Ceiling;
use std::collections::BTreeSet;

/// A mapping with a fault that leaves it without a trigger or tracker is left out; the manifest is refused then anyway.
pub(super) fn build(faults: &mut Faults, names: &Names<'_>, triggers: &[Trigger]) -> Vec<Mapping> {
    let entries = &names.manifest.mappings;
    faults.unique("mapping", entries.iter().map(|m| m.id.as_str()));
    let each = entries.iter().enumerate();
    each.filter_map(|(place, entry)| {
        one(faults, names, triggers, &format!("mapping.{place}"), entry)
    })
    .collect()
}

fn one(
    faults: &mut Faults,
    names: &Names<'_>,
    triggers: &[Trigger],
    at: &str,
    entry: &MappingEntry,
) -> Option<Mapping> {
    if !ids::is_name(&entry.id) {
        faults.push(&format!("{at}.id"), Rule::Name(entry.id.clone()));
    }
    if entry.frames.is_empty() {
        faults.push(&format!("{at}.frames"), Rule::Missing("at least one kind"));
    }
    faults.unique(
        &format!("{at}.frames"),
        entry.frames.iter().map(String::as_str),
    );
    for (n, frame) in entry.frames.iter().enumerate() {
        if !names.kinds.contains_key(frame.as_str()) {
            faults.push(
                &format!("{at}.frames.{n}"),
                Rule::Unknown("frame", frame.clone()),
            );
        }
    }
    let tracker = tracker(faults, names, at, entry);
    if tracker.as_ref().is_none_or(Tracker::is_stateful) {
        keyed(faults, names, at, entry);
    }
    let conditions = entry.when.iter().enumerate();
    let when = conditions
        .filter_map(|(n, c)| condition(faults, &format!("{at}.when.{n}"), c))
        .collect();
    let owner = entry
        .owner
        .as_deref()
        .and_then(|text| faults.path(&format!("{at}.owner"), text));
    if entry.former_owner && owner.is_none() {
        let why = "`former_owner` needs it";
        faults.push(&format!("{at}.owner"), Rule::Missing(why));
    }
    let roster = roster(faults, names, at, entry);
    let dedupe = text(faults, &format!("{at}.dedupe"), entry.dedupe.as_deref());
    let scope = text(faults, &format!("{at}.scope"), entry.scope.as_deref());
    let place = triggers.iter().position(|t| *t.id == *entry.trigger);
    let Some((place, trigger)) = place.and_then(|p| Some((p, triggers.get(p)?))) else {
        faults.push(
            &format!("{at}.trigger"),
            Rule::Unknown("trigger", entry.trigger.clone()),
        );
        return None;
    };
    let ceiling = for_whom(faults, at, entry, trigger);
    Some(Mapping {
        id: entry.id.as_str().into(),
        frames: entry.frames.iter().map(|f| f.as_str().into()).collect(),
        trigger: place,
        when,
        tracker: tracker?,
        owner,
        former_owner: entry.former_owner,
        recipients: if entry.recipients { roster } else { None },
        ceiling,
        dedupe,
        scope,
        vars: vars(faults, at, entry, trigger),
    })
}

fn text(faults: &mut Faults, key: &str, text: Option<&str>) -> Option<Text> {
    match Text::parse(text?) {
        Ok(text) => Some(text),
        Err(why) => {
            faults.push(key, Rule::Expression(why));
            None
        }
    }
}

/// Two partitions would each see half of what a tracker with a memory must see whole.
fn keyed(faults: &mut Faults, names: &Names<'_>, at: &str, entry: &MappingEntry) {
    let spoken = |key: &Option<&str>| key.map_or("the shard as a whole", |k| k).to_owned();
    let keys: Vec<Option<&str>> = entry
        .frames
        .iter()
        .filter_map(|f| names.kinds.get(f.as_str()).copied())
        .collect();
    let Some(first) = keys.first() else { return };
    // Values under another name may still be the same ids; the shard and one of its parts never are.
    if let Some(other) = keys.iter().find(|k| k.is_some() != first.is_some()) {
        faults.push(
            &format!("{at}.frames"),
            Rule::KeysDiffer(spoken(first), spoken(other)),
        );
    }
    if let Some(key) = &entry.key
        && keys.iter().any(|k| *k != Some(key.as_str()))
    {
        faults.push(&format!("{at}.key"), Rule::TrackerKey(spoken(first)));
    }
}

fn tracker(
    faults: &mut Faults,
    names: &Names<'_>,
    at: &str,
    entry: &MappingEntry,
) -> Option<Tracker> {
    let words = [
        "always",
        "transition",
        "changed",
        "edge",
        "crossing",
        "top_changed",
        "roster",
    ];
    let word = faults.word(&format!("{at}.tracker"), &entry.tracker, &words, |w| w)?;
    let given = [
        ("value", entry.value.is_some()),
        ("set", entry.set.is_some()),
        ("previous", entry.previous.is_some()),
        ("thresholds", entry.thresholds.is_some()),
        ("hysteresis", entry.hysteresis.is_some()),
        ("direction", entry.direction.is_some()),
        ("top", entry.top.is_some()),
        ("identity", entry.identity.is_some()),
        ("change", entry.change.is_some()),
    ];
    let (needs, allows): (&[&str], &[&str]) = match word {
        "transition" => (&["value", "set"], &["previous"]),
        "changed" | "edge" => (&["value"], &[]),
        "crossing" => (&["value", "thresholds", "direction"], &["hysteresis"]),
        "top_changed" => (&["value", "top"], &["identity"]),
        "roster" => (&["change"], &[]),
        _ => (&[], &[]),
    };
    let mut whole = true;
    for (name, there) in given {
        let key = format!("{at}.{name}");
        if needs.contains(&name) && !there {
            faults.push(&key, Rule::TrackerNeeds(word.to_owned()));
            whole = false;
        }
        if there && !needs.contains(&name) && !allows.contains(&name) {
            faults.push(&key, Rule::TrackerRefuses(word.to_owned()));
        }
    }
    if !whole {
        return None;
    }
    let value = path(faults, at, "value", entry.value.as_deref());
    Some(match word {
        "always" => Tracker::Always,
        "transition" => {
            let set = entry.set.clone().unwrap_or_default();
            if set.is_empty() {
                faults.push(&format!("{at}.set"), Rule::Range("at least one value"));
            }
            Tracker::Transition {
                value: value?,
                set,
                previous: path(faults, at, "previous", entry.previous.as_deref()),
            }
        }
        "changed" => Tracker::Changed { value: value? },
        "edge" => Tracker::Edge { value: value? },
        "crossing" => crossing(faults, at, entry, value?)?,
        "top_changed" => {
            let top = entry.top.unwrap_or_default();
            if !(1..=1_000).contains(&top) {
                faults.push(&format!("{at}.top"), Rule::Range("1 to 1000"));
            }
            Tracker::TopChanged {
                value: value?,
                top,
                identity: path(faults, at, "identity", entry.identity.as_deref()),
            }
        }
        _ => {
            let events = [RosterEvent::Joined, RosterEvent::Left, RosterEvent::Cleared];
            let change = entry.change.as_deref().unwrap_or_default();
            let event = faults.word(&format!("{at}.change"), change, &events, |e| match e {
                RosterEvent::Joined => "joined",
                RosterEvent::Left => "left",
                RosterEvent::Cleared => "cleared",
            });
            if entry.roster.is_none() {
                faults.push(&format!("{at}.roster"), Rule::TrackerNeeds(word.to_owned()));
            }
            let roster = entry.roster.as_ref();
            let place =
                roster.and_then(|id| names.manifest.rosters.iter().position(|r| r.id == *id));
            Tracker::Roster {
                roster: place?,
                event: event?,
            }
        }
    })
}

fn path(faults: &mut Faults, at: &str, name: &str, text: Option<&str>) -> Option<Path> {
    faults.path(&format!("{at}.{name}"), text?)
}

fn crossing(faults: &mut Faults, at: &str, entry: &MappingEntry, value: Path) -> Option<Tracker> {
    let thresholds = entry.thresholds.clone().unwrap_or_default();
    let ascending = thresholds.windows(2).all(|w| matches!(w, [a, b] if a < b));
    if thresholds.is_empty() || !ascending || thresholds.iter().any(|t| !t.is_finite()) {
        faults.push(
            &format!("{at}.thresholds"),
            Rule::Range("one or more numbers in ascending order"),
        );
    }
    let hysteresis = entry.hysteresis.unwrap_or_default();
    if !hysteresis.is_finite() || hysteresis < 0.0 {
        faults.push(&format!("{at}.hysteresis"), Rule::Range("0 or more"));
    }
    let directions = [Direction::Rising, Direction::Falling];
    let word = entry.direction.as_deref().unwrap_or_default();
    let direction = faults.word(&format!("{at}.direction"), word, &directions, |d| match d {
        Direction::Rising => "rising",
        Direction::Falling => "falling",
    });
    Some(Tracker::Crossing {
        value,
        thresholds,
        hysteresis,
        direction: direction?,
    })
}

/// The roster that the mapping names, for its tracker, its recipients or both. A roster is changed and read where its frames
/// are partitioned, so the mapping's kinds are keyed by its parameter.
fn roster(faults: &mut Faults, names: &Names<'_>, at: &str, entry: &MappingEntry) -> Option<usize> {
    let Some(id) = &entry.roster else {
        if entry.recipients {
            faults.push(
                &format!("{at}.roster"),
                Rule::Missing("the roster of the recipients"),
            );
        }
        return None;
    };
    if !entry.recipients && entry.tracker != "roster" {
        faults.push(
            &format!("{at}.roster"),
            Rule::TrackerRefuses(entry.tracker.clone()),
        );
    }
    let rosters = &names.manifest.rosters;
    let Some(place) = rosters.iter().position(|r| r.id == *id) else {
        faults.push(&format!("{at}.roster"), Rule::Unknown("roster", id.clone()));
        return None;
    };
    let found = rosters.get(place);
    for (n, frame) in entry.frames.iter().enumerate() {
        // What is no kind is told where the kinds are.
        let Some(key) = names.kinds.get(frame.as_str()) else {
            continue;
        };
        if let Some(param) = found.and_then(|r| r.param.as_deref())
            && *key != Some(param)
        {
            let key = key.unwrap_or("none: the shard as a whole");
            faults.push(
                &format!("{at}.roster"),
                Rule::RosterOther(key.to_owned(), param.to_owned()),
            );
        }
        let fed = found.is_some_and(|r| r.feeds.iter().any(|f| f.frame == *frame));
        if entry.tracker == "roster" && !fed {
            faults.push(
                &format!("{at}.frames.{n}"),
                Rule::NotFed(frame.clone(), id.clone()),
            );
        }
    }
    Some(place)
}

fn for_whom(
    faults: &mut Faults,
    at: &str,
    entry: &MappingEntry,
    trigger: &Trigger,
) -> Option<Ceiling> {
    if trigger.kind == TriggerKind::Scheduled {
        faults.push(
            &format!("{at}.trigger"),
            Rule::Scheduled(entry.trigger.clone()),
        );
    }
    if trigger.audience == Ceiling::Owner && entry.owner.is_none() {
        faults.push(&format!("{at}.owner"), Rule::NoOwner);
    }
    if trigger.audience == Ceiling::Members && !entry.recipients {
        faults.push(&format!("{at}.recipients"), Rule::NoRecipients);
    }
    let word = entry.ceiling.as_deref()?;
    let ceiling = faults.word(&format!("{at}.ceiling"), word, &Ceiling::ALL, |c| c.word())?;
    if !trigger.ceiling.permits(ceiling) {
        faults.push(
            &format!("{at}.ceiling"),
            Rule::Widens(ceiling, trigger.ceiling),
        );
    }
    Some(ceiling)
}

fn vars(
    faults: &mut Faults,
    at: &str,
    entry: &MappingEntry,
    trigger: &Trigger,
) -> Vec<(usize, Source)> {
    let mut vars = Vec::new();
    for (name, text) in &entry.vars {
        let key = format!("{at}.vars.{name}");
        let Some(place) = trigger.variables.iter().position(|v| *v.name == **name) else {
            faults.push(&key, Rule::Unknown("variable", name.clone()));
            continue;
        };
        match Source::parse(text) {
            Ok(source) => {
                if place == trigger.subject
                    && let Some(path) = source.paths().iter().find(|p| is_name(p))
                {
                    faults.push(&key, Rule::SubjectName(path.to_string()));
                }
                vars.push((place, source));
            }
            Err(why) => faults.push(&key, Rule::Expression(why)),
        }
    }
    let sourced: BTreeSet<usize> = vars.iter().map(|(place, _)| *place).collect();
    for (place, variable) in trigger.variables.iter().enumerate() {
        if variable.required && !sourced.contains(&place) {
            faults.push(
                &format!("{at}.vars"),
                Rule::NoSource(variable.name.to_string()),
            );
        }
    }
    vars
}

/// Names change and are shared; what they name goes on.
fn is_name(path: &Path) -> bool {
    let last = path.steps().last().unwrap_or_default().to_ascii_lowercase();
    ["name", "label", "title"]
        .iter()
        .any(|word| last.ends_with(word))
}

fn condition(faults: &mut Faults, at: &str, entry: &ConditionEntry) -> Option<Condition> {
    let path = faults.path(&format!("{at}.path"), &entry.path)?;
    let mut tests: Vec<Test> = Vec::new();
    tests.extend(entry.eq.clone().map(Test::Eq));
    tests.extend(entry.ne.clone().map(Test::Ne));
    tests.extend(entry.one_of.clone().map(Test::OneOf));
    tests.extend(entry.gte.map(Test::AtLeast));
    tests.extend(entry.lte.map(Test::AtMost));
    tests.extend(entry.present.map(Test::Present));
    if let Some(text) = &entry.same_as {
        tests.extend(
            faults
                .path(&format!("{at}.same_as"), text)
                .map(Test::SameAs),
        );
    }
    let test = tests.pop();
    if test.is_none() || !tests.is_empty() {
        faults.push(at, Rule::OneComparison);
        return None;
    }
    Some(Condition { path, test: test? })
}
