//! From the text of a manifest to a [`Module`], or to every reason why not. Each reason names the file, the key and the rule.

mod fault;
mod mappings;
mod rosters;
mod rules;
mod triggers;

pub use fault::{Fault, Rule};

use super::field::Reader;
use super::ids;
use super::manifest::Manifest;
use super::module::{Kind, Module, RosterChange, Stream};
use fault::Faults;
use figment::Figment;
use figment::providers::{Format, Toml};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// Reads a manifest. `file` is how it is called in faults; of a file name `<id>.toml` the id must be the manifest's.
///
/// # Errors
/// Every fault that was found, in the order of the file's sections. Where the text is no manifest at all, that alone.
pub fn compile(file: &str, text: &str) -> Result<Module, Vec<Fault>> {
    let mut faults = Faults::new(file);
    let manifest = read(&mut faults, text)?;
    let module = build(&mut faults, &manifest);
    faults.end()?;
    Ok(module)
}

fn read(faults: &mut Faults, text: &str) -> Result<Manifest, Vec<Fault>> {
    match Figment::from(Toml::string(text)).extract::<Manifest>() {
        Ok(manifest) => Ok(manifest),
        Err(errors) => {
            for error in errors {
                let key = error.path.join(".");
                faults.push(&key, Rule::Shape(error.kind.to_string()));
            }
            Err(faults.take())
        }
    }
}

/// What every part of a manifest is checked against.
pub(super) struct Names<'m> {
    pub(super) manifest: &'m Manifest,
    /// Kinds, and whether each has a key.
    pub(super) kinds: BTreeMap<&'m str, Option<&'m str>>,
}

fn build(faults: &mut Faults, manifest: &Manifest) -> Module {
    if !ids::is_module(&manifest.id) {
        faults.push("id", Rule::ModuleId(manifest.id.clone()));
    }
    let file = faults.file();
    let name = file.rsplit('/').next().unwrap_or_default();
    if name
        .strip_suffix(".toml")
        .is_some_and(|stem| stem != manifest.id)
    {
        faults.push("id", Rule::FileName(manifest.id.clone()));
    }
    if manifest.protocol == 0 {
        faults.push("protocol", Rule::Range("at least 1"));
    }
    own_ids(faults, manifest);
    let (mut kinds, names) = kinds(faults, manifest);
    let triggers = triggers::build(faults, manifest);
    let rosters = rosters::build(faults, &names);
    let audiences = rosters::audiences(faults, manifest);
    let mappings = mappings::build(faults, &names, &triggers);
    let templates = rules::templates(faults, manifest, &triggers);
    let rule_groups = rules::build(faults, manifest, &triggers, &templates);

    for (place, mapping) in mappings.iter().enumerate() {
        for frame in &mapping.frames {
            if let Some(kind) = kinds.get_mut(frame) {
                kind.mappings.push(place);
            }
        }
    }
    for (place, roster) in rosters.iter().enumerate() {
        for (feed, entry) in roster.feeds.iter().enumerate() {
            if let Some(kind) = kinds.get_mut(&entry.frame) {
                kind.feeds.push((place, feed));
            }
        }
    }
    for kind in kinds.values_mut() {
        let of_mappings = kind.mappings.iter().filter_map(|m| mappings.get(*m));
        let decisive = of_mappings.flat_map(|m| m.decisive().cloned());
        let of_feeds = kind
            .feeds
            .iter()
            .filter_map(|(r, f)| rosters.get(*r)?.feeds.get(*f));
        let changes = of_feeds.flat_map(|f| match &f.change {
            RosterChange::Replace { members, .. } => vec![members.clone()],
            RosterChange::Add { account, slot } => std::iter::once(account.clone())
                .chain(slot.clone())
                .collect(),
            RosterChange::Remove { slot } => vec![slot.clone()],
            RosterChange::Seat { account } => vec![account.clone()],
            RosterChange::Clear => Vec::new(),
        });
        kind.reader = Reader::new(decisive.chain(changes));
    }
    Module {
        id: manifest.id.as_str().into(),
        label: manifest.label.as_str().into(),
        description: manifest.description.as_str().into(),
        protocol: manifest.protocol,
        kinds,
        triggers,
        streams: streams(faults, manifest),
        rosters,
        audiences,
        mappings,
        templates,
        rule_groups,
    }
}

/// One namespace of streams and triggers: each id is written as ids are and begins with the module's, but for the legacy list.
fn own_ids(faults: &mut Faults, manifest: &Manifest) {
    for (place, id) in manifest.legacy_ids.iter().enumerate() {
        let key = format!("legacy_ids.{place}");
        if !ids::is_id(id) {
            faults.push(&key, Rule::Id(id.clone()));
        } else if ids::is_of(&manifest.id, id) {
            faults.push(&key, Rule::LegacyNotNeeded(id.clone()));
        } else if !manifest.streams.iter().any(|s| s.id == *id)
            && !manifest.triggers.iter().any(|t| t.id == *id)
        {
            faults.push(&key, Rule::LegacyUnused(id.clone()));
        }
    }
    // Within a module a stream and a trigger may share an id: they are two facets of one event.
    faults.unique("stream", manifest.streams.iter().map(|s| s.id.as_str()));
    faults.unique("trigger", manifest.triggers.iter().map(|t| t.id.as_str()));
    let streams = manifest
        .streams
        .iter()
        .enumerate()
        .map(|(n, s)| (format!("stream.{n}.id"), &s.id));
    let triggers = manifest
        .triggers
        .iter()
        .enumerate()
        .map(|(n, t)| (format!("trigger.{n}.id"), &t.id));
    for (key, id) in streams.chain(triggers) {
        if !ids::is_id(id) {
            faults.push(&key, Rule::Id(id.clone()));
        } else if !ids::is_of(&manifest.id, id) && !manifest.legacy_ids.contains(id) {
            faults.push(&key, Rule::NotOwned(id.clone(), manifest.id.clone()));
        }
    }
    // Spaces of their own, the same prefix.
    let mut owned = |section: &str, ids_of: Vec<&String>| {
        faults.unique(section, ids_of.iter().map(|s| s.as_str()));
        for (place, id) in ids_of.into_iter().enumerate() {
            let key = format!("{section}.{place}.id");
            if !ids::is_id(id) {
                faults.push(&key, Rule::Id(id.clone()));
            } else if !ids::is_of(&manifest.id, id) {
                faults.push(&key, Rule::NotOwned(id.clone(), manifest.id.clone()));
            }
        }
    };
    owned("roster", manifest.rosters.iter().map(|r| &r.id).collect());
    owned(
        "audience",
        manifest.audiences.iter().map(|a| &a.id).collect(),
    );
    owned(
        "rule_group",
        manifest.rule_groups.iter().map(|g| &g.id).collect(),
    );
}

fn kinds<'m>(faults: &mut Faults, manifest: &'m Manifest) -> (HashMap<Box<str>, Kind>, Names<'m>) {
    let mut kinds = HashMap::new();
    let mut names = Names {
        manifest,
        kinds: BTreeMap::new(),
    };
    faults.unique("frame", manifest.frames.iter().map(|f| f.kind.as_str()));
    for (place, frame) in manifest.frames.iter().enumerate() {
        if frame.kind.is_empty()
            || frame.kind.len() > 64
            || frame
                .kind
                .chars()
                .any(|c| c.is_control() || c.is_whitespace())
        {
            faults.push(
                &format!("frame.{place}.kind"),
                Rule::FrameKind(frame.kind.clone()),
            );
        }
        let key = frame
            .key
            .as_deref()
            .and_then(|text| faults.path(&format!("frame.{place}.key"), text));
        names.kinds.insert(&frame.kind, frame.key.as_deref());
        let kind = Kind {
            name: frame.kind.as_str().into(),
            key_reader: Reader::new(key.clone()),
            key,
            mappings: Vec::new(),
            feeds: Vec::new(),
            reader: Reader::default(),
        };
        kinds.insert(frame.kind.as_str().into(), kind);
    }
    (kinds, names)
}

fn streams(faults: &mut Faults, manifest: &Manifest) -> Vec<Stream> {
    for (place, stream) in manifest.streams.iter().enumerate() {
        faults.said(&format!("stream.{place}.label"), &stream.label);
        faults.said(&format!("stream.{place}.description"), &stream.description);
    }
    let all = manifest.streams.iter().map(|s| Stream {
        id: s.id.as_str().into(),
        label: s.label.as_str().into(),
        description: s.description.as_str().into(),
        personal: s.personal,
        requires_linked_account: s.requires_linked_account,
    });
    all.collect()
}

#[cfg(test)]
mod tests;
