//! Webhooks: where a workspace's own programs hear of visits, clicks and conversions, signed.

mod fields;
mod secret;
mod test;

pub use fields::{Event, Fields, Status};

use crate::api::call::{Answer, Call};
use crate::api::entity::{self, Entity, Stored};
use crate::api::faults::Faults;
use crate::api::page::{Conditions, Source};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Precondition};
use crate::api::schema::{input, output};
use crate::api::workspaces::check_name;
use crate::delivery::holds;
use fields::check_url;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use secret::{Rotation, Shown, create, rotate};
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

/// What is shown of how it does.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Standing {
    /// Why it is disabled.
    #[schemars(extend("x-class" = "open"))]
    disabled_reason: Option<String>,
    /// Since when every delivery failed; after five days it is disabled.
    #[schemars(extend("x-class" = "open"))]
    failing_since: Option<String>,
    /// Until when the secret before the last rotation signs too.
    #[schemars(extend("x-class" = "open"))]
    previous_until: Option<String>,
}

pub(crate) struct Webhooks;

impl Entity for Webhooks {
    type Fields = Fields;
    type Shown = Standing;
    const PATH: &'static str = "/v1/webhooks";
    const PARAM: &'static str = "webhook_id";
    const ID_COLUMN: &'static str = "webhook_id";
    const PREFIX: &'static str = "wh_";
    const SOURCE: Source = Source {
        from: "webhooks",
        columns: "webhook_id AS id, name, url, events, status, disabled_reason, failing_since, \
                  CASE WHEN previous_until > now() THEN previous_until END AS previous_until, version, created_at, updated_at, \
                  updated_by",
        time: "created_at",
        id: "webhook_id",
        id_type: "text",
        ascending: false,
        windows: false,
    };

    fn read(row: &Row) -> Result<Stored<Fields, Standing>, Problem> {
        let events: Vec<&str> = row.try_get("events")?;
        let fields = Fields {
            name: row.try_get("name")?,
            url: row.try_get("url")?,
            events: events.into_iter().filter_map(Event::from_name).collect(),
            status: Status::from_name(row.try_get("status")?),
        };
        let standing = Standing {
            disabled_reason: row.try_get("disabled_reason")?,
            failing_since: super::time_text(row.try_get("failing_since")?),
            previous_until: super::time_text(row.try_get("previous_until")?),
        };
        Ok(Stored::with(row, fields, standing)?)
    }

    fn archive(fields: &mut Fields) {
        fields.status = Status::Archived;
    }

    async fn check(
        _: &Call<'_>,
        _: &str,
        _: Option<&Fields>,
        fields: &Fields,
        faults: &mut Faults,
    ) -> Result<(), Problem> {
        check_name("/name", &fields.name, faults);
        if let Err(why) = check_url(&fields.url) {
            faults.add("/url", "malformed", why);
        }
        Ok(())
    }

    async fn insert(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "INSERT INTO webhooks (webhook_id, workspace_id, name, url, events, status, disabled_reason, updated_by)
                 VALUES ($1, $2, $3, $4, $5, $6::text, CASE WHEN $6 = 'disabled' THEN 'by hand' END, $7)",
                &[
                    &id,
                    &call.workspace()?,
                    &f.name,
                    &f.url,
                    &names(&f.events),
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }

    async fn update(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        // An address that could not be sent to may be another one now.
        let moved = call
            .tx
            .query_opt(
                "SELECT 1 FROM webhooks WHERE workspace_id = $1 AND webhook_id = $2 AND url <> $3",
                &[&call.workspace()?, &id, &f.url],
            )
            .await?;
        call.tx
            .execute(
                "UPDATE webhooks SET name = $3, url = $4, events = $5, status = $6::text,
                        disabled_reason = CASE WHEN $6 = 'disabled' THEN coalesce(disabled_reason, 'by hand') END,
                        failing_since = CASE WHEN url = $4 AND status = $6 THEN failing_since END,
                        version = version + 1, updated_at = now(), updated_by = $7
                 WHERE workspace_id = $1 AND webhook_id = $2",
                &[
                    &call.workspace()?,
                    &id,
                    &f.name,
                    &f.url,
                    &names(&f.events),
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        if moved.is_some() {
            holds::resume_mended(call.tx, call.workspace()?, id).await?;
        }
        Ok(())
    }
}

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|e| e.name()).collect()
}

fn enable<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = call.param(Webhooks::PARAM)?;
        let before = entity::load::<Webhooks>(call, id, "FOR UPDATE").await?;
        match before.fields.status {
            Status::Archived => {
                return Err(Problem::new(
                    "conflict",
                    "it is archived; change its status to bring it back",
                ));
            }
            Status::Disabled => {
                let mut fields = before.fields.clone();
                fields.status = Status::Active;
                Webhooks::update(call, id, &fields).await?;
            }
            Status::Active => {
                call.tx
                    .execute(
                        "UPDATE webhooks SET failing_since = NULL WHERE workspace_id = $1 AND webhook_id = $2",
                        &[&call.workspace()?, &id],
                    )
                    .await?;
            }
        }
        let mut answer = entity::answer(entity::load::<Webhooks>(call, id, "").await?)?;
        answer.before = Some(entity::view(before)?);
        Ok(answer)
    })
}

/// Narrows the list of webhooks.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one status.
    status: Option<Status>,
}

fn list_webhooks<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("status = $", filter.status.map(Status::name));
        entity::list_by::<Webhooks>(call, conditions).await
    })
}

const PARAMS: &[Param] = &[Param {
    name: "webhook_id",
    summary: "The webhook's id, `wh_…`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let one = "/v1/webhooks/{webhook_id}";
    let view = entity::view_schema::<Webhooks>;
    let read = |id, path, output, handler| Operation {
        scope: Some("entities:read"),
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    let write = |id, method, path, output, handler| Operation {
        scope: Some("webhooks:manage"),
        effect: Effect::Write,
        ..Operation::new(id, method, path, output, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "The workspace's webhooks, newest first, without their secrets.",
            ..read(
                "list_webhooks",
                Webhooks::PATH,
                entity::list_schema::<Webhooks>,
                list_webhooks,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One webhook, without its secret.",
            ..read("get_webhook", one, view, entity::get::<Webhooks>)
        },
        Operation {
            status: 201,
            step_up: true,
            reveals: true,
            body: Some(entity::create_schema::<Webhooks>),
            summary: "Make a webhook; the secret that signs its deliveries is shown once.",
            ..write(
                "create_webhook",
                Method::Post,
                Webhooks::PATH,
                output::<Shown>,
                create,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Honoured,
            body: Some(entity::fields_schema::<Webhooks>),
            summary: "Change a webhook; what waits for it goes to its URL as it stands then.",
            ..write(
                "update_webhook",
                Method::Patch,
                one,
                view,
                entity::patch::<Webhooks>,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Required,
            body: Some(entity::fields_schema::<Webhooks>),
            summary: "Replace what a webhook says; its secret stays.",
            ..write(
                "replace_webhook",
                Method::Put,
                one,
                view,
                entity::replace::<Webhooks>,
            )
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "Archive a webhook: it gets nothing any more, not even what waits for it.",
            ..write(
                "delete_webhook",
                Method::Delete,
                one,
                view,
                entity::archive::<Webhooks>,
            )
        },
        Operation {
            step_up: true,
            reveals: true,
            params: PARAMS,
            body: Some(input::<Rotation>),
            summary: "Give a webhook a new secret, shown once; the old one signs too for `overlap_s` (3600).",
            ..write(
                "rotate_webhook_secret",
                Method::Post,
                "/v1/webhooks/{webhook_id}/rotate-secret",
                output::<Shown>,
                rotate,
            )
        },
        Operation {
            status: 202,
            effect: Effect::External,
            params: PARAMS,
            summary: "Send a webhook a message of type `test`, signed and logged like any other.",
            ..write(
                "test_webhook",
                Method::Post,
                "/v1/webhooks/{webhook_id}/test",
                output::<test::Sent>,
                test::test,
            )
        },
        Operation {
            params: PARAMS,
            summary: "Let a disabled webhook hear again; its failures are forgotten. What ended meanwhile stays ended.",
            ..write(
                "enable_webhook",
                Method::Post,
                "/v1/webhooks/{webhook_id}/enable",
                view,
                enable,
            )
        },
    ]
}
