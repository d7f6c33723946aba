//! What the product counts of itself, against the list: outcomes and positions.

use super::{Kind, Produced, Report};
use crate::generator::End;
use std::collections::BTreeMap;
use tokio_postgres::GenericClient;

/// Outcome counters: their sum over a partition is what the partition has consumed, their totals are the list's.
///
/// # Errors
/// The store failed.
pub async fn counters(store: &impl GenericClient, produced: &Produced) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let rows = store
        .query(
            "SELECT topic_no, partition, p.consumed, coalesce(o.n, 0) AS counted
             FROM positions p
             LEFT JOIN (SELECT group_name, topic_no, partition, sum(n)::bigint AS n FROM outcomes GROUP BY 1, 2, 3) o
                  USING (group_name, topic_no, partition)
             WHERE group_name = 'attribution'",
            &[],
        )
        .await?;
    for row in &rows {
        report.rows += 1;
        let (topic, partition): (i32, i32) = (row.get(0), row.get(1));
        let (consumed, counted): (i64, i64) = (row.get(2), row.get(3));
        if consumed != counted {
            let what = format!(
                "{topic}-{partition}: {consumed} records consumed, {counted} outcomes counted"
            );
            report.add(Kind::Counter, what);
        }
    }
    // What was counted of each partition must be what became of its records: as the facts show it, or as the list says
    // where it leaves no fact.
    let ends = super::facts::ends(store, produced, &mut Report::default()).await?;
    let mut balance: BTreeMap<(i32, i32, End), (i64, i64)> = BTreeMap::new();
    for (i, place) in produced.places.iter().enumerate() {
        let right = produced.list.records[i].right.first().map(|r| r.end);
        if let Some(end) = ends.get(&i).map(|(end, _)| *end).or(right) {
            balance
                .entry((place.topic_no, place.partition, end))
                .or_default()
                .0 += 1;
        }
    }
    let rows = store
        .query(
            "SELECT topic_no, partition, outcome, sum(n)::bigint FROM outcomes
             WHERE group_name = 'attribution' GROUP BY 1, 2, 3",
            &[],
        )
        .await?;
    for row in &rows {
        report.rows += 1;
        let code: i16 = row.get(2);
        match End::ALL.into_iter().find(|e| e.code() == code) {
            Some(end) => {
                balance.entry((row.get(0), row.get(1), end)).or_default().1 += row.get::<_, i64>(3)
            }
            None => report.add(Kind::Counter, format!("outcome {code} is counted")),
        }
    }
    for ((topic, partition, end), (is, counted)) in balance {
        if is != counted {
            let what =
                format!("{topic}-{partition}: {is} records ended {end:?}, {counted} are counted");
            report.add(Kind::Counter, what);
        }
    }
    Ok(report)
}

/// Positions: everything produced is consumed, each record once.
///
/// # Errors
/// The store failed.
pub async fn positions(store: &impl GenericClient, produced: &Produced) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let rows = store
        .query(
            "SELECT topic_no, partition, next_offset, consumed FROM positions WHERE group_name = 'attribution'",
            &[],
        )
        .await?;
    let mut stored: BTreeMap<(i32, i32), (i64, i64)> = BTreeMap::new();
    for row in &rows {
        report.rows += 1;
        stored.insert((row.get(0), row.get(1)), (row.get(2), row.get(3)));
    }
    let mut records: BTreeMap<(i32, i32), i64> = BTreeMap::new();
    for place in &produced.places {
        *records
            .entry((place.topic_no, place.partition))
            .or_insert(0) += 1;
    }
    for (at, end) in produced.ends() {
        let (topic, partition) = at;
        let Some((next, consumed)) = stored.get(&at).copied() else {
            report.add(Kind::Counter, format!("{topic}-{partition}: no position"));
            continue;
        };
        if next != end {
            report.add(
                Kind::Counter,
                format!("{topic}-{partition}: stands at {next} of {end}"),
            );
        }
        let sent = records.get(&at).copied().unwrap_or_default();
        if consumed != sent {
            report.add(
                Kind::Counter,
                format!("{topic}-{partition}: {consumed} consumed of {sent} sent"),
            );
        }
    }
    Ok(report)
}
