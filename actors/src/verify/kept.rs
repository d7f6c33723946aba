//! What retention has left: what it dropped on purpose is not lost.
//!
//! Days are dropped oldest first. The schema made the days around its own birth, so a table that still has the day a week before
//! that, and every day that its sisters have, has never dropped one: it is *whole*, and counts of all time can be held against
//! it. Of any other table what counts begins with the first day that has rows.

use crate::postgres::types::Tz;
use millrace_schemas::time::{DAY_US, Micros};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tokio_postgres::{Client, Error};

/// Tables whose days are made together, and the migration that made the first of them.
const SISTERS: [(&[&str], i32); 2] = [
    (crate::attribution::store::FACT_TABLES, 1),
    (crate::delivery::outbox::TABLES, 5),
];

const DAYS: &str = "
SELECT t.name, c.relname::text, to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC'
FROM unnest($1::text[]) AS t(name)
JOIN pg_inherits i ON i.inhparent = to_regclass(t.name) JOIN pg_class c ON c.oid = i.inhrelid
WHERE NOT i.inhdetachpending";

/// What is kept of each table that is partitioned by day, and what the caller wants to look at.
#[derive(Debug)]
pub(super) struct Kept {
    since: Micros,
    /// The first day with rows, of tables that have dropped days.
    cut: HashMap<&'static str, Micros>,
}

impl Kept {
    pub async fn read(client: &Client, since: Micros) -> Result<Kept, Error> {
        let mut cut = HashMap::new();
        for (tables, version) in SISTERS {
            let mut days: HashMap<&str, BTreeMap<i64, String>> = HashMap::new();
            let rows = client.query(DAYS, &[&tables]).await?;
            for row in &rows {
                let name: &str = row.get(0);
                let Some(table) = tables.iter().find(|t| **t == name) else {
                    continue;
                };
                let day = row.get::<_, Tz>(2).0.day();
                days.entry(table).or_default().insert(day, row.get(1));
            }
            let mut expected: BTreeSet<i64> =
                days.values().flat_map(|d| d.keys().copied()).collect();
            expected.extend(first_day(client, version).await?);
            if tables.contains(&"conversions") {
                expected.extend(first_conversion(client).await?);
            }
            for table in tables {
                let own = days.remove(table).unwrap_or_default();
                if expected.iter().all(|day| own.contains_key(day)) {
                    continue;
                }
                cut.insert(*table, first_used(client, &own).await?);
            }
        }
        Ok(Kept { since, cut })
    }

    /// Whether all rows ever written to these tables are there, and are to be looked at.
    pub fn whole(&self, tables: &[&str]) -> bool {
        !self.bounded() && !tables.iter().any(|t| self.cut.contains_key(t))
    }

    /// Whether the caller wants the latest alone.
    pub fn bounded(&self) -> bool {
        self.since > Micros::MIN
    }

    /// What was accepted from here on is kept in all of these tables.
    pub fn from(&self, tables: &[&str]) -> Tz {
        let cuts = tables.iter().filter_map(|t| self.cut.get(t));
        Tz(cuts.copied().fold(self.since, Micros::max))
    }

    /// The same with a day's margin where something was dropped: for rows that are younger in one table than in another.
    pub fn safely_from(&self, tables: &[&str]) -> Tz {
        let from = self.from(tables).0;
        let cut = tables.iter().any(|t| self.cut.contains_key(t));
        Tz(if cut { from.plus_secs(86_400) } else { from })
    }
}

/// A day that the schema's birth made, in which no fact of a fresh deployment lies: gone before anything else is.
async fn first_day(client: &Client, version: i32) -> Result<Option<i64>, Error> {
    let row = client
        .query_opt(
            "SELECT applied_on::timestamptz FROM refinery_schema_history WHERE version = $1",
            &[&version],
        )
        .await?;
    let born = row.map(|r| r.get::<_, Tz>(0).0.day());
    // One day less than were made: the schema may have been born around midnight.
    Ok(born.map(|day| day - crate::postgres::migrate::DAYS_BEHIND + 1))
}

/// The day of the oldest conversion of which an identity is kept.
async fn first_conversion(client: &Client) -> Result<Option<i64>, Error> {
    let row = client
        .query_one("SELECT min(accepted_at) FROM conversion_keys", &[])
        .await?;
    Ok(row.get::<_, Option<Tz>>(0).map(|t| t.0.day()))
}

/// The first day with a row. Days without are made again by daily maintenance after they were dropped.
async fn first_used(client: &Client, days: &BTreeMap<i64, String>) -> Result<Micros, Error> {
    for (day, name) in days {
        let row = client
            .query_one(&format!("SELECT EXISTS (SELECT FROM {name})"), &[])
            .await?;
        if row.get(0) {
            return Ok(Micros(day.saturating_mul(DAY_US)));
        }
    }
    Ok(Micros(i64::MAX))
}
