//! A test send: a real mail, written into the outbox like any other.

use super::MailTransports;
use crate::api::call::{Answer, Call, to_json};
use crate::api::entity::{self, Entity};
use crate::api::faults::{ChangeError, Faults};
use crate::api::problem::Problem;
use crate::delivery::email::address;
use crate::delivery::email::settings::test_purpose;
use crate::postgres::types::Tz;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::LocalBoxFuture;
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::ids::{self, RecordId};
use millrace_schemas::notification::{GenericBody, Notification};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whom to send it to.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct To {
    /// An address of whoever tries it.
    #[schemars(length(min = 1, max = 320), extend("writeOnly" = true))]
    to: String,
}

/// Where to look what became of it.
#[derive(Serialize, JsonSchema)]
pub(super) struct Sent {
    /// The delivery's id: `GET /v1/deliveries/<id>` shows its attempts.
    #[schemars(extend("x-class" = "open"))]
    delivery_id: String,
}

/// Writes it. The address is sealed for this transport: it stands readable in no row and no log.
pub(super) fn verify<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let workspace = call.workspace()?;
        let id = call.param(MailTransports::PARAM)?;
        let transport = entity::load::<MailTransports>(call, id, "").await?;
        if !transport.fields.enabled {
            return Err(Problem::new(
                "conflict",
                "the transport is off, and would send nothing",
            ));
        }
        let To { to } = call.body()?;
        if address::parse(&to).is_none() {
            let mut faults = Faults::new();
            faults.add(
                "/to",
                "invalid_address",
                "want an address such as you@example.com",
            );
            return Err(faults.into());
        }
        let row = call
            .tx
            .query_one(
                "SELECT destination_no FROM destinations WHERE channel = 'email' AND ref = $1 AND workspace_id = $2",
                &[&transport.id, &workspace],
            )
            .await?;
        let destination: i32 = row.try_get(0)?;
        let wall = call.state.clock.wall();
        let message = ids::mint(wall).map_err(ChangeError::from)?;
        let purpose = test_purpose(&transport.id);
        let sealed = call.state.seals.seal(&purpose, to.trim().as_bytes());
        let payload = Notification {
            v: WIRE_VERSION,
            trigger: "test".to_owned(),
            dedupe_key: ids::encode(message),
            at: wall,
            transactional: true,
            body: GenericBody {
                title: format!("{}: mail works", transport.fields.brand_name),
                intro: "This is a test of the mail transport. If you can read it, mail arrives."
                    .to_owned(),
                ..GenericBody::default()
            },
            to_sealed: Some(STANDARD.encode(sealed.map_err(ChangeError::from)?)),
            ..Notification::default()
        };
        // It was born of no record: topic numbers begin at 1.
        let cause = RecordId {
            topic_no: 0,
            partition: destination,
            offset: wall.0,
        };
        call.tx
            .execute(
                "INSERT INTO outbox (outbox_id, created_at, workspace_id, channel, destination_no, payload, cause)
                 VALUES ($1, $2, $3, 'email', $4, $5::text::json, $6)",
                &[
                    &message,
                    &Tz(wall),
                    &workspace,
                    &destination,
                    &to_json(&payload)?.to_string(),
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
