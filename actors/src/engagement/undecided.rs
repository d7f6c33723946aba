//! What is known of an event that the gates have stored nothing of: rejected before them, not there yet, or not there any more.

use crate::postgres::types::Tz;
use millrace_schemas::ids::RecordId;
use tokio_postgres::{Client, Error};

/// Why an event of this id cannot be explained, for people. Of firings that break their trigger's declaration the last one of each
/// trigger, reason and variable is kept by its id, and how many there were; of those before it, and of those that the gates rejected
/// themselves, there are counts alone. Without a workspace, of any.
///
/// # Errors
/// The store's.
pub async fn why(client: &Client, ws: Option<i32>, id: &str) -> Result<String, Error> {
    let rejected = client
        .query_opt(
            "SELECT trigger, reason, variable, n, last_at FROM firing_rejects
             WHERE last_id = $2 AND ($1::int4 IS NULL OR workspace = $1) ORDER BY last_at DESC LIMIT 1",
            &[&ws, &id],
        )
        .await?;
    let of = record(id).map_or_else(String::new, |record| {
        format!("; its id names record {record} of the log")
    });
    let Some(row) = rejected else {
        return Ok(format!(
            "it is not decided yet (`millrace lag`), was rejected, or is older than events are kept{of}"
        ));
    };
    let (trigger, reason, variable): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
    let (n, last): (i64, Tz) = (row.get(3), row.get(4));
    let at = match variable {
        "" => String::new(),
        variable => format!(" at `{variable}`"),
    };
    Ok(format!(
        "it was rejected({reason}){at}, since it does not keep what `{trigger}` declares; accepted {}, the last of {n} such{of}",
        last.0.rfc3339()
    ))
}

/// The record that an event comes of: a module's events are named by their frame's coordinates and a number.
fn record(id: &str) -> Option<RecordId> {
    let (record, n) = id.rsplit_once('-')?;
    n.parse::<u32>().ok()?;
    record.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_frame_if_it_comes_of_one() {
        let frame = RecordId {
            topic_no: 3,
            partition: 0,
            offset: 7,
        };
        assert_eq!(record("3-0-7-2"), Some(frame));
        for minted in ["ev_1", "3-0", "3-0-7", "3-0-7-x", ""] {
            assert_eq!(record(minted), None, "{minted}");
        }
    }
}
