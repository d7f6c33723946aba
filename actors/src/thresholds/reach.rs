//! How far what a frame says of a state reaches: whether frames of its key alone change that state, or frames of its whole shard may.
//! A frame that comes again is overtaken by the ones, or by any of the others. Pure.
//!
//! A tracker's memory is of one key, and so is the list of a roster with a parameter, and a seat. What they tell may reach further: a
//! firing calls off what was said of its subject before, by another trigger too, and a subject need not be the key.

use super::tracker;
use crate::modules::module::{Kind, Roster, RosterChange, Trigger};
use crate::modules::source::Source;
use crate::modules::{Mapping, Module, Tracker};

/// Whether what a mapping remembers, and what its firings call off, is of the key of its frames.
#[must_use]
pub fn mapping_is_of_key(module: &Module, mapping: &Mapping) -> bool {
    tracker::remembers(&mapping.tracker) && tells_by_key(module, mapping)
}

/// Whether what a kind of frame changes of a roster, and what the firings of that call off, is of the key of its frames.
#[must_use]
pub fn change_is_of_key(module: &Module, kind: &Kind, at: usize, roster: &Roster) -> bool {
    let is_seat = |change: &RosterChange| matches!(change, RosterChange::Seat { .. });
    if !roster.keyed && !roster.feeds.iter().all(|f| is_seat(&f.change)) {
        return false;
    }
    let mut mappings = kind
        .mappings
        .iter()
        .filter_map(|m| module.mappings.get(*m))
        .filter(|m| matches!(m.tracker, Tracker::Roster { roster: r, .. } if r == at));
    mappings.all(|m| tells_by_key(module, m))
}

/// Whether firings that may call off a mapping's firings, or may be called off by them, come from frames of its key alone: triggers
/// of one module whose subjects have one name may do that to each other, by any rule.
fn tells_by_key(module: &Module, mapping: &Mapping) -> bool {
    let Some(trigger) = module.fires(mapping) else {
        return false;
    };
    let meets = |other: &&Trigger| other.subject_key() == trigger.subject_key();
    if module.triggers.iter().filter(meets).count() == 1 {
        return true;
    }
    module.mappings.iter().all(|other| {
        let fires = module.fires(other).filter(meets);
        fires.is_none_or(|fires| subject_is_key(module, other, fires))
    })
}

/// Whether the subject of a mapping's firings is always the key of their frame.
fn subject_is_key(module: &Module, mapping: &Mapping, trigger: &Trigger) -> bool {
    let mut sources = mapping.vars.iter();
    let Some((_, Source::Path(path))) = sources.find(|(place, _)| *place == trigger.subject) else {
        return false;
    };
    let mut kinds = mapping.frames.iter().map(|name| module.kind(name));
    let steps: Vec<&str> = path.steps().collect();
    match steps.as_slice() {
        ["frame", "key"] => true,
        // The key of a kind without a path is the shard's id.
        ["frame", "shard"] => kinds.all(|kind| kind.is_some_and(|k| k.key.is_none())),
        ["frame" | "member", ..] => false,
        _ => kinds.all(|kind| kind.is_some_and(|k| k.key.as_ref() == Some(path))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::shipped;

    #[test]
    fn what_the_shipped_manifest_tells_of_houses_reaches_their_shard_and_a_guild_s_list_its_key() {
        let modules = shipped::load(&["uo".to_owned()], None).unwrap();
        let module = modules.get("uo").unwrap();
        let of_key = |id: &str| {
            let mapping = module.mappings.iter().find(|m| &*m.id == id).unwrap();
            mapping_is_of_key(module, mapping)
        };
        for id in [
            "champ.started",
            "champ.boss_up",
            "vendor.expiring",
            "governor.elected",
            "election.opened",
            "points.rank_changed",
        ] {
            assert!(of_key(id), "{id}");
        }
        // The frame says what was before, and nothing is remembered.
        for id in ["house.idoc_warning", "house.refreshed"] {
            assert!(!of_key(id), "{id}");
        }
        let change = |kind: &str| {
            let kind = module.kind(kind).unwrap();
            let (at, _) = *kind.feeds.first().unwrap();
            change_is_of_key(module, kind, at, &module.rosters[at])
        };
        for kind in ["guild.roster", "guild.leave", "guild.remove", "city.update"] {
            assert!(change(kind), "{kind}");
        }
    }
}
