//! Segments: saved audiences. A ceiling is derived and shown, never chosen.

use super::rules::reach::{self, Reach};
use crate::api::call::{Answer, Call};
use crate::api::entity::{self, Entity, Stored};
use crate::api::faults::Faults;
use crate::api::page::{Conditions, Source};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Precondition};
use crate::api::schema::output;
use crate::api::workspaces::check_name;
use crate::directory::audience::{self, Whom, sets};
use crate::directory::segment::{NoCeiling, Segment};
use futures::future::LocalBoxFuture;
use millrace_schemas::ceiling::Ceiling;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_postgres::Row;

/// What can be written of a segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// Its name.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub name: String,
    /// `{"audience": id, "params": {…}}`, or `{"op": "and" | "or" | "not", "nodes": […]}`; `not` only within an `and` that has
    /// something else.
    #[schemars(extend("x-class" = "open", "x-free-because" = "an audience or a group of them, by its own grammar"))]
    pub expression: Value,
}

/// What is shown of a segment beside that.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Standing {
    /// What it may reach at most: the narrowest ceiling that it contains, as audiences are declared now; null: it reaches nobody.
    #[schemars(extend("x-class" = "open"))]
    ceiling: Option<Ceiling>,
    /// Audiences that nobody declares any more: as long as there is one, it reaches nobody.
    #[schemars(extend("x-class" = "open"))]
    dormant: Vec<String>,
    /// Rules that use it.
    #[schemars(extend("x-class" = "open"))]
    rules: i64,
}

pub(crate) struct Segments;

impl Entity for Segments {
    type Fields = Fields;
    type Shown = Standing;
    const PATH: &'static str = "/v1/segments";
    const PARAM: &'static str = "segment_id";
    const ID_COLUMN: &'static str = "segment_id";
    const PREFIX: &'static str = "sg_";
    const SOURCE: Source = Source {
        from: "segments",
        columns: "segment_id AS id, name, expression, version, created_at, updated_at, updated_by, \
                  (SELECT count(*) FROM rules r WHERE r.workspace_id = segments.workspace_id \
                   AND r.segment_id = segments.segment_id) AS rules",
        time: "created_at",
        id: "segment_id",
        id_type: "text",
        ascending: false,
        windows: false,
    };

    fn read(row: &Row) -> Result<Stored<Fields, Standing>, Problem> {
        let fields = Fields {
            name: row.try_get("name")?,
            expression: row.try_get("expression")?,
        };
        let standing = Standing {
            ceiling: None,
            dormant: Vec::new(),
            rules: row.try_get("rules")?,
        };
        Ok(Stored::with(row, fields, standing)?)
    }

    fn finish(call: &Call<'_>, stored: &mut Stored<Fields, Standing>) {
        let Some(segment) = Segment::read(&stored.fields.expression) else {
            return;
        };
        match audience::ceiling(call.modules, &segment) {
            Ok(ceiling) => stored.shown.ceiling = Some(ceiling),
            Err(NoCeiling::Dormant(ids)) => stored.shown.dormant = ids.into_iter().collect(),
            Err(NoCeiling::Incomparable(_)) => {}
        }
    }

    /// It is deleted instead ([`delete`]).
    fn archive(_: &mut Fields) {}

    async fn check(
        call: &Call<'_>,
        _: &str,
        _: Option<&Fields>,
        fields: &Fields,
        faults: &mut Faults,
    ) -> Result<(), Problem> {
        check_name("/name", &fields.name, faults);
        let modules = call.modules;
        let Some(segment) = Segment::check(&fields.expression, "/expression", faults) else {
            return Ok(());
        };
        for leaf in segment.leaves() {
            if audience::declared(modules, &leaf.audience).is_none() {
                faults.add(
                    "/expression",
                    "unknown_audience",
                    format!("nobody declares the audience `{}`", leaf.audience),
                );
            } else if let Err((param, code, why)) = sets::params_of(modules, leaf) {
                faults.add(
                    "/expression",
                    &format!("param_{code}"),
                    format!("`{param}` of `{}`: {why}", leaf.audience),
                );
            }
        }
        if faults.is_empty()
            && let Err(why) = audience::ceiling(modules, &segment)
        {
            faults.add("/expression", "incomparable", why.to_string());
        }
        Ok(())
    }

    async fn insert(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "INSERT INTO segments (segment_id, workspace_id, name, expression, ceiling, updated_by)
                 VALUES ($1, $2, $3, $4, $5, $6)",
                &[
                    &id,
                    &call.workspace()?,
                    &f.name,
                    &f.expression,
                    &derived(call, f),
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }

    async fn update(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "UPDATE segments SET name = $3, expression = $4, ceiling = $5, version = version + 1, updated_at = now(),
                        updated_by = $6
                 WHERE workspace_id = $1 AND segment_id = $2",
                &[
                    &call.workspace()?,
                    &id,
                    &f.name,
                    &f.expression,
                    &derived(call, f),
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }
}

/// The ceiling's word, for whoever reads the table; whoever resolves the segment derives it anew.
fn derived(call: &Call<'_>, fields: &Fields) -> &'static str {
    Segment::read(&fields.expression)
        .and_then(|s| audience::ceiling(call.modules, &s).ok())
        .map_or("none", Ceiling::word)
}

fn list_segments<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let conditions = Conditions::of_workspace(call.workspace()?);
        entity::list_by::<Segments>(call, conditions).await
    })
}

fn delete<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = call.param(Segments::PARAM)?;
        let before = entity::load::<Segments>(call, id, "FOR UPDATE").await?;
        call.check_version(before.version, &before.updated_by, before.updated_at)?;
        match before.shown.rules {
            0 => {}
            n => {
                let said = if n == 1 {
                    "1 rule still uses it".to_owned()
                } else {
                    format!("{n} rules still use it")
                };
                return Err(Problem::new("in_use", said).with("rules", json!(n)));
            }
        }
        call.tx
            .execute(
                "DELETE FROM segments WHERE workspace_id = $1 AND segment_id = $2",
                &[&call.workspace()?, &id],
            )
            .await?;
        let mut answer = entity::answer(before.clone())?;
        answer.version = None;
        answer.before = Some(entity::view(before)?);
        Ok(answer)
    })
}

fn get_reach<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let stored = entity::load::<Segments>(call, call.param(Segments::PARAM)?, "").await?;
        let Some(segment) = Segment::read(&stored.fields.expression) else {
            return Answer::of(&Reach::unread());
        };
        // As rules reach it: no part of a union reaches further than the whole is rated.
        let modules = call.modules;
        let bounded = audience::ceiling(modules, &segment)
            .ok()
            .and_then(|ceiling| {
                segment.within(ceiling, &|id: &str| audience::declared(modules, id))
            });
        let whom = Whom::Segment(bounded.as_ref().unwrap_or(&segment));
        Answer::of(&reach::preview(call, whom, None, &[]).await?)
    })
}

const PARAMS: &[Param] = &[Param {
    name: "segment_id",
    summary: "The segment's id, `sg_…`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let one = "/v1/segments/{segment_id}";
    let view = entity::view_schema::<Segments>;
    let read = |id, path, output, handler| Operation {
        scope: Some("entities:read"),
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    let write = |id, method, path, handler| Operation {
        scope: Some("engagement:write"),
        effect: Effect::Write,
        ..Operation::new(id, method, path, view, handler)
    };
    vec![
        Operation {
            list: true,
            summary: "The workspace's segments (saved audiences), newest first.",
            ..read(
                "list_segments",
                Segments::PATH,
                entity::list_schema::<Segments>,
                list_segments,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One segment.",
            ..read("get_segment", one, view, entity::get::<Segments>)
        },
        Operation {
            status: 201,
            body: Some(entity::create_schema::<Segments>),
            summary: "Save an audience made of others; its ceiling is the narrowest that it contains.",
            ..write(
                "create_segment",
                Method::Post,
                Segments::PATH,
                entity::create::<Segments>,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Honoured,
            body: Some(entity::fields_schema::<Segments>),
            summary: "Change a segment; a rule whose trigger does not permit what it becomes reaches nobody.",
            ..write(
                "update_segment",
                Method::Patch,
                one,
                entity::patch::<Segments>,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Required,
            body: Some(entity::fields_schema::<Segments>),
            summary: "Replace what a segment says.",
            ..write(
                "replace_segment",
                Method::Put,
                one,
                entity::replace::<Segments>,
            )
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "Delete a segment; refused, with their number, while rules use it.",
            ..write("delete_segment", Method::Delete, one, delete)
        },
        Operation {
            params: PARAMS,
            summary: "How many a segment reaches now; never who.",
            ..read(
                "get_segment_reach",
                "/v1/segments/{segment_id}/reach",
                output::<Reach>,
                get_reach,
            )
        },
    ]
}
