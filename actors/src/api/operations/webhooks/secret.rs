//! The secret that signs a webhook's deliveries: minted here, shown once, rotated with an overlap.

use super::{Fields, Standing, Webhooks};
use crate::api::call::{Answer, Call};
use crate::api::entity::{self, Entity};
use crate::api::faults::ChangeError;
use crate::api::problem::Problem;
use crate::delivery::holds;
use crate::delivery::webhook::settings::seal_purpose;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How long the old secret signs too, if nothing is said, in seconds.
const DEFAULT_OVERLAP_S: u32 = 3_600;

/// A webhook just made, or with a new secret: shown once.
#[derive(Serialize, JsonSchema)]
pub(super) struct Shown {
    #[serde(flatten)]
    view: entity::View<Fields, Standing>,
    /// The secret that its deliveries are signed with, `whsec_…`: shown now and never again.
    #[schemars(extend("x-class" = "secret"))]
    secret: Option<String>,
}

/// Gives a webhook a fresh secret. The one before signs too for `overlap_s` more, if it still opens.
async fn renew_secret(call: &Call<'_>, id: &str, overlap_s: u32) -> Result<String, Problem> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(ChangeError::from)?;
    let secret = format!("whsec_{}", STANDARD.encode(bytes));
    let seals = &call.state.seals;
    let sealed = seals
        .seal(&seal_purpose(id), secret.as_bytes())
        .map_err(ChangeError::from)?;
    let row = call
        .tx
        .query_opt(
            "SELECT secret_sealed FROM webhooks WHERE workspace_id = $1 AND webhook_id = $2 FOR UPDATE",
            &[&call.workspace()?, &id],
        )
        .await?
        .ok_or_else(Problem::not_found)?;
    let before: Option<&[u8]> = row.try_get(0)?;
    let before = before.filter(|b| overlap_s > 0 && seals.open(&seal_purpose(id), b).is_ok());
    call.tx
        .execute(
            "UPDATE webhooks SET secret_sealed = $3, previous_secret_sealed = $4,
                    previous_until = CASE WHEN $4::bytea IS NOT NULL THEN now() + make_interval(secs => $5) END
             WHERE workspace_id = $1 AND webhook_id = $2",
            &[
                &call.workspace()?,
                &id,
                &sealed,
                &before,
                &f64::from(overlap_s),
            ],
        )
        .await?;
    Ok(secret)
}

/// The webhook as it stands now, with its secret.
async fn shown(call: &Call<'_>, id: &str, secret: String) -> Result<Answer, Problem> {
    let mut answer = entity::answer(entity::load::<Webhooks>(call, id, "").await?)?;
    if let Some(body) = answer.body.as_object_mut() {
        body.insert("secret".to_owned(), Value::from(secret));
    }
    Ok(answer)
}

pub(super) fn create<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let (id, made) = entity::make::<Webhooks>(call).await?;
        let secret = renew_secret(call, &id, 0).await?;
        let mut answer = shown(call, &id, secret).await?;
        answer.location = made.location;
        Ok(answer)
    })
}

/// A change of secret.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rotation {
    /// How long the old secret signs too, in seconds.
    #[serde(default)]
    #[schemars(range(min = 0, max = 604_800))]
    overlap_s: Option<u32>,
}

pub(super) fn rotate<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = call.param(Webhooks::PARAM)?;
        let before = entity::load::<Webhooks>(call, id, "FOR UPDATE").await?;
        let rotation: Rotation = call.body()?;
        let overlap = rotation.overlap_s.unwrap_or(DEFAULT_OVERLAP_S);
        let secret = renew_secret(call, id, overlap).await?;
        Webhooks::update(call, id, &before.fields).await?;
        holds::resume_mended(call.tx, call.workspace()?, id).await?;
        let mut answer = shown(call, id, secret).await?;
        answer.before = Some(entity::view(before)?);
        Ok(answer)
    })
}
