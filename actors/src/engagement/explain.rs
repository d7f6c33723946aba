//! Why somebody was told of an event, or was not: what the gates have stored, never a recomputation. What is not stored any more is
//! said to be so.

use crate::postgres::types::Tz;
use crate::recipients::decide::why::COOLDOWN;
use crate::recipients::keys;
use millrace_schemas::channel::Channel;
use millrace_schemas::ids::{self, RecordId};
use millrace_schemas::time::Micros;
use serde_json::{Map, Value};
use tokio_postgres::{Client, Error};
use uuid::Uuid;

/// One thing that was said of the event and the user, or of the event alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The gate: 0 to 8; none: what became of it behind the gates.
    pub gate: Option<i16>,
    /// The rule; empty: the event as a whole.
    pub rule: String,
    /// The channel; empty: the rule as a whole.
    pub channel: String,
    /// `passed`, `refused`, `told`, `unknown`.
    pub verdict: &'static str,
    /// The refusal's name, or a message's status.
    pub reason: String,
    /// For people.
    pub says: String,
}

/// An event as it fired.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Where it stands.
    pub pos: RecordId,
    /// When it was accepted.
    pub accepted_at: Micros,
    /// Its trigger.
    pub trigger: String,
    /// Its shard.
    pub shard: String,
    /// Its subject.
    pub subject: String,
    /// Its dedupe text.
    pub dedupe: String,
    /// For how many users it was passed on.
    pub notices: i32,
    /// What it said.
    pub vars: Map<String, Value>,
}

/// The workspaces that have an event of this id: nearly always one, since ids are coordinates or minted; two of more.
///
/// # Errors
/// The store's.
pub async fn workspaces_of(client: &Client, id: &str) -> Result<Vec<i32>, Error> {
    let rows = client
        .query(
            "SELECT DISTINCT workspace_id FROM firings WHERE firing_id = $1 ORDER BY 1 LIMIT 2",
            &[&id],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The event of an id, if it is still kept.
///
/// # Errors
/// The store's.
pub async fn event(client: &Client, ws: i32, id: &str) -> Result<Option<Event>, Error> {
    let row = client
        .query_opt(
            "SELECT firing_pos, accepted_at, trigger_id, shard, subject, dedupe, notices, vars
             FROM firings WHERE firing_id = $1 AND workspace_id = $2 ORDER BY accepted_at LIMIT 1",
            &[&id, &ws],
        )
        .await?;
    Ok(row.map(|r| {
        let vars: Value = r.get(7);
        Event {
            pos: RecordId::from_uuid(r.get(0)),
            accepted_at: r.get::<_, Tz>(1).0,
            trigger: r.get(2),
            shard: r.get(3),
            subject: r.get(4),
            dedupe: r.get(5),
            notices: r.get(6),
            vars: vars.as_object().cloned().unwrap_or_default(),
        }
    }))
}

/// Gate by gate, rule by rule, in rule order.
///
/// # Errors
/// The store's.
pub async fn explain(
    client: &Client,
    ws: i32,
    event: &Event,
    user: &str,
) -> Result<Vec<Line>, Error> {
    let pos = event.pos.to_uuid();
    let said = client
        .query(
            "SELECT f.rule_id, f.gate, f.reason, f.reached, f.capped FROM firing_rules f LEFT JOIN rules r ON r.rule_id = f.rule_id
             WHERE f.firing_pos = $1 AND f.accepted_at = $2 ORDER BY r.position NULLS LAST, f.rule_id",
            &[&pos, &Tz(event.accepted_at)],
        )
        .await?;
    let refused = client
        .query(
            "SELECT rule_id, channel, gate, reason FROM refusals WHERE firing_pos = $1 AND user_id = $2 ORDER BY channel",
            &[&pos, &user],
        )
        .await?;
    let mut lines = Vec::new();
    if said.is_empty() {
        lines.push(line(
            Some(1),
            "",
            "refused",
            "no_rules",
            "no rule of this workspace answers the trigger",
        ));
    }
    for row in &said {
        let (rule, gate, reason): (&str, i16, &str) = (row.get(0), row.get(1), row.get(2));
        if gate > 0 {
            let says = gate_1_to_5(gate, reason);
            lines.push(line(Some(gate), rule, "refused", reason, says));
            continue;
        }
        let (reached, capped): (i32, bool) = (row.get(3), row.get(4));
        let more = if capped {
            ", the most there may be"
        } else {
            ""
        };
        let says = format!("its conditions and ceiling hold; it reached {reached} users{more}");
        lines.push(line(Some(4), rule, "passed", "", &says));
        let before = lines.len();
        for r in refused.iter().filter(|r| r.get::<_, &str>(0) == rule) {
            let (channel, gate, reason): (&str, i16, &str) = (r.get(1), r.get(2), r.get(3));
            let says = match reason {
                COOLDOWN => cooldown(client, ws, event, user, rule, channel).await?,
                _ => None,
            };
            let says = says.as_deref().unwrap_or_else(|| gate_5_to_8(reason));
            let mut refusal = line(Some(gate), rule, "refused", reason, says);
            refusal.channel = channel.to_owned();
            lines.push(refusal);
        }
        lines.extend(messages(client, ws, event, user, rule).await?);
        if lines.len() == before {
            lines.push(line(
                Some(3),
                rule,
                "unknown",
                "not_decided",
                "nothing is stored of this user: they were not in the audience, or their notice is not decided yet (`millrace lag`)",
            ));
        }
    }
    Ok(lines)
}

fn line(gate: Option<i16>, rule: &str, verdict: &'static str, reason: &str, says: &str) -> Line {
    Line {
        gate,
        rule: rule.to_owned(),
        channel: String::new(),
        verdict,
        reason: reason.to_owned(),
        says: says.to_owned(),
    }
}

/// The last message of an earlier event of the same subject to the same user by the same rule on the same channel. The cooldown says
/// since when to look: a message is stored when it begins one, by a clock that is a backlog ahead at most.
const BEGAN: &str = "
SELECT o.status, coalesce(o.status_reason, ''),
       EXISTS (SELECT FROM cancel_marks m WHERE m.key = o.cancel_key AND m.firing_pos > o.firing_pos)
FROM outbox o
WHERE o.created_at > (SELECT fired_at - interval '1 day' FROM cooldowns WHERE key = $1)
      AND o.cancel_key = $2 AND o.user_id = $3 AND o.channel = $4 AND o.firing_pos < $5
ORDER BY o.firing_pos DESC LIMIT 1";

/// What a cooldown says to people that was begun by a message that never left: that one keeps it
/// ([`crate::recipients::decide::last`]). `None`: it left, or waits still, or nothing is stored of it any more.
async fn cooldown(
    client: &Client,
    ws: i32,
    event: &Event,
    user: &str,
    rule: &str,
    channel: &str,
) -> Result<Option<String>, Error> {
    let Some(of) = Channel::of_word(channel) else {
        return Ok(None);
    };
    let (shard, subject) = (&event.shard, &event.subject);
    let key = keys::cooldown(ws, rule, user, shard, subject, of);
    let cancel = keys::cancel(ws, rule, shard, subject);
    let row = client
        .query_opt(
            BEGAN,
            &[&key, &cancel, &user, &channel, &event.pos.to_uuid()],
        )
        .await?;
    Ok(row.and_then(|r| {
        let (status, why, called_off): (&str, &str, bool) = (r.get(0), r.get(1), r.get(2));
        match (status, called_off) {
            ("cancelled", _) | ("scheduled", true) => {
                Some("a cooldown by a message that was called off: it keeps its cooldown".to_owned())
            }
            ("suppressed", _) => Some(format!(
                "a cooldown by a message that was held back right before it would have left ({why}): it keeps its cooldown"
            )),
            _ => None,
        }
    }))
}

/// Messages of this event to this user by this rule: found by the key under which gate 8 noted them.
async fn messages(
    client: &Client,
    ws: i32,
    event: &Event,
    user: &str,
    rule: &str,
) -> Result<Vec<Line>, Error> {
    let dedupe_key = format!("{}:{}", event.trigger, event.dedupe);
    let keys: Vec<Uuid> = Channel::ALL
        .into_iter()
        .map(|channel| keys::sent(ws, rule, user, channel, &dedupe_key))
        .collect();
    let rows = client
        .query(
            "SELECT o.outbox_id, o.channel, o.status, coalesce(o.status_reason, ''), d.due_at, o.ended_at
             FROM sent_keys s JOIN outbox o ON o.outbox_id = s.outbox_id
             LEFT JOIN outbox_due d ON d.destination_no = o.destination_no AND d.outbox_id = o.outbox_id
             WHERE s.key = ANY($1) AND o.firing_pos = $2 ORDER BY o.channel",
            &[&keys, &event.pos.to_uuid()],
        )
        .await?;
    let of = |r: &tokio_postgres::Row| {
        let (id, status): (Uuid, &str) = (r.get(0), r.get(2));
        let due = r.get::<_, Option<Tz>>(4).map(|t| t.0.rfc3339());
        let ended = r.get::<_, Option<Tz>>(5).map(|t| t.0.rfc3339());
        let when = match (due, ended) {
            (_, Some(ended)) => format!(", since {ended}"),
            (Some(due), None) => format!(", due at {due}"),
            (None, None) => String::new(),
        };
        let why: &str = r.get(3);
        let because = match why {
            "" => String::new(),
            why => format!(" ({why})"),
        };
        let id = ids::encode(id);
        let mut told = line(None, rule, "told", status, "");
        told.channel = r.get(1);
        told.says = format!("it passed every gate: message {id} is {status}{because}{when}");
        told
    };
    Ok(rows.iter().map(of).collect())
}

/// What a refusal of a rule as a whole, by gates 1 to 5, says to people.
fn gate_1_to_5(gate: i16, reason: &str) -> &'static str {
    match (gate, reason) {
        (1, "rule_off") => "the rule was switched off",
        (1, _) => {
            "the rule is dormant: it names a channel that there is not, or that the trigger cannot have"
        }
        (2, _) => "its conditions did not hold of the event",
        (3, "no_owner") => "the event's account was linked to nobody",
        (3, "no_list") => "the event carried no list, and the rule has no segment",
        (3, "nobody") => "its audience was empty",
        (3, "too_many") => {
            "with the rules before it the event would have reached more users than one event may at once"
        }
        (3, _) => "its audience is dormant: nobody declares it any more",
        (5, _) => "none of its channels was configured in the workspace",
        _ => "its audience was wider than the event's ceiling",
    }
}

/// What a refusal of gates 0 and 5 to 8 says to people.
fn gate_5_to_8(reason: &str) -> &'static str {
    match reason {
        "called_off" => "a later event had called it off",
        "rule_gone" | "rule_off" => "the rule was gone or switched off when the notice was decided",
        "user_inactive" => "the user was not active",
        "ceiling" => "the user was not within the event's ceiling any more",
        "channel_unconfigured" => "the channel was not configured",
        "channel_not_in_rule" => "the rule did not use the channel any more",
        "preference_off" => "the user did not want it on this channel, or never asked for it",
        "preference_digest" => "the user wants it in a digest",
        "never_instant" => "the trigger is never told at once",
        "stale" => "it would be older than its trigger allows by the time it is due",
        "no_address" => "the user has no address",
        "unverified" => "the user's address was not verified",
        "address_suppressed" => {
            "the user's address was suppressed: it bounced, or somebody put it on the list"
        }
        "no_device" => "the user has no device to wake",
        "hourly_cap" => "the rule's messages of the last hour had reached its cap",
        "cooldown" => "the user was told of the same subject within the cooldown",
        "told_already" => "the same event had been told already",
        _ => "the gate refused it",
    }
}
