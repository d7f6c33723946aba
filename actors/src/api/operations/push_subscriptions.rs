//! Endpoints at which a user's devices are woken. Whoever knows one can wake the device: shown by their origin alone.

use super::time_text;
use crate::api::call::{Answer, Call, to_json};
use crate::api::faults::{ChangeError, Faults};
use crate::api::page::{Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Precondition};
use crate::api::schema::{input, output};
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::ids;
use reqwest::Url;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;

/// An endpoint of a user.
#[derive(Serialize, JsonSchema)]
struct Subscription {
    /// Its id, `ps_…`.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    /// The user.
    #[schemars(extend("x-class" = "open"))]
    user: String,
    /// The origin of its URL.
    #[schemars(extend("x-class" = "open"))]
    origin: String,
    /// Since when.
    #[schemars(extend("x-class" = "open"))]
    created_at: Option<String>,
}

const SOURCE: Source = Source {
    from: "push_subscriptions",
    columns: "subscription_id, user_id, endpoint, created_at",
    time: "created_at",
    id: "subscription_id",
    id_type: "text",
    ascending: false,
    windows: false,
};

fn read(row: &Row) -> Result<Value, Problem> {
    let endpoint: &str = row.try_get("endpoint")?;
    let url = Url::parse(endpoint);
    to_json(&Subscription {
        id: row.try_get("subscription_id")?,
        user: row.try_get("user_id")?,
        origin: url.map_or_else(|_| "?".to_owned(), |u| u.origin().ascii_serialization()),
        created_at: time_text(row.try_get::<_, Option<Tz>>("created_at")?),
    })
}

/// Narrows the list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one user.
    user: Option<String>,
}

fn list_all<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("user_id = $", filter.user);
        list(call, SOURCE, conditions, read).await
    })
}

/// An endpoint to wake a user's device at.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct New {
    /// The user.
    #[schemars(length(min = 1, max = 200))]
    user: String,
    /// The endpoint that a UnifiedPush distributor gave out. It is woken only if its origin is listed in `delivery.push.origins`.
    #[schemars(length(min = 1, max = 2_000), extend("writeOnly" = true))]
    endpoint: String,
}

fn add<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let new: New = call.body()?;
        let good = Url::parse(&new.endpoint).is_ok_and(|url| {
            matches!(url.scheme(), "https" | "http") && url.has_host() && url.username().is_empty()
        });
        if !good {
            let mut faults = Faults::new();
            faults.add("/endpoint", "invalid_url", "want an https URL with a host");
            return Err(faults.into());
        }
        let fresh = ids::mint(call.state.clock.wall()).map_err(ChangeError::from)?;
        let id = format!("ps_{}", ids::encode(fresh));
        let row = call
            .tx
            .query_one(
                "INSERT INTO push_subscriptions (subscription_id, workspace_id, user_id, endpoint) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (workspace_id, user_id, endpoint) DO UPDATE SET endpoint = excluded.endpoint
                 RETURNING subscription_id, user_id, endpoint, created_at",
                &[&id, &call.workspace()?, &new.user, &new.endpoint],
            )
            .await?;
        Ok(Answer {
            body: read(&row)?,
            ..Answer::default()
        })
    })
}

fn remove<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let row = call
            .tx
            .query_opt(
                "DELETE FROM push_subscriptions WHERE workspace_id = $1 AND subscription_id = $2
                 RETURNING subscription_id, user_id, endpoint, created_at",
                &[&call.workspace()?, &call.param("subscription_id")?],
            )
            .await?
            .ok_or_else(Problem::not_found)?;
        // It is written once and never changed: its only version is the first.
        call.check_version(1, &call.actor.key_id, call.state.clock.wall())?;
        let gone = read(&row)?;
        Ok(Answer {
            body: gone.clone(),
            before: Some(gone),
            ..Answer::default()
        })
    })
}

fn list_schema() -> Value {
    list_of(output::<Subscription>())
}

const PARAMS: &[Param] = &[Param {
    name: "subscription_id",
    summary: "The endpoint's id, `ps_…`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    vec![
        Operation {
            scope: Some("people:read"),
            list: true,
            query: input::<Filter>,
            summary: "Endpoints at which users' devices are woken, newest first, by their origins.",
            ..Operation::new(
                "list_push_subscriptions",
                Method::Get,
                "/v1/push-subscriptions",
                list_schema,
                list_all,
            )
        },
        Operation {
            scope: Some("people:write"),
            status: 201,
            effect: Effect::Write,
            body: Some(input::<New>),
            summary: "Add an endpoint of a user; one that is there stays.",
            ..Operation::new(
                "create_push_subscription",
                Method::Post,
                "/v1/push-subscriptions",
                output::<Subscription>,
                add,
            )
        },
        Operation {
            scope: Some("people:write"),
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "Remove an endpoint: the device is not woken any more.",
            ..Operation::new(
                "delete_push_subscription",
                Method::Delete,
                "/v1/push-subscriptions/{subscription_id}",
                output::<Subscription>,
                remove,
            )
        },
    ]
}
