//! Outcome counts. They are kept by consumer group, topic and partition, not by workspace, so they are the deployment's.

use crate::api::call::{Answer, Call};
use crate::api::problem::Problem;
use crate::api::registry::{Method, Operation, Place};
use crate::api::schema::output;
use futures::future::LocalBoxFuture;
use millrace_schemas::outcome::Outcome;
use schemars::JsonSchema;
use serde::Serialize;

/// How many records of a topic ended in one way.
#[derive(Serialize, JsonSchema)]
struct Count {
    /// The consumer group.
    #[schemars(extend("x-class" = "open"))]
    group: String,
    /// The topic.
    #[schemars(extend("x-class" = "open"))]
    topic: String,
    /// The outcome.
    #[schemars(extend("x-class" = "open"))]
    outcome: &'static str,
    /// Its reason; empty where there is no more to say.
    #[schemars(extend("x-class" = "open"))]
    reason: String,
    /// How many, decimal text.
    #[schemars(extend("x-class" = "open"))]
    n: String,
}

/// All of them.
#[derive(Serialize, JsonSchema)]
struct Outcomes {
    /// By group, topic, outcome and reason.
    #[schemars(extend("x-class" = "open"))]
    items: Vec<Count>,
    /// Records consumed since the first position, replays apart, decimal text: the sum of all counts.
    #[schemars(extend("x-class" = "open"))]
    consumed: String,
}

fn list_outcomes<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let rows = call
            .tx
            .query(
                "SELECT o.group_name, t.name, o.outcome, o.reason, sum(o.n)::bigint FROM outcomes o JOIN topics t USING (topic_no)
                 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
                &[],
            )
            .await?;
        let items = rows
            .iter()
            .map(|row| {
                Ok(Count {
                    group: row.try_get(0)?,
                    topic: row.try_get(1)?,
                    outcome: Outcome::from_code(row.try_get(2)?).map_or("unknown", Outcome::name),
                    reason: row.try_get(3)?,
                    n: row.try_get::<_, i64>(4)?.to_string(),
                })
            })
            .collect::<Result<_, Problem>>()?;
        let consumed: i64 = call
            .tx
            .query_one(
                "SELECT coalesce(sum(consumed), 0)::bigint FROM positions",
                &[],
            )
            .await?
            .try_get(0)?;
        Answer::of(&Outcomes {
            items,
            consumed: consumed.to_string(),
        })
    })
}

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    vec![Operation {
        scope: Some("ops:read"),
        place: Place::Deployment,
        summary: "How many records ended in which outcome, by group, topic and reason.",
        ..Operation::new(
            "list_outcomes",
            Method::Get,
            "/v1/outcomes",
            output::<Outcomes>,
            list_outcomes,
        )
    }]
}
