//! What a batch of notices leaves in the store.

use super::decide::{Passed, Refusal};
use super::ledger::Ledger;
use crate::delivery::outbox::{self, Message, ToPerson};
use crate::postgres::copy::Rows;
use crate::postgres::types::Tz;
use crate::runtime::session::Session;
use millrace_schemas::ids::{self, RecordId};
use millrace_schemas::notice::Notice;
use millrace_schemas::notification::{Linked, Notification};
use millrace_schemas::time::Micros;
use tokio_postgres::Error;
use uuid::Uuid;

/// Refusals that one batch stores at most; the rest is counted.
const REFUSALS_AT_MOST: usize = 20_000;

/// Hours back into their rows; the counters of all come in one array.
pub const HOURS: &str = "
UPDATE rule_hours h SET minute = k.minute, counts = ($3::int4[])[(k.n - 1) * 61 + 1 : k.n * 61]
FROM unnest($1::uuid[], $2::int4[]) WITH ORDINALITY AS k(key, minute, n) WHERE h.key = k.key";
/// Cooldowns that moved.
pub const COOL: &str = "
INSERT INTO cooldowns (key, fired_at) SELECT * FROM unnest($1::uuid[], $2::timestamptz[])
ON CONFLICT (key) DO UPDATE SET fired_at = excluded.fired_at";
/// What was sent.
pub const TOLD: &str = "
INSERT INTO sent_keys (key, outbox_id, sent_at) SELECT k.key, k.id, $3 FROM unnest($1::uuid[], $2::uuid[]) AS k(key, id)";
/// Refusals.
pub const REFUSED: &str = "COPY refusals (firing_pos, refused_at, user_id, rule_id, channel, gate, reason) FROM STDIN BINARY";

/// What gates 6 to 8 claimed.
///
/// # Errors
/// The store's.
pub async fn claims(session: &Session, ledger: &Ledger, wall: Micros) -> Result<(), Error> {
    let hours = ledger.changed_hours();
    if hours.is_empty() {
        // Every message counts in its rule's hour.
        return Ok(());
    }
    let keys: Vec<Uuid> = hours.iter().map(|(key, _)| *key).collect();
    let minutes: Vec<i32> = hours.iter().map(|(_, h)| h.minute()).collect();
    let counts: Vec<i32> = hours.iter().flat_map(|(_, h)| *h.counts()).collect();
    session.execute(HOURS, &[&keys, &minutes, &counts]).await?;
    let cooled = ledger.cooled();
    if !cooled.is_empty() {
        let (keys, times): (Vec<Uuid>, Vec<Tz>) =
            cooled.into_iter().map(|(key, at)| (key, Tz(at))).unzip();
        session.execute(COOL, &[&keys, &times]).await?;
    }
    let (keys, ids): (Vec<Uuid>, Vec<Uuid>) = ledger.told().iter().copied().unzip();
    session.execute(TOLD, &[&keys, &ids, &Tz(wall)]).await?;
    Ok(())
}

/// Refusals, so many that a batch stays bounded.
///
/// # Errors
/// The store's.
pub async fn refusals<'a>(
    session: &Session,
    all: impl Iterator<Item = (&'a Notice, &'a [Refusal])>,
    wall: Micros,
) -> Result<(), Error> {
    let mut rows = Rows::new();
    let (mut kept, mut dropped) = (0, 0);
    for (notice, refused) in all {
        let pos = RecordId::from(notice.firing_pos).to_uuid();
        for r in refused {
            if kept >= REFUSALS_AT_MOST {
                dropped += 1;
                continue;
            }
            kept += 1;
            let rule = notice.rules.get(r.rule).map_or("", |r| &*r.id);
            rows.row(7).uuid(pos).time(wall).text(&notice.user);
            rows.text(rule).text(r.channel.word()).i16(r.gate);
            rows.text(r.reason);
        }
    }
    if dropped > 0 {
        metrics::counter!("refusals_not_stored_total").increment(dropped);
    }
    session.copy(REFUSED, rows).await?;
    Ok(())
}

/// Messages into the outbox.
///
/// # Errors
/// The store's.
pub async fn messages<'a>(
    session: &Session,
    all: impl Iterator<Item = (RecordId, &'a Notice, &'a [Passed])>,
    wall: Micros,
) -> Result<(), Error> {
    let mut messages = Vec::new();
    for (cause, notice, passed) in all {
        for p in passed {
            messages.push(message(cause, notice, p));
        }
    }
    outbox::write_to_people(session, &messages, wall).await
}

/// A message with its frozen payload. The variables are not in it: they stand with the firing, which `firing_pos` names.
#[must_use]
pub fn message(cause: RecordId, notice: &Notice, passed: &Passed) -> ToPerson {
    let rule = notice.rules.get(passed.wanted.rule).map_or("", |r| &*r.id);
    let default_mode = notice.default_modes.get(&passed.wanted.channel);
    let payload = Notification {
        v: millrace_schemas::WIRE_VERSION,
        user: notice.user.clone(),
        trigger: notice.trigger.clone(),
        rule: Some(rule.to_owned()),
        firing: notice.firing.clone(),
        scope: notice.scope.clone(),
        dedupe_key: notice.dedupe_key.clone(),
        at: notice.at,
        max_age_s: notice.max_age_s.and_then(|s| u32::try_from(s).ok()),
        body: notice.body.clone(),
        ceiling: Some(notice.ceiling.word().to_owned()),
        linked: notice.linked_by.as_ref().map(|account| Linked {
            module: notice.module.clone(),
            shard: notice.shard.clone(),
            account: account.clone(),
        }),
        default_mode: default_mode.map(|mode| mode.word().to_owned()),
        after: passed.after,
        ..Notification::default()
    };
    // Text, numbers and what came out of JSON: serialising cannot fail.
    let text = serde_json::to_string(&payload).unwrap_or_else(|_| "{}".to_owned());
    ToPerson {
        message: Message {
            id: passed.id,
            workspace: notice.ws,
            channel: passed.wanted.channel.word(),
            destination: passed.wanted.destination,
            subject_key: (!notice.subject.is_empty()).then(|| notice.subject.clone()),
            scope_key: (!notice.scope.is_empty()).then(|| notice.scope.clone()),
            // What makes a second one the same is not the event alone: the rule, the user and the channel, too.
            dedupe_key: Some(ids::encode(passed.wanted.sent)),
            payload: text,
            cause,
            due_at: passed.due_at,
            refused: None,
        },
        user: notice.user.clone(),
        rule: rule.to_owned(),
        firing_pos: RecordId::from(notice.firing_pos).to_uuid(),
        cancel_key: passed.wanted.cancel,
        after: passed.after,
    }
}
