//! What waits for its visit, and what can never be booked.

use super::facts::{click_id, of_click, record_id, within};
use super::text_of;
use crate::api::call::{Answer, Call, to_json};
use crate::api::page::{Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Method, Operation};
use crate::api::schema::{input, output};
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;

/// A record that waits for its visit.
#[derive(Serialize, JsonSchema)]
struct Parked {
    /// The record, topic-partition-offset.
    #[schemars(extend("x-class" = "open"))]
    record_id: String,
    /// `postback` or `click`.
    #[schemars(extend("x-class" = "open"))]
    kind: String,
    /// The click id whose visit would wake it.
    #[schemars(extend("x-class" = "open"))]
    click_id: Option<String>,
    /// When it was accepted.
    #[schemars(extend("x-class" = "open"))]
    accepted_at: String,
    /// The stream time at which it goes to the dead letters.
    #[schemars(extend("x-class" = "open"))]
    deadline: String,
    /// The record as it came.
    #[schemars(extend("x-class" = "identity"))]
    payload: Option<String>,
}

const PARKED: Source = Source {
    from: "parked",
    columns: "click_key, record_id, accepted_at, deadline, kind, click_id, payload",
    time: "deadline",
    id: "record_id",
    id_type: "uuid",
    ascending: true,
    windows: false,
};

/// What kind of record waits.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ParkedKind {
    /// A network's postback.
    Postback,
    /// A click that overtook its visit.
    Click,
}

/// Narrows the list of parked records.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ParkedFilter {
    /// Postbacks, or clicks.
    kind: Option<ParkedKind>,
    /// Those of one click id.
    click_id: Option<String>,
}

fn list_parked<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: ParkedFilter = call.query()?;
        let workspace = call.workspace()?;
        let mut conditions = Conditions::of_workspace(workspace);
        of_click(&mut conditions, workspace, filter.click_id.as_deref());
        let kind = filter.kind.map(|k| match k {
            ParkedKind::Postback => "postback",
            ParkedKind::Click => "click",
        });
        conditions.and_some("kind = $", kind);
        list(call, PARKED, conditions, |row| {
            to_json(&Parked {
                record_id: record_id(row, "record_id")?,
                kind: row.try_get("kind")?,
                click_id: click_id(row)?,
                accepted_at: row.try_get::<_, Tz>("accepted_at")?.0.rfc3339(),
                deadline: row.try_get::<_, Tz>("deadline")?.0.rfc3339(),
                payload: Some(text_of(row.try_get("payload")?)),
            })
        })
        .await
    })
}

/// A record that can never be booked.
#[derive(Serialize, JsonSchema)]
struct Reject {
    /// The record, topic-partition-offset.
    #[schemars(extend("x-class" = "open"))]
    record_id: String,
    /// `visit`, `click`, `provider_click` or `postback`.
    #[schemars(extend("x-class" = "open"))]
    kind: String,
    /// Why.
    #[schemars(extend("x-class" = "open"))]
    reason: String,
    /// The click id, if it can be said.
    #[schemars(extend("x-class" = "open"))]
    click_id: Option<String>,
    /// The network, of a postback.
    #[schemars(extend("x-class" = "open"))]
    network_id: Option<String>,
    /// When it was accepted.
    #[schemars(extend("x-class" = "open"))]
    accepted_at: String,
    /// The record as it came; of a postback, its query without the secret.
    #[schemars(extend("x-class" = "identity"))]
    payload: Option<String>,
}

// Outcome 3 is `rejected`; a test below holds the number to the wire's own.
const REJECTS: Source = Source {
    from: "(SELECT workspace_id, record_id, accepted_at, kind, reason, click_id, NULL::uuid AS click_key,
                   NULL::text AS network_id, payload, NULL::text AS query FROM rejects
            UNION ALL
            SELECT workspace_id, record_id, accepted_at, 'postback', reason, NULL, click_key, network_id, NULL, query
            FROM postback_log WHERE outcome = 3) AS rejected",
    columns: "record_id, accepted_at, kind, reason, click_id, click_key, network_id, payload, query",
    time: "accepted_at",
    id: "record_id",
    id_type: "uuid",
    ascending: false,
    windows: true,
};

/// Narrows the list of rejects.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RejectFilter {
    /// Those of one kind: `visit`, `click`, `provider_click` or `postback`.
    kind: Option<String>,
    /// Those of one reason.
    reason: Option<String>,
    /// Accepted at or after, RFC 3339.
    from: Option<String>,
    /// Accepted before, RFC 3339.
    to: Option<String>,
}

fn reject(row: &Row) -> Result<Value, Problem> {
    let payload: Option<&[u8]> = row.try_get("payload")?;
    let query: Option<String> = row.try_get("query")?;
    to_json(&Reject {
        record_id: record_id(row, "record_id")?,
        kind: row.try_get("kind")?,
        reason: row.try_get("reason")?,
        click_id: click_id(row)?,
        network_id: row.try_get("network_id")?,
        accepted_at: row.try_get::<_, Tz>("accepted_at")?.0.rfc3339(),
        payload: payload.map(text_of).or(query),
    })
}

fn list_rejects<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: RejectFilter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("kind = $", filter.kind);
        conditions.and_some("reason = $", filter.reason);
        within(
            &mut conditions,
            filter.from.as_deref(),
            filter.to.as_deref(),
        )?;
        list(call, REJECTS, conditions, reject).await
    })
}

fn parked_schema() -> Value {
    list_of(output::<Parked>())
}

fn rejects_schema() -> Value {
    list_of(output::<Reject>())
}

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let of = |id, path, output, handler| Operation {
        scope: Some("records:read"),
        list: true,
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    vec![
        Operation {
            query: input::<ParkedFilter>,
            summary: "Postbacks and clicks that wait for their visit, the next to expire first.",
            ..of("list_parked", "/v1/parked", parked_schema, list_parked)
        },
        Operation {
            query: input::<RejectFilter>,
            summary: "Records that can never be booked, with their reason, newest first.",
            ..of("list_rejects", "/v1/rejects", rejects_schema, list_rejects)
        },
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_number_of_rejected_is_the_wires() {
        assert_eq!(millrace_schemas::outcome::Outcome::Rejected.code(), 3);
        assert!(super::REJECTS.from.contains("outcome = 3"));
    }
}
