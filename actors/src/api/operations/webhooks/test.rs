//! A message that says nothing but that it came: what an endpoint is tried with.

use super::{Status, Webhooks};
use crate::api::call::{Answer, Call};
use crate::api::entity;
use crate::api::faults::ChangeError;
use crate::api::problem::Problem;
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::ids::{self, RecordId};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

/// The `type` of such a message. Every webhook hears it, whatever it listens to.
pub const TYPE: &str = "test";

/// Where to look what became of it.
#[derive(Serialize, JsonSchema)]
pub(super) struct Sent {
    /// The delivery's id: `GET /v1/deliveries/<id>` shows its attempts.
    #[schemars(extend("x-class" = "open"))]
    delivery_id: String,
}

/// Writes it into the outbox, where it waits, is signed, is tried again and is logged like any other.
pub(super) fn test<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = call.param("webhook_id")?;
        let workspace = call.workspace()?;
        let webhook = entity::load::<Webhooks>(call, id, "").await?;
        if webhook.fields.status != Status::Active {
            return Err(Problem::new(
                "conflict",
                "it is not active, and would get nothing",
            ));
        }
        let row = call
            .tx
            .query_one(
                "SELECT d.destination_no, w.slug FROM destinations d JOIN workspaces w USING (workspace_id)
                 WHERE d.channel = 'webhook' AND d.ref = $1 AND d.workspace_id = $2",
                &[&id, &workspace],
            )
            .await?;
        let (destination, slug): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
        let wall = call.state.clock.wall();
        let message = ids::mint(wall).map_err(ChangeError::from)?;
        // It was born of no record: topic numbers begin at 1.
        let cause = RecordId {
            topic_no: 0,
            partition: destination,
            offset: wall.0,
        };
        let payload = json!({
            "type": TYPE,
            "timestamp": wall.rfc3339(),
            "workspace": slug,
            "data": {"webhook": id, "name": webhook.fields.name},
        });
        call.tx
            .execute(
                "INSERT INTO outbox (outbox_id, created_at, workspace_id, channel, destination_no, payload, cause)
                 VALUES ($1, $2, $3, 'webhook', $4, $5::text::json, $6)",
                &[
                    &message,
                    &Tz(wall),
                    &workspace,
                    &destination,
                    &payload.to_string(),
                    &cause.to_uuid(),
                ],
            )
            .await?;
        call.tx
            .execute(
                "INSERT INTO outbox_due (outbox_id, created_at, destination_no, due_at) VALUES ($1, $2, $3, $2)",
                &[&message, &Tz(wall), &destination],
            )
            .await?;
        Answer::of(&Sent {
            delivery_id: ids::encode(message),
        })
    })
}
