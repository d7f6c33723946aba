//! Destinations: whom messages go to, and whether they are paused. All SQL on `destinations` and `paused_channels`.

use crate::runtime::session::Session;

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

/// Pauses a destination, unless it is paused already. True: it was not.
///
/// # Errors
/// The store's.
pub async fn pause(
    session: &Session,
    no: i32,
    code: &str,
    reason: &str,
    by: &str,
) -> Result<bool, tokio_postgres::Error> {
    let paused = session
        .execute(
            "UPDATE destinations SET paused_code = $2, paused_reason = $3, paused_by = $4, paused_at = now()
             WHERE destination_no = $1 AND paused_code IS NULL",
            &[&no, &code, &reason, &by],
        )
        .await?;
    Ok(paused == 1)
}

/// Lets a destination go on. True: it was paused.
///
/// # Errors
/// The store's.
pub async fn resume(session: &Session, no: i32) -> Result<bool, tokio_postgres::Error> {
    let resumed = session
        .execute(
            "UPDATE destinations SET paused_code = NULL, paused_reason = NULL, paused_by = NULL, paused_at = NULL
             WHERE destination_no = $1 AND paused_code IS NOT NULL",
            &[&no],
        )
        .await?;
    Ok(resumed == 1)
}
