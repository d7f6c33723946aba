//! Deliveries: what is to leave, what has left and what could not, with its log; called off, or made due once more.

use super::{moment, time_text};
use crate::api::call::{Answer, Call, to_json};
use crate::api::faults::Faults;
use crate::api::page::{self, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param};
use crate::api::schema::{input, output};
use crate::delivery::ledger::{self, Refused};
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::ids;
use millrace_schemas::time::Micros;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

/// How a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Status {
    /// It waits.
    Scheduled,
    /// It is under way.
    Sending,
    /// It arrived.
    Sent,
    /// It was refused for good, or has used all its attempts.
    Failed,
    /// It was called off, or its destination is gone.
    Cancelled,
    /// It may not be sent.
    Suppressed,
    /// The address is dead.
    Bounced,
    /// It may have arrived, and may not be sent twice.
    Unknown,
}

impl Status {
    const fn name(self) -> &'static str {
        match self {
            Status::Scheduled => "scheduled",
            Status::Sending => "sending",
            Status::Sent => "sent",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
            Status::Suppressed => "suppressed",
            Status::Bounced => "bounced",
            Status::Unknown => "unknown",
        }
    }
}

/// A message on its way out.
#[derive(Serialize, JsonSchema)]
struct Delivery {
    /// Its id: the same through all attempts.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    /// `meta`, `webhook` and so on.
    #[schemars(extend("x-class" = "open"))]
    channel: String,
    /// What it goes to: `px_…`, `wh_…`.
    #[schemars(extend("x-class" = "open"))]
    destination: String,
    /// `scheduled`, `sending`, `sent`, `failed`, `cancelled`, `suppressed`, `bounced` or `unknown`.
    #[schemars(extend("x-class" = "open"))]
    status: String,
    /// Why it ended so.
    #[schemars(extend("x-class" = "open"))]
    status_reason: Option<String>,
    /// Attempts so far.
    #[schemars(extend("x-class" = "open"))]
    attempts: i16,
    /// When it was written.
    #[schemars(extend("x-class" = "open"))]
    created_at: String,
    /// When it is due, unless it has ended.
    #[schemars(extend("x-class" = "open"))]
    due_at: Option<String>,
    /// When it was first sent without an answer, if it may have arrived.
    #[schemars(extend("x-class" = "open"))]
    unsure_since: Option<String>,
    /// When it ended.
    #[schemars(extend("x-class" = "open"))]
    ended_at: Option<String>,
    /// The record it was born of, topic-partition-offset.
    #[schemars(extend("x-class" = "open"))]
    cause: String,
    /// Whom it is about.
    #[schemars(extend("x-class" = "identity"))]
    subject: Option<String>,
}

/// One attempt, or an end without one.
#[derive(Serialize, JsonSchema)]
struct Attempt {
    /// When it was over.
    #[schemars(extend("x-class" = "open"))]
    at: String,
    /// Which, from 1; 0: an end without one.
    #[schemars(extend("x-class" = "open"))]
    attempt: i16,
    /// `delivered`, `retry`, `rejected`, `bounced`, `suppressed`, `cancelled`, `paused` or `unknown`.
    #[schemars(extend("x-class" = "open"))]
    result: String,
    /// An HTTP status, a provider's code, or a reason's name.
    #[schemars(extend("x-class" = "open"))]
    code: Option<String>,
    /// How long the request took, in milliseconds.
    #[schemars(extend("x-class" = "open"))]
    duration_ms: Option<i32>,
    /// To whom, masked.
    #[schemars(extend("x-class" = "open"))]
    target: Option<String>,
    /// What the receiver said, redacted.
    #[schemars(extend("x-class" = "open"))]
    excerpt: Option<String>,
}

/// A message with its payload and its log.
#[derive(Serialize, JsonSchema)]
struct Whole {
    #[serde(flatten)]
    delivery: Delivery,
    /// What is sent, as it was frozen: JSON text.
    #[schemars(extend("x-class" = "identity"))]
    payload: Option<String>,
    /// Its attempts, oldest first; the last 200.
    #[schemars(extend("x-class" = "open"))]
    log: Vec<Attempt>,
}

fn view(d: ledger::Delivery) -> Delivery {
    Delivery {
        id: ids::encode(d.id),
        channel: d.channel,
        destination: d.destination,
        status: d.status,
        status_reason: d.status_reason,
        attempts: d.attempts,
        created_at: d.created_at.rfc3339(),
        due_at: text(d.due_at),
        unsure_since: text(d.unsure_since),
        ended_at: text(d.ended_at),
        cause: d.cause.to_string(),
        subject: d.subject,
    }
}

fn text(time: Option<Micros>) -> Option<String> {
    time_text(time.map(Tz))
}

/// Narrows the list of deliveries.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one status.
    status: Option<Status>,
    /// Those of one channel.
    channel: Option<String>,
    /// Those to one destination: `px_…`, `wh_…`.
    destination: Option<String>,
    /// Written at or after, RFC 3339.
    since: Option<String>,
    /// Written before, RFC 3339.
    until: Option<String>,
}

fn list_deliveries<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut faults = Faults::new();
        let since = moment("since", filter.since.as_deref(), &mut faults);
        let until = moment("until", filter.until.as_deref(), &mut faults);
        if !faults.is_empty() {
            return Err(faults.into());
        }
        let mut wanted = ledger::Filter {
            workspace: Some(call.workspace()?),
            status: filter.status.map(|s| s.name().to_owned()),
            channel: filter.channel,
            destination: filter.destination,
            since: since.map(|t| t.0),
            until: until.map(|t| t.0),
            before: None,
        };
        let count = match call.page.count {
            true => page::counted(ledger::count(call.tx, &wanted, page::COUNTED + 1).await?),
            false => Value::Null,
        };
        wanted.before = match &call.page.after {
            Some((_, id)) => Some(parse(id)?),
            None => None,
        };
        let found = ledger::list(call.tx, &wanted, call.page.limit + 1).await?;
        let mut items = Vec::with_capacity(found.len());
        for d in found {
            let (at, id) = (d.created_at, ids::encode(d.id));
            items.push((to_json(&view(d))?, at, id));
        }
        page::answer(call, items, count).await
    })
}

fn parse(id: &str) -> Result<Uuid, Problem> {
    ids::decode(id).ok_or_else(Problem::not_found)
}

/// The delivery as it stands; whether its payload is seen is asked where the answer is serialised.
async fn load(call: &Call<'_>, id: Uuid) -> Result<ledger::Whole, Problem> {
    ledger::show(call.tx, Some(call.workspace()?), id)
        .await?
        .ok_or_else(Problem::not_found)
}

fn get<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let whole = load(call, parse(call.param("delivery_id")?)?).await?;
        let log = whole.attempts.into_iter().map(|a| Attempt {
            at: a.at.rfc3339(),
            attempt: a.attempt,
            result: a.result,
            code: a.code,
            duration_ms: a.duration_ms,
            target: a.target,
            excerpt: a.excerpt,
        });
        Answer::of(&Whole {
            delivery: view(whole.delivery),
            payload: Some(whole.payload),
            log: log.collect(),
        })
    })
}

fn refused(why: Refused) -> Problem {
    let code = match why {
        Refused::NotFound => return Problem::not_found(),
        Refused::Store(e) => return e.into(),
        Refused::BeingSent => "being_sent",
        Refused::Ended(_) => "delivery_ended",
        Refused::NotReleasable(_) => "not_releasable",
        Refused::MayRepeat => "may_repeat_required",
    };
    let mut problem = Problem::new(code, why.to_string());
    if let Refused::Ended(status) | Refused::NotReleasable(status) = why {
        problem = problem.with("delivery_status", json!(status));
    }
    problem
}

fn cancel<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = parse(call.param("delivery_id")?)?;
        let before = load(call, id).await?.delivery;
        let wall = call.state.clock.wall();
        ledger::cancel(call.tx, Some(call.workspace()?), id, wall)
            .await
            .map_err(refused)?;
        changed(call, id, before).await
    })
}

async fn changed(call: &Call<'_>, id: Uuid, before: ledger::Delivery) -> Result<Answer, Problem> {
    let mut answer = Answer::of(&view(load(call, id).await?.delivery))?;
    answer.before = Some(to_json(&view(before))?);
    Ok(answer)
}

/// How to release.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Release {
    /// It may arrive twice: needed for what is `unknown` where the receiver cannot tell a second one from the first.
    #[serde(default)]
    may_repeat: bool,
}

fn release<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = parse(call.param("delivery_id")?)?;
        let before = load(call, id).await?.delivery;
        let how: Release = call.body()?;
        let wall = call.state.clock.wall();
        ledger::release(call.tx, Some(call.workspace()?), id, how.may_repeat, wall)
            .await
            .map_err(refused)?;
        changed(call, id, before).await
    })
}

fn list_schema() -> Value {
    list_of(output::<Delivery>())
}

const PARAMS: &[Param] = &[Param {
    name: "delivery_id",
    summary: "The delivery's id, 26 characters.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let read = |id, path, output, handler| Operation {
        scope: Some("records:read"),
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    let act = |id, path, effect, handler| Operation {
        scope: Some("records:replay"),
        effect,
        params: PARAMS,
        ..Operation::new(id, Method::Post, path, output::<Delivery>, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "What is to leave and what has left, newest first.",
            ..read(
                "list_deliveries",
                "/v1/deliveries",
                list_schema,
                list_deliveries,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One delivery with its attempts; its payload for whoever may see identities.",
            ..read(
                "get_delivery",
                "/v1/deliveries/{delivery_id}",
                output::<Whole>,
                get,
            )
        },
        Operation {
            summary: "Call a delivery off that has not been sent; refused while it is being sent.",
            ..act(
                "cancel_delivery",
                "/v1/deliveries/{delivery_id}/cancel",
                Effect::Destructive,
                cancel,
            )
        },
        Operation {
            body: Some(input::<Release>),
            summary: "Make a delivery due now, under its own id, that failed, was cancelled or is unknown.",
            ..act(
                "release_delivery",
                "/v1/deliveries/{delivery_id}/release",
                Effect::External,
                release,
            )
        },
    ]
}
