//! The users whose address a contact is, and what was written to them and because of them.

use super::contact::{Contact, ERASED};
use super::places::{FIRINGS, Found, Holding, OUTBOX, Scrubbed};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokio_postgres::{Client, Error};
use uuid::Uuid;

/// A user whose address it is.
#[derive(Debug)]
pub(super) struct Person {
    /// Their workspace.
    pub workspace: i32,
    /// Their id in it.
    pub id: String,
    /// Messages to them whose words are still there.
    pub notices: BTreeSet<Uuid>,
}

/// Finds them by the hash of the folded address, with the messages to them and the firings that are theirs alone; what stays of
/// those takes the place of what was found in them before.
pub(super) async fn find(
    client: &Client,
    contact: &Contact,
    workspace: Option<i32>,
    found: &mut Found,
) -> Result<(), Error> {
    let users = client
        .query(
            "SELECT workspace_id, user_id FROM users
             WHERE sha256(convert_to(email_folded, 'UTF8')) = decode($1::text, 'hex') AND ($2::int IS NULL OR workspace_id = $2)
             ORDER BY 1, 2",
            &[&contact.digest(), &workspace],
        )
        .await?;
    for user in &users {
        let mut person = Person {
            workspace: user.try_get(0)?,
            id: user.try_get(1)?,
            notices: BTreeSet::new(),
        };
        let mut theirs = notices(client, contact, &mut person).await?;
        theirs.extend(firings(client, &person).await?);
        let ids: BTreeSet<(&str, Uuid)> = theirs.iter().map(|h| (h.place.table, h.id)).collect();
        found.rows.retain(|h| !ids.contains(&(h.place.table, h.id)));
        found.rows.extend(theirs);
        found.people.push(person);
    }
    Ok(())
}

/// Messages to a person, without their words.
async fn notices(
    client: &Client,
    contact: &Contact,
    person: &mut Person,
) -> Result<Vec<Holding>, Error> {
    let rows = client
        .query(
            "SELECT outbox_id, created_at, payload::text FROM outbox
             WHERE workspace_id = $1 AND channel IN ('email', 'inapp', 'push')
               AND (user_id = $2 OR (user_id IS NULL AND payload ->> 'user' = $2))",
            &[&person.workspace, &person.id],
        )
        .await?;
    let mut theirs = Vec::new();
    for row in &rows {
        let Some(left) = without_words(row.try_get(2)?, contact) else {
            continue;
        };
        let id = row.try_get(0)?;
        person.notices.insert(id);
        theirs.push(Holding {
            place: OUTBOX,
            id,
            at: Some(row.try_get(1)?),
            scrubbed: Scrubbed::Text(left),
        });
    }
    Ok(theirs)
}

/// What fired for a person and for nobody else, without its variables: they own it, it carried them alone, or it was passed on for
/// them alone. From what others were told of as well, the contact itself is taken out, as from any text.
async fn firings(client: &Client, person: &Person) -> Result<Vec<Holding>, Error> {
    let rows = client
        .query(
            "SELECT firing_pos, accepted_at FROM firings
             WHERE workspace_id = $1 AND vars::text <> '{}'
               AND (owner = $2 OR recipients = ARRAY[$2::text]
                    OR (notices = 1 AND firing_pos IN (
                        SELECT firing_pos FROM outbox WHERE workspace_id = $1 AND user_id = $2)))",
            &[&person.workspace, &person.id],
        )
        .await?;
    let mut theirs = Vec::new();
    for row in &rows {
        theirs.push(Holding {
            place: FIRINGS,
            id: row.try_get(0)?,
            at: Some(row.try_get(1)?),
            scrubbed: Scrubbed::Text("{}".to_owned()),
        });
    }
    Ok(theirs)
}

/// A notice's payload without what it says: neither body nor variables nor a sealed address nor an account; whom it is for and what makes a second
/// one the same stay. `None`: it says nothing any more.
fn without_words(payload: &str, contact: &Contact) -> Option<String> {
    let Ok(Value::Object(before)) = serde_json::from_str::<Value>(payload) else {
        // No notice of ours; it could not have been sent either.
        return (payload != "{}").then(|| "{}".to_owned());
    };
    if before.is_empty() {
        return None;
    }
    let mut members = before.clone();
    members.remove("vars");
    members.remove("to_sealed");
    // The account in a game that made somebody its owner: nobody asks for it any more.
    members.remove("linked");
    members.insert("body".to_owned(), json!({"title": ERASED}));
    let before = Value::Object(before);
    let mut after = Value::Object(members);
    contact.scrub_json(&mut after);
    (after != before).then(|| after.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_schemas::notification::Notification;

    #[test]
    fn a_notice_loses_its_words_and_still_reads() {
        let jane = Contact::from_email("jane.doe@private.example").unwrap();
        let payload = json!({"v": 1, "user": "u1", "trigger": "core.x", "dedupe_key": "k", "at": 5,
            "body": {"title": "Jane Doe, your order", "intro": "to Elm Street"}, "to_sealed": "abc",
            "vars": {"name": "Jane Doe", "mail": "jane.doe@private.example"}});
        let left = without_words(&payload.to_string(), &jane).unwrap();
        for gone in ["Jane", "jane", "Elm", "abc", "vars"] {
            assert!(!left.contains(gone), "{left}");
        }
        let read: Notification = serde_json::from_str(&left).unwrap();
        assert_eq!((read.user.as_str(), read.dedupe_key.as_str()), ("u1", "k"));
        assert_eq!(read.said().title, ERASED);
        assert_eq!(without_words(&left, &jane), None);
        assert_eq!(without_words("[1]", &jane).as_deref(), Some("{}"));
        assert_eq!(without_words("{}", &jane), None);
    }
}
