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

/// A message to a person: it can be called off by a later firing, and may have to wait for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToPerson {
    /// The message.
    pub message: Message,
    /// Whom it is for.
    pub user: String,
    /// The rule by which they are told.
    pub rule: String,
    /// Where the firing stands that it comes from, as a record id.
    pub firing_pos: Uuid,
    /// Key of the mark that calls it off (`cancel_marks`).
    pub cancel_key: Uuid,
    /// The message of the same transaction that must have ended before this one is claimed.
    pub after: Option<Uuid>,
}

/// Bodies of messages to people. Public, as [`DUE_AFTER`] is, for whoever measures a stream against its bare statements.
pub const TO_PEOPLE: &str =
    "COPY outbox (outbox_id, created_at, workspace_id, channel, destination_no, subject_key, scope_key,
     dedupe_key, payload, cause, user_id, rule_id, firing_pos, cancel_key) FROM STDIN BINARY";
/// When messages to people are due, and behind which.
pub const DUE_AFTER: &str =
    "COPY outbox_due (outbox_id, created_at, destination_no, due_at, after) FROM STDIN BINARY";

/// Writes messages to people; as [`write()`].
///
/// # Errors
/// The store's.
pub async fn write_to_people(
    session: &Session,
    messages: &[ToPerson],
    wall: Micros,
) -> Result<(), tokio_postgres::Error> {
    let (mut bodies, mut due) = (Rows::new(), Rows::new());
    for p in messages {
        let m = &p.message;
        bodies.row(14).uuid(m.id).time(wall).i32(m.workspace);
        bodies.text(m.channel).i32(m.destination);
        bodies
            .opt_text(m.subject_key.as_deref())
            .opt_text(m.scope_key.as_deref())
            .opt_text(m.dedupe_key.as_deref());
        bodies.text(&m.payload).uuid(m.cause.to_uuid());
        bodies.text(&p.user).text(&p.rule);
        bodies.uuid(p.firing_pos).uuid(p.cancel_key);
        due.row(5).uuid(m.id).time(wall).i32(m.destination);
        due.time(m.due_at.max(wall)).opt_uuid(p.after);
    }
    session.copy(TO_PEOPLE, bodies).await?;
    session.copy(DUE_AFTER, due).await?;
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
