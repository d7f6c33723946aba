//! Destinations: whom messages go to, and pausing one for what it answered. What people pause and resume is in `holds`.

use crate::runtime::session::Session;
use std::time::Duration;

/// A destination as a dispatcher needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its number: what `outbox_due` is indexed by.
    pub no: i32,
    /// Its workspace.
    pub workspace: i32,
    /// The channel's name.
    pub channel: String,
    /// What it stands for: `px_…`, `wh_…`.
    pub reference: String,
}

/// Pauses a destination, unless it is paused already, or what it stands for was changed within the last `took`: then the answer
/// was to the settings of before. True: it was not.
///
/// # Errors
/// The store's.
pub async fn pause(
    session: &Session,
    no: i32,
    code: &str,
    reason: &str,
    took: Duration,
) -> Result<bool, tokio_postgres::Error> {
    // A second more: the settings were read a little before the request began.
    let millis = took.as_secs_f64() * 1_000.0 + 1_000.0;
    let paused = session
        .execute(
            "UPDATE destinations d SET paused_code = $2, paused_reason = $3, paused_by = 'millrace', paused_at = now()
             WHERE destination_no = $1 AND paused_code IS NULL
               AND NOT EXISTS (SELECT FROM pixels p WHERE p.pixel_id = d.ref
                               AND p.updated_at > clock_timestamp() - $4 * interval '1 millisecond'
                               AND p.updated_at > p.created_at)
               AND NOT EXISTS (SELECT FROM webhooks w WHERE w.webhook_id = d.ref
                               AND w.updated_at > clock_timestamp() - $4 * interval '1 millisecond'
                               AND w.updated_at > w.created_at)
               AND NOT EXISTS (SELECT FROM mail_transports m WHERE m.transport_id = d.ref
                               AND m.updated_at > clock_timestamp() - $4 * interval '1 millisecond'
                               AND m.updated_at > m.created_at)",
            &[&no, &code, &reason, &millis],
        )
        .await?;
    Ok(paused == 1)
}
