//! Whom messages were for, and when: nobody twice within a cooldown, nobody outside an event's ceiling, and what was sent in-app
//! stands in an inbox.
//!
//! A message says neither by which version of its rule it was decided nor who the users were then. So it is judged:
//! - by a cooldown, where the rule has the version today that it had when the event fired: versions only grow, so it is the one that
//!   decided. Every message counts, whatever became of it: what a later firing called off has cooled its subject down all the same;
//! - by the ceilings `owner` and `members`, where the event is kept, the rule is unchanged and has no segment: a segment's users are
//!   not stored;
//! - by `staff` and `admin`, where the user was last changed an hour or more before the decision (clocks differ);
//! - by `subscribers` and wider, not at all: preferences say how they are, not how they were.

use super::report::{Checked, Kind};
use super::snapshot::Snapshot;
use millrace_schemas::ids::encode;
use tokio_postgres::Error;
use uuid::Uuid;

/// A message's id begins with the milliseconds of the stream's time at which it was decided: what gate 7 measures. Its `cancel_key`
/// is the key of workspace, rule, shard and subject.
const COOLING: &str = "
SELECT t.outbox_id, t.earlier, t.cooldown_s, t.ms - t.earlier_ms FROM (
    SELECT o.outbox_id, o.cooldown_s, o.ms, lag(o.outbox_id) OVER told AS earlier, lag(o.ms) OVER told AS earlier_ms FROM (
        SELECT o.outbox_id, o.cancel_key, o.user_id, o.channel, r.cooldown_s,
               ('x' || left(replace(o.outbox_id::text, '-', ''), 12))::bit(48)::int8 AS ms
        FROM outbox o JOIN rules r ON r.rule_id = o.rule_id AND r.workspace_id = o.workspace_id
        WHERE r.cooldown_s > 0 AND o.cancel_key IS NOT NULL AND o.created_at >= $1
          AND EXISTS (SELECT FROM firing_rules f
                      WHERE f.firing_pos = o.firing_pos AND f.rule_id = r.rule_id AND f.rule_version = r.version)
    ) o WINDOW told AS (PARTITION BY o.cancel_key, o.user_id, o.channel ORDER BY o.outbox_id)
) t WHERE t.ms - t.earlier_ms < t.cooldown_s * 1000";

/// Payloads are read once; what is rare is asked last.
const OUTSIDE: &str = "
SELECT o.outbox_id, o.user_id, o.ceiling FROM (
    SELECT outbox_id, created_at, workspace_id, rule_id, user_id, firing_pos, payload ->> 'ceiling' AS ceiling
    FROM outbox WHERE rule_id IS NOT NULL AND created_at >= $1 OFFSET 0
) o
LEFT JOIN firings f ON f.firing_pos = o.firing_pos
LEFT JOIN rules r ON r.rule_id = o.rule_id AND r.workspace_id = o.workspace_id
LEFT JOIN users u ON u.workspace_id = o.workspace_id AND u.user_id = o.user_id
WHERE CASE
    WHEN o.ceiling IN ('owner', 'members') THEN
        f.firing_pos IS NOT NULL AND r.rule_id IS NOT NULL AND r.segment_id IS NULL
        AND NOT coalesce(CASE o.ceiling WHEN 'owner' THEN f.owner = o.user_id ELSE o.user_id = ANY (f.recipients) END, false)
        AND EXISTS (SELECT FROM firing_rules s
                    WHERE s.firing_pos = o.firing_pos AND s.rule_id = r.rule_id AND s.rule_version = r.version)
    WHEN o.ceiling = 'staff' THEN u.role = 'user' AND u.updated_at <= o.created_at - interval '1 hour'
    WHEN o.ceiling = 'admin' THEN u.role <> 'admin' AND u.updated_at <= o.created_at - interval '1 hour'
    ELSE false END";

/// A second rule that tells the same event writes no second item: its message stands for the first one's, and that item may have
/// gone since by the days of its own.
const NOT_IN_INBOX: &str = "
SELECT o.outbox_id, o.user_id FROM (
    SELECT o.outbox_id, o.workspace_id, o.user_id, o.payload ->> 'dedupe_key' AS dedupe_key
    FROM outbox o LEFT JOIN user_notifications n ON n.outbox_id = o.outbox_id
    WHERE o.channel = 'inapp' AND o.status = 'sent' AND o.user_id IS NOT NULL AND o.created_at >= $1 AND o.ended_at >= $2
      AND n.outbox_id IS NULL OFFSET 0
) o LEFT JOIN user_notifications n USING (workspace_id, user_id, dedupe_key)
WHERE n.outbox_id IS NULL AND EXISTS (SELECT FROM send_log l WHERE l.outbox_id = o.outbox_id AND l.code = 'written')";

pub(super) async fn check(s: &Snapshot<'_>, found: &mut Checked) -> Result<(), Error> {
    // Without a message of a rule there is nothing to judge, and what follows reads whole tables.
    if s.rows(&["sent_keys"]).await? == 0 {
        return Ok(());
    }
    let kept = s.kept.from(&["outbox"]);
    s.each(COOLING, &[&kept], |row| {
        let (earlier, cooldown_s, apart): (Uuid, i64, i64) = (row.get(1), row.get(2), row.get(3));
        let earlier = encode(earlier);
        let what = format!(
            "told {apart} ms after message {earlier}, within the rule's cooldown of {cooldown_s} s"
        );
        found.add(Kind::Doubled, encode(row.get(0)), what);
    })
    .await?;
    s.each(OUTSIDE, &[&kept], |row| {
        let (user, ceiling): (&str, &str) = (row.get(1), row.get(2));
        let what = format!("told to {user}, who is outside the event's ceiling `{ceiling}`");
        found.add(Kind::Wrong, encode(row.get(0)), what);
    })
    .await?;
    // Items that were read go after a while.
    let inboxes = s.kept.safely_from(&["user_notifications"]);
    s.each(NOT_IN_INBOX, &[&kept, &inboxes], |row| {
        let user: &str = row.get(1);
        let what = format!("sent to the inbox of {user}, and not there");
        found.add(Kind::Lost, encode(row.get(0)), what);
    })
    .await
}
