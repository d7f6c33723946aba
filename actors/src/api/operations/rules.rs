//! Rules: what an operator configures. A rule begins disabled; the switch writes one column and checks nothing, so that a rule
//! which could no longer be saved can still be stopped, and one that is switched on while its audience is not permitted reaches
//! nobody, since that is asked again whenever its trigger fires.

pub(super) mod fields;
pub(super) mod reach;
mod switch;

use crate::api::call::{Answer, Call, to_json};
use crate::api::entity::{self, Entity, Stored};
use crate::api::faults::Faults;
use crate::api::page::{Conditions, Source};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Precondition};
use crate::api::schema::{input, output};
use crate::api::workspaces::check_name;
use crate::directory::rules::SavedSegment;
pub use fields::{Fields, Standing};
use futures::future::LocalBoxFuture;
use reach::Reach;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio_postgres::Row;

pub(crate) struct Rules;

impl Entity for Rules {
    type Fields = Fields;
    type Shown = Standing;
    const PATH: &'static str = "/v1/rules";
    const PARAM: &'static str = "rule_id";
    const ID_COLUMN: &'static str = "rule_id";
    const PREFIX: &'static str = "ru_";
    const SOURCE: Source = Source {
        from: "rules",
        columns: "rule_id AS id, trigger_id, name, enabled, channels, conditions, audience, segment_id, delay_s, cooldown_s, \
                  hourly_cap, cancel_on, template_keys, position, seeded_from, version, created_at, updated_at, updated_by, \
                  (SELECT s.expression FROM segments s WHERE s.workspace_id = rules.workspace_id \
                   AND s.segment_id = rules.segment_id) AS expression",
        time: "created_at",
        id: "rule_id",
        id_type: "text",
        ascending: false,
        windows: false,
    };

    fn read(row: &Row) -> Result<Stored<Fields, Standing>, Problem> {
        let template_keys: Value = row.try_get("template_keys")?;
        let fields = Fields {
            trigger_id: row.try_get("trigger_id")?,
            name: row.try_get("name")?,
            channels: row.try_get("channels")?,
            conditions: row.try_get("conditions")?,
            audience: row.try_get("audience")?,
            segment_id: row.try_get("segment_id")?,
            delay_s: row.try_get("delay_s")?,
            cooldown_s: row.try_get("cooldown_s")?,
            hourly_cap: row.try_get("hourly_cap")?,
            cancel_on: row.try_get("cancel_on")?,
            template_keys: crate::api::call::decode(&template_keys)?,
        };
        let expression: Option<Value> = row.try_get("expression")?;
        let saved = fields.segment_id.clone().zip(expression);
        let standing = Standing {
            enabled: row.try_get("enabled")?,
            dormant: Vec::new(),
            ceiling: None,
            position: row.try_get("position")?,
            seeded_from: row.try_get("seeded_from")?,
            saved: saved.map(|(id, expression)| SavedSegment { id, expression }),
        };
        Ok(Stored::with(row, fields, standing)?)
    }

    fn finish(call: &Call<'_>, stored: &mut Stored<Fields, Standing>) {
        let rule = stored.fields.rule();
        let modules = call.modules;
        let saved = stored.shown.saved.as_ref();
        let target = modules
            .trigger(&rule.trigger_id)
            .and_then(|t| rule.target(modules, t, saved).ok());
        stored.shown.ceiling = target.map(|t| t.ceiling());
        stored.shown.dormant = rule.dormancy(modules, saved);
    }

    /// It is deleted instead ([`delete`]).
    fn archive(_: &mut Fields) {}

    async fn check(
        call: &Call<'_>,
        _: &str,
        before: Option<&Fields>,
        fields: &Fields,
        faults: &mut Faults,
    ) -> Result<(), Problem> {
        check_name("/name", &fields.name, faults);
        if before.is_some_and(|b| b.trigger_id != fields.trigger_id) {
            faults.add(
                "/trigger_id",
                "fixed",
                "a rule's trigger never changes: its cooldowns, messages and log are about that one; make another rule",
            );
            return Ok(());
        }
        let saved = saved_segment(call, fields.segment_id.as_deref(), "FOR SHARE").await?;
        fields.rule().check(call.modules, saved.as_ref(), faults);
        Ok(())
    }

    async fn insert(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "INSERT INTO rules (rule_id, workspace_id, trigger_id, name, channels, conditions, audience, segment_id, delay_s,
                        cooldown_s, hourly_cap, cancel_on, template_keys, updated_by)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
                &[
                    &id,
                    &call.workspace()?,
                    &f.trigger_id,
                    &f.name,
                    &f.channels,
                    &f.conditions,
                    &f.audience,
                    &f.segment_id,
                    &f.delay_s,
                    &f.cooldown_s,
                    &f.hourly_cap,
                    &f.cancel_on,
                    &to_json(&f.template_keys)?,
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }

    async fn update(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "UPDATE rules SET name = $3, channels = $4, conditions = $5, audience = $6, segment_id = $7, delay_s = $8,
                        cooldown_s = $9, hourly_cap = $10, cancel_on = $11, template_keys = $12, version = version + 1,
                        updated_at = now(), updated_by = $13
                 WHERE workspace_id = $1 AND rule_id = $2",
                &[
                    &call.workspace()?,
                    &id,
                    &f.name,
                    &f.channels,
                    &f.conditions,
                    &f.audience,
                    &f.segment_id,
                    &f.delay_s,
                    &f.cooldown_s,
                    &f.hourly_cap,
                    &f.cancel_on,
                    &to_json(&f.template_keys)?,
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }
}

/// The workspace's segment of that id. `lock`: none, or `FOR SHARE`.
async fn saved_segment(
    call: &Call<'_>,
    id: Option<&str>,
    lock: &str,
) -> Result<Option<SavedSegment>, Problem> {
    let Some(id) = id else { return Ok(None) };
    let sql = format!(
        "SELECT segment_id, expression FROM segments WHERE workspace_id = $1 AND segment_id = $2 {lock}"
    );
    let row = call.tx.query_opt(&sql, &[&call.workspace()?, &id]).await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(SavedSegment {
        id: row.try_get(0)?,
        expression: row.try_get(1)?,
    }))
}

/// Narrows the list of rules.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one trigger.
    trigger_id: Option<String>,
    /// Those that use one segment.
    segment_id: Option<String>,
    /// Those that are switched on, or off.
    enabled: Option<bool>,
}

fn list_rules<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("trigger_id = $", filter.trigger_id);
        conditions.and_some("segment_id = $", filter.segment_id);
        conditions.and_some("enabled = $", filter.enabled);
        entity::list_by::<Rules>(call, conditions).await
    })
}

fn delete<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = call.param(Rules::PARAM)?;
        let before = entity::load::<Rules>(call, id, "FOR UPDATE").await?;
        call.check_version(before.version, &before.updated_by, before.updated_at)?;
        call.tx
            .execute(
                "DELETE FROM rules WHERE workspace_id = $1 AND rule_id = $2",
                &[&call.workspace()?, &id],
            )
            .await?;
        let mut answer = entity::answer(before.clone())?;
        answer.version = None;
        answer.before = Some(entity::view(before)?);
        Ok(answer)
    })
}

const PARAMS: &[Param] = &[Param {
    name: "rule_id",
    summary: "The rule's id, `ru_…`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let one = "/v1/rules/{rule_id}";
    let view = entity::view_schema::<Rules>;
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
            query: input::<Filter>,
            summary: "The workspace's rules, newest first; `dormant` says why one reaches nobody whatever happens.",
            ..read(
                "list_rules",
                Rules::PATH,
                entity::list_schema::<Rules>,
                list_rules,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One rule.",
            ..read("get_rule", one, view, entity::get::<Rules>)
        },
        Operation {
            status: 201,
            body: Some(entity::create_schema::<Rules>),
            summary: "Make a rule, disabled; refused where it is wider than its trigger's ceiling.",
            ..write(
                "create_rule",
                Method::Post,
                Rules::PATH,
                entity::create::<Rules>,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Honoured,
            body: Some(entity::fields_schema::<Rules>),
            summary: "Change a rule; its trigger never changes, and its switch is `enable_rule` and `disable_rule`.",
            ..write("update_rule", Method::Patch, one, entity::patch::<Rules>)
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Required,
            body: Some(entity::fields_schema::<Rules>),
            summary: "Replace what a rule says.",
            ..write("replace_rule", Method::Put, one, entity::replace::<Rules>)
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "Delete a rule; the log of what it sent stays.",
            ..write("delete_rule", Method::Delete, one, delete)
        },
        Operation {
            params: PARAMS,
            summary: "Switch a rule on. Nothing else of it is looked at.",
            ..write(
                "enable_rule",
                Method::Post,
                "/v1/rules/{rule_id}/enable",
                switch::enable,
            )
        },
        Operation {
            params: PARAMS,
            summary: "Switch a rule off: it always can be. What waits already is suppressed when it is due.",
            ..write(
                "disable_rule",
                Method::Post,
                "/v1/rules/{rule_id}/disable",
                switch::disable,
            )
        },
        Operation {
            params: PARAMS,
            summary: "How many a rule reaches now, and whether its trigger's ceiling permits it; never who.",
            ..read(
                "get_rule_reach",
                "/v1/rules/{rule_id}/reach",
                output::<Reach>,
                reach::of_rule,
            )
        },
        Operation {
            query: input::<reach::Question>,
            summary: "How many a rule would reach that is not saved yet; never who.",
            ..read(
                "get_reach",
                "/v1/reach",
                output::<Reach>,
                reach::of_question,
            )
        },
    ]
}
