//! API keys of the workspace.

use super::time_text;
use crate::api::call::{Answer, Call, to_json};
use crate::api::faults::Faults;
use crate::api::key_store::{self, COLUMNS, DEFAULT_OVERLAP_S, KeyRow, NewKey, Within};
use crate::api::page::{Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param};
use crate::api::schema::{input, output};
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::time::Micros;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const PARAMS: &[Param] = &[Param {
    name: "key_id",
    summary: "The key's id, `rk_…`.",
}];

const SOURCE: Source = Source {
    from: "api_keys",
    columns: COLUMNS,
    time: "created_at",
    id: "key_id",
    id_type: "text",
    ascending: false,
    windows: false,
};

/// A key to make.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct New {
    /// What it is for.
    #[schemars(length(min = 1, max = 100))]
    name: String,
    /// Scopes by name, or `full`: all ordinary scopes, whatever is added later.
    #[schemars(length(min = 1, max = 50))]
    scopes: Vec<String>,
    /// When it ends by itself, RFC 3339.
    #[serde(default)]
    expires_at: Option<String>,
    /// Networks it may be used from, as 203.0.113.0/24; none: from everywhere.
    #[serde(default)]
    #[schemars(length(max = 50))]
    cidrs: Vec<String>,
}

/// How to rotate.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rotation {
    /// How long the old secret lives on, in seconds.
    #[serde(default)]
    #[schemars(range(min = 0, max = 604_800))]
    overlap_s: Option<i64>,
}

/// A key as answered.
#[derive(Serialize, JsonSchema)]
struct View {
    /// Its id, `rk_…`: no secret.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    /// What it is for.
    #[schemars(extend("x-class" = "open"))]
    name: String,
    /// Its scopes as given.
    #[schemars(extend("x-class" = "open"))]
    scopes: Vec<String>,
    /// Networks it may be used from.
    #[schemars(extend("x-class" = "open"))]
    cidrs: Vec<String>,
    /// When it ends by itself.
    #[schemars(extend("x-class" = "open"))]
    expires_at: Option<String>,
    /// When it was revoked.
    #[schemars(extend("x-class" = "open"))]
    revoked_at: Option<String>,
    /// When it was used last, to the minute.
    #[schemars(extend("x-class" = "open"))]
    last_used_at: Option<String>,
    /// Until when the secret before the last rotation is good.
    #[schemars(extend("x-class" = "open"))]
    previous_until: Option<String>,
    /// Who made it.
    #[schemars(extend("x-class" = "open"))]
    created_by: String,
    /// When it was made.
    #[schemars(extend("x-class" = "open"))]
    created_at: String,
    /// When it was changed last.
    #[schemars(extend("x-class" = "open"))]
    updated_at: String,
    /// Its version.
    #[schemars(extend("x-class" = "open"))]
    version: i64,
}

/// A key with its secret, shown once.
#[derive(Serialize, JsonSchema)]
struct Shown {
    #[serde(flatten)]
    view: View,
    /// The whole key, `rk_<id>.<secret>`: shown now and never again.
    #[schemars(extend("x-class" = "secret"))]
    key: Option<String>,
}

fn view(row: KeyRow) -> View {
    let text = |t: Option<Micros>| time_text(t.map(Tz));
    View {
        id: row.key_id,
        name: row.name,
        scopes: row.scopes,
        cidrs: row.cidrs,
        expires_at: text(row.expires_at),
        revoked_at: text(row.revoked_at),
        last_used_at: text(row.last_used_at),
        previous_until: text(row.previous_until),
        created_by: row.created_by,
        created_at: row.created_at.rfc3339(),
        updated_at: row.updated_at.rfc3339(),
        version: row.version,
    }
}

fn list_schema() -> Value {
    list_of(output::<View>())
}

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let of = |id, method, path, output, handler| Operation {
        scope: Some("keys:manage"),
        ..Operation::new(id, method, path, output, handler)
    };
    vec![
        Operation {
            list: true,
            summary: "The workspace's API keys, newest first, without their secrets.",
            ..of(
                "list_api_keys",
                Method::Get,
                "/v1/keys",
                list_schema,
                list_keys,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One API key, without its secret.",
            ..of(
                "get_api_key",
                Method::Get,
                "/v1/keys/{key_id}",
                output::<View>,
                get,
            )
        },
        Operation {
            effect: Effect::Write,
            step_up: true,
            status: 201,
            reveals: true,
            body: Some(input::<New>),
            summary: "Make an API key; its secret is shown once. Nobody gives scopes that they do not hold.",
            ..of(
                "create_api_key",
                Method::Post,
                "/v1/keys",
                output::<Shown>,
                create,
            )
        },
        Operation {
            effect: Effect::Write,
            step_up: true,
            reveals: true,
            params: PARAMS,
            body: Some(input::<Rotation>),
            summary: "Give a key a new secret, shown once; the old one lives on for `overlap_s` (3600).",
            ..of(
                "rotate_api_key",
                Method::Post,
                "/v1/keys/{key_id}/rotate",
                output::<Shown>,
                rotate,
            )
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            summary: "Revoke a key for good; it acts everywhere within a second.",
            ..of(
                "revoke_api_key",
                Method::Post,
                "/v1/keys/{key_id}/revoke",
                output::<View>,
                revoke,
            )
        },
    ]
}

fn list_keys<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let conditions = Conditions::of_workspace(call.workspace()?);
        list(call, SOURCE, conditions, |row| {
            to_json(&view(KeyRow::read(row)?))
        })
        .await
    })
}

fn within(call: &Call<'_>) -> Result<Within, Problem> {
    Ok(Within::Workspace(call.workspace()?))
}

fn get<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let row = key_store::get(call.tx, within(call)?, call.param("key_id")?).await?;
        let version = row.version;
        Ok(Answer::of(&view(row))?.version(version))
    })
}

fn create<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let new: New = call.body()?;
        let expires_at = match new
            .expires_at
            .as_deref()
            .map(Micros::parse_rfc3339)
            .transpose()
        {
            Ok(time) => time,
            Err(_) => {
                let mut faults = Faults::new();
                faults.add(
                    "/expires_at",
                    "malformed",
                    "want RFC 3339, as 2025-01-31T00:00:00Z",
                );
                return Err(faults.into());
            }
        };
        let new = NewKey {
            workspace: Some(call.workspace()?),
            name: new.name,
            scopes: new.scopes,
            expires_at,
            cidrs: new.cidrs,
            created_by: call.actor.key_id.clone(),
        };
        let (row, key) = key_store::create(call.tx, &new, Some(&call.actor.scopes)).await?;
        let location = format!("/v1/keys/{}", row.key_id);
        let mut answer = shown(row, &key)?;
        answer.location = Some(location);
        Ok(answer)
    })
}

fn shown(row: KeyRow, key: &crate::api::keys::ApiKey) -> Result<Answer, Problem> {
    let version = row.version;
    Ok(Answer::of(&Shown {
        view: view(row),
        key: Some(key.reveal()),
    })?
    .version(version))
}

fn rotate<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let rotation: Rotation = call.body()?;
        let overlap = rotation.overlap_s.unwrap_or(DEFAULT_OVERLAP_S);
        let id = call.param("key_id")?;
        let before = key_store::get(call.tx, within(call)?, id).await?;
        // A new secret is the key given anew: nobody gives what they do not hold.
        let lacking = call
            .actor
            .scopes
            .lacking(&crate::api::scopes::ScopeSet::expand(&before.scopes));
        if !lacking.is_empty() {
            return Err(crate::api::faults::ChangeError::NotHeld(lacking).into());
        }
        let (row, key) =
            key_store::rotate(call.tx, within(call)?, id, overlap, &call.actor.key_id).await?;
        let mut answer = shown(row, &key)?;
        answer.before = Some(to_json(&view(before))?);
        Ok(answer)
    })
}

fn revoke<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let row = key_store::revoke(
            call.tx,
            within(call)?,
            call.param("key_id")?,
            &call.actor.key_id,
        )
        .await?;
        let version = row.version;
        Ok(Answer::of(&view(row))?.version(version))
    })
}
