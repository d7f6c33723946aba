//! A user's preferences, as an operator sees and sets them. The user's own form needs a user's session and comes with those.

use super::Users;
use crate::api::call::{Answer, Call};
use crate::api::entity;
use crate::api::faults::Faults;
use crate::api::problem::Problem;
use crate::directory::operator;
use crate::modules::Modules;
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::channel::{Channel, Mode};
use millrace_schemas::directory::{Change, DirectoryRecord, Role};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One preference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Preference {
    /// A stream's or trigger's id; empty: every one of them.
    #[serde(default)]
    #[schemars(length(max = 200), extend("x-class" = "open"))]
    id: String,
    /// The channel.
    #[schemars(extend("x-class" = "open"))]
    channel: Channel,
    /// The scope it is meant for, as `team:12`; empty: every one.
    #[serde(default)]
    #[schemars(length(max = 200), extend("x-class" = "open"))]
    scope: String,
    /// How.
    #[schemars(extend("x-class" = "open"))]
    mode: Mode,
}

/// Preferences to set.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    /// Each by its id, channel and scope.
    #[serde(default)]
    #[schemars(length(max = 500))]
    preferences: Vec<Preference>,
}

/// A stored preference.
#[derive(Serialize, JsonSchema)]
pub struct Stored {
    #[serde(flatten)]
    preference: Preference,
    /// Whether nobody declares the id any more.
    #[schemars(extend("x-class" = "open"))]
    dormant: bool,
    /// When it was set.
    #[schemars(extend("x-class" = "open"))]
    changed_at: String,
}

/// Where a user has said something.
#[derive(Serialize, JsonSchema)]
pub struct Preferences {
    /// In order of id, channel and scope.
    #[schemars(extend("x-class" = "open"))]
    preferences: Vec<Stored>,
}

pub(super) fn get<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let user = call.param("user_id")?;
        entity::load::<Users>(call, user, "").await?;
        stored(call, user).await
    })
}

async fn stored(call: &Call<'_>, user: &str) -> Result<Answer, Problem> {
    let rows = call
        .tx
        .query(
            "SELECT stream_id, channel, scope, mode, changed_at FROM preferences
             WHERE workspace_id = $1 AND user_id = $2 ORDER BY 1, 2, 3 LIMIT 10000",
            &[&call.workspace()?, &user],
        )
        .await?;
    let mut preferences = Vec::with_capacity(rows.len());
    for row in &rows {
        // A channel or mode of a newer build is not shown by this one.
        let (channel, mode) = (
            Channel::of_word(row.try_get(1)?),
            Mode::of_word(row.try_get(3)?),
        );
        let (Some(channel), Some(mode)) = (channel, mode) else {
            continue;
        };
        let id: String = row.try_get(0)?;
        let changed_at: Tz = row.try_get(4)?;
        preferences.push(Stored {
            dormant: !id.is_empty() && !is_declared(call.modules, &id),
            preference: Preference {
                id,
                channel,
                scope: row.try_get(2)?,
                mode,
            },
            changed_at: changed_at.0.rfc3339(),
        });
    }
    Answer::of(&Preferences { preferences })
}

fn is_declared(modules: &Modules, id: &str) -> bool {
    modules.trigger(id).is_some() || modules.stream(id).is_some()
}

pub(super) fn set<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let user = call.param("user_id")?;
        let role = entity::load::<Users>(call, user, "FOR SHARE")
            .await?
            .fields
            .role;
        let changes: Changes = call.body()?;
        let mut faults = Faults::new();
        for (i, wanted) in changes.preferences.iter().enumerate() {
            check(call.modules, role, wanted, i, &mut faults);
        }
        if !faults.is_empty() {
            return Err(faults.into());
        }
        let ws = call.workspace()?;
        let some = |text: String| Some(text).filter(|t| !t.is_empty());
        let records = changes
            .preferences
            .into_iter()
            .map(|wanted| DirectoryRecord {
                ws,
                change: Change::Preference,
                user: user.to_owned(),
                id: some(wanted.id),
                channel: Some(wanted.channel.word().to_owned()),
                scope: some(wanted.scope),
                mode: Some(wanted.mode),
                ..DirectoryRecord::default()
            })
            .collect();
        let now = call.state.clock.wall();
        if let Err(reason) = operator::apply(call.tx, records, now, &call.actor.key_id).await? {
            let mut faults = Faults::new();
            faults.add("/preferences", reason, "it cannot be set");
            return Err(faults.into());
        }
        stored(call, user).await
    })
}

/// What cannot be set: what nobody declares, what a trigger does not allow, what could never reach the user.
fn check(modules: &Modules, role: Role, wanted: &Preference, i: usize, faults: &mut Faults) {
    let at = format!("/preferences/{i}");
    if wanted.id.is_empty() {
        return;
    }
    if !is_declared(modules, &wanted.id) {
        faults.add(
            format!("{at}/id"),
            "unknown_id",
            "no module declares a stream or trigger of this id",
        );
        return;
    }
    let Some(trigger) = modules.trigger(&wanted.id) else {
        return;
    };
    let out_of_reach = (Ceiling::Staff.permits(trigger.ceiling) && !role.is_staff())
        || (trigger.ceiling == Ceiling::Admin && role != Role::Admin);
    if out_of_reach {
        faults.add(
            format!("{at}/id"),
            "out_of_reach",
            format!("`{}` is for `{}` alone", trigger.id, trigger.ceiling),
        );
    } else if !trigger.allows(wanted.mode) {
        faults.add(
            format!("{at}/mode"),
            "mode_not_allowed",
            format!("`{}` cannot be set to `{}`", trigger.id, wanted.mode),
        );
    } else if wanted.channel == Channel::Push
        && wanted.mode != Mode::Off
        && modules.stream(&wanted.id).is_none()
    {
        faults.add(
            format!("{at}/channel"),
            "no_stream",
            format!("`{}` has no stream, and so no push", trigger.id),
        );
    }
}
