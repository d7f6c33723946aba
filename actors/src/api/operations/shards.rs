//! Shards: whose frames the feed takes, of which module and protocol.

use super::time_text;
use crate::api::call::{Answer, Call};
use crate::api::entity::{self, Entity, Stored};
use crate::api::faults::Faults;
use crate::api::page::{Conditions, Source};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Precondition};
use crate::api::schema::{input, output};
use crate::api::workspaces::check_name;
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::frame::is_shard_id;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_postgres::Row;

/// Whether the feed is open to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It is.
    #[default]
    Active,
    /// It is not: a feed that lives is ended within a second.
    Archived,
}

impl Status {
    /// The stored name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Status::Active => "active",
            Status::Archived => "archived",
        }
    }
}

/// What can be written of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// Its name.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub name: String,
    /// The module whose frames it sends; it must be enabled when it is chosen. Frames of a module that is not enabled any more are counted and kept for nothing.
    #[schemars(
        regex(pattern = r"^[a-z][a-z0-9_-]{0,39}$"),
        extend("x-class" = "open")
    )]
    pub module: String,
    /// The number of the frames' protocol; a sidecar of another one is refused with both numbers. Changing it ends a feed that
    /// lives.
    #[schemars(range(min = 1, max = 1_000_000), extend("x-class" = "open"))]
    pub protocol: i32,
    /// Whether its feed is open.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub status: Status,
}

/// Where its feed stands.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Feed {
    /// Whether one lives, as of `at`. A process that died leaves it so until the next hello.
    #[schemars(extend("x-class" = "open"))]
    connected: bool,
    /// The boot that the shard named last.
    #[schemars(extend("x-class" = "open"))]
    boot: String,
    /// Everything of that boot up to it is settled; a second behind at most.
    #[schemars(extend("x-class" = "open"))]
    seq: i64,
    /// When that was written.
    #[schemars(extend("x-class" = "open"))]
    at: Option<String>,
}

/// What is shown of a shard beside its fields.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Shown {
    /// Its feed; none: there never was one.
    #[schemars(extend("x-class" = "open"))]
    feed: Option<Feed>,
}

pub(crate) struct Shards;

impl Entity for Shards {
    type Fields = Fields;
    type Shown = Shown;
    const PATH: &'static str = "/v1/shards";
    const PARAM: &'static str = "shard_id";
    const ID_COLUMN: &'static str = "shard_id";
    const CHOSEN_ID: Option<&'static str> = Some("^[a-z0-9][a-z0-9._-]{0,62}$");
    const SOURCE: Source = Source {
        from: "shards",
        columns: "shard_id AS id, name, module, protocol, status, version, created_at, updated_at, updated_by, \
                  (SELECT to_jsonb(f) FROM (SELECT connected, boot, seq FROM shard_feeds f \
                   WHERE f.workspace_id = shards.workspace_id AND f.shard_id = shards.shard_id) AS f) AS feed, \
                  (SELECT f.updated_at FROM shard_feeds f \
                   WHERE f.workspace_id = shards.workspace_id AND f.shard_id = shards.shard_id) AS feed_at",
        time: "created_at",
        id: "shard_id",
        id_type: "text",
        ascending: false,
        windows: false,
    };

    fn read(row: &Row) -> Result<Stored<Fields, Shown>, Problem> {
        let fields = Fields {
            name: row.try_get("name")?,
            module: row.try_get("module")?,
            protocol: row.try_get("protocol")?,
            status: match row.try_get("status")? {
                "archived" => Status::Archived,
                _ => Status::Active,
            },
        };
        let feed: Option<Value> = row.try_get("feed")?;
        let at: Option<Tz> = row.try_get("feed_at")?;
        let feed = feed.map(|f| Feed {
            connected: f.get("connected").and_then(Value::as_bool).unwrap_or(false),
            boot: f
                .get("boot")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            seq: f.get("seq").and_then(Value::as_i64).unwrap_or(0),
            at: time_text(at),
        });
        Ok(Stored::with(row, fields, Shown { feed })?)
    }

    fn archive(fields: &mut Fields) {
        fields.status = Status::Archived;
    }

    async fn check(
        call: &Call<'_>,
        id: &str,
        before: Option<&Fields>,
        fields: &Fields,
        faults: &mut Faults,
    ) -> Result<(), Problem> {
        check_name("/name", &fields.name, faults);
        // A module that was enabled when it was chosen may stay.
        if before.is_none_or(|b| b.module != fields.module)
            && call.modules.get(&fields.module).is_none()
        {
            faults.add("/module", "unknown_module", "no enabled module has this id");
        }
        if before.is_none() && !is_shard_id(id) {
            faults.add("/id", "malformed", "a-z, 0-9, `.`, `_` and `-`, at most 63");
        }
        if before.is_none() && taken(call, id).await? {
            return Err(Problem::new("id_taken", "the shard's id is taken"));
        }
        Ok(())
    }

    async fn insert(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        let written = call
            .tx
            .execute(
                "INSERT INTO shards (shard_id, workspace_id, name, module, protocol, status, updated_by)
                 VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
                &[
                    &id,
                    &call.workspace()?,
                    &f.name,
                    &f.module,
                    &f.protocol,
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        if written == 0 {
            return Err(Problem::new("id_taken", "the shard's id is taken"));
        }
        Ok(())
    }

    async fn update(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "UPDATE shards SET name = $3, module = $4, protocol = $5, status = $6, version = version + 1,
                        updated_at = now(), updated_by = $7
                 WHERE workspace_id = $1 AND shard_id = $2",
                &[
                    &call.workspace()?,
                    &id,
                    &f.name,
                    &f.module,
                    &f.protocol,
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }
}

async fn taken(call: &Call<'_>, id: &str) -> Result<bool, Problem> {
    let found = call
        .tx
        .query_opt(
            "SELECT 1 FROM shards WHERE workspace_id = $1 AND shard_id = $2",
            &[&call.workspace()?, &id],
        )
        .await?;
    Ok(found.is_some())
}

/// Its id is part of keys in the log, so that its operator chooses it.
fn create_schema() -> Value {
    let mut schema = entity::create_schema::<Shards>();
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.push(json!("id"));
    }
    if let Some(id) = schema.pointer_mut("/properties/id/description") {
        *id = json!("Its id for ever, unique in its workspace: as in `/feed/<id>`.");
    }
    schema
}

/// Narrows the list of shards.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one status.
    status: Option<Status>,
}

fn list_shards<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("status = $", filter.status.map(Status::name));
        entity::list_by::<Shards>(call, conditions).await
    })
}

/// Frames of one kind.
#[derive(Serialize, JsonSchema)]
struct Kind {
    /// The kind; empty: those that have none, and those beyond the first 200.
    #[schemars(extend("x-class" = "open"))]
    kind: String,
    /// Handed to the log.
    #[schemars(extend("x-class" = "open"))]
    mapped: i64,
    /// Of a kind that no enabled module maps: counted, kept for nothing.
    #[schemars(extend("x-class" = "open"))]
    unmapped: i64,
    /// Answered with a reason.
    #[schemars(extend("x-class" = "open"))]
    refused: i64,
    /// When the last one came, to the second.
    #[schemars(extend("x-class" = "open"))]
    last_at: Option<String>,
}

/// Frames of a shard by kind.
#[derive(Serialize, JsonSchema)]
struct Kinds {
    /// One entry a kind, those with most frames first.
    #[schemars(extend("x-class" = "open"))]
    kinds: Vec<Kind>,
}

fn kinds<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = call.param(Shards::PARAM)?;
        entity::load::<Shards>(call, id, "").await?;
        let rows = call
            .tx
            .query(
                "SELECT kind, mapped, unmapped, refused, last_at FROM shard_frames WHERE workspace_id = $1 AND shard_id = $2
                 ORDER BY mapped + unmapped + refused DESC, kind LIMIT 500",
                &[&call.workspace()?, &id],
            )
            .await?;
        let kinds = rows
            .iter()
            .map(|r| {
                Ok(Kind {
                    kind: r.try_get(0)?,
                    mapped: r.try_get(1)?,
                    unmapped: r.try_get(2)?,
                    refused: r.try_get(3)?,
                    last_at: time_text(Some(r.try_get(4)?)),
                })
            })
            .collect::<Result<Vec<_>, tokio_postgres::Error>>()?;
        Answer::of(&Kinds { kinds })
    })
}

const PARAMS: &[Param] = &[Param {
    name: "shard_id",
    summary: "The shard's id, as in `/feed/<id>`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let one = "/v1/shards/{shard_id}";
    let read = |id, path, output, handler| Operation {
        scope: Some("entities:read"),
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    let write = |id, method, path, handler| Operation {
        scope: Some("engagement:write"),
        effect: Effect::Write,
        ..Operation::new(id, method, path, entity::view_schema::<Shards>, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "The workspace's shards, newest first, and where their feeds stand.",
            ..read(
                "list_shards",
                "/v1/shards",
                entity::list_schema::<Shards>,
                list_shards,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One shard, and where its feed stands.",
            ..read(
                "get_shard",
                one,
                entity::view_schema::<Shards>,
                entity::get::<Shards>,
            )
        },
        Operation {
            params: PARAMS,
            summary: "A shard's frames by kind, since its beginning: mapped, unmapped, refused.",
            ..read(
                "get_shard_kinds",
                "/v1/shards/{shard_id}/kinds",
                output::<Kinds>,
                kinds,
            )
        },
        Operation {
            status: 201,
            body: Some(create_schema),
            summary: "Make a shard; then give it a feed token.",
            ..write(
                "create_shard",
                Method::Post,
                "/v1/shards",
                entity::create::<Shards>,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Honoured,
            body: Some(entity::fields_schema::<Shards>),
            summary: "Change a shard.",
            ..write("update_shard", Method::Patch, one, entity::patch::<Shards>)
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Required,
            body: Some(entity::fields_schema::<Shards>),
            summary: "Replace what a shard says.",
            ..write("replace_shard", Method::Put, one, entity::replace::<Shards>)
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "Archive a shard: its feed is closed, what it sent stays. Its id is never another's.",
            ..write(
                "delete_shard",
                Method::Delete,
                one,
                entity::archive::<Shards>,
            )
        },
    ]
}
