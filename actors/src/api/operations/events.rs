//! Events: what has fired, and `POST /v1/events`, which puts a firing from outside into the log, held against its trigger's declaration
//! first. Withdrawing one (`/v1/events/{event_id}/withdraw`) has its place here, and its columns in `firings`, once there are digests.

use super::time_text;
use crate::api::call::{Answer, Call, to_json};
use crate::api::faults::{ChangeError, Faults};
use crate::api::page::{Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation};
use crate::api::schema::{input, output};
use crate::engagement::declared::{self, Broken};
use crate::modules::Modules;
use futures::future::LocalBoxFuture;
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::firing::Firing;
use millrace_schemas::ids;
use millrace_schemas::time::Micros;
use millrace_topics::contract::{Outgoing, Producer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Row;

/// Where firings from outside go; a process without modules has none.
pub struct Events {
    /// Produces them.
    pub producer: Arc<dyn Producer>,
    /// The number of topic `triggers`.
    pub triggers: i32,
    /// How long the log's acknowledgement is waited for.
    pub ack_timeout: Duration,
}

/// A firing from outside.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Emit {
    /// The trigger's id.
    trigger: String,
    /// The shard it happened on; none: on none.
    #[serde(default)]
    shard: String,
    /// What it says, by the names that the trigger declares. The subject is read from it.
    vars: Map<String, Value>,
    /// The user it belongs to.
    owner: Option<String>,
    /// The users it carries for the audience `members`.
    #[schemars(length(max = 5_000))]
    recipients: Option<Vec<String>>,
    /// What a scoped preference is keyed by, such as `team:12`.
    #[serde(default)]
    scope: String,
    /// Narrows the trigger's ceiling; it never widens.
    ceiling: Option<Ceiling>,
    /// Names the event: another one of the same name tells nobody twice. None: its id.
    dedupe: Option<String>,
    /// When it happened; none: now.
    at: Option<String>,
}

/// What was put into the log.
#[derive(Serialize, JsonSchema)]
struct Emitted {
    /// The event's id: `millrace rules explain` says what became of it.
    #[schemars(extend("x-class" = "open"))]
    event_id: String,
}

fn emit<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let workspace = call.workspace()?;
        let Some(events) = &call.state.events else {
            return Err(Problem::new(
                "conflict",
                "no module is enabled here, and nothing takes events",
            ));
        };
        let body: Emit = call.body()?;
        let now = call.state.clock.wall();
        let firing = firing(call.modules, workspace, now, body)?;
        let acknowledged = events.producer.produce(Outgoing {
            topic_no: events.triggers,
            key: firing.log_key().into_bytes().into(),
            payload: serde_json::to_vec(&firing)
                .map_err(|_| Problem::unavailable())?
                .into(),
        });
        // Accepted means that the log has it.
        match tokio::time::timeout(events.ack_timeout, acknowledged).await {
            Ok(Ok(Ok(_))) => Answer::of(&Emitted {
                event_id: firing.id,
            }),
            _ => Err(Problem::unavailable()),
        }
    })
}

/// The firing that a body asks for.
fn firing(modules: &Modules, ws: i32, now: Micros, body: Emit) -> Result<Firing, Problem> {
    let mut faults = Faults::new();
    let at = match body.at.as_deref().map(Micros::parse_rfc3339) {
        None => now,
        // Nobody may date an event ahead of those that are read already.
        Some(Ok(at)) => at.min(now),
        Some(Err(_)) => {
            faults.add("/at", "malformed", "want RFC 3339, as 2025-01-31T00:00:00Z");
            now
        }
    };
    let trigger = modules.trigger(&body.trigger);
    let id = format!(
        "ev_{}",
        ids::encode(ids::mint(now).map_err(ChangeError::from)?)
    );
    let firing = Firing {
        v: millrace_schemas::WIRE_VERSION,
        ws,
        dedupe: body.dedupe.unwrap_or_else(|| id.clone()),
        id,
        module: trigger.map_or_else(String::new, |t| t.module.to_string()),
        subject: trigger
            .and_then(|t| t.subject_of(&body.vars).ok())
            .unwrap_or_default(),
        trigger: body.trigger,
        shard: body.shard,
        vars: body.vars.into_iter().collect(),
        owner: body.owner,
        account: None,
        recipients: body.recipients,
        by_links: false,
        scope: body.scope,
        ceiling: body.ceiling,
        at,
        accepted_at: now,
        emit: None,
        replay: None,
    };
    if trigger.is_none() {
        faults.add(
            "/trigger",
            "trigger_unknown",
            "no enabled module declares it",
        );
    } else if let Err(Broken { reason, variable }) = declared::check_from_outside(modules, &firing)
    {
        let path = variable.map_or_else(
            || place_of(reason).to_owned(),
            |name| format!("/vars/{}", crate::api::json::pointer_part(&name)),
        );
        faults.add(path, reason, "the trigger's declaration refuses it");
    }
    faults.done()?;
    Ok(firing)
}

/// Which member of the body a reason is about.
fn place_of(reason: &str) -> &'static str {
    match reason {
        "trigger_unknown" | "trigger_malformed" | "trigger_scheduled" => "/trigger",
        "shard_malformed" => "/shard",
        "scope_malformed" => "/scope",
        "owner_malformed" => "/owner",
        "recipients_malformed" | "recipients_too_many" => "/recipients",
        "ceiling_incomparable" => "/ceiling",
        "dedupe_malformed" => "/dedupe",
        _ => "/vars",
    }
}

/// An event.
#[derive(Serialize, JsonSchema)]
struct Event {
    /// Its id.
    #[schemars(extend("x-class" = "open"))]
    event_id: String,
    /// Its trigger.
    #[schemars(extend("x-class" = "open"))]
    trigger: String,
    /// The shard it happened on; empty: on none.
    #[schemars(extend("x-class" = "open"))]
    shard: String,
    /// What it is about.
    #[schemars(extend("x-class" = "identity"))]
    subject: String,
    /// What a scoped preference is keyed by.
    #[schemars(extend("x-class" = "open"))]
    scope: String,
    /// When it happened.
    #[schemars(extend("x-class" = "open"))]
    at: Option<String>,
    /// When it was accepted.
    #[schemars(extend("x-class" = "open"))]
    accepted_at: Option<String>,
    /// For how many users it was passed on.
    #[schemars(extend("x-class" = "open"))]
    notices: i32,
}

const SOURCE: Source = Source {
    from: "firings",
    columns: "firing_pos, firing_id, trigger_id, shard, subject, scope, at, accepted_at, notices",
    time: "accepted_at",
    id: "firing_pos",
    id_type: "uuid",
    ascending: false,
    windows: false,
};

fn read(row: &Row) -> Result<Event, Problem> {
    Ok(Event {
        event_id: row.try_get("firing_id")?,
        trigger: row.try_get("trigger_id")?,
        shard: row.try_get("shard")?,
        subject: row.try_get("subject")?,
        scope: row.try_get("scope")?,
        at: time_text(row.try_get("at")?),
        accepted_at: time_text(row.try_get("accepted_at")?),
        notices: row.try_get("notices")?,
    })
}

/// Narrows the list of events.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one trigger.
    trigger: Option<String>,
    /// Those of one shard.
    shard: Option<String>,
}

fn list_events<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("trigger_id = $", filter.trigger);
        conditions.and_some("shard = $", filter.shard);
        list(call, SOURCE, conditions, |row| to_json(&read(row)?)).await
    })
}

fn list_schema() -> Value {
    list_of(output::<Event>())
}

/// The operations.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let listed = Operation {
        scope: Some("records:read"),
        list: true,
        query: input::<Filter>,
        summary: "What has fired, the latest first.",
        ..Operation::new(
            "list_events",
            Method::Get,
            "/v1/events",
            list_schema,
            list_events,
        )
    };
    let emitted = Operation {
        scope: Some("engagement:write"),
        effect: Effect::Write,
        status: 202,
        body: Some(input::<Emit>),
        summary: "Fire a trigger from outside; its declaration is checked, its ceiling may be narrowed and never widened.",
        ..Operation::new(
            "emit_event",
            Method::Post,
            "/v1/events",
            output::<Emitted>,
            emit,
        )
    };
    vec![listed, emitted]
}
