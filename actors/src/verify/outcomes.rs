//! Outcomes as counted are outcomes as facts show them: by partition of first acceptance, kind and reason.

use super::report::{Checked, Kind};
use super::snapshot::Snapshot;
use millrace_schemas::outcome::{Outcome, reason};
use millrace_topics::catalogue;
use std::collections::BTreeMap;
use tokio_postgres::Error;

/// The first half of a record's 16 bytes is its topic and partition; of the second the greatest is kept as text, so that a fact
/// from beyond the position is seen in the same pass.
macro_rules! counted {
    ($outcome:literal, $reason:literal, $from:literal) => {
        concat!(
            "SELECT substring(uuid_send(record_id) for 8), ",
            $outcome,
            ", ",
            $reason,
            ", count(*), max(right(record_id::text, 17) COLLATE \"C\") FROM ",
            $from,
            " GROUP BY 1, 2, 3"
        )
    };
}

/// What each table shows: its name, and the question.
const FACTS: [(&str, &str); 7] = [
    ("visits", counted!("0::int2", "''", "visits")),
    // A direct visit is the click too: one record, two facts.
    (
        "clicks",
        counted!(
            "0::int2",
            "''",
            "clicks WHERE NOT EXISTS (SELECT FROM visits v WHERE v.direct AND v.record_id = clicks.record_id)"
        ),
    ),
    (
        "provider_clicks",
        counted!("0::int2", "'provider_click'", "provider_clicks"),
    ),
    ("rejects", counted!("3::int2", "reason", "rejects")),
    (
        "postback_log",
        counted!("outcome", "reason", "postback_log"),
    ),
    ("parked", counted!("2::int2", "''", "parked")),
    (
        "dead_letters",
        counted!(
            "4::int2",
            "reason",
            "dead_letters WHERE status <> 'replayed' AND group_name = 'attribution'"
        ),
    ),
];

const COUNTERS: &str =
    "SELECT topic_no, partition, outcome, reason, n FROM outcomes WHERE group_name = 'attribution'";

/// Topic, partition, outcome, reason.
type Key = (i32, i32, i16, String);

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    if s.kept.bounded() {
        found.note("not asked: counts are of all time, --since looks at the latest alone");
        return Ok(());
    }
    let positions = s
        .query(
            "SELECT topic_no, partition, next_offset FROM positions WHERE group_name = 'attribution'",
            &[],
        )
        .await?;
    let next: BTreeMap<(i32, i32), i64> = positions
        .iter()
        .map(|r| ((r.get(0), r.get(1)), r.get(2)))
        .collect();
    // Counted, and shown by facts.
    let mut all: BTreeMap<Key, (i64, i64)> = BTreeMap::new();
    for row in s.query(COUNTERS, &[]).await? {
        let key = (row.get(0), row.get(1), row.get(2), row.get(3));
        all.entry(key).or_default().0 += row.get::<_, i64>(4);
    }
    for (table, sql) in FACTS {
        for row in s.query(sql, &[]).await? {
            let (topic_no, partition) = place(row.get(0));
            let (outcome, why, n): (i16, String, i64) = (row.get(1), row.get(2), row.get(3));
            found.rows += n;
            beyond(s, found, table, (topic_no, partition), &next, row.get(4));
            // That a postback waits, or died, stands in tables of its own; the log keeps what once was.
            if table == "postback_log" && matches!(outcome, 2 | 4) {
                continue;
            }
            all.entry((topic_no, partition, outcome, why))
                .or_default()
                .1 += n;
        }
    }
    let mut excused = 0;
    for ((topic_no, partition, code, why), (counted, shown)) in all {
        let topic = s.topics.get(&topic_no).map_or("", |t| t.name.as_str());
        let outcome = Outcome::from_code(code);
        // A visit or click that repeats another changes nothing and leaves nothing.
        let traceless = topic == catalogue::CLICKS && outcome == Some(Outcome::Duplicate);
        if counted == shown || traceless {
            continue;
        }
        let tables = tables_of(topic, outcome, &why);
        let fewer = shown < counted;
        let buried_again =
            outcome == Some(Outcome::DeadLettered) && s.was_rewound(topic_no, partition);
        if fewer && (!s.kept.whole(tables) || buried_again) {
            excused += counted - shown;
            continue;
        }
        let name = outcome.map_or_else(|| format!("outcome {code}"), |o| o.name().to_owned());
        let because = if why.is_empty() {
            String::new()
        } else {
            format!("({why})")
        };
        let what = format!(
            "{counted} {name}{because} counted, {shown} found in {}",
            tables.join(", ")
        );
        let kind = if fewer { Kind::Lost } else { Kind::Doubled };
        found.add_many(
            kind,
            counted.abs_diff(shown),
            s.place(topic_no, partition),
            what,
        );
    }
    if excused > 0 {
        found.note(format!(
            "{excused} outcomes are counted whose facts are not there any more: their days were dropped, or an operator had \
             dead records decided again"
        ));
    }
    Ok(())
}

/// Topic number and partition.
fn place(bytes: &[u8]) -> (i32, i32) {
    let number = |from: usize| {
        bytes
            .get(from..from + 4)
            .and_then(|b| b.try_into().ok())
            .map_or(0, i32::from_be_bytes)
    };
    (number(0), number(4))
}

/// Where the facts of an outcome lie.
fn tables_of(topic: &str, outcome: Option<Outcome>, why: &str) -> &'static [&'static str] {
    match outcome {
        Some(Outcome::Parked) => &["parked"],
        Some(Outcome::DeadLettered) => &["dead_letters"],
        Some(Outcome::Applied) if topic == catalogue::CLICKS => match why {
            reason::PROVIDER_CLICK => &["provider_clicks"],
            _ => &["visits", "clicks"],
        },
        Some(Outcome::Rejected) if topic == catalogue::CLICKS => &["rejects"],
        _ => &["postback_log"],
    }
}

/// Names a partition whose facts go further than its position: they will be decided again, or were never consumed.
fn beyond(
    s: &Snapshot<'_>,
    found: &mut Checked,
    table: &str,
    (topic_no, partition): (i32, i32),
    next: &BTreeMap<(i32, i32), i64>,
    last: &str,
) {
    let last = i64::from_str_radix(&last.replace('-', ""), 16).unwrap_or(i64::MAX);
    let Some(next) = next.get(&(topic_no, partition)) else {
        let what = format!("{table} has rows of it, and nobody has a position there");
        return found.add(Kind::Wrong, s.place(topic_no, partition), what);
    };
    if last >= s.reached(topic_no, partition, *next) {
        let what = format!("{table} has a row of it, and the position stands at {next}");
        found.add(Kind::Wrong, format!("{topic_no}-{partition}-{last}"), what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_schemas::ids::RecordId;

    #[test]
    fn a_place_is_read_off_a_record_s_first_half() {
        let id = RecordId {
            topic_no: 3,
            partition: 70_000,
            offset: 9,
        };
        assert_eq!(place(&id.to_uuid().as_bytes()[..8]), (3, 70_000));
        assert_eq!(place(&[]), (0, 0));
    }
}
