//! What was found.

use super::check::Check;
use serde::Serialize;

/// What a difference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Something that must be there is not.
    Lost,
    /// Something is there more often than it may be.
    Doubled,
    /// Something is there that contradicts something else.
    Wrong,
}

/// One example.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What it is.
    pub kind: Kind,
    /// Where: a record as TOPIC-PARTITION-OFFSET, a partition, a message's id.
    pub at: String,
    /// In words.
    pub what: String,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// Its name.
    pub check: &'static str,
    /// What must hold.
    pub question: &'static str,
    /// Rows looked at.
    pub rows: i64,
    /// Differences in all.
    pub differences: u64,
    /// Lost among them.
    pub lost: u64,
    /// Doubled among them.
    pub doubled: u64,
    /// Wrong otherwise.
    pub wrong: u64,
    /// The first of them.
    pub examples: Vec<Difference>,
    /// What it could not ask, and what is worth knowing though it is no difference.
    pub notes: Vec<String>,
    /// What a difference means, and what to do.
    pub advice: &'static str,
    /// How long it took.
    pub seconds: f64,
    #[serde(skip)]
    limit: usize,
}

impl Checked {
    pub(super) fn new(check: Check, limit: usize) -> Checked {
        Checked {
            check: check.name(),
            question: check.question(),
            rows: 0,
            differences: 0,
            lost: 0,
            doubled: 0,
            wrong: 0,
            examples: Vec::new(),
            notes: Vec::new(),
            advice: check.advice(),
            seconds: 0.0,
            limit,
        }
    }

    /// A difference of one.
    pub(super) fn add(&mut self, kind: Kind, at: impl ToString, what: impl Into<String>) {
        self.add_many(kind, 1, at, what);
    }

    /// A difference that stands for `n`.
    pub(super) fn add_many(
        &mut self,
        kind: Kind,
        n: u64,
        at: impl ToString,
        what: impl Into<String>,
    ) {
        self.differences += n;
        let of_kind = match kind {
            Kind::Lost => &mut self.lost,
            Kind::Doubled => &mut self.doubled,
            Kind::Wrong => &mut self.wrong,
        };
        *of_kind += n;
        if self.examples.len() < self.limit {
            self.examples.push(Difference {
                kind,
                at: at.to_string(),
                what: what.into(),
            });
        }
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}

/// What was found in all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The moment that was looked at, by the store's clock.
    pub moment: String,
    /// Whether a replica was asked.
    pub on_replica: bool,
    /// How long it took.
    pub seconds: f64,
    /// Check by check.
    pub checks: Vec<Checked>,
}

impl Report {
    /// The examples kept, each with its check. [`Report::count`] says how many differences there are in all.
    pub fn differences(&self) -> impl Iterator<Item = (&Checked, &Difference)> {
        self.checks
            .iter()
            .flat_map(|c| c.examples.iter().map(move |d| (c, d)))
    }

    /// Differences in all.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.checks.iter().map(|c| c.differences).sum()
    }

    /// Differences of a kind.
    #[must_use]
    pub fn count_of(&self, kind: Kind) -> u64 {
        let of = |c: &Checked| match kind {
            Kind::Lost => c.lost,
            Kind::Doubled => c.doubled,
            Kind::Wrong => c.wrong,
        };
        self.checks.iter().map(of).sum()
    }

    /// Whether nothing differs.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.count() == 0
    }

    /// Rows looked at.
    #[must_use]
    pub fn rows(&self) -> i64 {
        self.checks.iter().map(|c| c.rows).sum()
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} differences ({} lost, {} doubled, {} wrong) over {} rows",
            self.count(),
            self.count_of(Kind::Lost),
            self.count_of(Kind::Doubled),
            self.count_of(Kind::Wrong),
            self.rows()
        )?;
        for (check, d) in self.differences() {
            writeln!(f, "  {}: {:?} {}: {}", check.check, d.kind, d.at, d.what)?;
        }
        Ok(())
    }
}
