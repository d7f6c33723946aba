//! Destinations: whom messages go to, who refuses them, and the switch of each.

use super::time_text;
use crate::api::call::{Answer, Call, to_json};
use crate::api::page::{self, Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param};
use crate::api::schema::{input, output};
use crate::delivery::holds::{self, Place};
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Whom messages go to.
#[derive(Serialize, JsonSchema)]
struct Destination {
    /// What it stands for: `px_…`, `wh_…`.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    /// Its number, as in logs and at the terminal.
    #[schemars(extend("x-class" = "open"))]
    no: i32,
    /// `meta`, `webhook` and so on.
    #[schemars(extend("x-class" = "open"))]
    channel: String,
    /// The name of what it stands for.
    #[schemars(extend("x-class" = "open"))]
    name: Option<String>,
    /// The status of what it stands for: only what is `active` is sent to.
    #[schemars(extend("x-class" = "open"))]
    status: Option<String>,
    /// Why it is paused: `by_hand`, or a code of its channel's; null: it is not.
    #[schemars(extend("x-class" = "open"))]
    paused_code: Option<String>,
    /// The same for people.
    #[schemars(extend("x-class" = "open"))]
    paused_reason: Option<String>,
    /// Who paused it.
    #[schemars(extend("x-class" = "open"))]
    paused_by: Option<String>,
    /// Since when.
    #[schemars(extend("x-class" = "open"))]
    paused_at: Option<String>,
    /// Why its whole channel, or the whole outbox, is held by the deployment.
    #[schemars(extend("x-class" = "open"))]
    held_reason: Option<String>,
    /// With `counts=true`: how many messages wait for it; 10001 stands for more than 10000.
    #[schemars(extend("x-class" = "open"))]
    waiting: Option<i64>,
    /// With `counts=true`: since when the oldest of them is due, or when the next will be.
    #[schemars(extend("x-class" = "open"))]
    oldest_due_at: Option<String>,
    /// When it came to be.
    #[schemars(extend("x-class" = "open"))]
    created_at: String,
}

fn view(place: Place) -> Destination {
    let (mut code, mut reason, mut by, mut at) = (None, None, None, None);
    if let Some(pause) = place.pause {
        code = Some(pause.code);
        reason = Some(pause.reason);
        by = Some(pause.by);
        at = Some(pause.at.rfc3339());
    }
    Destination {
        id: place.reference,
        no: place.no,
        channel: place.channel,
        name: place.name,
        status: place.status,
        paused_code: code,
        paused_reason: reason,
        paused_by: by,
        paused_at: at,
        held_reason: place.channel_pause,
        waiting: None,
        oldest_due_at: None,
        created_at: place.created_at.rfc3339(),
    }
}

const SOURCE: Source = Source {
    from: holds::FROM,
    columns: holds::COLUMNS,
    time: "created_at",
    id: "destination_no",
    id_type: "integer",
    ascending: false,
    windows: false,
};

/// Narrows the list of destinations.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one channel.
    channel: Option<String>,
    /// Those that are paused, or those that are not.
    paused: Option<bool>,
    /// Whether to count what waits for each.
    counts: Option<bool>,
}

fn list_destinations<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("channel = $", filter.channel);
        conditions.and_some("(paused_code IS NOT NULL) = $", filter.paused);
        let mut answer = list(call, SOURCE, conditions, |row| {
            to_json(&view(Place::read(row)?))
        })
        .await?;
        if filter.counts == Some(true)
            && let Some(items) = answer.body.get_mut("items").and_then(Value::as_array_mut)
        {
            count(call, items).await?;
        }
        Ok(answer)
    })
}

async fn count(call: &Call<'_>, items: &mut [Value]) -> Result<(), Problem> {
    let number = |item: &Value| {
        let no = item.get("no").and_then(Value::as_i64);
        no.and_then(|n| i32::try_from(n).ok())
    };
    let numbers: Vec<i32> = items.iter().filter_map(number).collect();
    for (no, waiting, oldest) in holds::waiting(call.tx, &numbers, page::COUNTED + 1).await? {
        let item = items.iter_mut().find(|i| number(i) == Some(no));
        if let Some(item) = item.and_then(Value::as_object_mut) {
            item.insert("waiting".to_owned(), json!(waiting));
            let oldest = time_text(oldest.map(Tz));
            item.insert("oldest_due_at".to_owned(), json!(oldest));
        }
    }
    Ok(())
}

async fn find(call: &Call<'_>) -> Result<Place, Problem> {
    let named = call.param("destination")?;
    holds::find(call.tx, Some(call.workspace()?), named)
        .await?
        .ok_or_else(Problem::not_found)
}

/// The destination as it stands after a change.
async fn changed(call: &Call<'_>, before: Place) -> Result<Answer, Problem> {
    let mut answer = Answer::of(&view(find(call).await?))?;
    answer.before = Some(to_json(&view(before))?);
    Ok(answer)
}

/// Why a destination is paused.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Why {
    /// For whoever finds it paused.
    #[schemars(length(min = 1, max = 500))]
    reason: String,
}

fn pause<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let before = find(call).await?;
        let why: Why = call.body()?;
        holds::pause(call.tx, before.no, &why.reason, &call.actor.key_id).await?;
        changed(call, before).await
    })
}

fn resume<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let before = find(call).await?;
        holds::resume(call.tx, before.no).await?;
        changed(call, before).await
    })
}

fn list_schema() -> Value {
    list_of(output::<Destination>())
}

const PARAMS: &[Param] = &[Param {
    name: "destination",
    summary: "The id of what it stands for (`px_…`, `wh_…`), or its number.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let act = |id, path, effect, handler| Operation {
        scope: Some("records:replay"),
        effect,
        params: PARAMS,
        ..Operation::new(id, Method::Post, path, output::<Destination>, handler)
    };
    vec![
        Operation {
            scope: Some("records:read"),
            list: true,
            query: input::<Filter>,
            summary: "Whom messages go to, newest first, and whether each is paused.",
            ..Operation::new(
                "list_destinations",
                Method::Get,
                "/v1/destinations",
                list_schema,
                list_destinations,
            )
        },
        Operation {
            body: Some(input::<Why>),
            summary: "Pause a destination: nothing is sent to it, and nothing that waits for it ends.",
            ..act(
                "pause_destination",
                "/v1/destinations/{destination}/pause",
                Effect::Write,
                pause,
            )
        },
        Operation {
            summary: "Let a destination go on, whatever paused it; what waits for it is sent.",
            ..act(
                "resume_destination",
                "/v1/destinations/{destination}/resume",
                Effect::External,
                resume,
            )
        },
    ]
}
