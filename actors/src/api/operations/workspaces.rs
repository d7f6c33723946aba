//! Workspaces: the deployment's.

use crate::api::call::{Answer, Call, to_json};
use crate::api::faults::Faults;
use crate::api::page::{Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Place, Precondition};
use crate::api::schema::{input, output};
use crate::api::workspaces::{self, COLUMNS, WorkspaceRow};
use crate::directory::seeds;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const PARAMS: &[Param] = &[Param {
    name: "workspace_id",
    summary: "The workspace's id.",
}];

const SOURCE: Source = Source {
    from: "workspaces",
    columns: COLUMNS,
    time: "created_at",
    id: "slug",
    id_type: "text",
    ascending: false,
    windows: false,
};

/// Whether it works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Doors answer.
    #[default]
    Active,
    /// Doors answer as for unknown, keys 403; data is kept.
    Archived,
}

/// A workspace to make.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewWorkspace {
    /// Its id for ever: never changed, never used again.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]{1,39}$"))]
    id: String,
    /// Its name; the id if absent.
    #[serde(default)]
    #[schemars(length(max = 100))]
    name: Option<String>,
    /// Whether visits keep the client's address beside its hash.
    #[serde(default)]
    store_ip: bool,
}

/// What can be changed of a workspace.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Fields {
    /// Its name.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    name: String,
    /// Whether visits keep the client's address beside its hash.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    store_ip: bool,
    /// Whether it works.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    status: Status,
}

/// A workspace as answered.
#[derive(Serialize, JsonSchema)]
struct View {
    /// Its id.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    #[serde(flatten)]
    fields: Fields,
    /// Its version.
    #[schemars(extend("x-class" = "open"))]
    version: i64,
    /// When it was made.
    #[schemars(extend("x-class" = "open"))]
    created_at: String,
    /// When it was changed last.
    #[schemars(extend("x-class" = "open"))]
    updated_at: String,
    /// Who changed it last.
    #[schemars(extend("x-class" = "open"))]
    updated_by: String,
}

fn view(row: WorkspaceRow) -> View {
    View {
        id: row.slug,
        fields: Fields {
            name: row.name,
            store_ip: row.store_ip,
            status: if row.status == "archived" {
                Status::Archived
            } else {
                Status::Active
            },
        },
        version: row.version,
        created_at: row.created_at.rfc3339(),
        updated_at: row.updated_at.rfc3339(),
        updated_by: row.updated_by,
    }
}

fn list_schema() -> Value {
    list_of(output::<View>())
}

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let of = |id, method, path, output, handler| Operation {
        place: Place::Deployment,
        scope: Some("ops:read"),
        ..Operation::new(id, method, path, output, handler)
    };
    vec![
        Operation {
            list: true,
            summary: "All workspaces of the deployment, newest first.",
            ..of(
                "list_workspaces",
                Method::Get,
                "/v1/workspaces",
                list_schema,
                list_all,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One workspace.",
            ..of(
                "get_workspace",
                Method::Get,
                "/v1/workspaces/{workspace_id}",
                output::<View>,
                get,
            )
        },
        Operation {
            scope: Some("ops:write"),
            effect: Effect::Write,
            step_up: true,
            status: 201,
            body: Some(input::<NewWorkspace>),
            summary: "Make a workspace.",
            ..of(
                "create_workspace",
                Method::Post,
                "/v1/workspaces",
                output::<View>,
                create,
            )
        },
        Operation {
            scope: Some("ops:write"),
            effect: Effect::Write,
            step_up: true,
            params: PARAMS,
            precondition: Precondition::Honoured,
            body: Some(input::<Fields>),
            summary: "Change a workspace, or archive it.",
            ..of(
                "update_workspace",
                Method::Patch,
                "/v1/workspaces/{workspace_id}",
                output::<View>,
                update,
            )
        },
    ]
}

fn answer(row: WorkspaceRow) -> Result<Answer, Problem> {
    let version = row.version;
    Ok(Answer::of(&view(row))?.version(version))
}

fn list_all<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(list(call, SOURCE, Conditions::default(), |row| {
        to_json(&view(WorkspaceRow::read(row)?))
    }))
}

fn get<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(
        async move { answer(workspaces::by_slug(call.tx, call.param("workspace_id")?).await?) },
    )
}

fn create<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let new: NewWorkspace = call.body()?;
        let name = new.name.unwrap_or_default();
        let row =
            workspaces::create(call.tx, &new.id, &name, new.store_ip, &call.actor.key_id).await?;
        let now = call.state.clock.wall();
        seeds::seed(call.tx, call.modules, Some(row.workspace_id), now).await?;
        let mut answer = answer(row)?;
        answer.location = Some(format!("/v1/workspaces/{}", new.id));
        Ok(answer)
    })
}

fn update<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let slug = call.param("workspace_id")?;
        let row = call
            .tx
            .query_opt(
                &format!("SELECT {COLUMNS} FROM workspaces WHERE slug = $1 FOR UPDATE"),
                &[&slug],
            )
            .await?
            .ok_or_else(Problem::not_found)?;
        let before = WorkspaceRow::read(&row)?;
        call.check_version(before.version, &before.updated_by, before.updated_at)?;
        let before = view(before);
        let mut merged = to_json(&before.fields)?;
        crate::api::entity::merge(&mut merged, call.body);
        let mut faults = Faults::new();
        if let Some(schema) = call.body_schema {
            schema.faults(&merged, "", &mut faults);
        }
        if merged
            .get("name")
            .and_then(Value::as_str)
            .is_some_and(|n| !workspaces::is_name(n))
        {
            faults.add(
                "/name",
                "invalid_name",
                "a name has 1 to 100 characters, no control characters",
            );
        }
        if !faults.is_empty() {
            return Err(faults.into());
        }
        let fields: Fields = crate::api::call::decode(&merged)?;
        let status = if fields.status == Status::Archived {
            "archived"
        } else {
            "active"
        };
        let row = call
            .tx
            .query_one(
                &format!(
                    "UPDATE workspaces SET name = $2, store_ip = $3, status = $4, version = version + 1,
                            updated_at = now(), updated_by = $5 WHERE slug = $1 RETURNING {COLUMNS}"
                ),
                &[&slug, &fields.name, &fields.store_ip, &status, &call.actor.key_id],
            )
            .await?;
        let mut answer = answer(WorkspaceRow::read(&row)?)?;
        answer.before = Some(to_json(&before)?);
        Ok(answer)
    })
}
