//! What a batch's notices ask of the store: within its transaction, set by set.

use super::decide::Wanted;
use super::facts::{Configured, Facts, Person, Place, RuleNow};
use super::hour::{Hour, MINUTES};
use super::keys;
use super::ledger::Ledger;
use super::preference::Said;
use super::slice::Cooldowns;
use crate::postgres::types::Tz;
use crate::runtime::session::Session;
use hashbrown::HashMap;
use millrace_schemas::channel::{Channel, Mode};
use millrace_schemas::notice::Notice;
use millrace_schemas::time::Micros;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};
use uuid::Uuid;

/// Users by workspace and id, whether a device of theirs can be woken, and whether their address is suppressed. Public, as the statements below and in [`super::store`]
/// are, for whoever measures the stream against its bare statements.
pub const PEOPLE: &str = "
SELECT u.workspace_id, u.user_id, u.status = 'active', u.email IS NOT NULL, u.email_verified, u.role,
       EXISTS (SELECT FROM push_subscriptions p WHERE p.workspace_id = u.workspace_id AND p.user_id = u.user_id),
       s.address_hash IS NOT NULL
FROM unnest($1::int4[], $2::text[]) AS k(ws, id) JOIN users u ON u.workspace_id = k.ws AND u.user_id = k.id
LEFT JOIN suppressions s ON s.workspace_id = u.workspace_id AND s.address_hash = sha256(convert_to(u.email_folded, 'UTF8'))";

/// What they have said of these streams and triggers, and of all.
pub const SAID: &str = "
SELECT p.workspace_id, p.user_id, p.stream_id, p.channel, p.scope, p.mode, p.changed_at
FROM unnest($1::int4[], $2::text[]) AS k(ws, id) JOIN preferences p ON p.workspace_id = k.ws AND p.user_id = k.id
WHERE p.stream_id = ANY($3)";

/// Rules as they stand.
pub const RULES: &str = "
SELECT rule_id, workspace_id, enabled, channels, delay_s, cooldown_s, hourly_cap FROM rules WHERE rule_id = ANY($1)";

/// Workspaces with the destinations of their channels, as far as the store knows them: what the settings do not let out is dropped
/// of them ([`Configured`]). In-app needs nothing to be configured; push does as soon as anybody has a device.
pub const PLACES: &str = "
SELECT w.workspace_id, w.verified_email_only,
       (SELECT d.destination_no FROM mail_transports m JOIN destinations d ON d.channel = 'email' AND d.ref = m.transport_id
        WHERE m.workspace_id = w.workspace_id AND m.enabled),
       notification_destination(w.workspace_id, 'inapp'),
       CASE WHEN EXISTS (SELECT FROM push_subscriptions p WHERE p.workspace_id = w.workspace_id)
            THEN notification_destination(w.workspace_id, 'push') END
FROM (SELECT * FROM workspaces WHERE workspace_id = ANY($1) ORDER BY workspace_id) w";

/// Marks by key.
pub const MARKS: &str = "SELECT key, firing_pos FROM cancel_marks WHERE key = ANY($1)";

/// Reads what gates 0 to 5 ask, where the settings let out what is `configured`.
///
/// # Errors
/// The store's.
pub async fn facts(
    session: &Session,
    notices: &[&Notice],
    configured: Configured,
) -> Result<Facts, Error> {
    let mut asked = Asked::default();
    for notice in notices {
        asked.add(notice);
    }
    asked.order();
    let (ws, users): (Vec<i32>, Vec<&str>) = asked.users.iter().copied().unzip();
    let people: [&(dyn ToSql + Sync); 2] = [&ws, &users];
    let said: [&(dyn ToSql + Sync); 3] = [&ws, &users, &asked.triggers];
    let rules: [&(dyn ToSql + Sync); 1] = [&asked.rules];
    let places: [&(dyn ToSql + Sync); 1] = [&asked.places];
    let marks: [&(dyn ToSql + Sync); 1] = [&asked.marks];
    let (people, said, rules, places, marks) = futures::try_join!(
        session.query(PEOPLE, &people),
        session.query(SAID, &said),
        session.query(RULES, &rules),
        session.query(PLACES, &places),
        session.query(MARKS, &marks),
    )?;
    let mut facts = gather(&people, &said, &rules, &places, &marks);
    for place in facts.places.values_mut() {
        *place = std::mem::take(place).only(configured);
    }
    Ok(facts)
}

/// Facts of rows of [`PEOPLE`], [`SAID`], [`RULES`], [`PLACES`] and [`MARKS`].
pub(super) fn gather(
    people: &[Row],
    said: &[Row],
    rules: &[Row],
    places: &[Row],
    marks: &[Row],
) -> Facts {
    let mut facts = Facts::default();
    for row in people {
        let person = person(row);
        let of: &mut HashMap<_, _> = facts.people.entry(row.get(0)).or_default();
        of.insert(row.get::<_, &str>(1).into(), person);
    }
    for row in said {
        let of = facts.people.get_mut(&row.get::<_, i32>(0));
        if let Some(person) = of.and_then(|p| p.get_mut(row.get::<_, &str>(1)))
            && let Some(one) = said_of(row)
        {
            person.said.push(one);
        }
    }
    for row in rules {
        facts.rules.insert(row.get::<_, &str>(0).into(), rule(row));
    }
    for row in places {
        facts.places.insert(row.get(0), place(row));
    }
    for row in marks {
        facts.marks.insert(row.get(0), row.get(1));
    }
    facts
}

#[derive(Default)]
struct Asked<'a> {
    users: Vec<(i32, &'a str)>,
    triggers: Vec<&'a str>,
    rules: Vec<&'a str>,
    places: Vec<i32>,
    marks: Vec<Uuid>,
}

impl<'a> Asked<'a> {
    fn add(&mut self, notice: &'a Notice) {
        self.users.push((notice.ws, &notice.user));
        self.triggers.push(&notice.trigger);
        self.places.push(notice.ws);
        for rule in &notice.rules {
            self.rules.push(&rule.id);
            let (shard, subject) = (&notice.shard, &notice.subject);
            self.marks
                .push(keys::cancel(notice.ws, &rule.id, shard, subject));
        }
    }

    fn order(&mut self) {
        // What was said of everything counts for each of them.
        self.triggers.push("");
        self.users.sort_unstable();
        self.users.dedup();
        self.triggers.sort_unstable();
        self.triggers.dedup();
        self.rules.sort_unstable();
        self.rules.dedup();
        self.places.sort_unstable();
        self.places.dedup();
        self.marks.sort_unstable();
        self.marks.dedup();
    }
}

/// A row of [`PEOPLE`].
fn person(row: &Row) -> Person {
    let role: &str = row.get(5);
    Person {
        active: row.get(2),
        has_email: row.get(3),
        verified: row.get(4),
        staff: matches!(role, "admin" | "editor" | "moderator"),
        admin: role == "admin",
        has_device: row.get(6),
        suppressed: row.get(7),
        said: Vec::new(),
    }
}

/// A row of [`SAID`]; none where a build of another time wrote words that this one does not know.
fn said_of(row: &Row) -> Option<Said> {
    Some(Said {
        stream: row.get::<_, &str>(2).into(),
        channel: Channel::of_word(row.get(3))?,
        scope: row.get::<_, &str>(4).into(),
        mode: Mode::of_word(row.get(5))?,
        at: row.get::<_, Tz>(6).0,
    })
}

/// A row of [`RULES`].
fn rule(row: &Row) -> RuleNow {
    let channels: Vec<&str> = row.get(3);
    RuleNow {
        ws: row.get(1),
        enabled: row.get(2),
        channels: channels.into_iter().filter_map(Channel::of_word).collect(),
        delay_s: row.get(4),
        cooldown_s: row.get(5),
        hourly_cap: row.get::<_, i32>(6).into(),
    }
}

/// A row of [`PLACES`].
fn place(row: &Row) -> Place {
    let destination = |channel, at: usize| {
        let no: Option<i32> = row.get(at);
        no.map(|no| (channel, no))
    };
    let all = [
        destination(Channel::Email, 2),
        destination(Channel::Inapp, 3),
        destination(Channel::Push, 4),
    ];
    Place {
        destinations: all.into_iter().flatten().collect(),
        verified_only: row.get(1),
    }
}

/// Hours that are not there yet, in sorted order.
pub const MAKE_HOURS: &str = "
INSERT INTO rule_hours (key, minute, counts)
SELECT key, $2, array_fill(0, ARRAY[61]) FROM unnest($1::uuid[]) AS k(key)
WHERE NOT EXISTS (SELECT FROM rule_hours h WHERE h.key = k.key) ORDER BY key
ON CONFLICT DO NOTHING";
/// Locks hours in sorted order: they are wider than a partition, and no two batches may wait for each other.
pub const LOCK_HOURS: &str = "
SELECT key, minute, counts FROM rule_hours WHERE key = ANY($1) ORDER BY key FOR NO KEY UPDATE";
/// Cooldowns by key.
pub const COOLDOWNS: &str = "SELECT key, fired_at FROM cooldowns WHERE key = ANY($1)";
/// Which of these keys were sent.
pub const SENT: &str = "SELECT key FROM sent_keys WHERE key = ANY($1)";

/// Reads what gates 6 to 8 remember of these messages, and locks what is wider than the partition.
///
/// # Errors
/// The store's.
pub async fn ledger<'a>(
    session: &Session,
    slice: &Cooldowns,
    wanted: impl Iterator<Item = &'a Wanted> + Clone,
    wall: Micros,
) -> Result<Ledger, Error> {
    let mut ledger = Ledger::default();
    let mut hours: Vec<Uuid> = wanted.clone().map(|w| w.hour).collect();
    if hours.is_empty() {
        return Ok(ledger);
    }
    hours.sort_unstable();
    hours.dedup();
    let cold = ledger.warm(slice, wanted.clone().filter_map(|w| w.cooldown));
    let mut sent: Vec<Uuid> = wanted.map(|w| w.sent).collect();
    sent.sort_unstable();
    sent.dedup();
    let minute = Hour::empty(wall).minute();
    // What is the partition's own is read first: nobody waits for it.
    let (cold, sent): ([&(dyn ToSql + Sync); 1], [&(dyn ToSql + Sync); 1]) = ([&cold], [&sent]);
    let (cooldowns, sent) =
        futures::try_join!(session.query(COOLDOWNS, &cold), session.query(SENT, &sent))?;
    for row in &cooldowns {
        ledger.cooldown_is(row.get(0), row.get::<_, Tz>(1).0);
    }
    for row in &sent {
        ledger.is_sent(row.get(0));
    }
    session.execute(MAKE_HOURS, &[&hours, &minute]).await?;
    for row in &session.query(LOCK_HOURS, &[&hours]).await? {
        let counts: Vec<i32> = row.get(2);
        debug_assert_eq!(counts.len(), MINUTES);
        ledger.hour_is(row.get(0), Hour::stored(row.get(1), &counts));
    }
    Ok(ledger)
}
