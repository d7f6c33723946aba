//! Dead letters of the workspace. Those of no readable workspace are the deployment's, at the terminal. Replaying needs the
//! log and is the terminal's too (`millrace dlq replay`).

use super::facts::{parse_record_id, record_id};
use super::{text_of, time_text};
use crate::api::call::{Answer, Call, to_json};
use crate::api::page::{Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Method, Operation, Param};
use crate::api::schema::{input, output};
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;

/// What became of a dead letter.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Status {
    /// Nothing yet.
    Open,
    /// It was replayed.
    Replayed,
    /// Somebody gave it up.
    Discarded,
}

/// A record that could not be processed, or waited too long.
#[derive(Serialize, JsonSchema)]
struct DeadLetter {
    /// Its first coordinates, topic-partition-offset.
    #[schemars(extend("x-class" = "open"))]
    record_id: String,
    /// The consumer group that could not.
    #[schemars(extend("x-class" = "open"))]
    group: String,
    /// The topic it was read from.
    #[schemars(extend("x-class" = "open"))]
    topic: String,
    /// The partition.
    #[schemars(extend("x-class" = "open"))]
    partition: i32,
    /// The offset, decimal text.
    #[schemars(extend("x-class" = "open"))]
    offset: String,
    /// Why.
    #[schemars(extend("x-class" = "open"))]
    reason: String,
    /// More about it; may quote the record.
    #[schemars(extend("x-class" = "identity"))]
    detail: Option<String>,
    /// When it was accepted, if that can be read.
    #[schemars(extend("x-class" = "open"))]
    accepted_at: Option<String>,
    /// When it died last.
    #[schemars(extend("x-class" = "open"))]
    dead_at: String,
    /// How often.
    #[schemars(extend("x-class" = "open"))]
    deaths: i32,
    /// `open`, `replayed` or `discarded`.
    #[schemars(extend("x-class" = "open"))]
    status: String,
    /// Since when, if not open.
    #[schemars(extend("x-class" = "open"))]
    changed_at: Option<String>,
    /// The record as it came.
    #[schemars(extend("x-class" = "identity"))]
    payload: Option<String>,
}

const SOURCE: Source = Source {
    from: "dead_letters JOIN topics USING (topic_no)",
    columns: "record_id, group_name, topics.name AS topic, partition, \"offset\", payload, reason, detail, accepted_at, dead_at, \
              deaths, status, changed_at",
    time: "dead_at",
    id: "record_id",
    id_type: "uuid",
    ascending: false,
    windows: false,
};

fn read(row: &Row) -> Result<DeadLetter, Problem> {
    Ok(DeadLetter {
        record_id: record_id(row, "record_id")?,
        group: row.try_get("group_name")?,
        topic: row.try_get("topic")?,
        partition: row.try_get("partition")?,
        offset: row.try_get::<_, i64>("offset")?.to_string(),
        reason: row.try_get("reason")?,
        detail: row.try_get("detail")?,
        accepted_at: time_text(row.try_get("accepted_at")?),
        dead_at: row.try_get::<_, Tz>("dead_at")?.0.rfc3339(),
        deaths: row.try_get("deaths")?,
        status: row.try_get("status")?,
        changed_at: time_text(row.try_get("changed_at")?),
        payload: Some(text_of(row.try_get("payload")?)),
    })
}

/// Narrows the list of dead letters.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one status.
    status: Option<Status>,
    /// Those of one reason.
    reason: Option<String>,
    /// Those of one topic.
    topic: Option<String>,
}

fn list_dead_letters<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        let status = filter.status.map(|s| match s {
            Status::Open => "open",
            Status::Replayed => "replayed",
            Status::Discarded => "discarded",
        });
        conditions.and_some("status = $", status);
        conditions.and_some("reason = $", filter.reason);
        conditions.and_some("topics.name = $", filter.topic);
        list(call, SOURCE, conditions, |row| to_json(&read(row)?)).await
    })
}

fn get<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = parse_record_id(call.param("record_id")?)?;
        let row = call
            .tx
            .query_opt(
                &format!(
                    "SELECT {} FROM {} WHERE record_id = $1 AND workspace_id = $2",
                    SOURCE.columns, SOURCE.from
                ),
                &[&id, &call.workspace()?],
            )
            .await?
            .ok_or_else(Problem::not_found)?;
        Answer::of(&read(&row)?)
    })
}

fn list_schema() -> Value {
    list_of(output::<DeadLetter>())
}

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let of = |id, path, output, handler| Operation {
        scope: Some("records:read"),
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "Dead letters of the workspace, the latest first.",
            ..of(
                "list_dead_letters",
                "/v1/dead-letters",
                list_schema,
                list_dead_letters,
            )
        },
        Operation {
            params: &[Param {
                name: "record_id",
                summary: "The record's first coordinates, topic-partition-offset.",
            }],
            summary: "One dead letter.",
            ..of(
                "get_dead_letter",
                "/v1/dead-letters/{record_id}",
                output::<DeadLetter>,
                get,
            )
        },
    ]
}
