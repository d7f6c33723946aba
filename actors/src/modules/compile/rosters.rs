//! Rosters, and the audiences that they or the links answer.

use super::Names;
use super::fault::{Faults, Rule};
use crate::modules::manifest::{AudienceEntry, Manifest, RosterEntry, RosterFeedEntry};
use crate::modules::module::{Audience, AudienceSource, Param, Roster, RosterChange, RosterFeed};
use millrace_schemas::ceiling::Ceiling;

pub(super) fn build(faults: &mut Faults, names: &Names<'_>) -> Vec<Roster> {
    let all = names.manifest.rosters.iter().enumerate();
    all.map(|(place, entry)| one(faults, names, &format!("roster.{place}"), entry))
        .collect()
}

fn one(faults: &mut Faults, names: &Names<'_>, at: &str, entry: &RosterEntry) -> Roster {
    if entry.feeds.is_empty() {
        faults.push(
            &format!("{at}.feeds"),
            Rule::Missing("a roster that no frame changes is empty for ever"),
        );
    }
    let mut feeds = Vec::new();
    for (place, feed) in entry.feeds.iter().enumerate() {
        let at = format!("{at}.feeds.{place}");
        let Some(key) = names.kinds.get(feed.frame.as_str()) else {
            faults.push(
                &format!("{at}.frame"),
                Rule::Unknown("frame", feed.frame.clone()),
            );
            continue;
        };
        // Frames of different keys are decided by different partitions, each with the list as it found it. A seat is of one key.
        if let Some(key) = key
            && entry.param.is_none()
            && ["replace", "add", "clear"].contains(&feed.change.as_str())
        {
            faults.push(
                &format!("{at}.change"),
                Rule::RosterShared((*key).to_owned()),
            );
        }
        match (&entry.param, &feed.param, key) {
            (Some(_), Some(param), Some(key)) if param == key => {}
            (None, None, _) => {}
            (_, _, key) => {
                let key = key.map_or("none: the shard as a whole", |k| k).to_owned();
                faults.push(&format!("{at}.param"), Rule::RosterKey(key));
            }
        }
        if let Some(change) = change(faults, &at, feed) {
            feeds.push(RosterFeed {
                frame: feed.frame.as_str().into(),
                change,
            });
        }
    }
    Roster {
        id: entry.id.as_str().into(),
        keyed: entry.param.is_some(),
        param: entry.param.as_deref().map(Box::from),
        feeds,
    }
}

fn change(faults: &mut Faults, at: &str, feed: &RosterFeedEntry) -> Option<RosterChange> {
    let words = ["replace", "add", "remove", "seat", "clear"];
    let word = faults.word(&format!("{at}.change"), &feed.change, &words, |w| w)?;
    let needs: &[&str] = match word {
        "replace" => &["members", "account"],
        "add" | "seat" => &["account"],
        _ => &[],
    };
    let allows: &[&str] = match word {
        "replace" | "add" => &["slot"],
        "remove" => &["slot", "account"],
        _ => &[],
    };
    let given = [
        ("members", &feed.members),
        ("account", &feed.account),
        ("slot", &feed.slot),
    ];
    let mut whole = true;
    for (name, value) in given {
        let key = format!("{at}.{name}");
        if value.is_none() && needs.contains(&name) {
            faults.push(&key, Rule::Missing("this change needs it"));
            whole = false;
        }
        if value.is_some() && !needs.contains(&name) && !allows.contains(&name) {
            faults.push(&key, Rule::TrackerRefuses(word.to_owned()));
        }
    }
    let mut path = |name: &str, value: &Option<String>| {
        value
            .as_ref()
            .and_then(|text| faults.path(&format!("{at}.{name}"), text))
    };
    let members = path("members", &feed.members);
    let account = path("account", &feed.account);
    let slot = path("slot", &feed.slot);
    if word == "remove" {
        let Some(slot) = slot.or(account) else {
            faults.push(
                &format!("{at}.account"),
                Rule::Missing("who is taken off the list"),
            );
            return None;
        };
        return Some(RosterChange::Remove { slot });
    }
    if !whole {
        return None;
    }
    Some(match word {
        "replace" => RosterChange::Replace {
            members: members?,
            account: account?,
            slot,
        },
        "add" => RosterChange::Add {
            account: account?,
            slot,
        },
        "seat" => RosterChange::Seat { account: account? },
        _ => RosterChange::Clear,
    })
}

pub(super) fn audiences(faults: &mut Faults, manifest: &Manifest) -> Vec<Audience> {
    let all = manifest.audiences.iter().enumerate();
    all.map(|(place, entry)| audience(faults, manifest, &format!("audience.{place}"), entry))
        .collect()
}

fn audience(faults: &mut Faults, manifest: &Manifest, at: &str, entry: &AudienceEntry) -> Audience {
    faults.said(&format!("{at}.label"), &entry.label);
    faults.said(&format!("{at}.description"), &entry.description);
    let ceiling = faults.ceiling(
        &format!("{at}.ceiling"),
        entry.ceiling.as_deref(),
        "no ceiling is safe to guess",
    );
    let roster = entry.roster.as_deref().map(|id| {
        let place = manifest.rosters.iter().position(|r| r.id == id);
        if place.is_none() {
            faults.push(
                &format!("{at}.roster"),
                Rule::Unknown("roster", id.to_owned()),
            );
        }
        place.unwrap_or_default()
    });
    if roster.is_some() == entry.linked {
        faults.push(
            &format!("{at}.roster"),
            Rule::Missing("who answers it: either a roster, or `linked = true`"),
        );
    }
    let param = roster
        .and_then(|r| manifest.rosters.get(r))
        .and_then(|r| r.param.as_deref());
    let named: Vec<&str> = entry.params.iter().map(|p| p.id.as_str()).collect();
    if named != param.into_iter().collect::<Vec<_>>() {
        faults.push(
            &format!("{at}.params"),
            Rule::Unknown(
                "parameter but the roster's own,",
                param.unwrap_or("none").to_owned(),
            ),
        );
    }
    let params = entry.params.iter().enumerate().map(|(n, p)| {
        let int = faults.word(
            &format!("{at}.params.{n}.type"),
            &p.of,
            &["string", "int"],
            |w| w,
        );
        if !p.required {
            faults.push(
                &format!("{at}.params.{n}.required"),
                Rule::Missing("which list of the roster"),
            );
        }
        Param {
            id: p.id.as_str().into(),
            int: int == Some("int"),
            required: p.required,
        }
    });
    let params = params.collect();
    Audience {
        id: entry.id.as_str().into(),
        label: entry.label.as_str().into(),
        description: entry.description.as_str().into(),
        ceiling: ceiling.unwrap_or(Ceiling::Owner),
        source: roster.map_or(AudienceSource::Linked, AudienceSource::Roster),
        params,
    }
}
