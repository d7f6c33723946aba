//! `millrace verify`: the oracle of an operator.

use super::Context;
use super::log::Log;
use super::output;
use crate::settings::Backend;
use crate::verify::{self, AskLog, Check, Checked, LogEnd, Options, Report};
use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use indicatif::{ProgressBar, ProgressStyle};
use millrace_topics::catalogue;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Recounts the store from its facts, names each difference, and changes nothing.
///
/// Every consumed record has one outcome; outcomes, ledger, identities, parked records, dead letters, outbox, send log, positions
/// and the Postgres log agree. One read-only transaction sees all of it at one moment, so a deployment may run at full load
/// meanwhile; a replica will do, and a role that may only SELECT. What retention dropped is not called lost. On a large store ask
/// a replica, or the latest alone (--since): a snapshot that is held for minutes keeps the primary from cleaning up behind itself.
///
/// Exit code 0: nothing differs. 1: something does, or the store could not be asked. 2: wrong words.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  millrace verify\n  millrace verify --since 2d --limit 50\n  \
    millrace verify --check outbox --check send-log\n  millrace --json verify | jq '.checks[] | select(.differences > 0)'\n  \
    DATABASE_URL=postgres://reader@replica/millrace millrace verify"
)]
pub(super) struct Args {
    /// This check alone; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Check::ALL.map(Check::name)))]
    check: Vec<String>,
    /// Records accepted within this time alone, as 90m, 24h or 7d; counts of all time are left out then.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    since: Option<Duration>,
    /// Examples shown of each check.
    #[arg(long, value_name = "N", default_value_t = 5)]
    limit: usize,
    /// How long one question to the store may take.
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = duration)]
    timeout: Duration,
    /// Ask Kafka for its ends too: no position may lie beyond them. (Those of the Postgres log are in the store.)
    #[arg(long)]
    log: bool,
}

/// `90s`, `15m`, `24h`, `7d`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration: a number and s, m, h or d, as 24h");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let n: u32 = text.trim_end_matches(unit).parse().map_err(|_| wrong())?;
    Ok(Duration::from_secs(u64::from(n) * seconds))
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let client = context.client().await?;
    let options = Options {
        checks: args
            .check
            .iter()
            .filter_map(|n| Check::from_name(n))
            .collect(),
        since: args.since,
        limit: args.limit,
        statement_timeout: args.timeout,
        log: if args.log {
            asking(context).await?
        } else {
            None
        },
    };
    let bar = bar(options.checks.len());
    let verified = verify::run_watched(&client, &options, &mut |check, done| {
        bar.set_position(u64::try_from(done).unwrap_or(0));
        bar.set_message(check.question());
    })
    .await;
    bar.finish_and_clear();
    let report = verified.map_err(explain)?;
    if context.json() {
        let mut value = serde_json::to_value(&report).context("the report as JSON")?;
        if let Some(object) = value.as_object_mut() {
            object.insert("differences".to_owned(), report.count().into());
        }
        context.answer_json(&value)?;
    } else {
        output::print(&text(&report));
    }
    Ok(if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What asks Kafka for the ends of the live topics; none on the Postgres log, whose ends are in the snapshot.
async fn asking(context: &Context) -> anyhow::Result<Option<AskLog>> {
    let database = context.database()?;
    let log = Log::of(context.settings(), &database)?;
    if log.backend() == Backend::Postgres {
        return Ok(None);
    }
    let client = Arc::new(context.client().await?);
    let topics = Arc::new(catalogue::load(&*client).await?);
    Ok(Some(Arc::new(move || {
        let (log, client, topics) = (log.clone(), Arc::clone(&client), Arc::clone(&topics));
        Box::pin(async move {
            let ends = log.ends(&client, &topics).await;
            let ends = ends.map_err(|e| format!("{e:#}"))?;
            let end = |e: &super::log::Ends| LogEnd {
                topic_no: e.topic_no,
                partition: e.partition,
                high: e.high,
            };
            Ok(ends.iter().map(end).collect())
        })
    })))
}

/// For a person at a terminal; hidden elsewhere.
fn bar(checks: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let checks = if checks == 0 {
        Check::ALL.len()
    } else {
        checks
    };
    let bar = ProgressBar::new(u64::try_from(checks).unwrap_or(0));
    if let Ok(style) =
        ProgressStyle::with_template("verifying {bar:20} {pos}/{len} {elapsed_precise} {msg}")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// What the store refused, with what to do.
fn explain(error: verify::VerifyError) -> anyhow::Error {
    let code = match &error {
        verify::VerifyError::Store(e) => e.code().map(|c| c.code().to_owned()),
        verify::VerifyError::Log(_) => None,
    };
    let advice = match code.as_deref() {
        Some("57014") => "; --timeout allows more, --since and --check ask for less",
        Some("40001") => {
            "; the replica had to clean up meanwhile: try again, or set hot_standby_feedback there"
        }
        Some("42501") => "; the role needs SELECT on all tables",
        Some("55P03") => "; a table is being changed: try again in a minute",
        _ => "",
    };
    anyhow::anyhow!("{error}{advice}")
}

fn text(report: &Report) -> String {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["check", "what must hold", "rows", "differences", "seconds"]);
    for c in &report.checks {
        table.add_row([
            c.check.to_owned(),
            c.question.to_owned(),
            c.rows.to_string(),
            c.differences.to_string(),
            format!("{:.2}", c.seconds),
        ]);
    }
    for at in 2..5 {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut out = format!("{table}\n");
    for c in report.checks.iter().filter(|c| c.differences > 0) {
        out.push_str(&differences(c));
    }
    for c in &report.checks {
        for note in &c.notes {
            let _ = write!(out, "\nnote, {}: {note}", c.check);
        }
    }
    let of = if report.on_replica {
        ", on a replica"
    } else {
        ""
    };
    let n = report.count();
    let says = if n == 0 {
        "Nothing differs".to_owned()
    } else {
        format!(
            "{n} differences: {} lost, {} doubled, {} wrong",
            report.count_of(verify::Kind::Lost),
            report.count_of(verify::Kind::Doubled),
            report.count_of(verify::Kind::Wrong)
        )
    };
    let _ = write!(
        out,
        "\n{says}. As of {}{of}: {} checks over {} rows in {:.2} s.",
        report.moment,
        report.checks.len(),
        report.rows(),
        report.seconds
    );
    out
}

fn differences(c: &Checked) -> String {
    let mut out = format!("\n{}: {} differences\n", c.check, c.differences);
    for d in &c.examples {
        let kind = format!("{:?}", d.kind).to_uppercase();
        let _ = writeln!(out, "  {kind:<8}{}: {}", d.at, d.what);
    }
    let shown = u64::try_from(c.examples.len()).unwrap_or(0);
    if c.differences > shown {
        let _ = writeln!(out, "  … --limit shows more");
    }
    let _ = writeln!(out, "  {}", c.advice);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        for wrong in ["", "h", "12", "1w", "-1h", "1.5h", "hh"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
