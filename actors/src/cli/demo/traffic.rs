//! What the demo sends and what it expects of it: the generator's own list. Nothing here asks the product.

use super::access::Line;
use super::scenery::Scenery;
use millrace_schemas::journey::Role;
use millrace_schemas::outcome::Outcome;
use millrace_schemas::postback::Status;
use millrace_schemas::time::Micros;
use rust_decimal::Decimal;
use std::collections::BTreeMap;

/// A door that the demo uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Door {
    /// `GET /c/:campaign`.
    Click,
    /// `POST /v1/batch/visits`.
    BatchVisits,
    /// `POST /e`.
    Beacon,
    /// `POST /v1/batch/clicks`.
    BatchClicks,
    /// `GET|POST /pb`.
    Postback,
    /// `POST /v1/batch/postbacks`.
    BatchPostbacks,
}

impl Door {
    /// All of them, in the order of the table.
    pub const ALL: [Door; 6] = [
        Door::Click,
        Door::BatchVisits,
        Door::Beacon,
        Door::BatchClicks,
        Door::Postback,
        Door::BatchPostbacks,
    ];

    /// As people know it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Door::Click => "GET /c/:campaign",
            Door::BatchVisits => "POST /v1/batch/visits",
            Door::Beacon => "POST /e",
            Door::BatchClicks => "POST /v1/batch/clicks",
            Door::Postback => "GET|POST /pb",
            Door::BatchPostbacks => "POST /v1/batch/postbacks",
        }
    }

    /// Its path, the campaign apart.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Door::Click => "/c/",
            Door::BatchVisits => "/v1/batch/visits",
            Door::Beacon => "/e",
            Door::BatchClicks => "/v1/batch/clicks",
            Door::Postback => "/pb",
            Door::BatchPostbacks => "/v1/batch/postbacks",
        }
    }
}

/// What must become of a request or a batch's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Accepted, with this outcome in the end.
    Ends(Outcome),
    /// Turned away: never accepted.
    Refused,
}

/// A click id that a later call names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClickId {
    /// The sender's own.
    Own(String),
    /// The one that the door mints for the ad click of this slot.
    Minted(usize),
}

/// An ad click: `GET /c/<campaign>?<query>`.
#[derive(Clone, Debug)]
pub struct AdClick {
    /// Where the minted click id is kept for later calls.
    pub slot: usize,
    /// The campaign, or another name that no campaign has.
    pub campaign: String,
    /// The query.
    pub query: String,
    /// The visitor's address.
    pub address: String,
    /// The visitor's user agent.
    pub agent: String,
    /// The status that must come back.
    pub answer: u16,
}

/// A beacon: `POST /e`.
#[derive(Clone, Debug)]
pub struct Beacon {
    /// The click.
    pub click: ClickId,
    /// The campaign that the page names.
    pub campaign: String,
    /// Bytes of padding: more than the door takes.
    pub padding: usize,
    /// The status that must come back.
    pub answer: u16,
}

/// A network's postback.
#[derive(Clone, Debug)]
pub struct Postback {
    /// The click; none: the network lost it.
    pub click: Option<ClickId>,
    /// Which network of the scenery reports.
    pub network: usize,
    /// Parameters by their plain names (`payout`, `txid`, `status` …), not yet encoded.
    pub fields: Vec<(&'static str, String)>,
    /// POST rather than GET.
    pub post: bool,
    /// With a secret that no network has.
    pub forged: bool,
    /// The status that must come back.
    pub answer: u16,
}

/// One line of a batch. `click` stands apart, since it may not be known yet when the plan is made.
#[derive(Clone, Debug)]
pub struct BatchLine {
    /// The line's members, but for `click_id`.
    pub members: serde_json::Map<String, serde_json::Value>,
    /// The click.
    pub click: ClickId,
    /// When it happened, on the log's clock.
    pub at: Micros,
}

/// Something to send.
#[derive(Clone, Debug)]
pub enum Call {
    /// An ad click.
    Click(AdClick),
    /// A beacon.
    Beacon(Beacon),
    /// A postback.
    Postback(Postback),
    /// Lines for a batch door. All are accepted.
    Batch(Door, Vec<BatchLine>),
    /// A batch that is no NDJSON, for a batch door; turned away, the line named.
    BrokenBatch(Door),
}

impl Call {
    /// Where it goes.
    #[must_use]
    pub const fn door(&self) -> Door {
        match self {
            Call::Click(_) => Door::Click,
            Call::Beacon(_) => Door::Beacon,
            Call::Postback(_) => Door::Postback,
            Call::Batch(door, _) | Call::BrokenBatch(door) => *door,
        }
    }
}

/// A conversion that must stand in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Booking {
    /// The network's transaction.
    pub txid: String,
    /// The campaign's id.
    pub campaign: String,
    /// What is paid.
    pub payout: Decimal,
    /// Its status in the end.
    pub status: String,
    /// `navigation` or `monetization`.
    pub role: String,
}

impl Booking {
    /// From its parts.
    #[must_use]
    pub fn new(txid: &str, campaign: &str, payout: Decimal, status: Status, role: Role) -> Booking {
        Booking {
            txid: txid.to_owned(),
            campaign: campaign.to_owned(),
            payout: payout.normalize(),
            status: status.name().to_owned(),
            role: role.name().to_owned(),
        }
    }
}

/// The steps of a wave. All calls of one are acknowledged before the next begins, so that what must be in order is.
pub const STEPS: usize = 4;

/// A stretch of the log.
#[derive(Clone, Debug, Default)]
pub struct Wave {
    /// Lines of the log that it holds.
    pub lines: usize,
    /// The time of its last line.
    pub until: Micros,
    /// What is sent, step by step: before the pages, the pages, what follows them, what follows that.
    pub steps: [Vec<Call>; STEPS],
}

/// What must be found in the end.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Records by door and outcome.
    pub outcomes: BTreeMap<(Door, &'static str), u64>,
    /// Requests and lines turned away, by door.
    pub refused: BTreeMap<Door, u64>,
    /// Postbacks that wait for their visit first and end otherwise.
    pub woken: u64,
    /// Changes of booked conversions.
    pub status_changes: u64,
    /// Every conversion.
    pub bookings: Vec<Booking>,
    /// Conversions that were approved and taken back, by campaign.
    pub taken_back: BTreeMap<String, u64>,
}

impl Expected {
    /// Notes one request or line.
    pub fn note(&mut self, door: Door, expect: Expect) {
        match expect {
            Expect::Ends(outcome) => {
                *self.outcomes.entry((door, outcome.name())).or_default() += 1;
            }
            Expect::Refused => *self.refused.entry(door).or_default() += 1,
        }
    }

    /// How many records end so.
    #[must_use]
    pub fn ending(&self, outcome: Outcome) -> u64 {
        self.outcomes
            .iter()
            .filter(|((_, name), _)| *name == outcome.name())
            .map(|(_, n)| n)
            .sum()
    }

    /// How many records of a door end so.
    #[must_use]
    pub fn ending_at(&self, door: Door, outcome: Outcome) -> u64 {
        let key = (door, outcome.name());
        self.outcomes.get(&key).copied().unwrap_or(0)
    }

    /// How many conversions of a campaign were approved, if only for a while.
    #[must_use]
    pub fn approvals_of(&self, campaign: &str) -> u64 {
        let approved = self
            .bookings
            .iter()
            .filter(|b| b.campaign == campaign && b.status == Status::Approved.name());
        let taken_back = self.taken_back.get(campaign).copied().unwrap_or(0);
        u64::try_from(approved.count()).unwrap_or(0) + taken_back
    }

    /// How many records a door accepts.
    #[must_use]
    pub fn accepted_at(&self, door: Door) -> u64 {
        self.outcomes
            .iter()
            .filter(|((d, _), _)| *d == door)
            .map(|(_, n)| n)
            .sum()
    }

    /// How many records are accepted.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// Conversions and what the approved ones pay, by campaign.
    #[must_use]
    pub fn by_campaign(&self) -> BTreeMap<String, (u64, Decimal)> {
        let mut found: BTreeMap<String, (u64, Decimal)> = BTreeMap::new();
        for booking in &self.bookings {
            let entry = found.entry(booking.campaign.clone()).or_default();
            entry.0 += 1;
            if booking.status == Status::Approved.name() {
                entry.1 += booking.payout;
            }
        }
        found
    }
}

/// Everything that is sent, and what must come of it.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The log, stretch by stretch.
    pub waves: Vec<Wave>,
    /// Visits whose clicks and postbacks came first; sent when those are parked.
    pub held: Vec<Call>,
    /// Ad clicks whose ids are minted.
    pub slots: usize,
    /// Lines of the log: entrances, pages onward, pages for programs, others.
    pub lines: [u64; 4],
    /// What must be found in the end.
    pub expected: Expected,
}

impl Plan {
    /// Calls in all.
    #[must_use]
    pub fn calls(&self) -> usize {
        let waves: usize = self.waves.iter().flat_map(|w| &w.steps).map(Vec::len).sum();
        waves + self.held.len()
    }

    /// Visits that are sent, repeats apart.
    #[must_use]
    pub fn visits(&self) -> u64 {
        self.lines.iter().take(3).sum()
    }
}

/// Plans the traffic of these lines. `wave` lines make one wave.
#[must_use]
pub fn plan(lines: &[Line<'_>], scenery: &Scenery, wave: usize) -> Plan {
    let mut author = super::stories::Author::new(scenery);
    for stretch in lines.chunks(wave.max(1)) {
        author.stretch(stretch);
    }
    author.finish()
}

#[cfg(test)]
mod tests;
