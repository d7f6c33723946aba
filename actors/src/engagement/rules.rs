//! Rules as they stand in a batch's transaction.

use crate::directory::rules::{self as directory, SavedSegment};
use crate::recipients::facts::Configured;
use crate::runtime::session::Session;
use hashbrown::HashMap;
use millrace_schemas::channel::Channel;
use tokio_postgres::{Error, Row};

/// A rule of a trigger.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    /// Its id.
    pub id: String,
    /// Its workspace.
    pub ws: i32,
    /// Its version.
    pub version: i64,
    /// Switched on.
    pub enabled: bool,
    /// Channels, in the order in which they go out.
    pub channels: Vec<Channel>,
    /// It names a channel that there is not: it is dormant.
    pub unknown_channel: bool,
    /// What it says, as stored.
    pub stored: directory::Rule,
    /// Its segment, if it names one that is still there.
    pub segment: Option<SavedSegment>,
    /// Seconds after the event.
    pub delay_s: i64,
    /// Seconds between two messages of one subject to one user on one channel.
    pub cooldown_s: i64,
    /// Messages in a rolling hour at most.
    pub hourly_cap: i32,
}

/// Rules by workspace and trigger, in rule order; rules that a trigger calls off.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    of_trigger: HashMap<(i32, String), Vec<Rule>>,
    called_off: HashMap<(i32, String), Vec<String>>,
    configured: HashMap<i32, Configured>,
}

impl Rules {
    /// The channels that a workspace has set up, whatever the deployment's settings let out.
    #[must_use]
    pub fn configured(&self, ws: i32) -> Configured {
        self.configured.get(&ws).copied().unwrap_or_default()
    }

    /// The rules of a trigger, in rule order; switched off ones too.
    #[must_use]
    pub fn of(&self, ws: i32, trigger: &str) -> &[Rule] {
        let found = self.of_trigger.get(&(ws, trigger.to_owned()));
        found.map_or(&[], Vec::as_slice)
    }

    /// Ids of the rules that a trigger calls off, whatever their own trigger and whether they are switched on.
    #[must_use]
    pub fn called_off_by(&self, ws: i32, trigger: &str) -> &[String] {
        let found = self.called_off.get(&(ws, trigger.to_owned()));
        found.map_or(&[], Vec::as_slice)
    }

    /// Adds a rule; rules come in rule order.
    pub fn add(&mut self, trigger: &str, rule: Rule) {
        let of = self.of_trigger.entry((rule.ws, trigger.to_owned()));
        of.or_default().push(rule);
    }

    /// A trigger calls a rule off.
    pub fn calls_off(&mut self, ws: i32, trigger: &str, rule: &str) {
        let of = self.called_off.entry((ws, trigger.to_owned()));
        of.or_default().push(rule.to_owned());
    }
}

/// Rules of triggers, in rule order.
pub const RULES: &str = "
SELECT r.trigger_id, r.rule_id, r.workspace_id, r.version, r.enabled, r.channels, r.conditions, r.audience, r.segment_id,
       s.expression, r.delay_s, r.cooldown_s, r.hourly_cap
FROM unnest($1::int4[], $2::text[]) AS k(ws, trigger_id)
JOIN rules r ON r.workspace_id = k.ws AND r.trigger_id = k.trigger_id
LEFT JOIN segments s ON s.segment_id = r.segment_id AND s.workspace_id = r.workspace_id
ORDER BY r.position";
/// Rules that these triggers call off.
pub const CALLED_OFF: &str = "
SELECT workspace_id, rule_id, cancel_on FROM rules WHERE workspace_id = ANY($1) AND cancel_on && $2::text[]";
/// Which channels workspaces have set up: mail with an enabled transport, push as soon as anybody has a device.
pub const CONFIGURED: &str = "
SELECT k.ws,
       EXISTS (SELECT FROM mail_transports m JOIN destinations d ON d.channel = 'email' AND d.ref = m.transport_id
               WHERE m.workspace_id = k.ws AND m.enabled),
       EXISTS (SELECT FROM push_subscriptions p WHERE p.workspace_id = k.ws)
FROM unnest($1::int4[]) AS k(ws)";

/// Reads the rules of these triggers of these workspaces.
///
/// # Errors
/// The store's.
pub async fn read(session: &Session, mut triggers: Vec<(i32, &str)>) -> Result<Rules, Error> {
    triggers.sort_unstable();
    triggers.dedup();
    let (ws, names): (Vec<i32>, Vec<&str>) = triggers.iter().copied().unzip();
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&ws, &names];
    let mut places = ws.clone();
    places.dedup();
    let places: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&places];
    let (of, off, configured) = futures::try_join!(
        session.query(RULES, &params),
        session.query(CALLED_OFF, &params),
        session.query(CONFIGURED, &places)
    )?;
    let mut rules = Rules::default();
    for row in &configured {
        let configured = Configured {
            email: row.get(1),
            push: row.get(2),
        };
        rules.configured.insert(row.get(0), configured);
    }
    for row in &of {
        rules.add(row.get(0), rule(row));
    }
    for row in &off {
        let (ws, id): (i32, &str) = (row.get(0), row.get(1));
        for trigger in row.get::<_, Vec<&str>>(2) {
            rules.calls_off(ws, trigger, id);
        }
    }
    Ok(rules)
}

fn rule(row: &Row) -> Rule {
    let words: Vec<&str> = row.get(5);
    let mut channels: Vec<Channel> = words.iter().filter_map(|w| Channel::of_word(w)).collect();
    let unknown_channel = channels.len() != words.len();
    channels.sort_unstable();
    channels.dedup();
    let segment_id: Option<String> = row.get(8);
    let segment = segment_id.clone().zip(row.get(9));
    Rule {
        id: row.get(1),
        ws: row.get(2),
        version: row.get(3),
        enabled: row.get(4),
        channels,
        unknown_channel,
        segment: segment.map(|(id, expression)| SavedSegment { id, expression }),
        stored: directory::Rule {
            trigger_id: row.get(0),
            conditions: row.get(6),
            audience: row.get(7),
            segment_id,
            ..directory::Rule::default()
        },
        delay_s: row.get(10),
        cooldown_s: row.get(11),
        hourly_cap: row.get(12),
    }
}
