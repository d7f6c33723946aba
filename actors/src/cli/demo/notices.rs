//! Who was told what of the shard's session, and what each gate held back: recounted from the outbox, from what the gates have
//! noted, from inboxes, and from what the catcher of mail counted.

use super::report::{Check, Checks};
use super::shard::Session;
use super::stand_ins::mail::MailCounts;
use anyhow::Context;
use serde::Serialize;
use tokio_postgres::{Client, GenericClient};

/// Notices of one trigger on one channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The trigger.
    pub trigger: String,
    /// The channel.
    pub channel: String,
    /// How many were told.
    pub told: i64,
    /// How many different people they were told to.
    pub people: i64,
    /// How many wait, since their rule has a delay.
    pub waiting: i64,
}

/// What was held back at one gate for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// The gate, by its number and what it asks. `sending`: asked again right before it would have left. `waiting`: called off while
    /// it waited for its rule's delay.
    pub gate: String,
    /// Why.
    pub reason: String,
    /// What is counted: `rules` (a rule at one event, for everybody) or `messages` (to one person on one channel).
    pub of: &'static str,
    /// How many times.
    pub times: i64,
}

/// What the store says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    /// By trigger and channel.
    pub lines: Vec<Line>,
    /// By gate and reason.
    pub held: Vec<Held>,
    /// Messages by which rules tell people.
    pub messages: i64,
    /// Those by mail that were sent, and attempts at them.
    pub mailed: (i64, i64),
    /// Those in-app that wrote a notification by the send log.
    pub written: i64,
    /// Notifications in inboxes.
    pub notifications: i64,
    /// What the gates of engagement passed on: by rule, people and channel.
    pub wanted: i64,
    /// What the gates of recipients refused of it.
    pub refused: i64,
    /// Notices that engagement passed on, one a person and event.
    pub passed_on: i64,
    /// Notices that were decided.
    pub decided: i64,
}

const LINES: &str = "
SELECT f.trigger_id, o.channel, count(*) FILTER (WHERE o.status = 'sent'),
       count(DISTINCT o.user_id) FILTER (WHERE o.status = 'sent'), count(*) FILTER (WHERE o.status = 'scheduled' AND m.key IS NULL)
FROM outbox o JOIN firings f USING (firing_pos)
LEFT JOIN cancel_marks m ON m.key = o.cancel_key AND m.firing_pos > o.firing_pos
WHERE o.rule_id IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2";

/// Gates 1 to 4 of an event by rule; gates of a message; what was asked again right before it would have left (9 here); what waits
/// and will not leave, since it was called off meanwhile (10 here).
const HELD: &str = "
SELECT gate::integer, reason, true, count(*) FROM firing_rules WHERE gate <> 0 GROUP BY 1, 2
UNION ALL
SELECT gate::integer, reason, false, count(*) FROM refusals GROUP BY 1, 2
UNION ALL
SELECT 9, coalesce(status_reason, status), false, count(*) FROM outbox
WHERE rule_id IS NOT NULL AND status NOT IN ('sent', 'scheduled') GROUP BY 1, 2
UNION ALL
SELECT 10, 'called_off', false, count(*)
FROM outbox o JOIN cancel_marks m ON m.key = o.cancel_key AND m.firing_pos > o.firing_pos
WHERE o.rule_id IS NOT NULL AND o.status = 'scheduled' HAVING count(*) > 0
ORDER BY 1, 3 DESC, 2";

const SUMS: &str = "
SELECT (SELECT count(*) FROM outbox WHERE rule_id IS NOT NULL),
       (SELECT count(*) FROM outbox WHERE channel = 'email' AND status = 'sent'),
       (SELECT count(*) FROM send_log WHERE channel = 'email' AND attempt > 0),
       (SELECT count(*) FROM outbox o WHERE o.channel = 'inapp' AND o.status = 'sent' AND EXISTS (
            SELECT 1 FROM send_log l WHERE l.outbox_id = o.outbox_id AND l.code = 'written')),
       (SELECT count(*) FROM user_notifications),
       (SELECT coalesce(sum(s.reached * cardinality(r.channels)), 0)::bigint FROM firing_rules s JOIN rules r USING (rule_id)
            WHERE s.gate = 0),
       (SELECT count(*) FROM refusals),
       (SELECT coalesce(sum(notices), 0)::bigint FROM firings),
       (SELECT coalesce(sum(consumed), 0)::bigint FROM positions WHERE group_name = 'recipients')";

/// Recounts the notices in one snapshot.
///
/// # Errors
/// The store failed.
pub async fn recount(client: &mut Client) -> anyhow::Result<Notices> {
    let snapshot = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await
        .context("the recount of notices")?;
    let found = read(&snapshot).await.context("the recount of notices")?;
    snapshot.commit().await.context("the recount of notices")?;
    Ok(found)
}

async fn read(client: &impl GenericClient) -> Result<Notices, tokio_postgres::Error> {
    let mut found = Notices::default();
    for row in client.query(LINES, &[]).await? {
        found.lines.push(Line {
            trigger: row.try_get(0)?,
            channel: row.try_get(1)?,
            told: row.try_get(2)?,
            people: row.try_get(3)?,
            waiting: row.try_get(4)?,
        });
    }
    for row in client.query(HELD, &[]).await? {
        let rules: bool = row.try_get(2)?;
        found.held.push(Held {
            gate: gate(row.try_get(0)?),
            reason: row.try_get(1)?,
            of: if rules { "rules" } else { "messages" },
            times: row.try_get(3)?,
        });
    }
    let row = client.query_one(SUMS, &[]).await?;
    Ok(Notices {
        messages: row.try_get(0)?,
        mailed: (row.try_get(1)?, row.try_get(2)?),
        written: row.try_get(3)?,
        notifications: row.try_get(4)?,
        wanted: row.try_get(5)?,
        refused: row.try_get(6)?,
        passed_on: row.try_get(7)?,
        decided: row.try_get(8)?,
        ..found
    })
}

/// Asked again right before it would have left.
const SENDING: &str = "sending";
/// Called off while it waited.
const WAITING: &str = "waiting";

/// A gate by its number and what it asks.
fn gate(number: i32) -> String {
    let asks = match number {
        0 => "called off",
        1 => "rule",
        2 => "conditions",
        3 => "audience",
        4 => "ceiling",
        5 => "channel and preference",
        6 => "hourly cap",
        7 => "cooldown",
        8 => "told already",
        9 => return SENDING.to_owned(),
        _ => return WAITING.to_owned(),
    };
    format!("{number} {asks}")
}

impl Notices {
    /// Messages that were stopped behind the gates: right before they would have left, or called off while they waited.
    fn stopped(&self) -> i64 {
        let stopped = self
            .held
            .iter()
            .filter(|h| h.gate == SENDING || h.gate == WAITING);
        stopped.map(|h| h.times).sum()
    }
}

/// Everything that must hold of notices, each by name.
#[must_use]
pub fn checks(session: &Session, found: &Notices, mail: &MailCounts) -> Vec<Check> {
    let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let mut all = Checks::default();
    let refused = if session.refused.is_empty() {
        "none".to_owned()
    } else {
        format!("{}: {}", session.refused.len(), session.refused.join("; "))
    };
    all.push(
        "shard: frames of the session, and those acknowledged",
        session.frames,
        session.acknowledged,
    );
    all.push("shard: frames refused", "none".to_owned(), refused);
    all.push(
        "notices: passed on by engagement, and decided",
        found.passed_on,
        found.decided,
    );
    all.push(
        "notices: wanted by rules, and messages with those refused",
        found.wanted,
        found.messages + found.refused,
    );
    let in_lines: i64 = found.lines.iter().map(|l| l.told + l.waiting).sum();
    all.push(
        "notices: messages, and those told, waiting or stopped",
        found.messages,
        in_lines + found.stopped(),
    );
    let told_on = |channel: &str| -> i64 {
        let lines = found.lines.iter().filter(|l| l.channel == channel);
        lines.map(|l| l.told).sum()
    };
    all.push(
        "notices: something was told in-app and by mail",
        (true, true),
        (told_on("inapp") > 0, told_on("email") > 0),
    );
    all.push(
        "email: messages sent, and mails at the catcher",
        found.mailed.0,
        signed(mail.taken),
    );
    all.push(
        "email: Message-IDs at the catcher, each once",
        mail.taken,
        mail.message_ids,
    );
    all.push(
        "email: attempts in the send log, and messages sent",
        found.mailed.1,
        found.mailed.0,
    );
    all.push(
        "inapp: messages that wrote a notification, and notifications",
        found.written,
        found.notifications,
    );
    all.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> (Session, Notices, MailCounts) {
        let line = |channel: &str, waiting| Line {
            trigger: "uo.quest.complete".to_owned(),
            channel: channel.to_owned(),
            told: 2,
            people: 1,
            waiting,
        };
        let found = Notices {
            lines: vec![line("email", 0), line("inapp", 1)],
            held: vec![Held {
                gate: gate(9),
                reason: "called_off".to_owned(),
                of: "messages",
                times: 1,
            }],
            messages: 6,
            mailed: (2, 2),
            written: 2,
            notifications: 2,
            wanted: 9,
            refused: 3,
            passed_on: 4,
            decided: 4,
        };
        let session = Session {
            frames: 9,
            acknowledged: 9,
            refused: Vec::new(),
        };
        let mail = MailCounts {
            taken: 2,
            message_ids: 2,
            connections: 1,
        };
        (session, found, mail)
    }

    #[test]
    fn what_does_not_add_up_is_noticed() {
        let failing = |(session, found, mail): &(Session, Notices, MailCounts)| {
            let all = checks(session, found, mail);
            all.iter().filter(|c| !c.holds).count()
        };
        assert_eq!(failing(&told()), 0);
        type Miscount = fn(&mut (Session, Notices, MailCounts));
        let otherwise: [Miscount; 9] = [
            |t| t.0.acknowledged -= 1,
            |t| t.0.refused.push("a 1: kind_malformed".to_owned()),
            |t| t.1.decided -= 1,
            |t| t.1.refused -= 1,
            |t| t.1.messages += 1,
            |t| t.1.notifications += 1,
            |t| t.1.mailed.1 += 1,
            |t| t.2.taken -= 1,
            |t| t.2.message_ids -= 1,
        ];
        for (nth, change) in otherwise.into_iter().enumerate() {
            let mut changed = told();
            change(&mut changed);
            assert!(failing(&changed) > 0, "nobody noticed change {nth}");
        }
    }
}
