//! Workload W, from a seed: the same records on every machine.
//!
//! 70 % visits, 20 % clicks, 10 % postbacks; 5 % of all records repeat an earlier one (accepted anew, the rest the same):
//! half of these about 8 000 records later, half any time later. 5 % of the postbacks stand before their visit, by 2 to 6 % of
//! all records: further than one transaction reaches. Records have 300 to 800 bytes. Click ids are minted (UUIDv7 of the
//! visit's time), and everything about a visit follows from its number, which its click id carries: the bare loop reads the row
//! of a conversion off the postback, where the product has to know the journey.
//!
//! How far a record lies from its visit: clicks exponentially, 1 % of all visits on average; half of the postbacks
//! exponentially, 2 %, the other half anywhere before. With a slice of 10 % of the keys, about 45 % of the postbacks and a
//! few clicks find their visit gone from memory.

mod records;
#[cfg(test)]
mod tests;
mod visit;

use fastrand::Rng;
use millrace_schemas::ids::{self, partition_key};
use records::{click, postback, visit};
use std::collections::VecDeque;
pub use visit::VisitFacts;
use visit::mix;

/// Workspaces that take part; the click id's visit number decides.
pub const WORKSPACES: u32 = 3;
/// Campaigns.
const CAMPAIGNS: u32 = 60;
/// Stream time between two records, in microseconds: 2 M records span 33 minutes.
const STEP_MICROS: i64 = 1_000;
/// The share of repeats.
const REPEATS: f64 = 0.05;
/// The share of postbacks that stand before their visit.
const EARLY: f64 = 0.05;
/// How many recent records are kept to be repeated; sixteen times as many are kept of all before.
const RECENT: usize = 4_096;

/// Member at the end of a record that is a repeat. The product ignores unknown members; the bare loop looks at the bytes.
pub const MARK_REPEAT: &[u8] = br#""gen":"r"}"#;
/// Member at the end of a postback that stands before its visit.
pub const MARK_EARLY: &[u8] = br#""gen":"e"}"#;

/// Which topic a record goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `clicks`.
    Clicks,
    /// `postbacks`.
    Postbacks,
}

/// What was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sort {
    /// A visit.
    Visit,
    /// A click.
    Click,
    /// A postback.
    Postback,
}

/// One record of the workload; the buffers are the generator's and are reused.
#[derive(Clone, Debug)]
pub struct Made {
    /// Its topic.
    pub target: Target,
    /// What it is.
    pub sort: Sort,
    /// Whether an earlier record was the same.
    pub repeat: bool,
    /// Whether it is a postback before its visit.
    pub early: bool,
    /// When it was accepted, in microseconds since 1970.
    pub accepted_micros: i64,
    /// Cents of a postback.
    pub cents: u32,
    /// The partition key.
    pub key: String,
    /// The record.
    pub payload: String,
}

/// What a whole workload holds, counted while it is made: what the ledger must hold in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records.
    pub records: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Visits without repeats.
    pub visits: u64,
    /// Clicks without repeats.
    pub clicks: u64,
    /// Postbacks without repeats: each books one conversion.
    pub postbacks: u64,
    /// Repeats.
    pub repeats: u64,
    /// Repeats of postbacks among them.
    pub postback_repeats: u64,
    /// Postbacks before their visit.
    pub early: u64,
    /// Cents of the postbacks without repeats, the offer's where one names none: what the conversions must sum up to.
    pub payout_cents: u64,
}

impl Totals {
    /// Records of which something new is to be said: all but repeats of visits and clicks.
    #[must_use]
    pub fn decided(&self) -> u64 {
        self.visits + self.clicks + self.postbacks + self.postback_repeats
    }
}

/// What makes a record again: its sort and numbers.
#[derive(Clone, Copy, Debug)]
struct Recipe {
    sort: Sort,
    visit: u32,
    /// The record's own number: its stream time and its random details follow from it.
    record: u32,
}

/// Makes the records of workload W one after the other.
pub struct Workload {
    rng: Rng,
    seed: u64,
    base_micros: i64,
    records: u32,
    next: u32,
    visits_at_most: u32,
    /// Milliseconds after the base of each visit's click id.
    minted: Vec<u32>,
    /// Which visits have a click.
    clicked: Vec<bool>,
    /// Visits whose postback came first, and from which record on they may come.
    owed: VecDeque<(u32, u32)>,
    /// What may be repeated.
    done: Vec<Recipe>,
    totals: Totals,
}

impl Workload {
    /// `records` records whose stream time begins at `base_micros` (microseconds since 1970).
    #[must_use]
    pub fn new(records: u32, seed: u64, base_micros: i64) -> Workload {
        Workload {
            rng: Rng::with_seed(seed),
            seed,
            base_micros,
            records,
            next: 0,
            visits_at_most: (f64::from(records) * 0.7) as u32 + 1,
            minted: Vec::new(),
            clicked: Vec::new(),
            owed: VecDeque::new(),
            done: Vec::with_capacity(RECENT),
            totals: Totals::default(),
        }
    }

    /// How many records there are.
    #[must_use]
    pub fn records(&self) -> u32 {
        self.records
    }

    /// What was made so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Distinct click ids of a workload of this size, about: what a slice is bounded by.
    #[must_use]
    pub fn keys(records: u32) -> u32 {
        (f64::from(records) * 0.7 * (1.0 - REPEATS)) as u32
    }

    fn new_visit(&mut self, record: u32) -> u32 {
        let number = u32::try_from(self.minted.len()).unwrap_or(u32::MAX);
        self.minted.push(record);
        self.clicked.push(false);
        number
    }

    fn facts(&self, visit: u32) -> VisitFacts {
        let record = self.minted.get(visit as usize).copied().unwrap_or(0);
        let micros = self.base_micros + i64::from(record) * STEP_MICROS;
        VisitFacts {
            number: visit,
            millis: u64::try_from(micros / 1_000).unwrap_or(0),
        }
    }

    /// An earlier visit at an exponential distance, `mean` of all visits on average.
    fn near(&mut self, mean: f64) -> Option<u32> {
        let last = u32::try_from(self.minted.len()).ok()?.checked_sub(1)?;
        let mean = f64::from(self.visits_at_most) * mean;
        let back = (-(1.0 - self.rng.f64()).ln() * mean) as u32;
        Some(last.saturating_sub(back.min(last)))
    }

    fn unclicked(&mut self) -> Option<u32> {
        let at = self.near(0.01)? as usize;
        // The next one that has none, else the last before.
        let found = (at..self.clicked.len())
            .chain((0..at).rev())
            .find(|i| self.clicked.get(*i) == Some(&false))?;
        if let Some(slot) = self.clicked.get_mut(found) {
            *slot = true;
        }
        u32::try_from(found).ok()
    }

    fn draw(&mut self, record: u32) -> (Recipe, bool, bool) {
        let dice = self.rng.f64();
        let sort = match dice {
            d if d < 0.7 => Sort::Visit,
            d if d < 0.9 => Sort::Click,
            _ => Sort::Postback,
        };
        if self.rng.f64() < REPEATS
            && let Some(again) = self.earlier(sort)
        {
            return (again, true, false);
        }
        let fresh = |sort, visit| Recipe {
            sort,
            visit,
            record,
        };
        match sort {
            Sort::Visit => {
                let owed = self.owed.front().filter(|(_, from)| *from <= record);
                let visit = match owed {
                    Some((visit, _)) => {
                        let visit = *visit;
                        self.owed.pop_front();
                        visit
                    }
                    None => self.new_visit(record),
                };
                (fresh(Sort::Visit, visit), false, false)
            }
            Sort::Click => match self.unclicked() {
                Some(visit) => (fresh(Sort::Click, visit), false, false),
                None => {
                    let visit = self.new_visit(record);
                    (fresh(Sort::Visit, visit), false, false)
                }
            },
            Sort::Postback => {
                if self.rng.f64() < EARLY {
                    let visit = self.new_visit(record);
                    // No click of it before the visit itself: only postbacks are early in this workload.
                    if let Some(slot) = self.clicked.last_mut() {
                        *slot = true;
                    }
                    let after = self.records / 50 + self.rng.u32(0..=self.records / 25);
                    self.owed.push_back((visit, record.saturating_add(after)));
                    return (fresh(Sort::Postback, visit), false, true);
                }
                let visit = if self.rng.bool() {
                    self.near(0.02)
                } else {
                    let all = u32::try_from(self.minted.len()).unwrap_or(0);
                    (all > 0).then(|| self.rng.u32(0..all))
                };
                // A visit that is still owed is not one to be early for a second time.
                match visit.filter(|v| !self.owed.iter().any(|(o, _)| o == v)) {
                    Some(visit) => (fresh(Sort::Postback, visit), false, false),
                    None => {
                        let visit = self.new_visit(record);
                        (fresh(Sort::Visit, visit), false, false)
                    }
                }
            }
        }
    }

    fn earlier(&mut self, sort: Sort) -> Option<Recipe> {
        if self.done.is_empty() {
            return None;
        }
        // Some tries; a sort is rare only at the very start.
        for _ in 0..64 {
            let among = if self.rng.bool() {
                RECENT
            } else {
                self.done.len()
            };
            let at = self.rng.usize(0..among.min(self.done.len()));
            if let Some(found) = self.done.get(at).filter(|r| r.sort == sort) {
                return Some(*found);
            }
        }
        None
    }

    /// The first places hold recent records, overwritten at random; the others a sample of all before.
    fn remember(&mut self, recipe: Recipe) {
        if self.done.len() < RECENT * 16 {
            self.done.push(recipe);
            return;
        }
        let at = match self.rng.u8(0..32) {
            0..16 => self.rng.usize(0..RECENT),
            16 => self.rng.usize(RECENT..RECENT * 16),
            _ => return,
        };
        if let Some(slot) = self.done.get_mut(at) {
            *slot = recipe;
        }
    }

    /// The next record, or None at the end.
    pub fn next_record(&mut self, made: &mut Made) -> bool {
        if self.next >= self.records {
            return false;
        }
        let record = self.next;
        self.next += 1;
        let (recipe, repeat, early) = self.draw(record);
        let facts = self.facts(recipe.visit);
        let key = facts.click_key();
        let click_id = ids::encode(key);
        made.sort = recipe.sort;
        made.repeat = repeat;
        made.early = early;
        made.target = match recipe.sort {
            Sort::Postback => Target::Postbacks,
            Sort::Visit | Sort::Click => Target::Clicks,
        };
        made.key = partition_key(facts.workspace(), &click_id);
        made.payload.clear();
        // A repeat came later: it has an acceptance of its own.
        let accepted = self.base_micros + i64::from(record) * STEP_MICROS;
        made.accepted_micros = accepted;
        let mut details = Rng::with_seed(mix(self.seed ^ u64::from(recipe.record)));
        let out = &mut made.payload;
        let written = match recipe.sort {
            Sort::Visit => visit(out, &facts, &click_id, accepted, &mut details).map(|()| None),
            Sort::Click => click(out, &facts, &click_id, accepted, &mut details).map(|()| None),
            Sort::Postback => {
                let txid = recipe.record;
                postback(out, &facts, &click_id, accepted, txid, &mut details)
            }
        };
        let said = written.ok().flatten();
        made.cents = said.unwrap_or_else(|| facts.default_cents());
        debug_assert!(written.is_ok(), "writing into a String does not fail");
        let mark = match (repeat, early) {
            (true, _) => MARK_REPEAT,
            (false, true) => MARK_EARLY,
            (false, false) => b"",
        };
        if !mark.is_empty() {
            made.payload.pop();
            made.payload.push(',');
            made.payload.push_str(&String::from_utf8_lossy(mark));
        }
        if !repeat {
            self.remember(recipe);
        }
        self.count(made);
        true
    }

    fn count(&mut self, made: &Made) {
        let t = &mut self.totals;
        t.records += 1;
        t.bytes += made.payload.len() as u64;
        t.early += u64::from(made.early);
        if made.repeat {
            t.repeats += 1;
            t.postback_repeats += u64::from(made.sort == Sort::Postback);
            return;
        }
        match made.sort {
            Sort::Visit => t.visits += 1,
            Sort::Click => t.clicks += 1,
            Sort::Postback => {
                t.postbacks += 1;
                t.payout_cents += u64::from(made.cents);
            }
        }
    }

    /// An empty record to be filled by [`Workload::next_record`].
    #[must_use]
    pub fn blank() -> Made {
        Made {
            target: Target::Clicks,
            sort: Sort::Visit,
            repeat: false,
            early: false,
            accepted_micros: 0,
            cents: 0,
            key: String::new(),
            payload: String::with_capacity(1_024),
        }
    }
}
