//! Feed tokens: what a shard's sidecar shows at the feed. As API keys are, they are shown once and stored as digests, and a
//! rotated one lives on for a while.

use super::time_text;
use crate::api::call::{Answer, Call, to_json};
use crate::api::faults::{ChangeError, Faults};
use crate::api::key_store::{DEFAULT_OVERLAP_S, LIVE_KEYS};
use crate::api::keys::{ApiKey, is_id_of};
use crate::api::page::{Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param};
use crate::api::schema::{input, output};
use crate::api::workspaces::check_name;
use crate::ingress::feed::admission::TOKEN_PREFIX;
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;

const COLUMNS: &str = "token_id AS id, shard_id AS shard, name, revoked_at, \
     CASE WHEN previous_until > now() THEN previous_until END AS previous_until, \
     created_by, created_at, updated_at, version";

const SOURCE: Source = Source {
    from: "shard_tokens",
    columns: COLUMNS,
    time: "created_at",
    id: "token_id",
    id_type: "text",
    ascending: false,
    windows: false,
};

/// A token to make.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct New {
    /// The shard whose feed it opens.
    #[schemars(length(min = 1, max = 63))]
    shard: String,
    /// What it is for.
    #[schemars(length(min = 1, max = 100))]
    name: String,
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

/// A token as answered.
#[derive(Serialize, JsonSchema)]
struct View {
    /// Its id, `ft_…`: no secret.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    /// The shard whose feed it opens.
    #[schemars(extend("x-class" = "open"))]
    shard: String,
    /// What it is for.
    #[schemars(extend("x-class" = "open"))]
    name: String,
    /// When it was revoked.
    #[schemars(extend("x-class" = "open"))]
    revoked_at: Option<String>,
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

/// A token with its secret, shown once.
#[derive(Serialize, JsonSchema)]
struct Shown {
    #[serde(flatten)]
    view: View,
    /// The whole token, `ft_<id>.<secret>`: shown now and never again.
    #[schemars(extend("x-class" = "secret"))]
    token: Option<String>,
}

fn view(row: &Row) -> Result<View, Problem> {
    let time = |name: &str| -> Result<Option<String>, tokio_postgres::Error> {
        Ok(time_text(row.try_get::<_, Option<Tz>>(name)?))
    };
    Ok(View {
        id: row.try_get("id")?,
        shard: row.try_get("shard")?,
        name: row.try_get("name")?,
        revoked_at: time("revoked_at")?,
        previous_until: time("previous_until")?,
        created_by: row.try_get("created_by")?,
        created_at: row.try_get::<_, Tz>("created_at")?.0.rfc3339(),
        updated_at: row.try_get::<_, Tz>("updated_at")?.0.rfc3339(),
        version: row.try_get("version")?,
    })
}

fn list_schema() -> Value {
    list_of(output::<View>())
}

/// Narrows the list of tokens.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one shard.
    shard: Option<String>,
}

fn list_tokens<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("shard_id = $", filter.shard);
        list(call, SOURCE, conditions, |row| to_json(&view(row)?)).await
    })
}

async fn find(call: &Call<'_>, lock: &str) -> Result<View, Problem> {
    let id = call.param("token_id")?;
    if !is_id_of(TOKEN_PREFIX, id) {
        return Err(Problem::not_found());
    }
    let row = call
        .tx
        .query_opt(
            &format!(
                "SELECT {COLUMNS} FROM shard_tokens WHERE workspace_id = $1 AND token_id = $2 {lock}"
            ),
            &[&call.workspace()?, &id],
        )
        .await?
        .ok_or_else(Problem::not_found)?;
    view(&row)
}

fn get<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let found = find(call, "").await?;
        let version = found.version;
        Ok(Answer::of(&found)?.version(version))
    })
}

fn create<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let new: New = call.body()?;
        let workspace = call.workspace()?;
        let mut faults = Faults::new();
        check_name("/name", &new.name, &mut faults);
        // The lock makes two creations count one after the other.
        let shard = call
            .tx
            .query_opt(
                "SELECT 1 FROM shards WHERE workspace_id = $1 AND shard_id = $2 AND status = 'active' FOR NO KEY UPDATE",
                &[&workspace, &new.shard],
            )
            .await?;
        if shard.is_none() {
            faults.add("/shard", "unknown_shard", "no active shard of that id");
        }
        faults.done()?;
        let live: i64 = call
            .tx
            .query_one(
                "SELECT count(*) FROM shard_tokens WHERE workspace_id = $1 AND shard_id = $2 AND revoked_at IS NULL",
                &[&workspace, &new.shard],
            )
            .await?
            .try_get(0)?;
        if live >= LIVE_KEYS {
            return Err(ChangeError::Conflict {
                code: "too_many_keys",
                message: format!("there are {LIVE_KEYS} live tokens already; revoke one first"),
            }
            .into());
        }
        let token = ApiKey::generate_as(TOKEN_PREFIX).map_err(ChangeError::from)?;
        let row = call
            .tx
            .query_one(
                &format!(
                    "INSERT INTO shard_tokens (token_id, workspace_id, shard_id, name, secret_digest, created_by, updated_by)
                     VALUES ($1, $2, $3, $4, $5, $6, $6) RETURNING {COLUMNS}"
                ),
                &[
                    &token.id(),
                    &workspace,
                    &new.shard,
                    &new.name.trim(),
                    &token.digest().as_slice(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        let mut answer = shown(view(&row)?, &token)?;
        answer.location = Some(format!("/v1/feed-tokens/{}", token.id()));
        Ok(answer)
    })
}

fn shown(view: View, token: &ApiKey) -> Result<Answer, Problem> {
    let version = view.version;
    Ok(Answer::of(&Shown {
        view,
        token: Some(token.reveal()),
    })?
    .version(version))
}

fn rotate<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let rotation: Rotation = call.body()?;
        let overlap = rotation.overlap_s.unwrap_or(DEFAULT_OVERLAP_S);
        let before = find(call, "FOR UPDATE").await?;
        let token = ApiKey::with_new_secret(&before.id).map_err(ChangeError::from)?;
        let row = call
            .tx
            .query_opt(
                &format!(
                    "UPDATE shard_tokens SET secret_digest = $3,
                            previous_digest = CASE WHEN $4::float8 > 0 THEN secret_digest END,
                            previous_until = CASE WHEN $4::float8 > 0 THEN now() + make_interval(secs => $4) END,
                            updated_at = now(), updated_by = $5, version = version + 1
                     WHERE workspace_id = $1 AND token_id = $2 AND revoked_at IS NULL RETURNING {COLUMNS}"
                ),
                &[
                    &call.workspace()?,
                    &before.id,
                    &token.digest().as_slice(),
                    &f64::from(i32::try_from(overlap).unwrap_or(0)),
                    &call.actor.key_id,
                ],
            )
            .await?
            .ok_or_else(|| ChangeError::Conflict {
                code: "key_revoked",
                message: "the token is revoked".to_owned(),
            })?;
        let mut answer = shown(view(&row)?, &token)?;
        answer.before = Some(to_json(&before)?);
        Ok(answer)
    })
}

fn revoke<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let before = find(call, "FOR UPDATE").await?;
        call.tx
            .execute(
                "UPDATE shard_tokens SET revoked_at = now(), previous_digest = NULL, previous_until = NULL, updated_at = now(),
                        updated_by = $3, version = version + 1
                 WHERE workspace_id = $1 AND token_id = $2 AND revoked_at IS NULL",
                &[&call.workspace()?, &before.id, &call.actor.key_id],
            )
            .await?;
        let after = find(call, "").await?;
        let version = after.version;
        let mut answer = Answer::of(&after)?.version(version);
        answer.before = Some(to_json(&before)?);
        Ok(answer)
    })
}

const PARAMS: &[Param] = &[Param {
    name: "token_id",
    summary: "The token's id, `ft_…`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let of = |id, method, path, output, handler| Operation {
        scope: Some("engagement:write"),
        ..Operation::new(id, method, path, output, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "The workspace's feed tokens, newest first, without their secrets.",
            ..of(
                "list_feed_tokens",
                Method::Get,
                "/v1/feed-tokens",
                list_schema,
                list_tokens,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One feed token, without its secret.",
            ..of(
                "get_feed_token",
                Method::Get,
                "/v1/feed-tokens/{token_id}",
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
            summary: "Make a token for a shard's feed; it is shown once.",
            ..of(
                "create_feed_token",
                Method::Post,
                "/v1/feed-tokens",
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
            summary: "Give a feed token a new secret, shown once; the old one lives on for `overlap_s` (3600).",
            ..of(
                "rotate_feed_token",
                Method::Post,
                "/v1/feed-tokens/{token_id}/rotate",
                output::<Shown>,
                rotate,
            )
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            summary: "Revoke a feed token for good; a feed that it opened ends within a second.",
            ..of(
                "revoke_feed_token",
                Method::Post,
                "/v1/feed-tokens/{token_id}/revoke",
                output::<View>,
                revoke,
            )
        },
    ]
}
