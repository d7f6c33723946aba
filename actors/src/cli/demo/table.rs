//! The report as a table for people.

use super::report::Report;
use super::scenery::{NORTH, Scenery};
use super::stage::Stage;
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

    let mut deliveries = table([
        "deliveries, by channel",
        "result",
        "messages",
        "attempts",
        "retries",
    ]);
    for line in &report.deliveries {
        deliveries.add_row([
            line.channel.clone(),
            line.result.clone(),
            line.messages.to_string(),
            line.attempts.to_string(),
            line.retries.to_string(),
        ]);
    }
    if let Some(column) = deliveries.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Left);
    }

    let (told, held) = (told(report), held(report));
    let mut out =
        format!("{doors}\n\n{outcomes}\n\n{campaigns}\n\n{deliveries}\n\n{told}\n\n{held}\n\n");
    let (notices, mails) = (
        report.notices.iter().map(|l| l.told).sum::<i64>(),
        report.mails,
    );
    let _ = writeln!(
        out,
        "{} frames of the shard's session: {notices} notices told, {mails} of them by mail, {} wait as their rules say.\n",
        report.shard_frames,
        report.notices.iter().map(|l| l.waiting).sum::<i64>(),
    );
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
             reported it; {} messages, each at its receiver under one id ({all} checks, from stored facts and what the receivers \
             counted). {:.1} s.",
            report.accepted,
            report.conversions,
            report
                .deliveries
                .iter()
                .filter(|l| l.result == "sent")
                .map(|l| l.messages)
                .sum::<i64>(),
            report.seconds
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

/// Where everything is, and three things to try. Key and secret are shown: they are the demo's, and die with its data.
#[must_use]
pub fn try_these(stage: &Stage, scenery: &Scenery, mail_url: &str) -> String {
    let secret = scenery
        .networks
        .get(NORTH)
        .map_or("", |n| n.secret.as_str());
    let campaign = scenery.campaigns.first().map_or("", |c| c.id);
    let (doors, admin, key, database) =
        (&stage.doors, &stage.admin, &stage.key, &stage.database_url);
    let program =
        std::env::current_exe().map_or_else(|_| "millrace".to_owned(), |p| p.display().to_string());
    format!(
        "The demo stays up until Ctrl-C.\n\
         \n  doors      {doors}/c/{campaign}   {doors}/e   {doors}/pb\
         \n  health     {doors}/healthz   {doors}/metrics\
         \n  admin API  {admin}/v1/conversions   (key {key})\
         \n  mails      {mail_url}   (one of them: {mail_url}0)\
         \n  database   {database}\n\
         \nThree things to try, in another terminal:\n\
         \n1. Click on an ad. The answer leads to the shop and carries the click id:\n\
         \n   CLICK=$(curl -s -o /dev/null -w '%{{redirect_url}}' '{doors}/c/{campaign}?fbclid=me&utm_source=me' | sed 's/.*cid=//; s/&.*//'); echo $CLICK\n\
         \n2. Report a sale for it, as its network would; a second time it changes nothing:\n\
         \n   curl -s \"{doors}/pb?secret={secret}&click_id=$CLICK&payout=49.90&txid=mine-1\"\n\
         \n3. See what is known of it, the latest conversions, and what of them was delivered:\n\
         \n   DATABASE_URL='{database}' {program} trace $CLICK --workspace demo\
         \n   curl -s -H 'Authorization: Bearer {key}' '{admin}/v1/conversions?limit=3'\
         \n   curl -s -H 'Authorization: Bearer {key}' '{admin}/v1/deliveries?limit=3'\n"
    )
}

/// Who was told what.
fn told(report: &Report) -> Table {
    let mut told = table([
        "notices, by trigger",
        "channel",
        "told",
        "people",
        "waiting",
    ]);
    for line in &report.notices {
        told.add_row([
            line.trigger.clone(),
            line.channel.clone(),
            line.told.to_string(),
            line.people.to_string(),
            line.waiting.to_string(),
        ]);
    }
    if let Some(column) = told.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    told
}

/// What was held back.
fn held(report: &Report) -> Table {
    let mut held = table(["held back, by gate", "reason", "of", "times"]);
    for line in &report.held_back {
        held.add_row([
            line.gate.clone(),
            line.reason.clone(),
            line.of.to_owned(),
            line.times.to_string(),
        ]);
    }
    for index in 1..3 {
        if let Some(column) = held.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Left);
        }
    }
    held
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    for index in 1..N {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
