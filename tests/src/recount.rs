//! The independent recount: what the store holds, read by plain SQL over facts, against the generator's own list.
//!
//! No product code and no outcome counters: every visit, click, conversion, postback, reject, parked record and dead letter is
//! laid beside the record that it came from (its coordinates are in the row), and each loss, double and wrong value is named.
//! The counters are compared apart ([`counters`]), since they are a promise of their own.

mod counters;
mod facts;

pub use counters::{counters, positions};

use crate::generator::{End, List, Topic};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use tokio_postgres::GenericClient;

/// What a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Something that must be there is not.
    Loss,
    /// Something is there more often than it may be.
    Double,
    /// Something is there that nobody sent, or with another value or outcome.
    Wrong,
    /// Counters or positions do not agree with the records.
    Counter,
}

/// What differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// What it is.
    pub kind: Kind,
    /// In words, with coordinates.
    pub what: String,
}

/// What a recount found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Records of the list.
    pub records: usize,
    /// Rows read.
    pub rows: usize,
    /// Everything that differs.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether everything is right.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.findings.is_empty()
    }

    /// How many findings of a kind.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        self.findings.iter().filter(|f| f.kind == kind).count()
    }

    /// Whether a loss or a double was found.
    #[must_use]
    pub fn lost_or_doubled(&self) -> bool {
        self.count(Kind::Loss) + self.count(Kind::Double) > 0
    }

    /// Adds a finding.
    pub fn add(&mut self, kind: Kind, what: impl Into<String>) {
        self.findings.push(Finding {
            kind,
            what: what.into(),
        });
    }

    /// Adds another report's findings.
    pub fn extend(&mut self, other: Report) {
        self.rows += other.rows;
        self.findings.extend(other.findings);
    }

    /// As an error, if anything differs.
    ///
    /// # Errors
    /// The report itself.
    pub fn ensure_right(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.is_right(), "{self}");
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 25;
        writeln!(
            f,
            "recount of {} records over {} rows: {} losses, {} doubles, {} wrong, {} counters off",
            self.records,
            self.rows,
            self.count(Kind::Loss),
            self.count(Kind::Double),
            self.count(Kind::Wrong),
            self.count(Kind::Counter),
        )?;
        for finding in self.findings.iter().take(SHOWN) {
            writeln!(f, "  {:?}: {}", finding.kind, finding.what)?;
        }
        if self.findings.len() > SHOWN {
            writeln!(f, "  and {} more", self.findings.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// Where a record stands in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The topic's number.
    pub topic_no: i32,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
}

impl Place {
    /// From the 16 bytes that rows carry: topic number (32 bits), partition (32), offset (64).
    #[must_use]
    pub fn of_row(record_id: uuid::Uuid) -> Place {
        let bytes = record_id.into_bytes();
        let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
        Place {
            topic_no: i32::from_be_bytes([a, b, c, d]),
            partition: i32::from_be_bytes([e, f, g, h]),
            offset: i64::from_be_bytes(rest),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.topic_no, self.partition, self.offset)
    }
}

/// A list that was produced, with the place of each of its records.
#[derive(Clone, Debug)]
pub struct Produced {
    /// The list.
    pub list: List,
    /// The place of each record.
    pub places: Vec<Place>,
    by_place: HashMap<Place, usize>,
}

impl Produced {
    /// A list and the places of its records, in its order.
    #[must_use]
    pub fn new(list: List, places: Vec<Place>) -> Produced {
        let by_place = places.iter().enumerate().map(|(i, p)| (*p, i)).collect();
        Produced {
            list,
            places,
            by_place,
        }
    }

    /// The record at a place.
    #[must_use]
    pub fn at(&self, place: Place) -> Option<usize> {
        self.by_place.get(&place).copied()
    }

    /// For people: `contested identity 2-3-17 (ws 1, click abc)`.
    fn name(&self, i: usize) -> String {
        let record = &self.list.records[i];
        format!(
            "{} {} {} (ws {}, click {})",
            record.story,
            record.topic.name(),
            self.places[i],
            record.workspace,
            record.click_id
        )
    }

    /// First offset after the last record, by topic number and partition.
    #[must_use]
    pub fn ends(&self) -> BTreeMap<(i32, i32), i64> {
        let mut ends = BTreeMap::new();
        for place in &self.places {
            let end = ends.entry((place.topic_no, place.partition)).or_insert(0);
            *end = (place.offset + 1).max(*end);
        }
        ends
    }
}

/// Lays everything in the store beside the list. The facts alone; the counters are [`counters`].
///
/// # Errors
/// The store failed.
pub async fn recount(store: &impl GenericClient, produced: &Produced) -> anyhow::Result<Report> {
    let mut report = Report {
        records: produced.list.records.len(),
        ..Report::default()
    };
    let ends = facts::ends(store, produced, &mut report).await?;
    facts::visits(store, produced, &mut report).await?;
    facts::clicks(store, produced, &mut report).await?;
    facts::conversions(store, produced, &ends, &mut report).await?;
    facts::identities(store, &mut report).await?;
    report.findings.sort();
    Ok(report)
}

/// Facts, counters and positions together.
///
/// # Errors
/// The store failed.
pub async fn recount_all(
    store: &impl GenericClient,
    produced: &Produced,
) -> anyhow::Result<Report> {
    let mut report = recount(store, produced).await?;
    report.extend(counters(store, produced).await?);
    report.extend(positions(store, produced).await?);
    Ok(report)
}

/// The ledger of a store as sorted lines, without what may differ between two right runs (which of two partitions booked a
/// contested identity). Two runs over the same list are equal in this.
///
/// # Errors
/// The store failed.
pub async fn ledger(store: &impl GenericClient) -> anyhow::Result<Vec<String>> {
    let rows = store
        .query(
            "SELECT line FROM (
               SELECT concat_ws(' ', 'visit', workspace_id, click_key, visit_id, campaign_id, offer_id, stage, direct) AS line
                 FROM visits
               UNION ALL
               SELECT concat_ws(' ', 'click', workspace_id, click_key, stage, campaign_id, offer_id) FROM clicks
               UNION ALL
               SELECT concat_ws(' ', 'conversion', workspace_id, network_id, coalesce(external_id, txid, click_key::text),
                                event, provider_event, role, payout, currency, status)
                 FROM conversions
             ) AS lines ORDER BY line",
            &[],
        )
        .await?;
    Ok(rows.iter().map(|r| r.get(0)).collect())
}

/// What two ledgers do not share, as lines with `-` (only in the first) and `+` (only in the second).
#[must_use]
pub fn difference(first: &[String], second: &[String]) -> Vec<String> {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for line in first {
        *counts.entry(line).or_insert(0) += 1;
    }
    for line in second {
        *counts.entry(line).or_insert(0) -= 1;
    }
    counts
        .into_iter()
        .filter(|(_, n)| *n != 0)
        .map(|(line, n)| format!("{}{} {line}", if n > 0 { '-' } else { '+' }, n.abs()))
        .collect()
}

/// How each record ended, and why, as far as facts show it: all postbacks, and whatever waits, was refused or died.
type Ends = HashMap<usize, (End, String)>;

fn allows(produced: &Produced, i: usize, end: End, reason: &str) -> bool {
    produced.list.records[i]
        .right
        .iter()
        .any(|r| r.end == end && r.reason.is_none_or(|r| r == reason))
}

fn wanted(produced: &Produced, i: usize) -> String {
    produced.list.records[i]
        .right
        .iter()
        .map(|r| match r.reason {
            Some(reason) => format!("{:?}({reason})", r.end),
            None => format!("{:?}", r.end),
        })
        .collect::<Vec<_>>()
        .join(" or ")
}

fn is(produced: &Produced, i: usize, topic: Topic) -> bool {
    produced.list.records[i].topic == topic
}
