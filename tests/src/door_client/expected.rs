//! What must become of everything that stands in the log and was not put there by the generator: it came through a door.

use super::{Book, CAMPAIGN, CENTS, NETWORK, OFFER, Promised};
use crate::generator::{Booking, Conversion, End, Fact, List, Record, Right, Topic};
use crate::log_reader::Logged;
use crate::recount::{Finding, Kind, Place, Produced};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The generator's list with everything that came through the doors behind it, and what is wrong with the log itself.
#[derive(Clone, Debug)]
pub struct Expected {
    /// All records, with their places.
    pub produced: Produced,
    /// What was acknowledged and is not in the log; what is in the log and nobody sent.
    pub findings: Vec<Finding>,
    /// Records that came through doors.
    pub through_doors: usize,
    /// How many of them say again what another has said.
    pub repeats: usize,
}

fn right(end: End) -> Vec<Right> {
    vec![Right { end, reason: None }]
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Lays the log beside what was put into it and what was promised. `logged` is everything that the log holds; of one identity
/// the record at the lower offset counts (they share a partition), the others are duplicates.
#[must_use]
pub fn expected(
    listed: &Produced,
    logged: &[Logged],
    topics: &BTreeMap<Topic, (i32, String)>,
    workspace: i32,
    book: &Book,
) -> Expected {
    let mut list: List = listed.list.clone();
    let mut places: Vec<Place> = listed.places.clone();
    let mut findings = Vec::new();
    let mut find = |kind: Kind, what: String| findings.push(Finding { kind, what });
    let mut known: HashSet<Promised> = HashSet::new();
    let (mut through_doors, mut repeats) = (0, 0);
    let clicks = topics.get(&Topic::Clicks).map(|t| t.0);
    for at in logged {
        if listed.at(at.place).is_some() {
            continue;
        }
        let Ok(said) = serde_json::from_slice::<Value>(&at.payload) else {
            find(
                Kind::Wrong,
                format!("{} in the log was sent by nobody", at.place),
            );
            continue;
        };
        if number(&said["workspace"]) != i64::from(workspace) {
            find(
                Kind::Wrong,
                format!("{} in the log was sent by nobody", at.place),
            );
            continue;
        }
        through_doors += 1;
        let stage = i16::try_from(number(&said["stage"])).unwrap_or_default();
        let (topic, promise, click_id, fact) = if Some(at.place.topic_no) == clicks {
            let click_id = text(&said["click_id"]);
            if said["kind"] == "visit" {
                let visit_id = text(&said["visit_id"]).parse::<uuid::Uuid>();
                let visit_id = visit_id.unwrap_or_default().as_u128();
                let direct = said["direct"] == true;
                // A direct visit is its own click.
                if direct {
                    known.insert(Promised::Click(click_id.clone(), stage));
                }
                let fact = Fact::Visit { visit_id, direct };
                (Topic::Clicks, Promised::Visit(visit_id), click_id, fact)
            } else {
                let promise = Promised::Click(click_id.clone(), stage);
                (Topic::Clicks, promise, click_id, Fact::Click)
            }
        } else {
            let query = text(&said["query"]);
            let field = |name: &str| {
                let mut pairs = query.split('&').filter_map(|p| p.split_once('='));
                pairs
                    .find(|(n, _)| *n == name)
                    .map(|(_, v)| v.to_owned())
                    .unwrap_or_default()
            };
            let promise = Promised::Postback(field("txid"));
            (Topic::Postbacks, promise, field("click_id"), Fact::Nothing)
        };
        let first = known.insert(promise.clone());
        repeats += usize::from(!first);
        let end = if first { End::Applied } else { End::Duplicate };
        if let (true, Promised::Postback(txid)) = (first, promise) {
            list.conversions.push(Conversion {
                workspace,
                network: NETWORK.to_owned(),
                ways: vec![Booking {
                    record: list.records.len(),
                    offer: OFFER,
                    role: "navigation",
                    cents: CENTS,
                    status: "approved",
                    names: Some([None, Some(txid), None, None]),
                }],
                changes: 0..=0,
            });
        }
        list.records.push(Record {
            topic,
            key: at.key.clone(),
            payload: at.payload.clone(),
            story: "through a door",
            workspace,
            click_id,
            campaign: CAMPAIGN.to_owned(),
            stage,
            right: right(end),
            fact,
        });
        places.push(at.place);
    }
    let missing: BTreeSet<&Promised> = book
        .promised
        .iter()
        .filter(|p| !known.contains(p))
        .collect();
    for promised in missing {
        find(
            Kind::Loss,
            format!("{promised:?} was acknowledged and is not in the log"),
        );
    }
    for refused in &book.refused {
        find(
            Kind::Wrong,
            format!("a door refused what is right: {refused}"),
        );
    }
    let in_log: HashSet<Place> = logged.iter().map(|l| l.place).collect();
    for (i, place) in listed.places.iter().enumerate() {
        if !in_log.contains(place) {
            let story = listed.list.records[i].story;
            find(
                Kind::Loss,
                format!("{story} {place} was acknowledged by Kafka and is not in it"),
            );
        }
    }
    Expected {
        produced: Produced::new(list, places),
        findings,
        through_doors,
        repeats,
    }
}
