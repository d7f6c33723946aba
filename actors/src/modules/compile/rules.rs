//! Template keys and seeded rules.

use super::fault::{Faults, Rule};
use crate::directory::conditions::Conditions;
use crate::modules::ids;
use crate::modules::manifest::{Manifest, RuleEntry};
use crate::modules::module::{RuleGroup, SeededRule, Template, Trigger};
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::Channel;

/// Messages an hour of a rule that does not say.
pub(super) const HOURLY_CAP: u32 = 100;
/// The template slot that is no channel.
const DIGEST: &str = "digest";
/// Longest delay and cooldown, in seconds: marks and cooldowns are kept at least as long.
const LONGEST_S: u32 = 30 * 86_400;

pub(super) fn templates(
    faults: &mut Faults,
    manifest: &Manifest,
    triggers: &[Trigger],
) -> Vec<Template> {
    faults.unique(
        "template",
        manifest.templates.iter().map(|t| t.key.as_str()),
    );
    let mut all = Vec::new();
    for (place, entry) in manifest.templates.iter().enumerate() {
        let at = format!("template.{place}");
        if !ids::is_template_key(&entry.key) {
            faults.push(&format!("{at}.key"), Rule::TemplateKey(entry.key.clone()));
        } else if !ids::is_of(&manifest.id, &entry.key) {
            faults.push(
                &format!("{at}.key"),
                Rule::NotOwned(entry.key.clone(), manifest.id.clone()),
            );
        }
        if entry.seed_version == 0 {
            faults.push(&format!("{at}.seed_version"), Rule::Range("at least 1"));
        }
        let channel = faults.word(
            &format!("{at}.channel"),
            &entry.channel,
            &Channel::ALL,
            |c| c.word(),
        );
        let trigger = triggers.iter().position(|t| *t.id == *entry.trigger);
        if trigger.is_none() {
            faults.push(
                &format!("{at}.trigger"),
                Rule::Unknown("trigger", entry.trigger.clone()),
            );
        }
        if let (Some(channel), Some(trigger)) = (channel, trigger) {
            all.push(Template {
                key: entry.key.as_str().into(),
                channel,
                trigger,
                seed_version: entry.seed_version,
            });
        }
    }
    all
}

pub(super) fn build(
    faults: &mut Faults,
    manifest: &Manifest,
    triggers: &[Trigger],
    templates: &[Template],
) -> Vec<RuleGroup> {
    let rules = manifest.rule_groups.iter().flat_map(|g| &g.rules);
    faults.unique("rule_group.rule", rules.map(|r| r.id.as_str()));
    let mut groups = Vec::new();
    for (place, group) in manifest.rule_groups.iter().enumerate() {
        if group.rules.is_empty() {
            faults.push(
                &format!("rule_group.{place}.rule"),
                Rule::Missing("a group of no rules"),
            );
        }
        let mut rules = Vec::new();
        for (n, entry) in group.rules.iter().enumerate() {
            let at = format!("rule_group.{place}.rule.{n}");
            rules.extend(one(faults, manifest, triggers, templates, &at, entry));
        }
        groups.push(RuleGroup {
            id: group.id.as_str().into(),
            rules,
        });
    }
    groups
}

fn one(
    faults: &mut Faults,
    manifest: &Manifest,
    triggers: &[Trigger],
    templates: &[Template],
    at: &str,
    entry: &RuleEntry,
) -> Option<SeededRule> {
    if !ids::is_id(&entry.id) {
        faults.push(&format!("{at}.id"), Rule::Id(entry.id.clone()));
    } else if !ids::is_of(&manifest.id, &entry.id) && !manifest.legacy_ids.contains(&entry.id) {
        faults.push(
            &format!("{at}.id"),
            Rule::NotOwned(entry.id.clone(), manifest.id.clone()),
        );
    }
    faults.said(&format!("{at}.label"), &entry.label);
    if entry.enabled == Some(true) {
        faults.push(&format!("{at}.enabled"), Rule::Enabled);
    }
    for (name, seconds) in [("delay_s", entry.delay_s), ("cooldown_s", entry.cooldown_s)] {
        if seconds > LONGEST_S {
            faults.push(&format!("{at}.{name}"), Rule::Range("at most 30 days"));
        }
    }
    if entry.hourly_cap == Some(0) {
        faults.push(&format!("{at}.hourly_cap"), Rule::Range("at least 1"));
    }
    let Some(trigger) = triggers.iter().find(|t| *t.id == *entry.trigger) else {
        faults.push(
            &format!("{at}.trigger"),
            Rule::Unknown("trigger", entry.trigger.clone()),
        );
        return None;
    };
    let audience = match &entry.audience {
        Some(word) => faults.word(&format!("{at}.audience"), word, &Ceiling::ALL, |c| c.word()),
        None => Some(trigger.audience),
    };
    if let Some(audience) = audience
        && !trigger.ceiling.permits(audience)
    {
        faults.push(
            &format!("{at}.audience"),
            Rule::Ceiling(audience, trigger.ceiling),
        );
    }
    conditions(faults, at, entry, trigger);
    cancels(faults, triggers, at, entry, trigger);
    template_keys(faults, manifest, templates, triggers, at, entry);
    Some(SeededRule {
        id: entry.id.as_str().into(),
        label: entry.label.as_str().into(),
        description: entry.description.as_str().into(),
        trigger: entry.trigger.as_str().into(),
        channels: channels(faults, manifest, at, entry, trigger),
        audience: audience.unwrap_or(trigger.audience),
        conditions: entry.conditions.clone(),
        delay_s: entry.delay_s,
        cooldown_s: entry.cooldown_s,
        hourly_cap: entry.hourly_cap.unwrap_or(HOURLY_CAP),
        cancel_on: entry.cancel_on.iter().map(|c| c.as_str().into()).collect(),
        template_keys: entry
            .template_keys
            .iter()
            .map(|(slot, key)| (slot.as_str().into(), key.as_str().into()))
            .collect(),
    })
}

/// What the rules' API would refuse is refused here: it would be seeded, and hold of nothing.
fn conditions(faults: &mut Faults, at: &str, entry: &RuleEntry, trigger: &Trigger) {
    let Some(tree) = &entry.conditions else {
        return;
    };
    let mut found = crate::api::faults::Faults::new();
    Conditions::check(tree, "", &trigger.variables, &mut found);
    for fault in found.into_vec() {
        let place = fault.path.replace('/', ".");
        faults.push(
            &format!("{at}.conditions{place}"),
            Rule::Conditions(fault.message),
        );
    }
}

fn channels(
    faults: &mut Faults,
    manifest: &Manifest,
    at: &str,
    entry: &RuleEntry,
    trigger: &Trigger,
) -> Vec<Channel> {
    if entry.channels.is_empty() {
        faults.push(
            &format!("{at}.channels"),
            Rule::Missing("at least one channel"),
        );
    }
    faults.unique(
        &format!("{at}.channels"),
        entry.channels.iter().map(String::as_str),
    );
    let mut channels = Vec::new();
    for (n, word) in entry.channels.iter().enumerate() {
        let key = format!("{at}.channels.{n}");
        let Some(channel) = faults.word(&key, word, &Channel::ALL, |c| c.word()) else {
            continue;
        };
        if channel == Channel::Push && !manifest.streams.iter().any(|s| *s.id == *trigger.id) {
            faults.push(&key, Rule::NoStream(trigger.id.to_string()));
        }
        channels.push(channel);
    }
    channels.sort_unstable();
    channels
}

/// A firing cancels what waits for the same subject: subjects of two kinds would never meet, and nobody would see why.
fn cancels(
    faults: &mut Faults,
    triggers: &[Trigger],
    at: &str,
    entry: &RuleEntry,
    trigger: &Trigger,
) {
    faults.unique(
        &format!("{at}.cancel_on"),
        entry.cancel_on.iter().map(String::as_str),
    );
    for (n, id) in entry.cancel_on.iter().enumerate() {
        let key = format!("{at}.cancel_on.{n}");
        let Some(other) = triggers.iter().find(|t| *t.id == **id) else {
            faults.push(&key, Rule::Unknown("trigger", id.clone()));
            continue;
        };
        if other.subject_key() != trigger.subject_key() {
            let (a, b) = (trigger.id.to_string(), trigger.subject_key().to_owned());
            let (c, d) = (other.id.to_string(), other.subject_key().to_owned());
            faults.push(&key, Rule::CancelSubject(a, b, c, d));
        }
    }
}

fn template_keys(
    faults: &mut Faults,
    manifest: &Manifest,
    templates: &[Template],
    triggers: &[Trigger],
    at: &str,
    entry: &RuleEntry,
) {
    for (slot, key) in &entry.template_keys {
        let place = format!("{at}.template_keys.{slot}");
        let channel = Channel::of_word(slot);
        if channel.is_none() && slot != DIGEST {
            let known = Channel::ALL.map(Channel::word).join(", ");
            faults.push(
                &place,
                Rule::Word(slot.clone(), format!("{known}, {DIGEST}")),
            );
            continue;
        }
        if !ids::is_template_key(key) {
            faults.push(&place, Rule::TemplateKey(key.clone()));
            continue;
        }
        // A key without the module's prefix is one of core's, whose bodies are generic.
        if !ids::is_of(&manifest.id, key) {
            continue;
        }
        let Some(template) = templates.iter().find(|t| *t.key == **key) else {
            faults.push(&place, Rule::Unknown("template", key.clone()));
            continue;
        };
        if channel.is_some_and(|c| c != template.channel) {
            let of = template.channel.word().to_owned();
            faults.push(&place, Rule::TemplateChannel(key.clone(), of));
        }
        let of = triggers.get(template.trigger).map_or("", |t| &t.id);
        if of != entry.trigger {
            faults.push(&place, Rule::TemplateTrigger(key.clone(), of.to_owned()));
        }
    }
}
