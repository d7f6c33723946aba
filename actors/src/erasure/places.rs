//! Every place that may hold a contact, read and compared.

use super::contact::Contact;
use super::people::{self, Person};
use crate::postgres::types::Tz;
use futures::TryStreamExt;
use millrace_schemas::ids::ClickKey;
use std::collections::BTreeSet;
use std::pin::pin;
use tokio_postgres::{Client, Error, Row};
use uuid::Uuid;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The person's clicks.
    pub clicks: BTreeSet<ClickKey>,
    /// The users whose address it is.
    pub people: Vec<Person>,
    /// Rows that hold the contact themselves, with what stays of them.
    pub rows: Vec<Holding>,
}

/// A row that holds the contact.
#[derive(Debug)]
pub(super) struct Holding {
    /// Its table.
    pub place: &'static Place,
    /// What it is found by: the record's id, or the message's.
    pub id: Uuid,
    /// The day's column, where the table has days.
    pub at: Option<Tz>,
    /// The column without the contact.
    pub scrubbed: Scrubbed,
}

/// A column's new value.
#[derive(Debug)]
pub(super) enum Scrubbed {
    /// Of text or json.
    Text(String),
    /// Of bytea.
    Bytes(Vec<u8>),
}

/// A column that may hold a contact.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub table: &'static str,
    pub column: &'static str,
    /// The column of what a row is found by.
    pub id: &'static str,
    /// The column that the table is partitioned by.
    pub day: Option<&'static str>,
    /// SQL for the click's key and for its text, of which one may be null.
    click: (&'static str, &'static str),
    /// Whether it is bytes.
    bytes: bool,
    /// Whether it is JSON, as text.
    json: bool,
}

/// Texts that others wrote. Columns made for hashes are `conversions`' alone, see [`find`].
const PLACES: &[Place] = &[
    Place {
        table: "visits",
        column: "params",
        id: "record_id",
        day: Some("accepted_at"),
        click: ("click_key", "NULL::text"),
        bytes: false,
        json: true,
    },
    Place {
        table: "visits",
        column: "source_url",
        id: "record_id",
        day: Some("accepted_at"),
        click: ("click_key", "NULL::text"),
        bytes: false,
        json: false,
    },
    Place {
        table: "postback_log",
        column: "query",
        id: "record_id",
        day: Some("accepted_at"),
        click: ("click_key", "NULL::text"),
        bytes: false,
        json: false,
    },
    Place {
        table: "rejects",
        column: "payload",
        id: "record_id",
        day: Some("accepted_at"),
        click: ("NULL::uuid", "click_id"),
        bytes: true,
        json: true,
    },
    Place {
        table: "parked",
        column: "payload",
        id: "record_id",
        day: None,
        click: ("click_key", "NULL::text"),
        bytes: true,
        json: true,
    },
    Place {
        table: "dead_letters",
        column: "payload",
        id: "record_id",
        day: None,
        click: (
            "NULL::uuid",
            "substr(encode(key, 'escape'), strpos(encode(key, 'escape'), ':') + 1)",
        ),
        bytes: true,
        json: true,
    },
    // A notification is found by the message that it came from.
    Place {
        table: "user_notifications",
        column: "title",
        id: "outbox_id",
        day: None,
        click: ("NULL::uuid", "NULL::text"),
        bytes: false,
        json: false,
    },
    Place {
        table: "user_notifications",
        column: "body",
        id: "outbox_id",
        day: None,
        click: ("NULL::uuid", "NULL::text"),
        bytes: false,
        json: false,
    },
    Place {
        table: "user_notifications",
        column: "url",
        id: "outbox_id",
        day: None,
        click: ("NULL::uuid", "NULL::text"),
        bytes: false,
        json: false,
    },
];

/// Messages. What one to a person is about is no click.
pub(super) const OUTBOX: &Place = &Place {
    table: "outbox",
    column: "payload",
    id: "outbox_id",
    day: Some("created_at"),
    click: (
        "NULL::uuid",
        "CASE WHEN user_id IS NULL THEN subject_key END",
    ),
    bytes: false,
    json: true,
};

/// What has fired.
pub(super) const FIRINGS: &Place = &Place {
    table: "firings",
    column: "vars",
    id: "firing_pos",
    day: Some("accepted_at"),
    click: ("NULL::uuid", "NULL::text"),
    bytes: false,
    json: true,
};

/// Reads every place.
pub(super) async fn find(
    client: &Client,
    contact: &Contact,
    workspace: Option<i32>,
) -> Result<Found, Error> {
    let mut found = Found::default();
    let hashed = client
        .query(
            "SELECT DISTINCT workspace_id, click_key FROM conversions
             WHERE $1 IN (lower(email_hash), lower(phone_hash), lower(lead_hash)) AND ($2::int IS NULL OR workspace_id = $2)",
            &[&contact.digest(), &workspace],
        )
        .await?;
    for row in &hashed {
        found.clicks.insert(ClickKey {
            workspace: row.try_get(0)?,
            key: row.try_get(1)?,
        });
    }
    for place in PLACES.iter().chain([OUTBOX, FIRINGS]) {
        read(client, place, contact, workspace, &mut found).await?;
    }
    people::find(client, contact, workspace, &mut found).await?;
    Ok(found)
}

async fn read(
    client: &Client,
    place: &'static Place,
    contact: &Contact,
    workspace: Option<i32>,
    found: &mut Found,
) -> Result<(), Error> {
    let Place {
        table, column, id, ..
    } = place;
    let value = match place.bytes {
        true => (*column).to_owned(),
        false => format!("{column}::text"),
    };
    let sql = format!(
        "SELECT {value}, {id}, {}::timestamptz, coalesce(workspace_id, 0), {}, {} FROM {table}
         WHERE {column} IS NOT NULL AND ($1::int IS NULL OR workspace_id = $1)",
        place.day.unwrap_or("NULL"),
        place.click.0,
        place.click.1,
    );
    let mut rows = pin!(client.query_raw(&sql, [workspace]).await?);
    while let Some(row) = rows.try_next().await? {
        let Some(scrubbed) = scrub(place, contact, &row)? else {
            continue;
        };
        found.rows.push(Holding {
            place,
            id: row.try_get(1)?,
            at: row.try_get(2)?,
            scrubbed,
        });
        let (workspace, key, text): (i32, Option<Uuid>, Option<&str>) =
            (row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
        let click = match (key, text.filter(|t| !t.is_empty())) {
            (Some(key), _) => Some(ClickKey { workspace, key }),
            (None, Some(text)) => Some(ClickKey::new(workspace, text)),
            (None, None) => None,
        };
        found.clicks.extend(click.filter(|c| c.workspace != 0));
    }
    Ok(())
}

fn scrub(place: &Place, contact: &Contact, row: &Row) -> Result<Option<Scrubbed>, Error> {
    if place.bytes {
        let bytes: &[u8] = row.try_get(0)?;
        return Ok(contact.scrub_bytes(bytes).map(Scrubbed::Bytes));
    }
    let text: &str = row.try_get(0)?;
    let scrubbed = match place.json {
        true => contact
            .scrub_bytes(text.as_bytes())
            .and_then(|b| String::from_utf8(b).ok()),
        false => contact.scrub(text),
    };
    Ok(scrubbed.map(Scrubbed::Text))
}
