//! What tells of a user, taken out of the tables that know them by their id.

use super::Work;
use crate::erasure::contact::{Contact, ERASED};
use crate::erasure::people::Person;
use millrace_schemas::ids;
use tokio_postgres::Error;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

/// What happens to a table's rows.
struct Step<'a> {
    table: &'static str,
    /// SQL of what its rows are counted by.
    id: &'a str,
    /// What is set; none: the rows go.
    set: Option<&'a str>,
    condition: &'a str,
}

impl Work<'_> {
    /// Does a step, or looks at which rows it would change.
    async fn step(
        &mut self,
        step: &Step<'_>,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<(), Error> {
        let Step {
            table,
            id,
            set,
            condition,
        } = *step;
        let sql = match (self.act, set) {
            (false, _) => format!("SELECT ({id})::text FROM {table} WHERE {condition}"),
            (true, Some(set)) => {
                format!("UPDATE {table} SET {set} WHERE {condition} RETURNING ({id})::text")
            }
            (true, None) => format!("DELETE FROM {table} WHERE {condition} RETURNING ({id})::text"),
        };
        let rows = self.client.query(&sql, parameters).await?;
        for row in &rows {
            let text: &str = row.try_get(0)?;
            let id =
                Uuid::try_parse(text).unwrap_or_else(|_| ids::digest("erased", &[text.as_bytes()]));
            self.touch(table, id);
        }
        Ok(())
    }

    /// The address stays suppressed, by its hash; nothing else is said of it.
    pub(super) async fn suppressions(
        &mut self,
        contact: &Contact,
        workspace: Option<i32>,
    ) -> Result<(), Error> {
        let set = format!("address_masked = '{ERASED}', detail = NULL");
        let step = Step {
            table: "suppressions",
            id: "suppression_id",
            set: Some(&set),
            condition: &format!(
                "address_hash = decode($1::text, 'hex') AND ($2::int IS NULL OR workspace_id = $2)
                 AND (address_masked <> '{ERASED}' OR detail IS NOT NULL)"
            ),
        };
        self.step(&step, &[&contact.digest(), &workspace]).await
    }

    /// A user's notifications, devices and what receivers said of messages to them; then name and address. Those come last, and not
    /// while a message to them is being sent: the next run finds it by them.
    pub(super) async fn person(&mut self, person: &Person) -> Result<(), Error> {
        let parameters: &[&(dyn ToSql + Sync)] = &[&person.workspace, &person.id];
        let unsaid = format!("title = '{ERASED}', body = '', url = NULL");
        let says = format!(
            "workspace_id = $1 AND user_id = $2 AND (title <> '{ERASED}' OR body <> '' OR url IS NOT NULL)"
        );
        let steps = [
            Step {
                table: "user_notifications",
                id: "outbox_id",
                set: Some(&unsaid),
                condition: &says,
            },
            Step {
                table: "push_subscriptions",
                id: "subscription_id",
                set: None,
                condition: "workspace_id = $1 AND user_id = $2",
            },
            // A masked address, and words that may name it.
            Step {
                table: "send_log",
                id: "outbox_id",
                set: Some("target = NULL, excerpt = NULL"),
                condition: "workspace_id = $1 AND (target IS NOT NULL OR excerpt IS NOT NULL) AND outbox_id IN (
                                SELECT o.outbox_id FROM outbox o WHERE o.workspace_id = $1 AND o.user_id = $2)",
            },
        ];
        for step in &steps {
            self.step(step, parameters).await?;
        }
        if !person.notices.is_disjoint(&self.being_sent) {
            return Ok(());
        }
        let step = Step {
            table: "users",
            id: "workspace_id || ':' || user_id",
            set: Some(
                "name = NULL, email = NULL, email_verified = false, version = version + 1, updated_at = now(), updated_by = 'erase'",
            ),
            condition: "workspace_id = $1 AND user_id = $2",
        };
        self.step(&step, parameters).await
    }
}
