//! A pixel's credentials: sealed when they come in, shown to nobody.

use super::Pixels;
use crate::api::call::{Answer, Call};
use crate::api::entity::{self, Entity};
use crate::api::faults::{ChangeError, Faults};
use crate::api::problem::Problem;
use crate::api::schema::input;
use crate::delivery::holds;
use crate::delivery::meta::settings::{app_secret_purpose, token_purpose};
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Absent keeps, null takes away.
fn kept<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::<String>::deserialize(deserializer).map(Some)
}

/// Credentials; absent keeps, null takes away.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Credentials {
    /// The platform's access token. Taken in, never shown.
    #[serde(default, deserialize_with = "kept")]
    #[schemars(with = "Option<String>", regex(pattern = r"^[!-~]{1,2000}$"), extend("writeOnly" = true))]
    access_token: Option<Option<String>>,
    /// The app's secret, for a proof with every request. Taken in, never shown.
    #[serde(default, deserialize_with = "kept")]
    #[schemars(with = "Option<String>", regex(pattern = r"^[!-~]{1,200}$"), extend("writeOnly" = true))]
    app_secret: Option<Option<String>>,
}

impl Credentials {
    const NAMES: [&'static str; 2] = ["access_token", "app_secret"];

    fn is_empty(&self) -> bool {
        self.access_token.is_none() && self.app_secret.is_none()
    }

    /// Seals and writes what is given.
    async fn store(&self, call: &Call<'_>, id: &str) -> Result<(), Problem> {
        let seal = |purpose: String, secret: &Option<Option<String>>| {
            let secret = secret.as_ref().and_then(Option::as_ref);
            secret
                .map(|s| call.state.seals.seal(&purpose, s.as_bytes()))
                .transpose()
                .map_err(ChangeError::from)
        };
        call.tx
            .execute(
                "UPDATE pixels SET access_token_sealed = CASE WHEN $3 THEN $4 ELSE access_token_sealed END,
                        app_secret_sealed = CASE WHEN $5 THEN $6 ELSE app_secret_sealed END
                 WHERE workspace_id = $1 AND pixel_id = $2",
                &[
                    &call.workspace()?,
                    &id,
                    &self.access_token.is_some(),
                    &seal(token_purpose(id), &self.access_token)?,
                    &self.app_secret.is_some(),
                    &seal(app_secret_purpose(id), &self.app_secret)?,
                ],
            )
            .await?;
        Ok(())
    }
}

pub(super) fn create<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let (mut body, mut given) = (call.body.clone(), serde_json::Map::new());
        for name in Credentials::NAMES {
            if let Some(value) = body.as_object_mut().and_then(|o| o.remove(name)) {
                given.insert(name.to_owned(), value);
            }
        }
        let given: Credentials = crate::api::call::decode(&Value::Object(given))?;
        let (id, mut answer) = entity::make_of::<Pixels>(call, body).await?;
        if !given.is_empty() {
            given.store(call, &id).await?;
            answer.body = entity::view(entity::load::<Pixels>(call, &id, "").await?)?;
        }
        Ok(answer)
    })
}

pub(super) fn set_credentials<'a>(
    call: &'a Call<'a>,
) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = call.param(Pixels::PARAM)?;
        let before = entity::load::<Pixels>(call, id, "FOR UPDATE").await?;
        let given: Credentials = call.body()?;
        if given.is_empty() {
            let mut faults = Faults::new();
            faults.add("", "required", "want `access_token`, `app_secret`, or both");
            return Err(faults.into());
        }
        given.store(call, id).await?;
        Pixels::update(call, id, &before.fields).await?;
        holds::resume_mended(call.tx, call.workspace()?, id).await?;
        let mut answer = entity::answer(entity::load::<Pixels>(call, id, "").await?)?;
        answer.before = Some(entity::view(before)?);
        Ok(answer)
    })
}

/// A pixel's fields and its credentials.
pub(super) fn create_schema() -> Value {
    let mut schema = entity::fields_schema::<Pixels>();
    let credentials = input::<Credentials>();
    for name in Credentials::NAMES {
        let property = credentials.pointer(&format!("/properties/{name}"));
        if let (Some(property), Some(properties)) = (
            property,
            schema.get_mut("properties").and_then(Value::as_object_mut),
        ) {
            properties.insert(name.to_owned(), property.clone());
        }
    }
    schema
}
