//! Reach: how many, by the resolver that the gates ask. A count and nothing else: who they are comes out of a game's data, and a
//! screen about rules is no place to list people.

use super::{Rules, saved_segment};
use crate::api::call::{Answer, Call};
use crate::api::entity::{self, Entity};
use crate::api::faults::Faults;
use crate::api::problem::Problem;
use crate::directory::audience::{self, Ask, Unreached, Whom};
use crate::directory::rules::{Rule, Target};
use crate::modules::Trigger;
use futures::future::LocalBoxFuture;
use millrace_schemas::channel::Channel;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whom a rule would reach.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Reach {
    /// Active users.
    #[schemars(extend("x-class" = "open"))]
    count: usize,
    /// There are more, and the rest is never told: say "at least".
    #[schemars(extend("x-class" = "open"))]
    capped: bool,
    /// Why the count is 0, where that says more than nobody: `no_owner` and `no_list` are known with each event alone.
    #[schemars(extend("x-class" = "open"))]
    reason: Option<String>,
    /// Whether the trigger's ceiling permits it; of a segment by itself: whether it has a ceiling.
    #[schemars(extend("x-class" = "open"))]
    permitted: bool,
    /// By channel, how many of the count could not be told on it whatever they prefer.
    #[schemars(extend("x-class" = "open"))]
    ineligible: BTreeMap<String, i64>,
}

impl Reach {
    /// Of what no longer can be read.
    pub(in crate::api::operations) fn unread() -> Reach {
        Reach {
            count: 0,
            capped: false,
            reason: Some(Unreached::Dormant.word().to_owned()),
            permitted: false,
            ineligible: BTreeMap::new(),
        }
    }
}

/// Asks the gates' own resolver. `within`: the trigger, and the ceiling to be permitted.
pub(in crate::api::operations) async fn preview(
    call: &Call<'_>,
    whom: Whom<'_>,
    permitted: Option<bool>,
    channels: &[String],
) -> Result<Reach, Problem> {
    let ws = call.workspace()?;
    let ask = Ask { ws, whom };
    let reached = audience::resolve(call.tx, call.modules, &ask).await?;
    let mut ineligible = BTreeMap::new();
    for channel in channels.iter().filter_map(|c| Channel::of_word(c)) {
        let n = match channel {
            Channel::Inapp => 0,
            Channel::Email => without_email(call, ws, &reached.users).await?,
            Channel::Push => without_device(call, ws, &reached.users).await?,
        };
        ineligible.insert(channel.word().to_owned(), n);
    }
    Ok(Reach {
        count: reached.users.len(),
        capped: reached.capped,
        reason: reached.reason.map(|r| r.word().to_owned()),
        permitted: permitted.unwrap_or(reached.reason != Some(Unreached::Dormant)),
        ineligible,
    })
}

/// How many have no address that mail may go to.
async fn without_email(call: &Call<'_>, ws: i32, users: &[String]) -> Result<i64, Problem> {
    let row = call
        .tx
        .query_one(
            "SELECT count(*) FROM users u JOIN workspaces w USING (workspace_id)
             LEFT JOIN suppressions s
               ON s.workspace_id = u.workspace_id AND s.address_hash = sha256(convert_to(u.email_folded, 'UTF8'))
             WHERE u.workspace_id = $1 AND u.user_id = ANY($2)
               AND (u.email IS NULL OR (w.verified_email_only AND NOT u.email_verified) OR s.address_hash IS NOT NULL)",
            &[&ws, &users],
        )
        .await?;
    Ok(row.try_get(0)?)
}

/// How many have no device to be woken.
async fn without_device(call: &Call<'_>, ws: i32, users: &[String]) -> Result<i64, Problem> {
    let row = call
        .tx
        .query_one(
            "SELECT count(*) FROM unnest($2::text[]) AS u(id) WHERE NOT EXISTS
                (SELECT 1 FROM push_subscriptions p WHERE p.workspace_id = $1 AND p.user_id = u.id)",
            &[&ws, &users],
        )
        .await?;
    Ok(row.try_get(0)?)
}

async fn of(
    call: &Call<'_>,
    trigger: &Trigger,
    target: &Target,
    channels: &[String],
) -> Result<Reach, Problem> {
    let whom = match target {
        Target::Plain(audience) => Whom::of(*audience, &trigger.id, None, None),
        Target::Segment(segment, _) => Whom::Segment(segment),
    };
    let permitted = trigger.ceiling.permits(target.ceiling());
    preview(call, whom, Some(permitted), channels).await
}

pub(super) fn of_rule<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let stored = entity::load::<Rules>(call, call.param(Rules::PARAM)?, "").await?;
        let rule = stored.fields.rule();
        let modules = call.modules;
        let Some(trigger) = modules.trigger(&rule.trigger_id) else {
            return Answer::of(&Reach::unread());
        };
        match rule.target(modules, trigger, stored.shown.saved.as_ref()) {
            Ok(target) => Answer::of(&of(call, trigger, &target, &rule.channels).await?),
            Err(_) => Answer::of(&Reach::unread()),
        }
    })
}

/// A rule that is not saved yet.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Its trigger.
    #[schemars(length(min = 1, max = 200))]
    trigger_id: String,
    /// A plain audience; absent: the trigger's own.
    #[schemars(length(max = 100))]
    audience: Option<String>,
    /// Or a segment.
    #[schemars(length(max = 100))]
    segment_id: Option<String>,
    /// Channels, separated by commas, for `ineligible`.
    #[schemars(length(max = 100))]
    channels: Option<String>,
}

pub(super) fn of_question<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let asked: Question = call.query()?;
        let channels: Vec<String> = asked
            .channels
            .iter()
            .flat_map(|c| c.split(','))
            .map(|c| c.trim().to_owned())
            .collect();
        let mut faults = Faults::new();
        let rule = Rule {
            trigger_id: asked.trigger_id,
            audience: asked.audience,
            segment_id: asked.segment_id,
            ..Rule::default()
        };
        if rule.audience.is_some() && rule.segment_id.is_some() {
            faults.add(
                "?segment_id",
                "audience_and_segment",
                "one of `audience` and `segment_id`",
            );
            return Err(faults.into());
        }
        let modules = call.modules;
        let Some(trigger) = modules.trigger(&rule.trigger_id) else {
            faults.add(
                "?trigger_id",
                "unknown_trigger",
                "no module declares this trigger",
            );
            return Err(faults.into());
        };
        let saved = saved_segment(call, rule.segment_id.as_deref(), "").await?;
        match rule.target(modules, trigger, saved.as_ref()) {
            Ok(target) => Answer::of(&of(call, trigger, &target, &channels).await?),
            Err(why) if matches!(why.code.as_str(), "unknown_segment" | "unknown_audience") => {
                let at = if rule.segment_id.is_some() {
                    "?segment_id"
                } else {
                    "?audience"
                };
                faults.add(at, &why.code, "there is none of this id");
                Err(faults.into())
            }
            Err(_) => Answer::of(&Reach::unread()),
        }
    })
}
