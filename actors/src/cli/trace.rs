//! `millrace trace CLICK_ID`: everything known of one click, in order.

mod messages;

use super::Context;
use super::output::Listing;
use crate::api::workspaces;
use crate::postgres::types::Tz;
use anyhow::Context as _;
use millrace_schemas::ids::{ClickKey, RecordId, partition_key};
use millrace_schemas::outcome::Outcome;
use millrace_schemas::time::Micros;
use serde_json::json;
use std::process::ExitCode;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

/// Visits, clicks, postbacks with their outcomes, conversions and their changes, what waits, what died, and the messages that went
/// out because of it with their attempts: one row an event, oldest first.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    millrace trace 01k9vq3w5e8z4d7m2s6x0a1b2c --workspace acme\n  \
    millrace --json trace fbclid-IwAR0 --workspace acme")]
pub(super) struct Args {
    /// The click id, as it stands in links and postbacks.
    click_id: String,
    /// The workspace's id.
    #[arg(long)]
    workspace: String,
}

struct Event {
    at: Micros,
    rank: u8,
    what: &'static str,
    record: Option<Uuid>,
    says: String,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<ExitCode> {
    let client = context.client().await?;
    let workspace = workspaces::by_slug(&client, &args.workspace)
        .await
        .with_context(|| format!("no workspace `{}`", args.workspace))?;
    let key = ClickKey::new(workspace.workspace_id, &args.click_id);
    let mut events = events(&client, workspace.workspace_id, key.key, &args.click_id).await?;
    messages::add(&client, workspace.workspace_id, &mut events).await?;
    events.sort_by_key(|e| (e.at, e.rank, e.record));
    if events.is_empty() {
        eprintln!(
            "nothing is known of `{}` in `{}`; a record that was accepted a moment ago may not be decided yet (`millrace lag`)",
            args.click_id, args.workspace
        );
    }
    let mut listing = Listing::new(&["at", "what", "record", "says"]);
    for e in &events {
        listing.row(vec![
            json!(e.at.rfc3339()),
            json!(e.what),
            json!(e.record.map(|r| RecordId::from_uuid(r).to_string())),
            json!(e.says),
        ]);
    }
    context.answer(&listing)?;
    Ok(if events.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn text(row: &Row, column: &str) -> String {
    row.try_get::<_, Option<String>>(column)
        .ok()
        .flatten()
        .unwrap_or_default()
}

async fn events(
    client: &Client,
    workspace: i32,
    key: Uuid,
    click_id: &str,
) -> Result<Vec<Event>, tokio_postgres::Error> {
    let mut all = Vec::new();
    let by_click: [(&'static str, u8, &str); 6] = [
        (
            "visit",
            0,
            "SELECT accepted_at AS at, record_id, concat_ws(', ', 'campaign ' || campaign_id, 'offer ' || offer_id,
                    'stage ' || stage, CASE WHEN direct THEN 'direct' END) AS says
             FROM visits WHERE click_key = $2 AND workspace_id = $1",
        ),
        (
            "click",
            1,
            "SELECT accepted_at AS at, record_id, concat_ws(', ', 'campaign ' || campaign_id, 'offer ' || offer_id,
                    'stage ' || stage) AS says
             FROM clicks WHERE click_key = $2 AND workspace_id = $1",
        ),
        (
            "provider click",
            2,
            "SELECT accepted_at AS at, record_id, concat_ws(', ', 'network ' || network_id, 'offer ' || offer_id,
                    'transaction ' || provider_txid) AS says
             FROM provider_clicks WHERE click_key = $2 AND workspace_id = $1",
        ),
        (
            "conversion",
            4,
            "SELECT booked_at AS at, conversion_id AS record_id, concat_ws(', ', role || ' offer ' || offer_id,
                    'network ' || network_id, trim_scale(payout) || ' ' || currency, 'event ' || event, 'transaction ' || txid,
                    'now ' || status, nullif(flags, '')) AS says
             FROM conversions WHERE click_key = $2 AND workspace_id = $1",
        ),
        (
            "status",
            5,
            "SELECT h.changed_at AS at, h.record_id, concat_ws(', ', old_status || ' → ' || new_status,
                    CASE WHEN old_payout <> new_payout THEN trim_scale(old_payout) || ' → ' || trim_scale(new_payout) END) AS says
             FROM conversion_history h JOIN conversions c USING (conversion_id)
             WHERE c.click_key = $2 AND c.workspace_id = $1 AND h.workspace_id = $1",
        ),
        (
            "waits",
            6,
            "SELECT accepted_at AS at, record_id, concat_ws(', ', kind, 'until ' ||
                    to_char(deadline AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')) AS says
             FROM parked WHERE click_key = $2 AND workspace_id = $1",
        ),
    ];
    for (what, rank, sql) in by_click {
        for row in client.query(sql, &[&workspace, &key]).await? {
            all.push(event(&row, what, rank, text(&row, "says")));
        }
    }
    let postbacks = client
        .query(
            "SELECT decided_at AS at, record_id, outcome, concat_ws(', ', nullif(reason, ''), 'network ' || network_id, query) AS says
             FROM postback_log WHERE click_key = $2 AND workspace_id = $1",
            &[&workspace, &key],
        )
        .await?;
    for row in postbacks {
        let outcome = Outcome::from_code(row.get("outcome")).map_or("unknown", Outcome::name);
        all.push(event(
            &row,
            "postback",
            3,
            format!("{outcome}: {}", text(&row, "says")),
        ));
    }
    let rejects = client
        .query(
            "SELECT accepted_at AS at, record_id, kind || ': ' || reason AS says
             FROM rejects WHERE workspace_id = $1 AND click_id = $2",
            &[&workspace, &click_id],
        )
        .await?;
    for row in rejects {
        all.push(event(&row, "rejected", 7, text(&row, "says")));
    }
    let dead = client
        .query(
            "SELECT dead_at AS at, record_id, concat_ws(', ', reason, detail, status) AS says
             FROM dead_letters WHERE workspace_id = $1 AND key = $2",
            &[&workspace, &partition_key(workspace, click_id).as_bytes()],
        )
        .await?;
    for row in dead {
        all.push(event(&row, "dead letter", 8, text(&row, "says")));
    }
    Ok(all)
}

fn event(row: &Row, what: &'static str, rank: u8, says: String) -> Event {
    Event {
        at: row.try_get::<_, Tz>("at").map_or(Micros(0), |t| t.0),
        rank,
        what,
        record: row.try_get("record_id").ok(),
        says,
    }
}
