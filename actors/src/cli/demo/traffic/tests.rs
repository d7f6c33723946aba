use super::*;
use crate::cli::demo::access;
use std::collections::BTreeSet;

fn whole() -> Plan {
    let text = access::unpack().expect("the log unpacks");
    plan(&access::read(&text, usize::MAX), &Scenery::new(), 500)
}

/// Requests and lines that the plan sends, by door.
fn requests(plan: &Plan) -> BTreeMap<Door, u64> {
    let mut found = BTreeMap::new();
    let all = plan.waves.iter().flat_map(|w| w.steps.iter().flatten());
    for call in all.chain(&plan.held) {
        let n = match call {
            Call::Batch(_, lines) => lines.len() as u64,
            _ => 1,
        };
        *found.entry(call.door()).or_default() += n;
    }
    found
}

#[test]
fn every_request_and_line_has_its_expectation() {
    let plan = whole();
    let sent = requests(&plan);
    for door in Door::ALL {
        let refused = plan.expected.refused.get(&door).copied().unwrap_or(0);
        assert_eq!(
            sent.get(&door).copied().unwrap_or(0),
            plan.expected.accepted_at(door) + refused,
            "{door:?}"
        );
    }
    assert_eq!(
        plan.expected.accepted_at(Door::Click),
        u64::try_from(plan.slots).expect("few")
    );
    assert!(plan.visits() > 3_900, "{:?}", plan.lines);
}

#[test]
fn every_kind_of_trouble_is_in_it() {
    let plan = whole();
    for outcome in [
        Outcome::Applied,
        Outcome::Duplicate,
        Outcome::Parked,
        Outcome::Rejected,
    ] {
        assert!(plan.expected.ending(outcome) >= 20, "{outcome:?}");
    }
    let refused: BTreeSet<Door> = plan.expected.refused.keys().copied().collect();
    assert_eq!(
        refused,
        [Door::Click, Door::BatchVisits, Door::Beacon, Door::Postback].into()
    );
    assert!(plan.expected.woken >= 20);
    assert!(plan.expected.status_changes >= 20);
    assert!(!plan.expected.taken_back.is_empty());
    let campaigns = plan.expected.by_campaign();
    assert_eq!(campaigns.len(), 4);
    assert!(
        campaigns
            .values()
            .all(|(n, revenue)| *n >= 10 && *revenue > Decimal::ZERO)
    );
    assert!(
        plan.expected
            .bookings
            .iter()
            .any(|b| b.role == "monetization")
    );
}

#[test]
fn it_is_the_same_in_every_run_and_transactions_are_unique() {
    let (a, b) = (whole(), whole());
    assert_eq!(format!("{a:?}"), format!("{b:?}"));
    let unique: BTreeSet<&str> = a
        .expected
        .bookings
        .iter()
        .map(|b| b.txid.as_str())
        .collect();
    assert_eq!(unique.len(), a.expected.bookings.len());
}
