//! What retention has left: what it dropped on purpose is not lost.
//!
//! Retention drops a table's days oldest first and writes each down in `dropped_facts`; a day that was detached, by retention on its
//! way or by a person for an archive, is out of the table too. A table of which neither is true is *whole*, and counts of all time
//! can be held against it. Of any other table what counts begins with the day after the last that left. A day that is gone and
//! written down nowhere is a loss, and is named as one.

use crate::postgres::types::Tz;
use millrace_schemas::time::{DAY_US, Micros};
use std::collections::HashMap;
use tokio_postgres::{Client, Error};

/// Tables that are partitioned by day, and inboxes, of which what was read goes by and by: the days of what went are written down
/// all the same.
fn tables() -> Vec<&'static str> {
    [
        crate::attribution::store::FACT_TABLES,
        crate::delivery::outbox::TABLES,
        crate::engagement::store::FACT_TABLES,
        ["user_notifications"].as_slice(),
    ]
    .concat()
}

/// The last day that left each table.
const LEFT: &str = "
SELECT name, max(day)::timestamp AT TIME ZONE 'UTC' FROM (
    SELECT table_name AS name, day FROM dropped_facts
    UNION ALL
    SELECT t.name, to_date(right(c.relname, 8), 'YYYYMMDD')
    FROM unnest($1::text[]) AS t(name)
    JOIN pg_class c ON c.relname ~ ('^' || t.name || '_[0-9]{8}$') AND c.relkind = 'r' AND pg_table_is_visible(c.oid)
    LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
    WHERE i.inhrelid IS NULL OR i.inhdetachpending) AS left_days (name, day)
WHERE name = ANY($1) GROUP BY name";

/// What is kept of each table that is partitioned by day, and what the caller wants to look at.
#[derive(Debug)]
pub(super) struct Kept {
    since: Micros,
    /// The first day that is there, of tables that days have left.
    cut: HashMap<String, Micros>,
}

impl Kept {
    pub async fn read(client: &Client, since: Micros) -> Result<Kept, Error> {
        let rows = client.query(LEFT, &[&tables()]).await?;
        let after = |day: Micros| Micros(day.0.saturating_add(DAY_US));
        let cut = rows
            .iter()
            .map(|row| (row.get(0), after(row.get::<_, Tz>(1).0)))
            .collect();
        Ok(Kept { since, cut })
    }

    /// Whether all rows ever written to these tables are there, and are to be looked at.
    pub fn whole(&self, tables: &[&str]) -> bool {
        !self.bounded() && !tables.iter().any(|t| self.cut.contains_key(*t))
    }

    /// Whether the caller wants the latest alone.
    pub fn bounded(&self) -> bool {
        self.since > Micros::MIN
    }

    /// What was accepted from here on is kept in all of these tables.
    pub fn from(&self, tables: &[&str]) -> Tz {
        let cuts = tables.iter().filter_map(|t| self.cut.get(*t));
        Tz(cuts.copied().fold(self.since, Micros::max))
    }

    /// The same with a day's margin where something was dropped: for rows that are younger in one table than in another.
    pub fn safely_from(&self, tables: &[&str]) -> Tz {
        let from = self.from(tables).0;
        let cut = tables.iter().any(|t| self.cut.contains_key(*t));
        Tz(if cut { from.plus_secs(86_400) } else { from })
    }
}
