//! The end of the demo: does everything add up? As checks, as a table, as JSON.

use super::deliveries::{self, Deliveries};
use super::drive::Sent;
use super::notices::{self, Notices};
use super::recount::Recount;
use super::scenery::Scenery;
use super::stand_ins::Counts;
use super::traffic::{Booking, Door, Expected, Plan};
use crate::verify;
use millrace_schemas::outcome::Outcome;
use rust_decimal::Decimal;
use serde::Serialize;
use std::collections::BTreeMap;

/// One thing that must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What must hold.
    pub name: String,
    /// Whether it does.
    pub holds: bool,
    /// What was found.
    pub found: String,
    /// What should have been.
    pub expected: String,
}

/// A door's line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoorLine {
    /// The door.
    pub door: &'static str,
    /// Records that the log has.
    pub accepted: u64,
    /// Requests and lines turned away.
    pub refused: u64,
}

/// A campaign's line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CampaignLine {
    /// The campaign.
    pub campaign: String,
    /// Conversions.
    pub conversions: i64,
    /// What the approved ones pay, US dollars.
    pub revenue: String,
}

/// What the whole run came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Records that the doors accepted.
    pub accepted: u64,
    /// Requests and lines that the doors turned away.
    pub refused: u64,
    /// Recounted outcomes.
    pub applied: i64,
    /// Known already.
    pub duplicate: i64,
    /// Waiting for a visit.
    pub parked: i64,
    /// Can never be booked.
    pub rejected: i64,
    /// Among the dead letters.
    pub dead_lettered: i64,
    /// Booked conversions.
    pub conversions: i64,
    /// What the approved ones pay, as decimal text.
    pub revenue: String,
    /// Whether every check holds.
    pub balanced: bool,
    /// By door.
    pub doors: Vec<DoorLine>,
    /// By campaign.
    pub campaigns: Vec<CampaignLine>,
    /// By channel and result.
    pub deliveries: Vec<deliveries::Line>,
    /// Frames of the shard's session that its feed acknowledged.
    pub shard_frames: u64,
    /// Who was told what: by trigger and channel.
    pub notices: Vec<notices::Line>,
    /// What was held back: by gate and reason.
    pub held_back: Vec<notices::Held>,
    /// Mails that the catcher took.
    pub mails: u64,
    /// All checks.
    pub checks: Vec<Check>,
    /// Lines of the access log that were replayed.
    pub log_lines: u64,
    /// Page views among them.
    pub page_views: u64,
    /// Seconds from the first request to the last record consumed.
    pub seconds: f64,
}

/// A run, as it was planned, sent and found.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// What was planned.
    pub plan: &'a Plan,
    /// Where.
    pub scenery: &'a Scenery,
    /// What was sent.
    pub sent: &'a Sent,
    /// What became of it.
    pub found: &'a Recount,
    /// What was delivered of it.
    pub delivered: &'a Deliveries,
    /// What people were told of the shard's session.
    pub notices: &'a Notices,
    /// The shard's session as its feed took it.
    pub session: &'a super::shard::Session,
    /// What arrived.
    pub counts: &'a Counts,
    /// What `millrace verify` says of the store.
    pub verified: &'a verify::Report,
    /// Seconds from the first request to the last record consumed.
    pub seconds: f64,
}

/// Everything that must hold, each by name.
#[must_use]
pub fn checks(expected: &Expected, sent: &Sent, found: &Recount) -> Vec<Check> {
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    let mut all = Checks::default();
    let surprises = if sent.first_surprises.is_empty() {
        sent.surprises.to_string()
    } else {
        format!("{}: {}", sent.surprises, sent.first_surprises.join("; "))
    };
    all.push(
        "answers that were not the planned ones",
        "0".to_owned(),
        surprises,
    );
    for door in Door::ALL {
        let tally = sent.doors.get(&door).copied().unwrap_or_default();
        let refused = expected.refused.get(&door).copied().unwrap_or(0);
        all.push(
            &format!("{}: accepted and refused", door.name()),
            format!("{} and {refused}", expected.accepted_at(door)),
            format!("{} and {}", tally.accepted, tally.refused),
        );
    }
    all.push(
        "every accepted record was consumed",
        sent.accepted(),
        count(found.consumed()),
    );
    let recounted = found.outcomes();
    all.push(
        "outcomes recounted from facts add up to what was accepted",
        i64::try_from(sent.accepted()).unwrap_or(-1),
        recounted.iter().sum(),
    );
    for (outcome, n) in Outcome::ALL.into_iter().zip(recounted) {
        all.push(
            outcome.name(),
            i64::try_from(expected.ending(outcome)).unwrap_or(-1),
            n,
        );
    }
    all.push("records with two outcomes", 0, found.twice);
    all.push(
        "postbacks consumed, and those with an outcome",
        found.postbacks_consumed,
        found.postbacks.iter().sum(),
    );
    all.push(
        "the postback log agrees with the facts",
        found.postbacks,
        found.log,
    );
    all.push(
        "conversions and changes without their postback, or the reverse",
        0,
        found.unbooked,
    );
    all.push("parked records lost, or invented", 0, found.lost_parked);
    all.push(
        "postbacks that waited for their visit and were woken",
        expected.woken,
        count(found.woken_postbacks),
    );
    all.push(
        "changes of booked conversions: history and log",
        format!("{0} and {0}", expected.status_changes),
        format!("{} and {}", found.history, found.moved),
    );
    all.push(
        "identities without their conversion, or the reverse",
        0,
        found.unclaimed,
    );
    let differences = differences(&expected.bookings, &found.bookings);
    all.push(
        "conversions that differ from the generator's list",
        "none".to_owned(),
        differences,
    );
    let campaigns: BTreeMap<String, (u64, Decimal)> = found
        .campaigns
        .iter()
        .map(|(name, (n, revenue))| (name.clone(), (count(*n), *revenue)))
        .collect();
    all.push(
        "conversions and revenue by campaign",
        money(&expected.by_campaign()),
        money(&campaigns),
    );
    all.push(
        "the actors' own counters agree with the recount",
        recounted,
        found.counters,
    );
    all.0
}

/// Collects checks.
#[derive(Default)]
pub(super) struct Checks(pub Vec<Check>);

impl Checks {
    pub(super) fn push<T>(&mut self, name: &str, expected: T, found: T)
    where
        T: PartialEq + std::fmt::Debug,
    {
        let plain = |value: &T| format!("{value:?}").trim_matches('"').to_owned();
        self.0.push(Check {
            name: name.to_owned(),
            holds: expected == found,
            found: plain(&found),
            expected: plain(&expected),
        });
    }
}

fn money(campaigns: &BTreeMap<String, (u64, Decimal)>) -> String {
    let lines: Vec<String> = campaigns
        .iter()
        .map(|(name, (n, revenue))| format!("{name} {n} {}", revenue.normalize()))
        .collect();
    lines.join(", ")
}

/// The first differences of two sorted lists, in words.
fn differences(expected: &[Booking], found: &[Booking]) -> String {
    let mut counts: BTreeMap<&Booking, i64> = BTreeMap::new();
    for booking in expected {
        *counts.entry(booking).or_default() -= 1;
    }
    for booking in found {
        *counts.entry(booking).or_default() += 1;
    }
    let wrong: Vec<String> = counts
        .iter()
        .filter(|(_, n)| **n != 0)
        .take(6)
        .map(|(b, n)| {
            let what = if *n < 0 { "missing" } else { "too much" };
            format!(
                "{what}: {} {} {} {} {}",
                b.txid, b.campaign, b.payout, b.status, b.role
            )
        })
        .collect();
    if wrong.is_empty() {
        "none".to_owned()
    } else {
        wrong.join("; ")
    }
}

/// What an operator's own oracle says of the same store; it knows nothing of the plan.
fn verify_checks(verified: &verify::Report) -> Vec<Check> {
    let mut all = Checks::default();
    let named: Vec<String> = verified
        .differences()
        .map(|(c, d)| format!("{}: {}: {}", c.check, d.at, d.what))
        .collect();
    all.push(
        "differences that `millrace verify` names",
        "0".to_owned(),
        match verified.count() {
            0 => "0".to_owned(),
            n => format!("{n}: {}", named.join("; ")),
        },
    );
    all.0
}

impl Report {
    /// Judges a run.
    #[must_use]
    pub fn new(run: Run<'_>) -> Report {
        let (plan, sent, found) = (run.plan, run.sent, run.found);
        let mut checks = checks(&plan.expected, sent, found);
        checks.extend(deliveries::checks(
            &plan.expected,
            run.scenery,
            run.delivered,
            run.counts,
        ));
        checks.extend(notices::checks(run.session, run.notices, &run.counts.mail));
        checks.extend(verify_checks(run.verified));
        let [applied, duplicate, parked, rejected, dead_lettered] = found.outcomes();
        let revenue: Decimal = found.campaigns.values().map(|(_, r)| *r).sum();
        Report {
            accepted: sent.accepted(),
            refused: sent.refused(),
            applied,
            duplicate,
            parked,
            rejected,
            dead_lettered,
            conversions: found.campaigns.values().map(|(n, _)| n).sum(),
            revenue: format!("{:.2}", revenue),
            balanced: checks.iter().all(|c| c.holds),
            doors: Door::ALL
                .into_iter()
                .map(|door| {
                    let tally = sent.doors.get(&door).copied().unwrap_or_default();
                    DoorLine {
                        door: door.name(),
                        accepted: tally.accepted,
                        refused: tally.refused,
                    }
                })
                .collect(),
            campaigns: found
                .campaigns
                .iter()
                .map(|(campaign, (conversions, revenue))| CampaignLine {
                    campaign: campaign.clone(),
                    conversions: *conversions,
                    revenue: format!("{revenue:.2}"),
                })
                .collect(),
            deliveries: run.delivered.lines.clone(),
            shard_frames: run.session.acknowledged,
            notices: run.notices.lines.clone(),
            held_back: run.notices.held.clone(),
            mails: u64::try_from(run.counts.mail.taken).unwrap_or(u64::MAX),
            checks,
            log_lines: plan.lines.iter().sum(),
            page_views: plan.visits(),
            seconds: run.seconds,
        }
    }
}
