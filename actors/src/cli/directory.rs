//! `millrace directory send`: users, their links and preferences from a file into topic `directory`, as a site's own user base
//! would write them there. On either log.

mod records;

use super::Context;
use super::log::{self, Log};
use crate::api::workspaces;
use crate::runtime::clock;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use millrace_topics::catalogue::{self, DIRECTORY_TOPIC};
use millrace_topics::contract::{Outgoing, Producer};
use records::{Fault, Given, Line};
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio_postgres::Client;

/// Records on their way to the log at once.
const PAGE: usize = 1_000;

/// How many faults are named.
const NAMED: usize = 10;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Give users, logins, links and preferences to the log, from NDJSON.
    #[command(after_help = "Examples:\n  \
        millrace directory send users.ndjson --workspace acme\n  \
        zcat users.ndjson.gz | millrace directory send - --workspace acme\n  \
        millrace --json directory send users.ndjson\n\
        A line is a record of topic `directory` (schemas/json/directory_record.json), as\n\
        `{\"change\":\"user\",\"user\":\"u-17\",\"email\":\"ada@example.org\",\"email_verified\":true}`; a line without `ws` is of\n\
        --workspace, `v` and `accepted_at` may be left out. Every line is looked at before the first is sent. Sent twice, a file\n\
        leaves what it left once.\n\
        Exit codes: 0 the log has everything, 1 not so, 2 wrong words or a line that is no record: nothing was sent.")]
    Send(Send),
}

#[derive(Debug, clap::Args)]
pub(super) struct Send {
    /// The records, NDJSON; `-`: from stdin.
    file: PathBuf,
    /// The workspace of lines that name none.
    #[arg(long)]
    workspace: Option<String>,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let Args::Send(args) = args;
    let wrong = |why: &str| {
        eprintln!("error: {why}");
        Ok(ExitCode::from(2))
    };
    let (name, text) = match text_of(&args.file) {
        Ok(read) => read,
        Err(error) => return wrong(&format!("{}: {error}", args.file.display())),
    };
    let settings = context.settings();
    let client = context.client().await?;
    let workspace = match &args.workspace {
        None => None,
        Some(slug) => {
            let found = workspaces::by_slug(&client, slug).await;
            let missing = || format!("no workspace `{slug}`; `millrace workspace list` shows them");
            Some(found.with_context(missing)?.workspace_id)
        }
    };
    let given = Given {
        workspace,
        now: clock::from_environment().wall(),
        limit: settings.log.max_record_bytes,
    };
    let (lines, mut faults) = records::read(&text, &given);
    faults.extend(nowhere(&client, &lines).await?);
    if !faults.is_empty() {
        faults.sort_by_key(|f| f.line);
        name_faults(&name, &faults);
        return wrong(&format!("{name}: nothing was sent"));
    }
    if lines.is_empty() {
        return wrong(&format!("{name}: there is no record in it"));
    }
    let log = Log::of(settings, &context.database()?)?;
    let topics = log::live_topics(&client, &log).await?;
    let topic = catalogue::find(&topics, DIRECTORY_TOPIC)?;
    let producer = log.producer(&settings.log, &topics)?;
    let (sent, refused) = send(&*producer, topic.no, &lines).await;
    producer
        .close(Duration::from_millis(settings.log.ack_timeout_ms))
        .await;
    context.say(
        &format!("{sent} of {} records given to {}", lines.len(), log.name()),
        &json!({"records": lines.len(), "sent": sent}),
    )?;
    if refused.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    name_faults(&name, &refused);
    eprintln!("run the command again: what the log has already is not harmed by coming twice");
    Ok(ExitCode::FAILURE)
}

/// The text, and what to call it.
fn text_of(file: &Path) -> std::io::Result<(String, String)> {
    if file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(("stdin".to_owned(), text));
    }
    let text = std::fs::read_to_string(file)?;
    Ok((file.display().to_string(), text))
}

/// Lines of workspaces that there are not.
async fn nowhere(client: &Client, lines: &[Line]) -> Result<Vec<Fault>, tokio_postgres::Error> {
    let named: BTreeSet<i32> = lines.iter().map(|l| l.ws).collect();
    let named: Vec<i32> = named.into_iter().collect();
    let rows = client
        .query(
            "SELECT workspace_id FROM workspaces WHERE workspace_id = ANY($1)",
            &[&named],
        )
        .await?;
    let known: BTreeSet<i32> = rows.iter().map(|r| r.get(0)).collect();
    let lost = lines.iter().filter(|l| !known.contains(&l.ws));
    Ok(lost
        .map(|l| Fault {
            line: l.number,
            why: format!("there is no workspace of number {}", l.ws),
        })
        .collect())
}

/// Gives the records to the log, page by page, until one of a page is not acknowledged; answers how many the log has, and what it
/// said of the others of that page.
async fn send(producer: &dyn Producer, topic_no: i32, lines: &[Line]) -> (usize, Vec<Fault>) {
    let bar = bar(lines.len());
    let (mut sent, mut refused) = (0, Vec::new());
    for page in lines.chunks(PAGE) {
        let give = |line: &Line| {
            let record = Outgoing {
                topic_no,
                key: line.key.clone(),
                payload: line.payload.clone(),
            };
            (line.number, producer.produce(record))
        };
        let waiting: Vec<_> = page.iter().map(give).collect();
        for (line, acknowledgement) in waiting {
            let why = match acknowledgement.await {
                Ok(Ok(_)) => {
                    sent += 1;
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the producer ended".to_owned(),
            };
            refused.push(Fault { line, why });
        }
        if let Some(bar) = &bar {
            bar.set_position(u64::try_from(sent).unwrap_or(0));
        }
        if !refused.is_empty() {
            break;
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    (sent, refused)
}

fn bar(total: usize) -> Option<ProgressBar> {
    let style = ProgressStyle::with_template(
        "sending {bar:40} {pos}/{len} records, {per_sec}, {elapsed_precise}",
    );
    style
        .ok()
        .filter(|_| std::io::stderr().is_terminal())
        .map(|style| ProgressBar::new(u64::try_from(total).unwrap_or(0)).with_style(style))
}

/// `FILE:LINE: WHY` of the first, and how many more there are.
fn name_faults(file: &str, faults: &[Fault]) {
    for fault in faults.iter().take(NAMED) {
        eprintln!("{file}:{}: {}", fault.line, fault.why);
    }
    if faults.len() > NAMED {
        eprintln!("{file}: {} more lines", faults.len() - NAMED);
    }
}
