//! What the enabled modules make of a kind of frame, with numbers for mappings by which the slice knows them.

use crate::modules::module::{Kind, Roster, RosterFeed, Trigger};
use crate::modules::{Live, Mapping, Module, Modules};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::sync::Arc;

/// The mappings of all enabled modules.
#[derive(Debug)]
pub struct Plan {
    modules: Arc<Modules>,
    parts: Vec<PlanModule>,
    /// By its name, each module's view of a kind: found once a frame, with nothing left to look up behind it.
    kinds: HashMap<Box<str>, SmallVec<[View; 1]>>,
}

/// A module's view of a kind.
#[derive(Debug)]
struct View {
    /// The module's place in the plan.
    place: usize,
    kind: Kind,
}

#[derive(Debug)]
struct PlanModule {
    id: Arc<str>,
    /// Its place among all modules.
    at: usize,
    rosters: Vec<Arc<str>>,
    /// The number of its first mapping.
    first: u32,
}

/// A module's view of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Reads<'a> {
    /// The module's place in the plan.
    pub place: usize,
    /// The module.
    pub module: &'a Module,
    /// Its kind.
    pub kind: &'a Kind,
    first: u32,
}

impl Plan {
    /// The plan of these modules.
    #[must_use]
    pub fn new(modules: Arc<Modules>) -> Plan {
        let (mut parts, mut kinds) = (Vec::new(), HashMap::new());
        let mut first = 0;
        for (place, (at, module)) in modules.placed().enumerate() {
            for (name, kind) in &module.kinds {
                let views: &mut SmallVec<[View; 1]> = kinds.entry(name.clone()).or_default();
                views.push(View {
                    place,
                    kind: kind.clone(),
                });
            }
            parts.push(PlanModule {
                at,
                id: (&*module.id).into(),
                rosters: module.rosters.iter().map(|r| (&*r.id).into()).collect(),
                first,
            });
            first += u32::try_from(module.mappings.len()).unwrap_or(0);
        }
        Plan {
            modules,
            parts,
            kinds,
        }
    }

    /// The plan of the set in force, if that is another one than this plan's.
    #[must_use]
    pub fn renewed(&self, live: &Live) -> Option<Plan> {
        let mut modules = Arc::clone(&self.modules);
        live.renew(&mut modules).then(|| Plan::new(modules))
    }

    /// What reads a kind; `None`: it is unmapped.
    #[must_use]
    pub fn mapped(&self, kind: &str) -> Option<impl Iterator<Item = Reads<'_>> + use<'_>> {
        let views = self.kinds.get(kind)?;
        Some(views.iter().filter_map(|view| {
            let part = self.parts.get(view.place)?;
            Some(Reads {
                place: view.place,
                module: self.modules.at(part.at)?,
                kind: &view.kind,
                first: part.first,
            })
        }))
    }

    /// What reads a kind; nothing: it is unmapped.
    pub fn readers(&self, kind: &str) -> impl Iterator<Item = Reads<'_>> + use<'_> {
        self.mapped(kind).into_iter().flatten()
    }

    /// A module by its place.
    #[must_use]
    pub fn module(&self, place: usize) -> Option<&Module> {
        self.modules.at(self.parts.get(place)?.at)
    }

    /// A module's id, shared.
    #[must_use]
    pub fn module_id(&self, place: usize) -> Arc<str> {
        self.parts
            .get(place)
            .map_or_else(|| "".into(), |p| Arc::clone(&p.id))
    }

    /// A roster's id, shared.
    #[must_use]
    pub fn roster_id(&self, place: usize, roster: usize) -> Arc<str> {
        let ids = self.parts.get(place).map(|p| &p.rosters);
        ids.and_then(|ids| ids.get(roster))
            .map_or_else(|| "".into(), Arc::clone)
    }

    /// Under which names a mapping's memories are stored: its module's and its own.
    #[must_use]
    pub fn name_of(&self, number: u32) -> (&str, &str) {
        let parts = self.parts.iter().zip(self.modules.games());
        let found = parts.take_while(|(part, _)| part.first <= number).last();
        let Some((part, module)) = found else {
            return ("", "");
        };
        let at = usize::try_from(number - part.first).unwrap_or(usize::MAX);
        let mapping = module.mappings.get(at);
        (&part.id, mapping.map_or("", |m| &m.id))
    }
}

impl<'a> Reads<'a> {
    /// Its mappings of this kind: place in the module, number in the plan, mapping.
    pub fn mappings(&self) -> impl Iterator<Item = (usize, u32, &'a Mapping)> + use<'a> {
        let (module, first) = (self.module, self.first);
        self.kind.mappings.iter().filter_map(move |at| {
            let number = first + u32::try_from(*at).unwrap_or(0);
            module.mappings.get(*at).map(|m| (*at, number, m))
        })
    }

    /// Its rosters that this kind changes: place in the module, roster, how.
    pub fn feeds(&self) -> impl Iterator<Item = (usize, &'a Roster, &'a RosterFeed)> + use<'a> {
        let module = self.module;
        self.kind.feeds.iter().filter_map(move |(roster, feed)| {
            let found = module.rosters.get(*roster)?;
            found.feeds.get(*feed).map(|f| (*roster, found, f))
        })
    }
}

/// A mapping and the trigger that it fires.
#[must_use]
pub fn firing(module: &Module, mapping: usize) -> Option<(&Mapping, &Trigger)> {
    let mapping = module.mappings.get(mapping)?;
    module.fires(mapping).map(|trigger| (mapping, trigger))
}
