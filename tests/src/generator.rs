//! The generator's own list: records for the log, each with the outcome that is right for it, and the ledger that is right
//! for all of them.
//!
//! Nothing is computed by product code: the list is a shuffle of short stories ("a visit, its click, a pending postback, the
//! approval"), and each story says itself what is right. Where the right answer depends on which of two partitions is faster,
//! a story names all answers that are right. Only the partitioner is the product's, to place ids in partitions of choice.

mod again;
mod ids;
mod rng;
mod say;
mod stories;

pub use ids::{base32, minted, uuid_v7};
pub use rng::Rng;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The topic of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// `clicks`.
    Clicks,
    /// `postbacks`.
    Postbacks,
}

impl Topic {
    /// Its name in the catalogue.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Topic::Clicks => "clicks",
            Topic::Postbacks => "postbacks",
        }
    }
}

/// What has become of a record in the end. The numbers are those that the ledger stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// 0
    Applied,
    /// 1
    Duplicate,
    /// 2
    Parked,
    /// 3
    Rejected,
    /// 4
    DeadLettered,
}

impl End {
    /// All of them, in the order of their numbers.
    pub const ALL: [End; 5] = [
        End::Applied,
        End::Duplicate,
        End::Parked,
        End::Rejected,
        End::DeadLettered,
    ];

    /// The number that the ledger stores.
    #[must_use]
    pub const fn code(self) -> i16 {
        self as i16
    }
}

/// One right answer: an outcome, and its reason where that is part of what is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// The outcome.
    pub end: End,
    /// The reason; `None`: any.
    pub reason: Option<&'static str>,
}

/// A fact that a record leaves when it is applied (conversions stand apart, in [`List::conversions`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// None.
    Nothing,
    /// A row of `visits`; of `clicks` too if direct.
    Visit {
        /// Its own id.
        visit_id: u128,
        /// Whether it is the click too.
        direct: bool,
    },
    /// A row of `clicks`.
    Click,
}

/// One record and what is right for it.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its topic.
    pub topic: Topic,
    /// Its key in the log.
    pub key: Vec<u8>,
    /// Its bytes.
    pub payload: Vec<u8>,
    /// The story it belongs to, for reports.
    pub story: &'static str,
    /// Its workspace (0: undecodable).
    pub workspace: i32,
    /// Its click id, as sent.
    pub click_id: String,
    /// The campaign that its fact carries.
    pub campaign: String,
    /// The page.
    pub stage: i16,
    /// All answers that are right.
    pub right: Vec<Right>,
    /// The fact it leaves if applied.
    pub fact: Fact,
}

/// A conversion that must be in the ledger exactly once.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// The workspace.
    pub workspace: i32,
    /// The network.
    pub network: String,
    /// Each way in which it may have been booked; usually one.
    pub ways: Vec<Booking>,
    /// How many changes its history may hold.
    pub changes: RangeInclusive<i64>,
}

/// One right way to book a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booking {
    /// The record (its place in the list) that books it.
    pub record: usize,
    /// The offer credited.
    pub offer: &'static str,
    /// In what part.
    pub role: &'static str,
    /// The payout in the end, in cents.
    pub cents: i64,
    /// The status in the end.
    pub status: &'static str,
    /// External id, txid, event, provider event, as booked; `None`: not to be compared.
    pub names: Option<[Option<String>; 4]>,
}

/// What to generate.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The seed; the same plan gives the same list.
    pub seed: u64,
    /// About how many records.
    pub records: usize,
    /// Partitions of both topics.
    pub partitions: i32,
    /// `accepted_at` of the first record, in microseconds since 1970.
    pub start: i64,
    /// Between two records, in microseconds.
    pub step: i64,
    /// Whether undecodable and refused records are among them.
    pub poison: bool,
    /// One of about so many is, then.
    pub poison_every: usize,
}

/// The list.
#[derive(Clone, Debug)]
pub struct List {
    /// The plan it follows.
    pub plan: Plan,
    /// All records, in the order in which they are to be produced.
    pub records: Vec<Record>,
    /// All conversions.
    pub conversions: Vec<Conversion>,
}

impl List {
    /// Generates the list of a plan.
    #[must_use]
    pub fn generate(plan: Plan) -> List {
        stories::tell(plan)
    }

    /// A list of only what a test wants to say itself, in the order said.
    #[must_use]
    pub fn tell(plan: Plan, say: impl FnOnce(&mut Teller)) -> List {
        let mut teller = Teller::new(plan);
        say(&mut teller);
        teller.finish()
    }

    /// How many records may end in each outcome: at least and at most. They differ only by who is faster in a contest.
    #[must_use]
    pub fn totals(&self) -> BTreeMap<End, RangeInclusive<i64>> {
        let mut totals = BTreeMap::new();
        for end in End::ALL {
            let may = |r: &&Record| r.right.iter().any(|r| r.end == end);
            let must = |r: &&Record| r.right.iter().all(|r| r.end == end);
            let least = self.records.iter().filter(must).count() as i64;
            let most = self.records.iter().filter(may).count() as i64;
            totals.insert(end, least..=most);
        }
        totals
    }

    /// Revenue of approved conversions by workspace, in cents. The same whoever is faster.
    #[must_use]
    pub fn revenue(&self) -> BTreeMap<i32, i64> {
        let mut revenue = BTreeMap::new();
        for conversion in &self.conversions {
            if let Some(way) = conversion.ways.first().filter(|w| w.status == "approved") {
                *revenue.entry(conversion.workspace).or_insert(0) += way.cents;
            }
        }
        revenue
    }
}

/// A record as a story says it, before its place in the list is known.
#[derive(Clone, Debug)]
struct Said {
    at: u64,
    record: Record,
    /// `accepted_at` and `occurred_at` are filled in when the order is known: the text around that number.
    around: Option<(String, String)>,
}

/// Collects what stories say.
#[derive(Debug)]
pub struct Teller {
    plan: Plan,
    /// Randomness.
    pub rng: Rng,
    said: Vec<Said>,
    conversions: Vec<Conversion>,
    /// The time of the next thing said, in slots of the list.
    now: u64,
    serial: u64,
}

impl Teller {
    fn new(plan: Plan) -> Teller {
        Teller {
            plan,
            rng: Rng::new(plan.seed),
            said: Vec::new(),
            conversions: Vec::new(),
            now: 0,
            serial: 0,
        }
    }

    /// Sets the time of what is said next.
    fn at(&mut self, slot: u64) {
        self.now = slot;
    }

    /// Lets up to `most` slots pass.
    fn later(&mut self, most: u64) {
        self.now += 1 + self.rng.below(most.max(1));
    }

    /// A number that no other call gets.
    pub fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// A name that no other call gets.
    pub fn unique(&mut self, prefix: &str) -> String {
        let serial = self.serial();
        format!("{prefix}-{}-{serial}", self.plan.seed)
    }

    /// Another click id: two of three are minted (in no order of time), the others foreign.
    pub fn click_id(&mut self) -> String {
        if self.rng.below(3) < 2 {
            self.minted_click_id()
        } else {
            let serial = self.serial();
            format!("foreign-{}-{serial}", self.plan.seed)
        }
    }

    /// Another minted click id, of some moment in the quarter of an hour before the list begins.
    pub fn minted_click_id(&mut self) -> String {
        let millis = self.plan.start / 1000 - self.rng.below(900_000).cast_signed();
        minted(&mut self.rng, millis)
    }

    /// Another click id whose records lie in another partition than those of `other`, if there are two.
    pub fn click_id_apart_from(&mut self, workspace: i32, other: &str) -> String {
        let place = |id: &str| {
            millrace_topics::partitioner::partition(
                format!("{workspace}:{id}").as_bytes(),
                self.plan.partitions,
            )
        };
        let taken = place(other);
        let mut rng = self.rng.clone();
        let mut found = minted(&mut rng, self.plan.start / 1000);
        for _ in 0..100 {
            if place(&found) != taken {
                break;
            }
            found = minted(&mut rng, self.plan.start / 1000);
        }
        self.rng = rng;
        found
    }

    fn push(&mut self, record: Record, around: Option<(String, String)>) -> usize {
        self.said.push(Said {
            at: self.now,
            record,
            around,
        });
        self.said.len() - 1
    }

    fn conversion(&mut self, conversion: Conversion) {
        self.conversions.push(conversion);
    }

    /// Orders what was said by its time, stamps it, and gives every reference its place in the list.
    fn finish(self) -> List {
        let mut order: Vec<usize> = (0..self.said.len()).collect();
        order.sort_by_key(|i| self.said[*i].at);
        let mut place = vec![0; self.said.len()];
        for (to, from) in order.iter().enumerate() {
            place[*from] = to;
        }
        let mut said: Vec<Option<Said>> = self.said.into_iter().map(Some).collect();
        let mut records = Vec::with_capacity(said.len());
        for (to, from) in order.into_iter().enumerate() {
            let Some(Said {
                mut record, around, ..
            }) = said[from].take()
            else {
                continue;
            };
            if let Some((before, after)) = around {
                let accepted_at = self.plan.start + self.plan.step * to as i64;
                record.payload = format!("{before}{accepted_at}{after}").into_bytes();
            }
            records.push(record);
        }
        let mut conversions = self.conversions;
        for way in conversions.iter_mut().flat_map(|c| &mut c.ways) {
            way.record = place[way.record];
        }
        List {
            plan: self.plan,
            records,
            conversions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const PLAN: Plan = Plan {
        seed: 7,
        records: 5_000,
        partitions: 4,
        start: 1_764_500_000_000_000,
        step: 1_000,
        poison: true,
        poison_every: 400,
    };

    #[test]
    fn a_plan_gives_one_list() {
        let (a, b) = (List::generate(PLAN), List::generate(PLAN));
        assert_eq!(a.records.len(), b.records.len());
        assert!(
            a.records
                .iter()
                .zip(&b.records)
                .all(|(a, b)| a.payload == b.payload)
        );
        let other = List::generate(Plan { seed: 8, ..PLAN });
        assert!(
            other
                .records
                .iter()
                .zip(&a.records)
                .any(|(a, b)| a.payload != b.payload)
        );
    }

    #[test]
    fn totals_and_ways_fit_the_records() {
        let list = List::generate(PLAN);
        assert!(list.records.len() >= PLAN.records * 9 / 10);
        for (end, n) in list.totals() {
            assert!(*n.start() > 0, "{end:?} never occurs");
        }
        for way in list.conversions.iter().flat_map(|c| &c.ways) {
            let record = &list.records[way.record];
            assert_eq!(record.topic, Topic::Postbacks);
            assert!(record.right.iter().any(|r| r.end == End::Applied));
        }
        let dead = *list.totals()[&End::DeadLettered].end();
        assert!(dead * 50 < list.records.len() as i64, "{dead} dead letters");
    }

    #[test]
    fn times_ascend_and_no_record_is_without_its_own() {
        let list = List::generate(PLAN);
        let mut last = 0;
        for record in &list.records {
            let Ok(json) = serde_json::from_slice::<serde_json::Value>(&record.payload) else {
                continue;
            };
            let Some(at) = json["accepted_at"].as_i64() else {
                assert_eq!(record.story, "poison");
                continue;
            };
            assert!(at > last);
            last = at;
        }
    }
}
