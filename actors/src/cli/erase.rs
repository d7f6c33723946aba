//! `millrace erase`: a person's contact, out of everything that is stored.

use super::Context;
use crate::api::workspaces;
use crate::erasure::{self, Contact};
use anyhow::Context as _;
use serde_json::json;
use std::io::Read;
use std::process::ExitCode;

/// Finds a contact by its SHA-256 wherever it is stored, raw or hashed, and takes it out, with whatever else tells the person
/// of the clicks that it belongs to: addresses and their hashes, user agents, the platforms' cookies and click ids, user data
/// of messages. A user of that address loses name, address, notifications, devices, and the words of messages to them; an
/// address that was suppressed stays so. Messages that have not left are called off. Visits, clicks, conversions and their sums
/// stay. The log keeps what it took until its own retention is over; what is not consumed yet (`millrace lag`) is not looked
/// at: run it again then.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    millrace erase --hash 973dfe463ec85785f5f95af5ba3906eedb2d931c24e69824a89ea65dba4e813b --dry-run\n  \
    millrace erase --email - --workspace acme < address.txt     (hashed here; it goes no further and is not in the history)\n  \
    millrace erase --phone '+1 555 123 4567'")]
#[group(skip)]
pub(super) struct Args {
    #[command(flatten)]
    whom: Whom,
    /// In this workspace alone, by its id [default: in all].
    #[arg(long)]
    workspace: Option<String>,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Whose contact.
#[derive(Clone, clap::Args)]
#[group(required = true, multiple = false)]
struct Whom {
    /// Its SHA-256: of the address in lower case, of the number's digits with country code; or a lead's hash as it was supplied.
    #[arg(long)]
    hash: Option<String>,
    /// The address itself; `-`: from stdin.
    #[arg(long)]
    email: Option<String>,
    /// The number itself, with its country code; `-`: from stdin.
    #[arg(long)]
    phone: Option<String>,
}

impl std::fmt::Debug for Whom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Whom(…)")
    }
}

impl Whom {
    fn contact(self) -> anyhow::Result<Contact> {
        Ok(match self {
            Whom {
                email: Some(text), ..
            } => Contact::from_email(&given(text)?)?,
            Whom {
                phone: Some(text), ..
            } => Contact::from_phone(&given(text)?)?,
            Whom { hash, .. } => Contact::from_digest(&given(hash.unwrap_or_default())?)?,
        })
    }
}

fn given(text: String) -> anyhow::Result<String> {
    if text != "-" {
        return Ok(text);
    }
    let mut read = String::new();
    std::io::stdin()
        .take(4_096)
        .read_to_string(&mut read)
        .context("reading stdin")?;
    Ok(read.trim().to_owned())
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let contact = args.whom.contact()?;
    let mut client = context.client().await?;
    let workspace = match &args.workspace {
        None => None,
        Some(slug) => {
            let found = workspaces::by_slug(&client, slug).await;
            let missing = || format!("no workspace `{slug}`; `millrace workspace list` shows them");
            Some(found.with_context(missing)?.workspace_id)
        }
    };
    let report = erasure::erase(&mut client, &contact, workspace, !args.dry_run).await?;
    let rows: Vec<String> = report
        .rows
        .iter()
        .map(|(table, n)| format!("{n} of {table}"))
        .collect();
    let mut text = match (report.total(), args.dry_run) {
        (0, _) => "nothing of it is stored".to_owned(),
        (n, dry) => format!(
            "{n} rows of {} clicks {}: {}; {} messages {}",
            report.clicks,
            if dry { "would be changed" } else { "changed" },
            rows.join(", "),
            report.called_off,
            if dry {
                "would be called off"
            } else {
                "called off"
            },
        ),
    };
    if report.being_sent > 0 {
        text.push_str(&format!(
            "\n{} messages are being sent at this moment: run it again",
            report.being_sent
        ));
    }
    context.say(
        &text,
        &json!({"dry_run": args.dry_run, "clicks": report.clicks, "rows": report.rows, "called_off": report.called_off,
                "being_sent": report.being_sent}),
    )?;
    Ok(match report.being_sent {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
