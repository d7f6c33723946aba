//! Triggers and their variables.

use super::fault::{Faults, Rule};
use crate::modules::ids;
use crate::modules::manifest::{Manifest, TriggerEntry, VariableEntry};
use crate::modules::module::{Trigger, TriggerKind};
use crate::modules::variable::{Variable, VariableType};
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::{Channel, Mode};

/// A trigger with faults is built all the same, so that what refers to it is checked too, with the widest ceiling, so that one fault
/// is not told twice; nothing of it is used then.
pub(super) fn build(faults: &mut Faults, manifest: &Manifest) -> Vec<Trigger> {
    let all = manifest.triggers.iter().enumerate();
    all.map(|(place, entry)| one(faults, &manifest.id, &format!("trigger.{place}"), entry))
        .collect()
}

fn one(faults: &mut Faults, module: &str, at: &str, entry: &TriggerEntry) -> Trigger {
    faults.said(&format!("{at}.label"), &entry.label);
    faults.said(&format!("{at}.description"), &entry.description);
    let kinds = [TriggerKind::Event, TriggerKind::Scheduled];
    let kind = faults.word(&format!("{at}.kind"), &entry.kind, &kinds, |k| match k {
        TriggerKind::Event => "event",
        TriggerKind::Scheduled => "scheduled",
    });
    let ceiling = faults.ceiling(
        &format!("{at}.ceiling"),
        entry.ceiling.as_deref(),
        "no ceiling is safe to guess",
    );
    let audience = faults.ceiling(
        &format!("{at}.audience"),
        entry.audience.as_deref(),
        "whom a rule begins with",
    );
    if let (Some(ceiling), Some(audience)) = (ceiling, audience)
        && !ceiling.permits(audience)
    {
        faults.push(&format!("{at}.audience"), Rule::Ceiling(audience, ceiling));
    }
    let version = entry.version.unwrap_or_default();
    if version == 0 {
        faults.push(
            &format!("{at}.version"),
            Rule::Missing("a whole number of at least 1"),
        );
    }
    if entry.max_age_s == Some(0) {
        faults.push(&format!("{at}.max_age_s"), Rule::Range("at least 1"));
    }
    faults.unique(
        &format!("{at}.variables"),
        entry.variables.iter().map(|v| v.name.as_str()),
    );
    let each = entry.variables.iter().enumerate();
    let variables: Vec<Variable> = each
        .map(|(n, v)| variable(faults, &format!("{at}.variables.{n}"), v))
        .collect();
    let modes = modes(faults, at, entry);
    Trigger {
        id: entry.id.as_str().into(),
        module: module.into(),
        label: entry.label.as_str().into(),
        description: entry.description.as_str().into(),
        kind: kind.unwrap_or(TriggerKind::Event),
        subject: subject(faults, at, entry, &variables),
        audience: audience.unwrap_or(Ceiling::Everyone),
        ceiling: ceiling.unwrap_or(Ceiling::Everyone),
        version,
        max_age_s: entry.max_age_s,
        default_modes: default_modes(faults, at, entry, &modes),
        modes,
        variables,
    }
}

fn variable(faults: &mut Faults, at: &str, entry: &VariableEntry) -> Variable {
    if !ids::is_variable(&entry.name) {
        faults.push(&format!("{at}.name"), Rule::Name(entry.name.clone()));
    }
    let of = faults.word(&format!("{at}.type"), &entry.of, &VariableType::ALL, |t| {
        t.word()
    });
    match (&entry.example, of) {
        (None, _) => faults.push(&format!("{at}.example"), Rule::NoExample),
        (Some(example), Some(of)) if !of.admits(example) => {
            let more = match of {
                VariableType::Url => ", which is site-relative (`/…`)",
                VariableType::Datetime => ", which is RFC 3339 with an offset",
                _ => "",
            };
            faults.push(&format!("{at}.example"), Rule::Example(of.word(), more));
        }
        _ => {}
    }
    Variable {
        name: entry.name.as_str().into(),
        of: of.unwrap_or(VariableType::String),
        required: entry.required,
        example: entry.example.clone().unwrap_or_default(),
    }
}

fn subject(faults: &mut Faults, at: &str, entry: &TriggerEntry, variables: &[Variable]) -> usize {
    let key = format!("{at}.subject_key");
    let Some(name) = &entry.subject_key else {
        faults.push(&key, Rule::Missing("which variable names what it is about"));
        return 0;
    };
    let Some(place) = variables.iter().position(|v| *v.name == **name) else {
        faults.push(&key, Rule::Subject(name.clone()));
        return 0;
    };
    if let Some(variable) = variables.get(place)
        && !(variable.required && matches!(variable.of, VariableType::String | VariableType::Int))
    {
        faults.push(&key, Rule::SubjectType(name.clone()));
    }
    place
}

fn modes(faults: &mut Faults, at: &str, entry: &TriggerEntry) -> Vec<Mode> {
    let Some(words) = &entry.modes else {
        return Mode::ALL.to_vec();
    };
    faults.unique(&format!("{at}.modes"), words.iter().map(String::as_str));
    let each = words.iter().enumerate();
    each.filter_map(|(n, word)| {
        faults.word(&format!("{at}.modes.{n}"), word, &Mode::ALL, |m| m.word())
    })
    .collect()
}

/// What holds by default must be something that may be chosen, also where the trigger says nothing.
fn default_modes(
    faults: &mut Faults,
    at: &str,
    entry: &TriggerEntry,
    modes: &[Mode],
) -> Vec<(Channel, Mode)> {
    let mut named = Vec::new();
    for (channel, word) in &entry.default_modes {
        let key = format!("{at}.default_modes.{channel}");
        let Some(channel) = faults.word(&key, channel, &Channel::ALL, |c| c.word()) else {
            continue;
        };
        let Some(mode) = faults.word(&key, word, &Mode::ALL, |m| m.word()) else {
            continue;
        };
        if mode != Mode::Off && !modes.contains(&mode) {
            faults.push(&key, Rule::DefaultMode(word.clone()));
        }
        named.push((channel, mode));
    }
    for channel in Channel::ALL {
        let default = channel.default_mode();
        let silent = !named.iter().any(|(c, _)| *c == channel);
        if silent && default != Mode::Off && !modes.contains(&default) {
            let (default, channel) = (default.word().to_owned(), channel.word().to_owned());
            faults.push(
                &format!("{at}.modes"),
                Rule::ModeOfChannel(default, channel),
            );
        }
    }
    named
}
