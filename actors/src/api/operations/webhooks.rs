//! Webhooks: where a workspace's own programs hear of visits, clicks and conversions, signed.

use crate::api::call::{Answer, Call};
use crate::api::entity::{self, Entity, Stored};
use crate::api::faults::{ChangeError, Faults};
use crate::api::page::{Conditions, Source};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Precondition};
use crate::api::schema::{input, output};
use crate::api::workspaces::is_name;
use crate::delivery::holds;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;

/// How long the old secret signs too, if nothing is said, in seconds.
const DEFAULT_OVERLAP_S: u32 = 3_600;

/// What a webhook hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A visit was booked.
    Visit,
    /// A click was booked.
    Click,
    /// A conversion was booked, or changed.
    Conversion,
}

impl Event {
    /// The stored name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Event::Visit => "visit",
            Event::Click => "click",
            Event::Conversion => "conversion",
        }
    }

    fn from_name(name: &str) -> Option<Event> {
        [Event::Visit, Event::Click, Event::Conversion]
            .into_iter()
            .find(|e| e.name() == name)
    }
}

/// Whether it hears anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It does.
    #[default]
    Active,
    /// It is off, by hand or because it failed for days.
    Disabled,
    /// It is gone.
    Archived,
}

impl Status {
    const fn name(self) -> &'static str {
        match self {
            Status::Active => "active",
            Status::Disabled => "disabled",
            Status::Archived => "archived",
        }
    }

    fn from_name(name: &str) -> Status {
        match name {
            "disabled" => Status::Disabled,
            "archived" => Status::Archived,
            _ => Status::Active,
        }
    }
}

/// What can be written of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// Its name.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub name: String,
    /// Where it listens: https, or http where the deployment allows the address.
    #[schemars(length(min = 1, max = 2_000), extend("x-class" = "open"))]
    pub url: String,
    /// What it hears of.
    #[schemars(length(min = 1, max = 3), extend("x-class" = "open", "uniqueItems" = true))]
    pub events: Vec<Event>,
    /// Whether it hears anything. Made active again, its failures are forgotten.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub status: Status,
}

/// What is shown of how it does.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Standing {
    /// Why it is disabled.
    #[schemars(extend("x-class" = "open"))]
    disabled_reason: Option<String>,
    /// Since when every delivery failed; after five days it is disabled.
    #[schemars(extend("x-class" = "open"))]
    failing_since: Option<String>,
    /// Until when the secret before the last rotation signs too.
    #[schemars(extend("x-class" = "open"))]
    previous_until: Option<String>,
}

/// A webhook just made, or with a new secret: shown once.
#[derive(Serialize, JsonSchema)]
struct Shown {
    #[serde(flatten)]
    view: entity::View<Fields, Standing>,
    /// The secret that its deliveries are signed with, `whsec_…`: shown now and never again.
    #[schemars(extend("x-class" = "secret"))]
    secret: Option<String>,
}

pub(crate) struct Webhooks;

impl Entity for Webhooks {
    type Fields = Fields;
    type Shown = Standing;
    const PATH: &'static str = "/v1/webhooks";
    const PARAM: &'static str = "webhook_id";
    const ID_COLUMN: &'static str = "webhook_id";
    const PREFIX: &'static str = "wh_";
    const SOURCE: Source = Source {
        from: "webhooks",
        columns: "webhook_id AS id, name, url, events, status, disabled_reason, failing_since, \
                  CASE WHEN previous_until > now() THEN previous_until END AS previous_until, version, created_at, updated_at, \
                  updated_by",
        time: "created_at",
        id: "webhook_id",
        id_type: "text",
        ascending: false,
        windows: false,
    };

    fn read(row: &Row) -> Result<Stored<Fields, Standing>, Problem> {
        let events: Vec<&str> = row.try_get("events")?;
        let fields = Fields {
            name: row.try_get("name")?,
            url: row.try_get("url")?,
            events: events.into_iter().filter_map(Event::from_name).collect(),
            status: Status::from_name(row.try_get("status")?),
        };
        let standing = Standing {
            disabled_reason: row.try_get("disabled_reason")?,
            failing_since: super::time_text(row.try_get("failing_since")?),
            previous_until: super::time_text(row.try_get("previous_until")?),
        };
        Ok(Stored::with(row, fields, standing)?)
    }

    fn archive(fields: &mut Fields) {
        fields.status = Status::Archived;
    }

    async fn check(
        _: &Call<'_>,
        _: &str,
        _: Option<&Fields>,
        fields: &Fields,
        faults: &mut Faults,
    ) -> Result<(), Problem> {
        if !is_name(&fields.name) {
            faults.add(
                "/name",
                "invalid_name",
                "a name has 1 to 100 characters, no control characters",
            );
        }
        if let Err(why) = check_url(&fields.url) {
            faults.add("/url", "malformed", why);
        }
        Ok(())
    }

    async fn insert(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "INSERT INTO webhooks (webhook_id, workspace_id, name, url, events, status, disabled_reason, updated_by)
                 VALUES ($1, $2, $3, $4, $5, $6::text, CASE WHEN $6 = 'disabled' THEN 'by hand' END, $7)",
                &[
                    &id,
                    &call.workspace()?,
                    &f.name,
                    &f.url,
                    &names(&f.events),
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }

    async fn update(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "UPDATE webhooks SET name = $3, url = $4, events = $5, status = $6::text,
                        disabled_reason = CASE WHEN $6 = 'disabled' THEN coalesce(disabled_reason, 'by hand') END,
                        failing_since = CASE WHEN url = $4 AND status = $6 THEN failing_since END,
                        version = version + 1, updated_at = now(), updated_by = $7
                 WHERE workspace_id = $1 AND webhook_id = $2",
                &[
                    &call.workspace()?,
                    &id,
                    &f.name,
                    &f.url,
                    &names(&f.events),
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }
}

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|e| e.name()).collect()
}

/// Whether it is an http(s) URL with a host. Where that host leads is asked when something is sent there.
fn check_url(text: &str) -> Result<(), &'static str> {
    let bare = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    if text.chars().any(bare) {
        return Err("a URL has no blanks, backslashes or control characters");
    }
    let url = reqwest::Url::parse(text).map_err(|_| "want an https URL with a host")?;
    if !matches!(url.scheme(), "https" | "http") || url.host_str().is_none_or(str::is_empty) {
        return Err("want an https URL with a host");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("credentials do not belong in a URL");
    }
    if url.fragment().is_some() {
        return Err("a fragment is never sent");
    }
    Ok(())
}

/// What a sealed webhook secret is bound to.
#[must_use]
pub fn seal_purpose(webhook_id: &str) -> String {
    format!("webhook-secret:{webhook_id}")
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

fn create<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
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
struct Rotation {
    /// How long the old secret signs too, in seconds.
    #[serde(default)]
    #[schemars(range(min = 0, max = 604_800))]
    overlap_s: Option<u32>,
}

fn rotate<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
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

fn enable<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = call.param(Webhooks::PARAM)?;
        let before = entity::load::<Webhooks>(call, id, "FOR UPDATE").await?;
        match before.fields.status {
            Status::Archived => {
                return Err(Problem::new(
                    "conflict",
                    "it is archived; change its status to bring it back",
                ));
            }
            Status::Disabled => {
                let mut fields = before.fields.clone();
                fields.status = Status::Active;
                Webhooks::update(call, id, &fields).await?;
            }
            Status::Active => {
                call.tx
                    .execute(
                        "UPDATE webhooks SET failing_since = NULL WHERE workspace_id = $1 AND webhook_id = $2",
                        &[&call.workspace()?, &id],
                    )
                    .await?;
            }
        }
        let mut answer = entity::answer(entity::load::<Webhooks>(call, id, "").await?)?;
        answer.before = Some(entity::view(before)?);
        Ok(answer)
    })
}

/// Narrows the list of webhooks.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one status.
    status: Option<Status>,
}

fn list_webhooks<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("status = $", filter.status.map(Status::name));
        entity::list_by::<Webhooks>(call, conditions).await
    })
}

const PARAMS: &[Param] = &[Param {
    name: "webhook_id",
    summary: "The webhook's id, `wh_…`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let one = "/v1/webhooks/{webhook_id}";
    let view = entity::view_schema::<Webhooks>;
    let read = |id, path, output, handler| Operation {
        scope: Some("entities:read"),
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    let write = |id, method, path, output, handler| Operation {
        scope: Some("webhooks:manage"),
        effect: Effect::Write,
        ..Operation::new(id, method, path, output, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "The workspace's webhooks, newest first, without their secrets.",
            ..read(
                "list_webhooks",
                Webhooks::PATH,
                entity::list_schema::<Webhooks>,
                list_webhooks,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One webhook, without its secret.",
            ..read("get_webhook", one, view, entity::get::<Webhooks>)
        },
        Operation {
            status: 201,
            step_up: true,
            reveals: true,
            body: Some(entity::create_schema::<Webhooks>),
            summary: "Make a webhook; the secret that signs its deliveries is shown once.",
            ..write(
                "create_webhook",
                Method::Post,
                Webhooks::PATH,
                output::<Shown>,
                create,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Honoured,
            body: Some(entity::fields_schema::<Webhooks>),
            summary: "Change a webhook; what waits for it goes to its URL as it stands then.",
            ..write(
                "update_webhook",
                Method::Patch,
                one,
                view,
                entity::patch::<Webhooks>,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Required,
            body: Some(entity::fields_schema::<Webhooks>),
            summary: "Replace what a webhook says; its secret stays.",
            ..write(
                "replace_webhook",
                Method::Put,
                one,
                view,
                entity::replace::<Webhooks>,
            )
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "Archive a webhook: it gets nothing any more, not even what waits for it.",
            ..write(
                "delete_webhook",
                Method::Delete,
                one,
                view,
                entity::archive::<Webhooks>,
            )
        },
        Operation {
            step_up: true,
            reveals: true,
            params: PARAMS,
            body: Some(input::<Rotation>),
            summary: "Give a webhook a new secret, shown once; the old one signs too for `overlap_s` (3600).",
            ..write(
                "rotate_webhook_secret",
                Method::Post,
                "/v1/webhooks/{webhook_id}/rotate-secret",
                output::<Shown>,
                rotate,
            )
        },
        Operation {
            params: PARAMS,
            summary: "Let a disabled webhook hear again; its failures are forgotten. What ended meanwhile stays ended.",
            ..write(
                "enable_webhook",
                Method::Post,
                "/v1/webhooks/{webhook_id}/enable",
                view,
                enable,
            )
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn urls_have_a_host_and_no_credentials() {
        for good in [
            "https://x.example/hook",
            "http://127.0.0.1:9000/?a=b",
            "https://[2001:db8::1]/",
        ] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "x.example",
            "ftp://x.example",
            "javascript:alert(1)",
            "https://",
            "https://a:b@x.example/",
            "https://a@x.example/",
            "https://x.example/#f",
            "https://x.example/a b",
            "https://x.example\\@y.example/",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn stored_names_are_the_wires() {
        for event in [Event::Visit, Event::Click, Event::Conversion] {
            assert_eq!(json!(event), json!(event.name()));
            assert_eq!(Event::from_name(event.name()), Some(event));
        }
        for status in [Status::Active, Status::Disabled, Status::Archived] {
            assert_eq!(json!(status), json!(status.name()));
            assert_eq!(Status::from_name(status.name()), status);
        }
    }
}
