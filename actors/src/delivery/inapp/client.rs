//! Rows of inboxes. All SQL on `user_notifications` that delivery writes.

use crate::delivery::channel::Leased;
use crate::postgres::types::Tz;
use crate::runtime::session::{Connect, Session, describe};
use crate::templates;
use millrace_schemas::notification::Notification;
use millrace_schemas::time::Micros;
use std::cell::RefCell;
use std::collections::HashSet;
use uuid::Uuid;

/// The unique (workspace, user, dedupe key) decides: two rules that tell one event, or an attempt whose end was lost, leave one row.
/// Within one statement the earlier message goes first.
const INSERT: &str = "
INSERT INTO user_notifications (workspace_id, user_id, dedupe_key, outbox_id, trigger_id, scope, title, body, url, created_at)
SELECT workspace_id, user_id, dedupe_key, outbox_id, trigger_id, scope, title, body, url, $10::timestamptz
FROM unnest($1::int4[], $2::text[], $3::text[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[])
     WITH ORDINALITY AS n(workspace_id, user_id, dedupe_key, outbox_id, trigger_id, scope, title, body, url, nth)
ORDER BY nth
ON CONFLICT (workspace_id, user_id, dedupe_key) DO NOTHING
RETURNING outbox_id";

/// Whose row stands under the key of each message.
const STANDING: &str = "
SELECT n.outbox_id FROM unnest($1::int4[], $2::text[], $3::text[], $4::uuid[]) AS n(workspace_id, user_id, dedupe_key, outbox_id)
JOIN user_notifications u USING (workspace_id, user_id, dedupe_key)
WHERE u.outbox_id = n.outbox_id";

/// Writes over a connection of its own.
pub(super) struct Inboxes {
    connect: Connect,
    session: RefCell<Option<Session>>,
}

impl Inboxes {
    pub fn new(connect: Connect) -> Inboxes {
        Inboxes {
            connect,
            session: RefCell::new(None),
        }
    }

    /// Writes a row for each message; answers those whose row it is, now or since an attempt before.
    ///
    /// # Errors
    /// The store's; no row was written.
    pub async fn write(
        &self,
        messages: &[(Leased, Notification)],
        wall: Micros,
    ) -> Result<HashSet<Uuid>, String> {
        let live = match self.session.take() {
            Some(session) if !session.client().is_closed() => session,
            _ => Session::new((self.connect)().await?),
        };
        let items: Vec<templates::InboxItem> = messages
            .iter()
            .map(|(_, notice)| templates::inbox(&notice.said()))
            .collect();
        fn column<'a, T>(
            all: &'a [(Leased, Notification)],
            of: impl Fn(&'a (Leased, Notification)) -> T,
        ) -> Vec<T> {
            all.iter().map(of).collect()
        }
        let workspaces = column(messages, |(m, _)| m.workspace);
        let users = column(messages, |(_, n)| n.user.as_str());
        let keys = column(messages, |(_, n)| n.dedupe_key.as_str());
        let ids = column(messages, |(m, _)| m.id);
        let titles: Vec<String> = items.iter().map(|i| storable(&i.title)).collect();
        let bodies: Vec<String> = items.iter().map(|i| storable(&i.body)).collect();
        let urls: Vec<Option<&str>> = items.iter().map(|i| i.url.as_deref()).collect();
        live.query(
            INSERT,
            &[
                &workspaces,
                &users,
                &keys,
                &ids,
                &column(messages, |(_, n)| n.trigger.as_str()),
                &column(messages, |(_, n)| n.scope.as_str()),
                &titles,
                &bodies,
                &urls,
                &Tz(wall),
            ],
        )
        .await
        .map_err(|e| describe(&e))?;
        let rows = live
            .query(STANDING, &[&workspaces, &users, &keys, &ids])
            .await
            .map_err(|e| describe(&e))?;
        let ours = rows.iter().map(|row| row.get(0)).collect();
        self.session.replace(Some(live));
        Ok(ours)
    }
}

/// What the store takes as text.
fn storable(text: &str) -> String {
    text.replace('\0', "")
}
