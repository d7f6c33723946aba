//! What went out because of a click: messages are found by the records that caused them.

use super::Event;
use crate::delivery::ledger::{self, Delivery};
use millrace_schemas::ids;
use millrace_schemas::time::Micros;
use std::collections::{BTreeSet, HashMap};
use tokio_postgres::Client;
use uuid::Uuid;

const DAY_S: i64 = 86_400;
/// Attempts that are shown at most.
const ATTEMPTS: i64 = 1_000;

/// Adds the messages that the events' records set off, and their attempts. There is no index on causes: the days since the
/// first event are looked through, which a person can wait for.
pub(super) async fn add(
    client: &Client,
    workspace: i32,
    events: &mut Vec<Event>,
) -> Result<(), tokio_postgres::Error> {
    let causes: BTreeSet<Uuid> = events.iter().filter_map(|e| e.record).collect();
    let causes: Vec<Uuid> = causes.into_iter().collect();
    // A message is written where its cause is booked, never before; a day allows for clocks.
    let Some(since) = events.iter().map(|e| e.at.plus_secs(-DAY_S)).min() else {
        return Ok(());
    };
    let found = ledger::born_of(client, workspace, &causes, since).await?;
    let ids: Vec<Uuid> = found.iter().map(|d| d.id).collect();
    let attempts = ledger::attempts(client, &ids, since, ATTEMPTS).await?;
    let by_id: HashMap<Uuid, &Delivery> = found.iter().map(|d| (d.id, d)).collect();
    for (id, a) in attempts {
        let Some(d) = by_id.get(&id) else { continue };
        let said = [
            Some(format!("{} {}", ids::encode(id), a.result)),
            a.code,
            a.duration_ms.map(|ms| format!("{ms} ms")),
            a.target,
            a.excerpt,
        ];
        events.push(Event {
            at: a.at,
            rank: 10,
            what: match a.attempt {
                0 => "ended",
                _ => "attempt",
            },
            record: Some(d.cause.to_uuid()),
            says: joined(said),
        });
    }
    for d in &found {
        events.push(Event {
            at: d.created_at,
            rank: 9,
            what: "message",
            record: Some(d.cause.to_uuid()),
            says: says(d),
        });
    }
    Ok(())
}

fn says(d: &Delivery) -> String {
    let ended = d.ended_at.map(|t| format!("ended {}", t.rfc3339()));
    joined([
        Some(format!(
            "{} to {} {}, now {}",
            ids::encode(d.id),
            d.channel,
            d.destination,
            d.status
        )),
        d.status_reason.clone(),
        Some(format!("attempts {}", d.attempts)),
        d.due_at
            .map(|t: Micros| format!("due {}", t.rfc3339()))
            .or(ended),
        d.unsure_since
            .map(|t| format!("may have arrived at {}", t.rfc3339())),
    ])
}

fn joined<const N: usize>(parts: [Option<String>; N]) -> String {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(", ")
}
