//! Pixels: where conversions are told to an advertising platform. Their credentials go in and never come out.

mod credentials;
mod fields;

pub use fields::{ActionSource, DataProcessing, Fields, Platform, ProcessingOption, Status};

use crate::api::call::{Answer, Call, to_json};
use crate::api::entity::{self, Entity, Stored};
use crate::api::faults::Faults;
use crate::api::page::{Conditions, Source};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, ExemptReason, Method, Operation, Param, Precondition, Tool};
use crate::api::schema::input;
use crate::api::workspaces::check_name;
use crate::delivery::holds;
use credentials::{Credentials, create, create_schema, set_credentials};
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;

/// What is shown of its credentials.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Held {
    /// Whether an access token is there.
    #[schemars(extend("x-class" = "open"))]
    has_access_token: bool,
    /// Whether an app secret is there: requests then carry a proof of it.
    #[schemars(extend("x-class" = "open"))]
    has_app_secret: bool,
}

pub(crate) struct Pixels;

impl Entity for Pixels {
    type Fields = Fields;
    type Shown = Held;
    const PATH: &'static str = "/v1/pixels";
    const PARAM: &'static str = "pixel_id";
    const ID_COLUMN: &'static str = "pixel_id";
    const PREFIX: &'static str = "px_";
    const SOURCE: Source = Source {
        from: "pixels",
        columns: "pixel_id AS id, name, dataset_id, event_name, currency, action_source, data_processing, test_event_code, status, \
                  access_token_sealed IS NOT NULL AS has_access_token, app_secret_sealed IS NOT NULL AS has_app_secret, version, \
                  created_at, updated_at, updated_by",
        time: "created_at",
        id: "pixel_id",
        id_type: "text",
        ascending: false,
        windows: false,
    };

    fn read(row: &Row) -> Result<Stored<Fields, Held>, Problem> {
        let data_processing: Option<Value> = row.try_get("data_processing")?;
        let fields = Fields {
            name: row.try_get("name")?,
            platform: Platform::Meta,
            dataset_id: row.try_get("dataset_id")?,
            event_name: row.try_get("event_name")?,
            currency: row.try_get("currency")?,
            action_source: ActionSource::from_name(row.try_get("action_source")?),
            data_processing: data_processing
                .map(|d| crate::api::call::decode(&d))
                .transpose()?,
            test_event_code: row.try_get("test_event_code")?,
            status: match row.try_get("status")? {
                "archived" => Status::Archived,
                _ => Status::Active,
            },
        };
        let held = Held {
            has_access_token: row.try_get("has_access_token")?,
            has_app_secret: row.try_get("has_app_secret")?,
        };
        Ok(Stored::with(row, fields, held)?)
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
        for (at, text) in [("/name", &fields.name), ("/event_name", &fields.event_name)] {
            check_name(at, text, faults);
        }
        let said = fields.data_processing.as_ref();
        if said.is_some_and(|d| d.state != 0 && d.state < 1_000) {
            faults.add(
                "/data_processing/state",
                "out_of_range",
                "0, or the platform's number of a state, from 1000",
            );
        }
        Ok(())
    }

    async fn insert(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "INSERT INTO pixels (pixel_id, workspace_id, name, platform, dataset_id, event_name, currency, action_source,
                        data_processing, test_event_code, status, updated_by)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
                &[
                    &id,
                    &call.workspace()?,
                    &f.name,
                    &f.platform.name(),
                    &f.dataset_id,
                    &f.event_name,
                    &f.currency,
                    &f.action_source.name(),
                    &f.data_processing.as_ref().map(to_json).transpose()?,
                    &f.test_event_code,
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }

    async fn update(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        // A destination that was refused as missing or forbidden may be another one now.
        let moved = call
            .tx
            .query_opt(
                "SELECT 1 FROM pixels WHERE workspace_id = $1 AND pixel_id = $2 AND dataset_id <> $3",
                &[&call.workspace()?, &id, &f.dataset_id],
            )
            .await?;
        call.tx
            .execute(
                "UPDATE pixels SET name = $3, platform = $4, dataset_id = $5, event_name = $6, currency = $7, action_source = $8,
                        data_processing = $9, test_event_code = $10, status = $11, version = version + 1, updated_at = now(),
                        updated_by = $12
                 WHERE workspace_id = $1 AND pixel_id = $2",
                &[
                    &call.workspace()?,
                    &id,
                    &f.name,
                    &f.platform.name(),
                    &f.dataset_id,
                    &f.event_name,
                    &f.currency,
                    &f.action_source.name(),
                    &f.data_processing.as_ref().map(to_json).transpose()?,
                    &f.test_event_code,
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        if moved.is_some() {
            holds::resume_mended(call.tx, call.workspace()?, id).await?;
        }
        Ok(())
    }
}

/// Narrows the list of pixels.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one status.
    status: Option<Status>,
    /// Those of one platform.
    platform: Option<Platform>,
}

fn list_pixels<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("status = $", filter.status.map(Status::name));
        conditions.and_some("platform = $", filter.platform.map(Platform::name));
        entity::list_by::<Pixels>(call, conditions).await
    })
}

/// The pixels of a campaign's routing must be the workspace's; one that is newly named must not be archived.
pub(super) async fn check_named(
    call: &Call<'_>,
    named: &[(String, String)],
    stood: &[String],
    faults: &mut Faults,
) -> Result<(), Problem> {
    let ids: Vec<&String> = named.iter().map(|(_, id)| id).collect();
    let rows = call
        .tx
        .query(
            "SELECT pixel_id, status FROM pixels WHERE workspace_id = $1 AND pixel_id = ANY($2) ORDER BY 1 FOR SHARE",
            &[&call.workspace()?, &ids],
        )
        .await?;
    for (at, id) in named {
        let row = rows.iter().find(|r| r.get::<_, &str>(0) == id);
        let status: Option<&str> = row.map(|r| r.try_get(1)).transpose()?;
        match status {
            Some("active") => {}
            Some(_) if stood.contains(id) => {}
            Some(_) => faults.add(at, "archived_pixel", "this pixel is archived"),
            None => faults.add(at, "unknown_pixel", "there is no pixel of this id"),
        }
    }
    Ok(())
}

const PARAMS: &[Param] = &[Param {
    name: "pixel_id",
    summary: "The pixel's id, `px_…`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let one = "/v1/pixels/{pixel_id}";
    let read = |id, path, output, handler| Operation {
        scope: Some("entities:read"),
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    let write = |id, method, path, handler| Operation {
        scope: Some("links:write"),
        effect: Effect::Write,
        ..Operation::new(id, method, path, entity::view_schema::<Pixels>, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "The workspace's pixels, newest first, without their credentials.",
            ..read(
                "list_pixels",
                Pixels::PATH,
                entity::list_schema::<Pixels>,
                list_pixels,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One pixel, without its credentials.",
            ..read(
                "get_pixel",
                one,
                entity::view_schema::<Pixels>,
                entity::get::<Pixels>,
            )
        },
        Operation {
            status: 201,
            step_up: true,
            body: Some(create_schema),
            summary: "Make a pixel; its credentials are sealed and never shown.",
            ..write("create_pixel", Method::Post, Pixels::PATH, create)
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Honoured,
            body: Some(entity::fields_schema::<Pixels>),
            summary: "Change a pixel; what waits for it is sent as it stands now, and nothing more to the dataset before.",
            ..write("update_pixel", Method::Patch, one, entity::patch::<Pixels>)
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Required,
            body: Some(entity::fields_schema::<Pixels>),
            summary: "Replace what a pixel says; its credentials stay.",
            ..write("replace_pixel", Method::Put, one, entity::replace::<Pixels>)
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "Archive a pixel: it gets nothing any more, not even what waits for it.",
            ..write(
                "delete_pixel",
                Method::Delete,
                one,
                entity::archive::<Pixels>,
            )
        },
        Operation {
            step_up: true,
            // A provider's token is no tool's argument.
            tool: Tool::Exempt(ExemptReason::HumanOnly),
            params: PARAMS,
            body: Some(input::<Credentials>),
            summary: "Give a pixel other credentials (null takes one away); what waited for them is sent.",
            ..write(
                "set_pixel_credentials",
                Method::Post,
                "/v1/pixels/{pixel_id}/credentials",
                set_credentials,
            )
        },
    ]
}
