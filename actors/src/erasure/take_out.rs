//! What was found, taken out: the rows that hold the contact, then everything that tells the person of the clicks
//! and of the users.

mod people;

use super::Report;
use super::contact::{Contact, without_contacts};
use super::places::{Found, Holding, Scrubbed};
use crate::delivery::ledger::{self, Refused};
use crate::postgres::types::Tz;
use crate::runtime::clock;
use millrace_schemas::ids::{self, ClickKey};
use millrace_topics::catalogue::{ATTRIBUTION, POSTBACKS};
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, GenericClient};
use uuid::Uuid;

/// Parameters of a visit by which a platform knows the person's click again.
const CLICK_IDS: &[&str] = &[
    "fbclid", "gclid", "gbraid", "wbraid", "ttclid", "msclkid", "twclid", "oppref",
];

/// What is under way.
struct Work<'a> {
    client: &'a mut Client,
    act: bool,
    /// Rows that were changed, or would be.
    touched: BTreeMap<&'static str, BTreeSet<Uuid>>,
    called_off: u64,
    /// Messages that are being sent at this moment.
    being_sent: BTreeSet<Uuid>,
}

/// Does it, or says what it would do.
pub(super) async fn take_out(
    client: &mut Client,
    contact: &Contact,
    workspace: Option<i32>,
    found: Found,
    act: bool,
) -> Result<Report, Error> {
    let mut work = Work {
        client,
        act,
        touched: BTreeMap::new(),
        called_off: 0,
        being_sent: BTreeSet::new(),
    };
    for holding in &found.rows {
        if holding.place.table == "outbox" {
            let id = (holding.id, holding.at);
            work.message(id, Some(&holding.scrubbed)).await?;
            continue;
        }
        if act {
            write(work.client, holding).await?;
        }
        work.touch(holding.place.table, holding.id);
    }
    work.reload(&found).await?;
    for click in &found.clicks {
        work.facts(*click).await?;
        work.queries(*click).await?;
    }
    work.messages(&found).await?;
    work.answers(contact, workspace).await?;
    work.suppressions(contact, workspace).await?;
    for person in &found.people {
        work.person(person).await?;
    }
    Ok(Report {
        rows: work
            .touched
            .into_iter()
            .map(|(table, rows)| (table, rows.len() as u64))
            .collect(),
        clicks: found.clicks.len(),
        called_off: work.called_off,
        being_sent: work.being_sent.len() as u64,
    })
}

async fn write(client: &Client, holding: &Holding) -> Result<(), Error> {
    let (table, column, id) = (holding.place.table, holding.place.column, holding.place.id);
    let (value, cast): (&(dyn ToSql + Sync), &str) = match &holding.scrubbed {
        Scrubbed::Bytes(bytes) => (bytes, ""),
        Scrubbed::Text(text) if matches!(column, "params" | "vars") => (text, "::text::json"),
        Scrubbed::Text(text) => (text, ""),
    };
    let day = match holding.place.day {
        Some(day) => format!("{day} = $3"),
        None => "$3::timestamptz IS NULL".to_owned(),
    };
    let sql = format!("UPDATE {table} SET {column} = $1{cast} WHERE {id} = $2 AND {day}");
    client
        .execute(&sql, &[value, &holding.id, &holding.at])
        .await?;
    Ok(())
}

impl Work<'_> {
    fn touch(&mut self, table: &'static str, id: Uuid) {
        self.touched.entry(table).or_default().insert(id);
    }

    /// What waits is held in memory too, by the actor of its partition: it loses its claim and reads anew.
    async fn reload(&mut self, found: &Found) -> Result<(), Error> {
        let parked: Vec<Uuid> = found
            .rows
            .iter()
            .filter(|h| h.place.table == "parked")
            .map(|h| h.id)
            .collect();
        if self.act && !parked.is_empty() {
            self.client
                .execute(
                    "UPDATE ownership SET epoch = epoch + 1, owner = '' WHERE group_name = $1 AND partition IN (
                         SELECT p.hash % t.partitions FROM parked p, topics t
                         WHERE p.record_id = ANY($2) AND t.name = $3 AND t.retired_at IS NULL)",
                    &[&ATTRIBUTION.name, &parked, &POSTBACKS],
                )
                .await?;
        }
        Ok(())
    }

    /// Changes a click's rows, or looks at which it would change.
    async fn change(
        &mut self,
        table: &'static str,
        id: &str,
        set: &str,
        condition: &str,
        click: ClickKey,
    ) -> Result<(), Error> {
        let clause = format!("click_key = $1 AND workspace_id = $2 AND ({condition})");
        let sql = match self.act {
            true => format!("UPDATE {table} SET {set} WHERE {clause} RETURNING {id}"),
            false => format!("SELECT {id} FROM {table} WHERE {clause}"),
        };
        let rows = self
            .client
            .query(&sql, &[&click.key, &click.workspace])
            .await?;
        for row in &rows {
            self.touch(table, row.try_get(0)?);
        }
        Ok(())
    }

    /// A click's visits and conversions without what tells the person.
    async fn facts(&mut self, click: ClickKey) -> Result<(), Error> {
        let ids: Vec<String> = CLICK_IDS.iter().map(|id| format!("'{id}'")).collect();
        let ids = ids.join(", ");
        let set = format!(
            "ip = NULL, ip_hash = NULL, user_agent = NULL, fbp = NULL, fbc = NULL,
             params = CASE WHEN params IS NOT NULL THEN (params::jsonb - ARRAY[{ids}])::json END"
        );
        let condition = format!(
            "ip IS NOT NULL OR ip_hash IS NOT NULL OR user_agent IS NOT NULL OR fbp IS NOT NULL OR fbc IS NOT NULL
             OR params::jsonb ?| ARRAY[{ids}]"
        );
        self.change("visits", "record_id", &set, &condition, click)
            .await?;
        self.change(
            "conversions",
            "conversion_id",
            "email_hash = NULL, phone_hash = NULL, lead_hash = NULL",
            "email_hash IS NOT NULL OR phone_hash IS NOT NULL OR lead_hash IS NOT NULL",
            click,
        )
        .await
    }

    /// The click's logged postbacks without the parameters that tell the person.
    async fn queries(&mut self, click: ClickKey) -> Result<(), Error> {
        let rows = self
            .client
            .query(
                "SELECT record_id, accepted_at, query FROM postback_log
                 WHERE click_key = $1 AND workspace_id = $2 AND query IS NOT NULL",
                &[&click.key, &click.workspace],
            )
            .await?;
        for row in &rows {
            let Some(left) = without_contacts(row.try_get(2)?) else {
                continue;
            };
            let (id, at): (Uuid, Tz) = (row.try_get(0)?, row.try_get(1)?);
            if self.act {
                self.client
                    .execute(
                        "UPDATE postback_log SET query = $3 WHERE record_id = $1 AND accepted_at = $2 AND query IS NOT NULL",
                        &[&id, &at, &left],
                    )
                    .await?;
            }
            self.touch("postback_log", id);
        }
        Ok(())
    }

    /// Messages about the clicks that carry user data.
    async fn messages(&mut self, found: &Found) -> Result<(), Error> {
        let held: Vec<Uuid> = found
            .rows
            .iter()
            .filter(|h| h.place.table == "outbox")
            .map(|h| h.id)
            .collect();
        let mut about: Vec<(i32, String)> = Vec::new();
        for click in &found.clicks {
            about.push((click.workspace, text_of(self.client, *click).await?));
        }
        let workspaces: Vec<i32> = about.iter().map(|a| a.0).collect();
        let subjects: Vec<&str> = about.iter().map(|a| a.1.as_str()).collect();
        let rows = self
            .client
            .query(
                "SELECT o.outbox_id, o.created_at FROM outbox o
                 JOIN unnest($1::int[], $2::text[]) AS a(workspace, subject)
                   ON o.workspace_id = a.workspace AND o.subject_key = a.subject
                 WHERE o.payload #>> '{event,user_data}' <> '{}' AND NOT o.outbox_id = ANY($3)",
                &[&workspaces, &subjects, &held],
            )
            .await?;
        for row in &rows {
            self.message((row.try_get(0)?, row.try_get(1)?), None)
                .await?;
        }
        Ok(())
    }

    /// Answers of the API that are kept for a day, to be given again.
    async fn answers(&mut self, contact: &Contact, workspace: Option<i32>) -> Result<(), Error> {
        let rows = self
            .client
            .query(
                "SELECT i.actor, i.operation, i.key, i.answer::text FROM idempotency_keys i
                 WHERE $1::int IS NULL OR EXISTS (SELECT FROM api_keys k WHERE k.key_id = i.actor AND k.workspace_id = $1)",
                &[&workspace],
            )
            .await?;
        for row in &rows {
            let answer: &str = row.try_get(3)?;
            let Some(scrubbed) = contact.scrub_bytes(answer.as_bytes()) else {
                continue;
            };
            let (actor, operation, key): (&str, &str, &str) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            if self.act {
                let scrubbed = String::from_utf8_lossy(&scrubbed);
                self.client
                    .execute(
                        "UPDATE idempotency_keys SET answer = $4::text::jsonb WHERE actor = $1 AND operation = $2 AND key = $3",
                        &[&actor, &operation, &key, &scrubbed],
                    )
                    .await?;
            }
            let parts = [actor.as_bytes(), operation.as_bytes(), key.as_bytes()];
            self.touch("idempotency_keys", ids::digest("answer", &parts));
        }
        Ok(())
    }

    /// One message: called off if it has not left, and without user data in any case.
    async fn message(
        &mut self,
        (id, at): (Uuid, Option<Tz>),
        scrubbed: Option<&Scrubbed>,
    ) -> Result<(), Error> {
        let tx = self.client.transaction().await?;
        let waits: bool = tx
            .query_one(
                "SELECT coalesce(bool_or(status = 'scheduled'), false) FROM outbox WHERE outbox_id = $1 AND created_at = $2",
                &[&id, &at],
            )
            .await?
            .try_get(0)?;
        let mut called_off = waits;
        if waits && self.act {
            match ledger::cancel(&tx, None, id, clock::from_environment().wall()).await {
                Ok(()) => {}
                Err(Refused::Store(e)) => return Err(e),
                // It has ended meanwhile: its body can be changed as that of any other.
                Err(Refused::Ended(_)) => called_off = false,
                Err(_) => {
                    self.being_sent.insert(id);
                    return tx.rollback().await;
                }
            }
        }
        if self.act {
            let text = match scrubbed {
                Some(Scrubbed::Text(text)) => Some(text),
                _ => None,
            };
            tx.execute(
                "UPDATE outbox SET status_reason = CASE WHEN $4 THEN 'erased' ELSE status_reason END,
                        payload = CASE WHEN coalesce($3::text::json, payload) #> '{event,user_data}' IS NULL
                                       THEN coalesce($3::text::json, payload)
                                       ELSE jsonb_set(coalesce($3::text::json, payload)::jsonb, '{event,user_data}', '{}')::json END
                 WHERE outbox_id = $1 AND created_at = $2",
                &[&id, &at, &text, &called_off],
            )
            .await?;
        }
        tx.commit().await?;
        self.called_off += u64::from(called_off);
        self.touch("outbox", id);
        Ok(())
    }
}

/// The text of a click id: minted ones are their key; of a foreign one some fact knows it.
async fn text_of(client: &impl GenericClient, click: ClickKey) -> Result<String, Error> {
    let row = client
        .query_opt(
            "SELECT click_id FROM (
                 (SELECT click_id FROM visits WHERE click_key = $1 AND workspace_id = $2 AND click_id IS NOT NULL LIMIT 1)
                 UNION ALL
                 (SELECT click_id FROM conversions WHERE click_key = $1 AND workspace_id = $2 AND click_id IS NOT NULL LIMIT 1)
             ) AS known LIMIT 1",
            &[&click.key, &click.workspace],
        )
        .await?;
    match row {
        Some(row) => row.try_get(0),
        None => Ok(ids::encode(click.key)),
    }
}
