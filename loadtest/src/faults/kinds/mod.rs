//! The table of fault kinds. One file a family; a new kind is a `Kind` in a file and a line in [`table`].

mod admin;
mod deliveries;
mod drain;
mod engagement;
mod group;
mod guards;
mod kafka;
mod kill;
mod network;
mod records;
mod relay;
mod stop;
mod store;
pub mod upgrade;

use super::hits::Point;
use super::scene::{Scene, Staging};
use futures::future::LocalBoxFuture;
use millrace_tests::generator::Rng;

/// Which form of the runner has a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Both forms; one broker is enough.
    Short,
    /// The long form alone, since it takes more time; one broker is enough, and the short form has it when it is asked for by name.
    Slow,
    /// The long form alone: it needs three brokers, another build, or much more time.
    Long,
}

/// What a kind does to a scene in which nothing runs yet: starts processes, lets the fault happen, and says by
/// [`Scene::strike`] that it struck. What is not at work at its end is started for it, and everything is recounted.
pub type Act = for<'a> fn(&'a mut Scene, &'static str) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// A kind of fault.
pub struct Kind {
    /// Its name, for `--kind` and the table.
    pub name: &'static str,
    /// Cards of each variant in the deck; 0: only when asked for by name.
    pub weight: u32,
    /// Which form has it.
    pub form: Form,
    /// Variants, each dealt on its own; none: one without a name.
    pub variants: &'static [&'static str],
    /// The failpoints that a variant arms, and in whom: each of them in every run.
    pub failpoints: fn(&'static str) -> Vec<Point>,
    /// Safeguards without which it ends in a loss or a double (`--sabotage`).
    pub needs: &'static [&'static str],
    /// What it needs otherwise than usual.
    pub stage: fn(&mut Staging, &'static str, &mut Rng),
    /// What it does.
    pub act: Act,
}

impl Kind {
    /// Its variants; the nameless one where it has none.
    #[must_use]
    pub fn deals(&self) -> &'static [&'static str] {
        if self.variants.is_empty() {
            &[""]
        } else {
            self.variants
        }
    }
}

/// No failpoints.
#[must_use]
pub fn no_failpoints(_: &'static str) -> Vec<Point> {
    Vec::new()
}

/// The variant is the name of a role's failpoint; the nameless one arms none.
#[must_use]
pub fn variant_of(role: &'static str, variant: &'static str) -> Vec<Point> {
    if variant.is_empty() {
        Vec::new()
    } else {
        vec![(role, variant)]
    }
}

/// Nothing otherwise than usual.
pub fn as_usual(_: &mut Staging, _: &'static str, _: &mut Rng) {}

/// What most kinds have.
pub const USUAL: Kind = Kind {
    name: "",
    weight: 1,
    form: Form::Short,
    variants: &[],
    failpoints: no_failpoints,
    needs: &[],
    stage: as_usual,
    act: |_, _| Box::pin(async { Ok(()) }),
};

/// All kinds.
#[must_use]
pub fn table() -> Vec<&'static Kind> {
    [
        kill::KINDS,
        stop::KINDS,
        group::KINDS,
        guards::KINDS,
        kafka::KINDS,
        records::KINDS,
        drain::KINDS,
        store::KINDS,
        network::KINDS,
        deliveries::KINDS,
        relay::KINDS,
        engagement::KINDS,
        upgrade::KINDS,
        admin::KINDS,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_their_own() {
        let table = table();
        let names: BTreeSet<&str> = table.iter().map(|k| k.name).collect();
        assert_eq!(names.len(), table.len());
    }

    fn named(folder: &std::path::Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                named(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let calls = text.split("failpoint::hit(\"").skip(1);
                found.extend(calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
            }
        }
    }

    #[test]
    fn every_failpoint_is_armed_by_a_kind() {
        let mut there = BTreeSet::new();
        for sources in ["../actors/src", "../topics/src"] {
            let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(sources);
            named(&root, &mut there);
        }
        let armed: BTreeSet<String> = table()
            .iter()
            .flat_map(|kind| kind.deals().iter().flat_map(|v| (kind.failpoints)(v)))
            .map(|(_, name)| name.to_owned())
            .collect();
        assert_eq!(there, armed);
    }
}
