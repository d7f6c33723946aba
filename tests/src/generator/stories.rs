//! The stories that a generated list is shuffled from.

use super::say::{CAMPAIGNS, Subject, applied, contested, duplicate, ends, ends_with};
use super::{Booking, End, List, Plan, Teller, Topic};
use serde_json::{Value, json};

/// A story, told from the current slot on.
type Story = fn(&mut Teller, Subject);

/// Name, how often of 1000, and what is told.
const STORIES: &[(&str, u64, Story)] = &[
    ("visit", 480, visit_alone),
    ("direct visit", 120, direct_visit),
    ("visit, click", 130, visit_and_click),
    ("conversion", 100, conversion),
    ("early postback", 30, early_postback),
    ("early click", 15, early_click),
    ("pending, approved", 15, pending_then_approved),
    ("pending, rejected", 10, pending_then_rejected),
    ("reversal", 6, reversal),
    ("refused postback", 16, refused_postback),
    ("unknown click", 8, unknown_click),
    ("contested identity", 16, contested_identity),
    ("contested approval", 8, contested_approval),
    ("one click id, two workspaces", 10, two_workspaces),
    ("two networks", 6, two_networks),
    ("sidecar offer", 8, sidecar_offer),
    ("transaction of several events", 6, several_events),
    ("callback upgraded", 6, upgraded_callback),
    ("two stages", 8, two_stages),
    ("strayed click", 2, strayed_click),
];

/// How many slots a story's steps may lie apart.
const NEAR: u64 = 60;
const FAR: u64 = 3_000;

pub(super) fn tell(plan: Plan) -> List {
    let mut teller = Teller::new(plan);
    let weights: u64 = STORIES.iter().map(|(_, w, _)| w).sum();
    let mut next_poison = 40;
    while teller.said.len() < plan.records {
        let slot = teller.rng.below(plan.records as u64);
        teller.at(slot);
        let mut dice = teller.rng.below(weights);
        let story = STORIES.iter().find(|(_, weight, _)| {
            let hit = dice < *weight;
            dice = dice.saturating_sub(*weight);
            hit
        });
        if let Some((name, _, story)) = story {
            let subject = subject(&mut teller, name);
            story(&mut teller, subject);
        }
        if plan.poison && teller.said.len() >= next_poison {
            next_poison += plan.poison_every;
            let subject = subject(&mut teller, "poison");
            poison(&mut teller, subject);
        }
    }
    teller.finish()
}

fn subject(t: &mut Teller, story: &'static str) -> Subject {
    Subject {
        story,
        workspace: 1 + i32::from(t.rng.one_in(3)),
        click_id: t.click_id(),
        campaign: *t.rng.pick(&CAMPAIGNS),
    }
}

fn visit_alone(t: &mut Teller, of: Subject) {
    let id = t.visit(&of);
    if t.rng.one_in(12) {
        t.later(FAR);
        t.visit_as(&of, id, 0, false, duplicate());
    }
}

fn direct_visit(t: &mut Teller, of: Subject) {
    let id = t.visit_id();
    t.visit_as(&of, id, 0, true, applied());
    if t.rng.one_in(3) {
        t.later(NEAR);
        t.click(&of, 0, duplicate());
    }
    if t.rng.one_in(10) {
        t.later(NEAR);
        t.visit_as(&of, id, 0, true, duplicate());
    }
}

fn visit_and_click(t: &mut Teller, of: Subject) {
    t.visit(&of);
    t.later(NEAR);
    t.click(&of, 0, applied());
    if t.rng.one_in(6) {
        t.later(FAR);
        t.click(&of, 0, duplicate());
    }
}

/// A payout as text and in cents: what a postback says, and what is booked.
fn payout(t: &mut Teller, of: &Subject) -> (String, i64) {
    match t.rng.below(8) {
        0 => ("payout=&".to_owned(), of.campaign.payout.map_or(0, |p| p.1)),
        1 => (String::new(), of.campaign.payout.map_or(0, |p| p.1)),
        2 => ("payout=0&".to_owned(), 0),
        3 => ("amount=7.5&".to_owned(), 750),
        4 => ("payout=%2B3.00&".to_owned(), 300),
        _ => {
            let cents = t.rng.below(100_000).cast_signed();
            (format!("payout={}.{:02}&", cents / 100, cents % 100), cents)
        }
    }
}

/// One of the three forms of an identity: what the query says, and the names that are booked.
fn identity(t: &mut Teller) -> (String, [Option<String>; 4]) {
    let serial = t.serial();
    let seed = t.plan.seed;
    match t.rng.below(4) {
        0 => {
            let external = format!("ext-{seed}-{serial}");
            let query = format!("external_conversion_id={external}&event=sale");
            (query, [Some(external), None, Some("sale".into()), None])
        }
        1 => {
            let txid = format!("tx-{seed}-{serial}");
            let query = format!("txid={txid}&transaction_id={txid}&event=0042");
            let event = Some("0042".to_owned());
            (query, [None, Some(txid), event.clone(), event])
        }
        2 => {
            let txid = format!("tx+{seed}/{serial}");
            let query = format!("transaction_id=tx%2B{seed}%2F{serial}&event_id=9");
            (query, [None, Some(txid), None, Some("9".into())])
        }
        // None at all: one conversion for (click, offer, event).
        _ => (
            "event=signup".to_owned(),
            [None, None, Some("signup".into()), None],
        ),
    }
}

fn booked(t: &mut Teller, of: &Subject, record: usize, cents: i64, names: [Option<String>; 4]) {
    let booking = Booking {
        names: Some(names),
        ..t.booking(of, record, cents, [None; 4])
    };
    t.books(of, "nw_1", vec![booking], 0..=0);
}

fn conversion(t: &mut Teller, of: Subject) {
    let direct = t.rng.one_in(3);
    let visit_id = t.visit_id();
    t.visit_as(&of, visit_id, 0, direct, applied());
    if !direct {
        t.later(NEAR);
        t.click(&of, 0, applied());
    }
    t.later(NEAR);
    let (paid, cents) = payout(t, &of);
    let (names_query, names) = identity(t);
    let query = format!("{paid}{names_query}");
    let record = t.postback(&of, &query, applied());
    booked(t, &of, record, cents, names);
    for _ in 0..t.rng.below(3) {
        t.later(FAR);
        // A repeat changes nothing, whatever it pays.
        let (paid, _) = payout(t, &of);
        t.postback(&of, &format!("{paid}{names_query}"), duplicate());
    }
}

fn early_postback(t: &mut Teller, of: Subject) {
    let (paid, cents) = payout(t, &of);
    let (names_query, names) = identity(t);
    let query = format!("{paid}{names_query}");
    let record = t.postback(&of, &query, applied());
    booked(t, &of, record, cents, names);
    if t.rng.one_in(2) {
        t.later(NEAR);
        t.postback(&of, &query, duplicate());
    }
    t.later(FAR);
    t.visit(&of);
    if t.rng.one_in(2) {
        t.later(NEAR);
        t.postback(&of, &query, duplicate());
    }
}

fn early_click(t: &mut Teller, of: Subject) {
    t.click(&of, 0, applied());
    if t.rng.one_in(2) {
        t.later(NEAR);
        t.click(&of, 0, duplicate());
    }
    t.later(FAR);
    t.visit(&of);
    t.later(NEAR);
    t.click(&of, 0, duplicate());
}

fn pending_then_approved(t: &mut Teller, of: Subject) {
    let txid = t.unique("pa");
    t.visit(&of);
    t.later(NEAR);
    let first = t.postback(
        &of,
        &format!("txid={txid}&payout=5&status=pending"),
        applied(),
    );
    t.later(NEAR);
    t.postback(
        &of,
        &format!("txid={txid}&payout=6&status=pending"),
        duplicate(),
    );
    t.later(FAR);
    let changed = ends_with(End::Applied, "status_changed");
    let paid = *t
        .rng
        .pick(&[("payout=8.25&", 825), ("", 500), ("payout=&", 500)]);
    t.postback(
        &of,
        &format!("{}txid={txid}&status=Approved", paid.0),
        changed,
    );
    t.later(FAR);
    t.postback(
        &of,
        &format!("txid={txid}&payout=9&status=approved"),
        duplicate(),
    );
    let booking = t.booking(&of, first, paid.1, [None, Some(&txid), None, None]);
    t.books(&of, "nw_1", vec![booking], 1..=1);
}

fn pending_then_rejected(t: &mut Teller, of: Subject) {
    let txid = t.unique("pr");
    t.visit(&of);
    t.later(NEAR);
    // An unknown word is pending, never approved.
    let first = t.postback(
        &of,
        &format!("txid={txid}&payout=5&status=on-hold"),
        applied(),
    );
    t.later(FAR);
    let changed = ends_with(End::Applied, "status_changed");
    t.postback(&of, &format!("txid={txid}&status=rejected"), changed);
    t.later(FAR);
    let conflict = ends_with(End::Duplicate, "status_conflict");
    t.postback(
        &of,
        &format!("txid={txid}&payout=5&status=approved"),
        conflict,
    );
    let mut booking = t.booking(&of, first, 500, [None, Some(&txid), None, None]);
    booking.status = "rejected";
    t.books(&of, "nw_1", vec![booking], 1..=1);
}

fn reversal(t: &mut Teller, of: Subject) {
    let txid = t.unique("rv");
    let allowed = t.rng.one_in(2);
    t.visit(&of);
    t.later(NEAR);
    let first = t.postback(&of, &format!("txid={txid}&payout=20"), applied());
    t.later(FAR);
    let (rules, right) = if allowed {
        let right = ends_with(End::Applied, "status_changed");
        (json!({"reversals": true}), right)
    } else {
        (Value::Null, ends_with(End::Duplicate, "status_conflict"))
    };
    let query = format!("txid={txid}&status=rejected");
    t.postback_as(&of, "nw_1", "click_id", &query, rules, right);
    let mut booking = t.booking(&of, first, 2000, [None, Some(&txid), None, None]);
    if allowed {
        booking.status = "rejected";
    }
    let changes = i64::from(allowed);
    t.books(&of, "nw_1", vec![booking], changes..=changes);
}

fn refused_postback(t: &mut Teller, mut of: Subject) {
    let refused = |reason| ends_with(End::Rejected, reason);
    let known = t.rng.one_in(2);
    if known {
        t.visit(&of);
        t.later(NEAR);
    }
    let serial = t.serial();
    match t.rng.below(8) {
        0 => {
            let bad = *t.rng.pick(&[
                "NaN",
                "1e3",
                "1,50",
                "$4",
                "-1",
                "1234567890123456789",
                "inf",
            ]);
            t.postback(
                &of,
                &format!("txid=m{serial}&payout={bad}"),
                refused("payout_malformed"),
            );
        }
        1 => {
            let bad = *t.rng.pick(&[
                "txid=%7Btransaction_id%7D",
                "txid={txid}",
                "payout=[PAYOUT]",
                "status=%23status%23",
                "event=<e>",
                "event_id=$%7Be%7D",
                "external_conversion_id={{x}}",
            ]);
            t.postback(&of, bad, refused("macro_unsubstituted"));
        }
        2 => {
            t.postback(
                &of,
                "txid=1&transaction_id=2&payout=1",
                refused("alias_conflict"),
            );
        }
        3 => {
            t.postback(
                &of,
                "event=7&event_id=x9",
                refused("provider_event_malformed"),
            );
        }
        4 => {
            t.postback(&of, "txid=a%00b", refused("field_malformed"));
        }
        5 => {
            t.postback(
                &of,
                &format!("txid={}", "9".repeat(600)),
                refused("field_malformed"),
            );
        }
        6 => {
            of.click_id = String::new();
            let body = json!({"v": 1, "workspace": of.workspace, "network": "nw_1", "query": format!("txid=n{serial}&payout=1")});
            t.raw(&of, Topic::Postbacks, body, refused("click_id_missing"));
        }
        _ => {
            let tomorrow = t.plan.start / 1000 + 86_400_000;
            of.click_id = super::minted(&mut t.rng, tomorrow);
            t.postback(&of, "payout=1", refused("click_id_in_future"));
        }
    }
}

fn unknown_click(t: &mut Teller, of: Subject) {
    let serial = t.serial();
    t.postback(&of, &format!("txid=u{serial}&payout=1"), ends(End::Parked));
    if t.rng.one_in(2) {
        t.later(FAR);
        // Parking claims nothing.
        t.postback(&of, &format!("txid=u{serial}&payout=1"), ends(End::Parked));
    }
    if t.rng.one_in(3) {
        t.later(FAR);
        t.click(&of, 0, ends(End::Parked));
    }
}

/// Another click of the same workspace and campaign, in another partition.
fn apart(t: &mut Teller, of: &Subject) -> Subject {
    Subject {
        click_id: t.click_id_apart_from(of.workspace, &of.click_id),
        ..of.clone()
    }
}

/// One identity under two click ids in two partitions: one books, whichever, the others are duplicates.
fn contested_identity(t: &mut Teller, of: Subject) {
    let other = apart(t, &of);
    t.visit(&of);
    t.visit(&other);
    // Near each other, so that two open transactions want the key at once.
    t.later(NEAR);
    let serial = t.serial();
    let by_txid = t.rng.one_in(2);
    let name = format!("both-{}-{serial}", t.plan.seed);
    let (query, names) = if by_txid {
        (
            format!("txid={name}&payout=4"),
            [None, Some(&*name), None, None],
        )
    } else {
        let query = format!("external_conversion_id={name}&payout=4");
        (query, [Some(&*name), None, None, None])
    };
    let first = t.postback(&of, &query, contested());
    t.later(3);
    let second = t.postback(&other, &query, contested());
    if t.rng.one_in(3) {
        t.later(NEAR);
        // Comes after one that claims or has lost the identity in its own partition.
        t.postback(&of, &query, duplicate());
    }
    let ways = vec![
        t.booking(&of, first, 400, names),
        t.booking(&other, second, 400, names),
    ];
    t.books(&of, "nw_1", ways, 0..=0);
}

/// One identity, pending under one click and approved under another: approved in the end, for the approval's payout.
fn contested_approval(t: &mut Teller, of: Subject) {
    let other = apart(t, &of);
    t.visit(&of);
    t.visit(&other);
    t.later(NEAR);
    let name = t.unique("step");
    let named = format!("external_conversion_id={name}");
    let first = t.postback(
        &of,
        &format!("{named}&payout=3&status=pending"),
        contested(),
    );
    t.later(3);
    let second = t.postback(
        &other,
        &format!("{named}&payout=5.5&status=approved"),
        applied(),
    );
    let names = [Some(&*name), None, None, None];
    let ways = vec![
        t.booking(&of, first, 550, names),
        t.booking(&other, second, 550, names),
    ];
    t.books(&of, "nw_1", ways, 0..=1);
}

/// A click id of one tenant means nothing in another, nor does an external id.
fn two_workspaces(t: &mut Teller, of: Subject) {
    let theirs = Subject {
        workspace: 3 - of.workspace,
        campaign: CAMPAIGNS[1],
        ..of.clone()
    };
    let name = t.unique("tenant");
    let query = format!("external_conversion_id={name}&payout=1.25");
    let both_visit = t.rng.one_in(2);
    t.visit(&of);
    if both_visit {
        t.later(NEAR);
        t.visit(&theirs);
    }
    t.later(NEAR);
    for (of, known) in [(&of, true), (&theirs, both_visit)] {
        let right = if known { applied() } else { ends(End::Parked) };
        let record = t.postback(of, &query, right);
        if known {
            let booking = t.booking(of, record, 125, [Some(&name), None, None, None]);
            t.books(of, "nw_1", vec![booking], 0..=0);
        }
        t.later(NEAR);
    }
}

/// An external id is its network's own.
fn two_networks(t: &mut Teller, of: Subject) {
    let name = t.unique("net");
    t.visit(&of);
    for network in ["nw_1", "nw_2"] {
        t.later(NEAR);
        let query = format!("external_conversion_id={name}&payout=2");
        let record = t.postback_as(&of, network, "click_id", &query, Value::Null, applied());
        let booking = t.booking(&of, record, 200, [Some(&name), None, None, None]);
        t.books(&of, network, vec![booking], 0..=0);
    }
}

/// The same transaction credited to navigation and to the sidecar offer are two conversions.
fn sidecar_offer(t: &mut Teller, mut of: Subject) {
    of.campaign = CAMPAIGNS[0];
    let Some((offer, network, id, _, cents)) = of.campaign.sidecar else {
        return;
    };
    let txid = t.unique("side");
    let names = [None, Some(&*txid), None, None];
    t.visit(&of);
    t.later(NEAR);
    let query = format!("txid={txid}&offer_id={id}");
    let record = t.postback_as(&of, network, "click_id", &query, Value::Null, applied());
    let booking = Booking {
        offer,
        role: "monetization",
        ..t.booking(&of, record, cents, names)
    };
    t.books(&of, network, vec![booking], 0..=0);
    t.later(NEAR);
    // Leading zeros count: no sidecar offer is known as 77.
    let returned = *t.rng.pick(&["77", "", "%7Boffer_id%7D", "x"]);
    let query = format!("txid={txid}&offer_id={returned}&payout=1");
    let record = t.postback(&of, &query, applied());
    let booking = t.booking(&of, record, 100, names);
    t.books(&of, "nw_1", vec![booking], 0..=0);
    t.later(FAR);
    t.postback(&of, &format!("txid={txid}&offer_id={id}"), duplicate());
}

fn several_events(t: &mut Teller, of: Subject) {
    let txid = t.unique("ev");
    t.visit(&of);
    for event in ["1", "01", "2"] {
        t.later(NEAR);
        let query = format!("txid={txid}&event={event}&payout=3");
        let record = t.postback(&of, &query, applied());
        let names = [None, Some(&*txid), Some(event), Some(event)];
        let booking = t.booking(&of, record, 300, names);
        t.books(&of, "nw_1", vec![booking], 0..=0);
        t.later(FAR);
        t.postback(&of, &query, duplicate());
    }
}

/// A network begins to send its conversion ids: the retry of a known transaction does not book again, a second id does.
fn upgraded_callback(t: &mut Teller, of: Subject) {
    let name = t.unique("up");
    t.visit(&of);
    t.later(NEAR);
    let record = t.postback(&of, &format!("txid={name}&payout=6"), applied());
    let mut booking = t.booking(&of, record, 600, [None; 4]);
    booking.names = None;
    t.books(&of, "nw_1", vec![booking], 0..=0);
    t.later(NEAR);
    let upgraded = format!("txid={name}&external_conversion_id={name}-a&payout=6");
    t.postback(&of, &upgraded, duplicate());
    t.later(NEAR);
    t.postback(
        &of,
        &format!("external_conversion_id={name}-a&payout=6"),
        duplicate(),
    );
    t.later(NEAR);
    let second = format!("txid={name}&external_conversion_id={name}-b&payout=7");
    let record = t.postback(&of, &second, applied());
    let external = format!("{name}-b");
    let booking = t.booking(&of, record, 700, [Some(&external), Some(&name), None, None]);
    t.books(&of, "nw_1", vec![booking], 0..=0);
}

fn two_stages(t: &mut Teller, of: Subject) {
    for stage in 0..2 {
        let id = t.visit_id();
        t.visit_as(&of, id, stage, false, applied());
        t.later(NEAR);
        t.click(&of, stage, applied());
        t.later(NEAR);
        t.click(&of, stage, duplicate());
        t.later(NEAR);
    }
}

fn strayed_click(t: &mut Teller, of: Subject) {
    t.visit(&of);
    t.later(NEAR);
    t.strayed_click(&of);
}

/// Records that can never be processed, each among good ones.
fn poison(t: &mut Teller, of: Subject) {
    let dead = ends(End::DeadLettered);
    match t.rng.below(5) {
        0 => {
            t.garbage(&of, Topic::Clicks, b"\xff\xfe{not json");
        }
        1 => {
            t.garbage(&of, Topic::Postbacks, b"{\"v\":1,\"workspace\":\"one\"}");
        }
        2 => {
            t.garbage(&of, Topic::Clicks, b"");
        }
        3 => {
            // The doors refuse NUL; a record that comes past them is refused by the store.
            let id = uuid::Uuid::from_u128(t.visit_id()).to_string();
            let body = json!({
                "v": 1, "kind": "visit", "workspace": of.workspace, "click_id": of.click_id, "visit_id": id,
                "campaign": "summer", "user_agent": "nul\u{0}", "journey": {"offer": {"id": "of_nav1"}},
            });
            t.raw(&of, Topic::Clicks, body, dead);
        }
        _ => {
            let serial = t.serial();
            let query = format!("click_id={}&txid=z{serial}\u{0}", of.click_id);
            let body =
                json!({"v": 1, "workspace": of.workspace, "network": "nw_1", "query": query});
            t.raw(&of, Topic::Postbacks, body, dead);
        }
    }
}

impl Teller {
    /// Postbacks and clicks of unknown clicks that nobody visits before they have waited too long.
    pub fn unknown_clicks_that_expire(&mut self, n: usize) {
        let expired = ends_with(End::DeadLettered, "journey_unknown");
        for _ in 0..n {
            let of = subject(self, "expiring");
            let serial = self.serial();
            let query = format!("external_conversion_id=x{serial}&payout=1");
            self.postback(&of, &query, expired.clone());
            if self.rng.one_in(3) {
                self.click(&of, 0, expired.clone());
            }
        }
    }
}
