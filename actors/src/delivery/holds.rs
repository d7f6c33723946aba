//! Pausing by hand, and going on: destinations, channels, and everything at once. Through the API and at the terminal.

use crate::postgres::types::Tz;
use millrace_schemas::time::Micros;
use tokio_postgres::{Error, GenericClient, Row};

/// The code of a pause by a person: nothing but a person ends it.
pub const BY_HAND: &str = "by_hand";
/// The name that stands for every channel.
pub const EVERYTHING: &str = "*";

/// Why and since when nothing is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// A name from a closed list.
    pub code: String,
    /// For people.
    pub reason: String,
    /// Who.
    pub by: String,
    /// Since when.
    pub at: Micros,
}

/// A destination as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub no: i32,
    /// Its workspace.
    pub workspace: i32,
    /// The channel's name.
    pub channel: String,
    /// What it stands for: `px_…`, `wh_…`.
    pub reference: String,
    /// That thing's name.
    pub name: Option<String>,
    /// That thing's status: `active`, `disabled`, `archived`.
    pub status: Option<String>,
    /// Its own pause.
    pub pause: Option<Pause>,
    /// Why its channel, or everything, is held.
    pub channel_pause: Option<String>,
    /// When it came to be.
    pub created_at: Micros,
}

/// The columns of [`Place::read`], of [`FROM`].
pub const COLUMNS: &str = "destination_no, workspace_id, channel, ref, name, status, paused_code, paused_reason, paused_by, paused_at,
     channel_pause, created_at";
/// Destinations with what they stand for.
pub const FROM: &str = "(SELECT t.*, coalesce(p.name, w.name, m.brand_name) AS name,
            coalesce(p.status, w.status, CASE WHEN m.enabled THEN 'active' WHEN NOT m.enabled THEN 'disabled' END) AS status,
            (SELECT h.reason FROM paused_channels h WHERE h.channel IN (t.channel, '*') ORDER BY h.channel LIMIT 1) AS channel_pause
     FROM destinations t
     LEFT JOIN pixels p ON t.channel = 'meta' AND p.pixel_id = t.ref
     LEFT JOIN webhooks w ON t.channel = 'webhook' AND w.webhook_id = t.ref
     LEFT JOIN mail_transports m ON t.channel = 'email' AND m.transport_id = t.ref) AS places";

impl Place {
    /// From a row of [`COLUMNS`].
    ///
    /// # Errors
    /// The row is another.
    pub fn read(row: &Row) -> Result<Place, Error> {
        let code: Option<String> = row.try_get("paused_code")?;
        let pause = match code {
            None => None,
            Some(code) => Some(Pause {
                code,
                reason: row
                    .try_get::<_, Option<String>>("paused_reason")?
                    .unwrap_or_default(),
                by: row
                    .try_get::<_, Option<String>>("paused_by")?
                    .unwrap_or_default(),
                at: row
                    .try_get::<_, Option<Tz>>("paused_at")?
                    .map_or(Micros(0), |t| t.0),
            }),
        };
        Ok(Place {
            no: row.try_get("destination_no")?,
            workspace: row.try_get("workspace_id")?,
            channel: row.try_get("channel")?,
            reference: row.try_get("ref")?,
            name: row.try_get("name")?,
            status: row.try_get("status")?,
            pause,
            channel_pause: row.try_get("channel_pause")?,
            created_at: row.try_get::<_, Tz>("created_at")?.0,
        })
    }
}

/// A destination by what it stands for, or by its number.
///
/// # Errors
/// The store's.
pub async fn find(
    client: &impl GenericClient,
    workspace: Option<i32>,
    named: &str,
) -> Result<Option<Place>, Error> {
    let sql = format!(
        "SELECT {COLUMNS} FROM {FROM} WHERE (ref = $1 OR destination_no::text = $1) AND ($2::int IS NULL OR workspace_id = $2)
         ORDER BY ref = $1 DESC, destination_no LIMIT 1"
    );
    let row = client.query_opt(&sql, &[&named, &workspace]).await?;
    row.as_ref().map(Place::read).transpose()
}

/// Pauses a destination by hand, in place of any other pause.
///
/// # Errors
/// The store's.
pub async fn pause(
    client: &impl GenericClient,
    no: i32,
    reason: &str,
    by: &str,
) -> Result<(), Error> {
    client
        .execute(
            "UPDATE destinations SET paused_code = $2, paused_reason = $3, paused_by = $4, paused_at = now() WHERE destination_no = $1",
            &[&no, &BY_HAND, &reason, &by],
        )
        .await?;
    Ok(())
}

const GO_ON: &str = "UPDATE destinations SET paused_code = NULL, paused_reason = NULL, paused_by = NULL, paused_at = NULL";

/// Lets a destination go on, whatever paused it. True: it was paused.
///
/// # Errors
/// The store's.
pub async fn resume(client: &impl GenericClient, no: i32) -> Result<bool, Error> {
    let sql = format!("{GO_ON} WHERE destination_no = $1 AND paused_code IS NOT NULL");
    Ok(client.execute(&sql, &[&no]).await? == 1)
}

/// Lets the destinations of what was given new credentials or a new address go on, unless a person paused them.
///
/// # Errors
/// The store's.
pub async fn resume_mended(
    client: &impl GenericClient,
    workspace: i32,
    reference: &str,
) -> Result<bool, Error> {
    let sql = format!("{GO_ON} WHERE workspace_id = $1 AND ref = $2 AND paused_code <> $3");
    Ok(client
        .execute(&sql, &[&workspace, &reference, &BY_HAND])
        .await?
        > 0)
}

/// Holds a channel, or [`EVERYTHING`].
///
/// # Errors
/// The store's.
pub async fn hold(
    client: &impl GenericClient,
    channel: &str,
    reason: &str,
    by: &str,
) -> Result<(), Error> {
    client
        .execute(
            "INSERT INTO paused_channels (channel, reason, paused_by) VALUES ($1, $2, $3)
             ON CONFLICT (channel) DO UPDATE SET reason = excluded.reason, paused_by = excluded.paused_by",
            &[&channel, &reason, &by],
        )
        .await?;
    Ok(())
}

/// Lets a channel, or [`EVERYTHING`], go on. True: it was held.
///
/// # Errors
/// The store's.
pub async fn let_go(client: &impl GenericClient, channel: &str) -> Result<bool, Error> {
    let gone = client
        .execute(
            "DELETE FROM paused_channels WHERE channel = $1",
            &[&channel],
        )
        .await?;
    Ok(gone > 0)
}

/// What waits for some destinations: how many messages, counted up to `most`, and since when the oldest is due.
///
/// # Errors
/// The store's.
pub async fn waiting(
    client: &impl GenericClient,
    destinations: &[i32],
    most: i64,
) -> Result<Vec<(i32, i64, Option<Micros>)>, Error> {
    let rows = client
        .query(
            "SELECT no, (SELECT count(*) FROM (SELECT 1 FROM outbox_due WHERE destination_no = no LIMIT $2) AS counted),
                    (SELECT due_at FROM outbox_due WHERE destination_no = no ORDER BY due_at LIMIT 1)
             FROM unnest($1::int4[]) AS no",
            &[&destinations, &most],
        )
        .await?;
    rows.iter()
        .map(|r| {
            let oldest: Option<Tz> = r.try_get(2)?;
            Ok((r.try_get(0)?, r.try_get(1)?, oldest.map(|t| t.0)))
        })
        .collect()
}
