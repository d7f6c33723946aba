//! Writing to the outbox: in the transaction of whatever caused the message, by COPY.

use crate::postgres::copy::Rows;
use crate::runtime::session::Session;
use millrace_schemas::ids::RecordId;
use millrace_schemas::time::Micros;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Tables of which the wall clock's day must exist before rows are written.
pub const TABLES: &[&str] = &["outbox", "send_log"];

/// A message to be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its id, from [`id_of`].
    pub id: Uuid,
    /// Its workspace.
    pub workspace: i32,
    /// The channel's name.
    pub channel: &'static str,
    /// The destination's number.
    pub destination: i32,
    /// Whom it is about.
    pub subject_key: Option<String>,
    /// What it may be cancelled by.
    pub scope_key: Option<String>,
    /// What makes a second one the same; unique tables of their own enforce it where a stream needs that.
    pub dedupe_key: Option<String>,
    /// The frozen payload, JSON.
    pub payload: String,
    /// The record it is born of.
    pub cause: RecordId,
    /// When it is due.
    pub due_at: Micros,
    /// It may not be sent, for this reason: it is kept, ends `failed` where it begins, and is never due.
    pub refused: Option<&'static str>,
}

/// The id of a message: time-ordered, and the same whenever the same cause brings about the same message.
#[must_use]
pub fn id_of(at: Micros, cause: RecordId, channel: &str, destination: i32, trigger: &str) -> Uuid {
    let mut hash = Sha256::new();
    hash.update(cause.to_uuid().as_bytes());
    hash.update(destination.to_be_bytes());
    for part in [channel, trigger] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut bytes = [0u8; 16];
    for (to, from) in bytes.iter_mut().zip(digest) {
        *to = from;
    }
    let millis = u64::try_from(at.0 / 1_000).unwrap_or(0).to_be_bytes();
    for (to, from) in bytes.iter_mut().zip(millis.into_iter().skip(2)) {
        *to = from;
    }
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

const OUTBOX: &str =
    "COPY outbox (outbox_id, created_at, workspace_id, channel, destination_no, subject_key, scope_key,
     dedupe_key, payload, cause, status, status_reason, ended_at) FROM STDIN BINARY";
const DUE: &str =
    "COPY outbox_due (outbox_id, created_at, destination_no, due_at) FROM STDIN BINARY";

/// Writes messages; `wall` is the day's partition they go into, which must exist.
///
/// # Errors
/// The store's.
pub async fn write(
    session: &Session,
    messages: &[Message],
    wall: Micros,
) -> Result<(), tokio_postgres::Error> {
    let (mut bodies, mut due) = (Rows::new(), Rows::new());
    for m in messages {
        bodies.row(13).uuid(m.id).time(wall).i32(m.workspace);
        bodies.text(m.channel).i32(m.destination);
        bodies
            .opt_text(m.subject_key.as_deref())
            .opt_text(m.scope_key.as_deref())
            .opt_text(m.dedupe_key.as_deref());
        bodies.text(&m.payload).uuid(m.cause.to_uuid());
        match m.refused {
            None => {
                bodies.text("scheduled").null().null();
                due.row(4)
                    .uuid(m.id)
                    .time(wall)
                    .i32(m.destination)
                    .time(m.due_at.max(wall));
            }
            Some(why) => {
                bodies.text("failed").text(why).time(wall);
            }
        }
    }
    session.copy(OUTBOX, bodies).await?;
    session.copy(DUE, due).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_ordered_by_time_and_told_apart_by_cause() {
        let cause = RecordId {
            topic_no: 1,
            partition: 2,
            offset: 3,
        };
        let other = RecordId { offset: 4, ..cause };
        let at = Micros(1_700_000_000_000_000);
        let id = id_of(at, cause, "meta", 7, "campaign:px_1");
        assert_eq!(id, id_of(at, cause, "meta", 7, "campaign:px_1"));
        for another in [
            id_of(at, other, "meta", 7, "campaign:px_1"),
            id_of(at, cause, "webhook", 7, "campaign:px_1"),
            id_of(at, cause, "meta", 8, "campaign:px_1"),
            id_of(at, cause, "meta", 7, "campaign:px_2"),
        ] {
            assert_ne!(id, another);
            assert_eq!(id.as_bytes()[..6], another.as_bytes()[..6]);
        }
        assert!(id < id_of(Micros(at.0 + 1_000), other, "meta", 7, "x"));
        assert_eq!(id.get_version_num(), 8);
    }
}
