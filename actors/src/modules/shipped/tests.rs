//! What is shipped is what the product promises: the catalogue of 26 triggers with their ceilings, sources and seeded rules.

use super::super::frozen;
use super::super::module::{Module, TriggerKind};
use super::super::tracker::Tracker;
use super::super::{Modules, Trigger};
use super::{FROZEN, SHIPPED, ids, load};
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::{Channel, Mode};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn all() -> Modules {
    load(&ids(None).unwrap(), None).unwrap_or_else(|faults| {
        let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
        panic!("{}", lines.join("\n"))
    })
}

/// `MILLRACE_WRITE_MODULES=1` writes the file instead.
#[test]
fn the_committed_declarations_are_these() {
    let modules = all();
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("config/modules")
        .join(frozen::FILE);
    if std::env::var_os("MILLRACE_WRITE_MODULES").is_some() {
        std::fs::write(&file, frozen::text(&frozen::freeze(&modules))).unwrap();
        return;
    }
    let drift: Vec<String> = frozen::drift(frozen::FILE, FROZEN, &modules)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(drift.is_empty(), "{}", drift.join("\n"));
    assert_eq!(FROZEN, frozen::text(&frozen::freeze(&modules)));
}

#[test]
fn the_folder_holds_what_the_program_brings() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("config/modules");
    let mut brought = ids(None).unwrap();
    brought.sort();
    assert_eq!(ids(Some(&dir)).unwrap(), brought);
    let from_folder = load(&brought, Some(&dir)).unwrap();
    assert_eq!(frozen::freeze(&from_folder), frozen::freeze(&all()));
    assert_eq!(SHIPPED.len(), 2);
}

/// trigger, audience, ceiling, subject, frames.
const CATALOGUE: &str = "
house.idoc_warning      owner       owner         serial  house.decay
house.refreshed         owner       owner         serial  house.decay
house.collapsed         owner       owner         serial  house.decay,house.remove
vendor.expiring         owner       owner         vendor  vendor.listing
vendor.sale             owner       owner         vendor  vendor.sale
account.login_failed    owner       owner         account account.login.result
account.unlinked        owner       owner         account account.unlinked
skill.capped            owner       owner         serial  skill.gain
quest.complete          owner       owner         serial  quest.complete
character.death         owner       owner         serial  player.death
character.murdered      owner       owner         serial  player.murdered
governor.appointed      owner       owner         city    city.update
guild.left              members     members       guild   guild.leave,guild.roster
guild.disbanded         members     members       guild   guild.remove
governor.elected        subscribers authenticated city    city.update
election.opened         subscribers authenticated city    city.update
champ.started           subscribers authenticated spawn   champ.update
champ.boss_up           subscribers authenticated spawn   champ.update
server.up               subscribers authenticated shard   server.hello
server.down             subscribers authenticated shard   server.shutdown,server.crashed
points.rank_changed     subscribers authenticated board   points.board
page.new                staff       staff         page    page.new
cheat.detected          staff       staff         serial  cheat.fastwalk
audit.staff_action      admin       admin         actor   audit.set,audit.command,admin.audit
economy.milestone       admin       admin         shard   economy.supply
world.saved             admin       admin         shard   world.save.after
";

fn sources(module: &Module, trigger: &Trigger) -> String {
    let mut frames: Vec<&str> = Vec::new();
    for mapping in &module.mappings {
        if module.fires(mapping).is_some_and(|t| t.id == trigger.id) {
            frames.extend(mapping.frames.iter().map(|f| &**f));
        }
    }
    frames.join(",")
}

#[test]
fn the_catalogue_is_whole() {
    let modules = all();
    let uo = modules.get("uo").unwrap();
    let shipped: BTreeMap<String, String> = uo
        .triggers
        .iter()
        .map(|t| {
            assert_eq!(t.kind, TriggerKind::Event);
            let id = t.id.strip_prefix("uo.").unwrap().to_owned();
            (
                id,
                format!(
                    "{} {} {} {}",
                    t.audience,
                    t.ceiling,
                    t.subject_key(),
                    sources(uo, t)
                ),
            )
        })
        .collect();
    let promised: BTreeMap<String, String> = CATALOGUE
        .lines()
        .filter(|l| !l.is_empty())
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[0].to_owned(), words[1..].join(" "))
        })
        .collect();
    assert_eq!(promised.len(), 26);
    assert_eq!(shipped, promised);
}

#[test]
fn seeded_rules_wait_cancel_and_cool_as_promised() {
    let modules = all();
    let uo = modules.get("uo").unwrap();
    let rules: Vec<_> = uo.rule_groups.iter().flat_map(|g| &g.rules).collect();
    let triggers: BTreeSet<&str> = rules.iter().map(|r| &*r.trigger).collect();
    assert_eq!((rules.len(), triggers.len()), (26, 26));
    for rule in &rules {
        assert_eq!(rule.hourly_cap, 100, "{}", rule.id);
        assert_eq!(
            rule.channels,
            [Channel::Inapp, Channel::Email],
            "{}",
            rule.id
        );
        let trigger = modules.trigger(&rule.trigger).unwrap();
        assert!(trigger.ceiling.permits(rule.audience), "{}", rule.id);
        if &*rule.id != "uo.house.idoc_warning" {
            assert_eq!((rule.delay_s, rule.cancel_on.len()), (0, 0), "{}", rule.id);
        }
    }
    let of = |id: &str| *rules.iter().find(|r| &*r.id == id).unwrap();
    let warning = of("uo.house.idoc_warning");
    assert_eq!((warning.delay_s, warning.cooldown_s), (900, 86_400));
    let cancels: Vec<&str> = warning.cancel_on.iter().map(|c| &**c).collect();
    assert_eq!(cancels, ["uo.house.collapsed", "uo.house.refreshed"]);
    assert!(of("uo.vendor.expiring").cooldown_s > 0);
    assert_eq!(
        (
            of("uo.server.down").cooldown_s,
            of("uo.server.up").cooldown_s
        ),
        (3_600, 3_600)
    );
    assert!(of("uo.vendor.sale").description.contains("patch tier"));
}

#[test]
fn seventeen_triggers_have_bodies_of_their_own_in_two_channels() {
    let modules = all();
    let uo = modules.get("uo").unwrap();
    assert_eq!(uo.templates.len(), 34);
    let mut by_trigger: BTreeMap<usize, BTreeSet<Channel>> = BTreeMap::new();
    for template in &uo.templates {
        assert!(!template.key.contains('_'), "{}", template.key);
        by_trigger
            .entry(template.trigger)
            .or_default()
            .insert(template.channel);
    }
    assert_eq!(by_trigger.len(), 17);
    assert!(
        by_trigger
            .values()
            .all(|channels| *channels == BTreeSet::from([Channel::Inapp, Channel::Email]))
    );
    assert!(uo.templates.iter().any(|t| &*t.key == "uo.champ.boss-up"));
}

#[test]
fn modes_hold_where_nobody_said_otherwise() {
    let modules = all();
    for id in ["uo.character.death", "uo.character.murdered"] {
        let trigger = modules.trigger(id).unwrap();
        assert!(
            Channel::ALL
                .iter()
                .all(|c| trigger.default_mode(*c) == Mode::Off),
            "{id}"
        );
        assert!(trigger.allows(Mode::Instant), "{id}");
    }
    for id in ["uo.economy.milestone", "uo.world.saved"] {
        let trigger = modules.trigger(id).unwrap();
        assert!(!trigger.allows(Mode::Instant), "{id}");
        assert_eq!(trigger.default_mode(Channel::Inapp), Mode::Digest, "{id}");
    }
    let plain = modules.trigger("uo.house.idoc_warning").unwrap();
    let defaults: Vec<Mode> = Channel::ALL
        .iter()
        .map(|c| plain.default_mode(*c))
        .collect();
    assert_eq!(defaults, [Mode::Instant, Mode::Off, Mode::Off]);
}

#[test]
fn the_warning_fires_at_both_late_stages_and_at_first_sight() {
    let modules = all();
    let uo = modules.get("uo").unwrap();
    let mapping = uo
        .mappings
        .iter()
        .find(|m| &*m.id == "house.idoc_warning")
        .unwrap();
    assert!(
        matches!(&mapping.tracker, Tracker::Transition { set, previous: Some(_), .. } if set.len() == 2)
    );
}

/// Core's five, through the same door; what a module may not claim.
#[test]
fn core_declares_five_events_and_their_rules() {
    let modules = all();
    let core: Vec<&Trigger> = modules
        .triggers()
        .filter(|t| &*t.module == "core")
        .collect();
    assert_eq!(core.len(), 5);
    assert!(core.iter().all(|t| modules.stream(&t.id).is_some()));
    let rules: Vec<_> = modules
        .iter()
        .next()
        .unwrap()
        .rule_groups
        .iter()
        .flat_map(|g| &g.rules)
        .collect();
    let news = rules.iter().find(|r| &*r.trigger == "news.post").unwrap();
    assert_eq!((news.channels.len(), news.cooldown_s), (3, 3_600));
    let teams: Vec<_> = rules
        .iter()
        .filter(|r| r.trigger.starts_with("team."))
        .collect();
    assert_eq!(teams.len(), 4);
    assert!(
        teams
            .iter()
            .all(|r| r.channels == [Channel::Email] && r.audience == Ceiling::Members)
    );
}

/// The second game proves that the first is not special: one trigger for each of nine patterns, no word shared.
#[test]
fn another_game_is_data_alone() {
    let modules = all();
    let (uo, other) = (modules.get("uo").unwrap(), modules.get("survival").unwrap());
    assert_eq!(other.triggers.len(), 9);
    assert!(other.kinds.keys().all(|kind| uo.kind(kind).is_none()));
    let trackers: BTreeSet<&str> = uo.mappings.iter().map(|m| m.tracker.word()).collect();
    assert_eq!(trackers.len(), 7, "every tracker is used: {trackers:?}");
    assert!(modules.stream("survival.airdrop.incoming").is_some());
    assert!(
        modules.stream("uo.house.idoc_warning").is_none(),
        "no stream, no push"
    );
}
