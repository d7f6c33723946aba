//! The report as a table for people.

use super::report::Report;
use comfy_table::{CellAlignment, Table, presets};
use std::fmt::Write as _;

/// The whole report as text, ending with the verdict.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut doors = table(["records in, by door", "accepted", "refused"]);
    for line in &report.doors {
        doors.add_row([
            line.door.to_owned(),
            line.accepted.to_string(),
            line.refused.to_string(),
        ]);
    }
    doors.add_row([
        "all".to_owned(),
        report.accepted.to_string(),
        report.refused.to_string(),
    ]);

    let mut outcomes = table(["outcomes, recounted from facts", "records", ""]);
    for (name, n, meaning) in [
        ("applied", report.applied, "stands in the ledger"),
        ("duplicate", report.duplicate, "known already"),
        ("parked", report.parked, "waits for its visit"),
        ("rejected", report.rejected, "can never be booked"),
        ("dead-lettered", report.dead_lettered, "kept for replay"),
    ] {
        outcomes.add_row([name.to_owned(), n.to_string(), meaning.to_owned()]);
    }
    let sum =
        report.applied + report.duplicate + report.parked + report.rejected + report.dead_lettered;
    outcomes.add_row(["all".to_owned(), sum.to_string(), String::new()]);
    if let Some(column) = outcomes.column_mut(2) {
        column.set_cell_alignment(CellAlignment::Left);
    }

    let mut campaigns = table(["campaign", "conversions", "revenue, USD"]);
    for line in &report.campaigns {
        campaigns.add_row([
            line.campaign.clone(),
            line.conversions.to_string(),
            line.revenue.clone(),
        ]);
    }
    campaigns.add_row([
        "all".to_owned(),
        report.conversions.to_string(),
        report.revenue.clone(),
    ]);

    let mut out = format!("{doors}\n\n{outcomes}\n\n{campaigns}\n\n");
    let holding = report.checks.iter().filter(|c| c.holds).count();
    let all = report.checks.len();
    for check in report.checks.iter().filter(|c| !c.holds) {
        let _ = writeln!(
            out,
            "WRONG: {}: {} where {} was expected",
            check.name, check.found, check.expected
        );
    }
    let _ = if report.balanced {
        writeln!(
            out,
            "Everything adds up: {} accepted records, each with exactly one outcome; {} conversions, each as the networks \
             reported it ({all} checks, from stored facts). {:.1} s.",
            report.accepted, report.conversions, report.seconds
        )
    } else {
        writeln!(
            out,
            "It does NOT add up: {} of {all} checks fail.",
            all - holding
        )
    };
    out
}

fn table(header: [&str; 3]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    for index in [1, 2] {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
