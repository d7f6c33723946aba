//! All modules that are enabled, core's own declarations first: one namespace of streams and triggers.

use super::compile::{Fault, Rule};
use super::module::{Audience, Module, Stream, Trigger};
use hashbrown::HashMap;

/// All enabled modules. Built whole and shared; a reload builds another set ([`super::Live`]).
#[derive(Debug, Default)]
pub struct Modules {
    all: Vec<Module>,
    triggers: HashMap<Box<str>, (usize, usize)>,
    streams: HashMap<Box<str>, (usize, usize)>,
    audiences: HashMap<Box<str>, (usize, usize)>,
}

/// The module whose declarations are the product's own. Always there; no shard is of it.
pub const CORE: &str = "core";

impl Modules {
    /// Puts modules together. `files` says how each is called in faults.
    ///
    /// # Errors
    /// An id that two of them claim, naming its holder; so a kind of frame: a frame does not say of which module its shard is, so
    /// that a kind of two modules would be read by both.
    pub fn assemble(modules: Vec<(String, Module)>) -> Result<Modules, Vec<Fault>> {
        let mut faults = Vec::new();
        // By space: who holds an id.
        let mut held: HashMap<(&'static str, String), usize> = HashMap::new();
        for (place, (file, module)) in modules.iter().enumerate() {
            for (space, section, id) in ids_of(module) {
                match held.entry((space, id.clone())) {
                    hashbrown::hash_map::Entry::Vacant(free) => {
                        free.insert(place);
                    }
                    hashbrown::hash_map::Entry::Occupied(taken) if *taken.get() != place => {
                        let holder = modules.get(*taken.get()).map_or("", |(_, m)| &*m.id);
                        faults.push(Fault {
                            file: file.clone(),
                            key: format!("{section}.{id}"),
                            rule: Rule::Held(id, format!("the module `{holder}`")),
                        });
                    }
                    hashbrown::hash_map::Entry::Occupied(_) => {}
                }
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut built = Modules {
            all: modules.into_iter().map(|(_, module)| module).collect(),
            ..Modules::default()
        };
        for (m, module) in built.all.iter().enumerate() {
            let place = |n: usize, id: &str| (Box::from(id), (m, n));
            built.triggers.extend(
                module
                    .triggers
                    .iter()
                    .enumerate()
                    .map(|(n, t)| place(n, &t.id)),
            );
            built.streams.extend(
                module
                    .streams
                    .iter()
                    .enumerate()
                    .map(|(n, s)| place(n, &s.id)),
            );
            built.audiences.extend(
                module
                    .audiences
                    .iter()
                    .enumerate()
                    .map(|(n, a)| place(n, &a.id)),
            );
        }
        Ok(built)
    }

    /// Whether no module is enabled: then no frame is read and no tracker kept. Core's declarations do not count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.games().next().is_none()
    }

    /// Every module, core's declarations first.
    pub fn iter(&self) -> impl Iterator<Item = &Module> {
        self.all.iter()
    }

    /// Every module that a shard can be of.
    pub fn games(&self) -> impl Iterator<Item = &Module> {
        self.placed().map(|(_, module)| module)
    }

    /// The same with the place of each among all, where [`Modules::at`] has it without a search.
    pub fn placed(&self) -> impl Iterator<Item = (usize, &Module)> {
        self.all.iter().enumerate().filter(|(_, m)| &*m.id != CORE)
    }

    /// The module at that place.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<&Module> {
        self.all.get(place)
    }

    /// The module of that id, if a shard can be of it.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Module> {
        self.games().find(|m| &*m.id == id)
    }

    /// The trigger of that id; `None`: what names it is dormant.
    #[must_use]
    pub fn trigger(&self, id: &str) -> Option<&Trigger> {
        let (module, place) = self.triggers.get(id)?;
        self.all.get(*module)?.triggers.get(*place)
    }

    /// Every trigger, by module.
    pub fn triggers(&self) -> impl Iterator<Item = &Trigger> {
        self.all.iter().flat_map(|m| &m.triggers)
    }

    /// The stream of that id. A trigger without one has no push.
    #[must_use]
    pub fn stream(&self, id: &str) -> Option<&Stream> {
        let (module, place) = self.streams.get(id)?;
        self.all.get(*module)?.streams.get(*place)
    }

    /// The audience of that id, with its module; `None`: what names it is dormant.
    #[must_use]
    pub fn audience(&self, id: &str) -> Option<(&Module, &Audience)> {
        let (module, place) = self.audiences.get(id)?;
        let module = self.all.get(*module)?;
        Some((module, module.audiences.get(*place)?))
    }

    /// Every audience, by module.
    pub fn audiences(&self) -> impl Iterator<Item = (&Module, &Audience)> {
        self.all
            .iter()
            .flat_map(|m| m.audiences.iter().map(move |a| (m, a)))
    }
}

/// Every id of a module: its space, the section it stands in, itself. Streams and triggers share one space.
fn ids_of(module: &Module) -> Vec<(&'static str, &'static str, String)> {
    let mut ids = vec![("module", "id", module.id.to_string())];
    ids.extend(
        module
            .streams
            .iter()
            .map(|s| ("event", "stream", s.id.to_string())),
    );
    ids.extend(
        module
            .triggers
            .iter()
            .map(|t| ("event", "trigger", t.id.to_string())),
    );
    let mut kinds: Vec<&str> = module.kinds.keys().map(|kind| &**kind).collect();
    kinds.sort_unstable();
    ids.extend(
        kinds
            .into_iter()
            .map(|kind| ("kind", "frame", kind.to_owned())),
    );
    ids.extend(
        module
            .rosters
            .iter()
            .map(|r| ("roster", "roster", r.id.to_string())),
    );
    ids.extend(
        module
            .audiences
            .iter()
            .map(|a| ("audience", "audience", a.id.to_string())),
    );
    ids.extend(
        module
            .templates
            .iter()
            .map(|t| ("template", "template", t.key.to_string())),
    );
    for group in &module.rule_groups {
        ids.push(("group", "rule_group", group.id.to_string()));
        ids.extend(
            group
                .rules
                .iter()
                .map(|r| ("rule", "rule_group.rule", r.id.to_string())),
        );
    }
    ids
}
