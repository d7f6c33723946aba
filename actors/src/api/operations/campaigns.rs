//! Campaigns: what a visitor of `/c/<id>` is given. Until routing graphs exist, `routing` is a weighted list of offers.

use super::routing::{Routing, check_routing};
use crate::api::call::{Call, to_json};
use crate::api::entity::{self, Entity, Stored};
use crate::api::faults::Faults;
use crate::api::page::{Conditions, Source};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Precondition};
use crate::api::schema::input;
use crate::api::workspaces::check_name;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;

/// Whether visitors are led on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// They are.
    #[default]
    Active,
    /// Not for now.
    Paused,
    /// No more.
    Archived,
}

impl Status {
    const fn name(self) -> &'static str {
        match self {
            Status::Active => "active",
            Status::Paused => "paused",
            Status::Archived => "archived",
        }
    }

    fn from_name(name: &str) -> Status {
        match name {
            "paused" => Status::Paused,
            "archived" => Status::Archived,
            _ => Status::Active,
        }
    }
}

/// What can be written of a campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// Its name.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub name: String,
    /// What `{ref}` becomes in its offers' URLs.
    #[serde(default, rename = "ref")]
    #[schemars(length(max = 200), extend("x-class" = "open"))]
    pub reference: Option<String>,
    /// Where visitors are led.
    #[schemars(extend("x-class" = "open"))]
    pub routing: Routing,
    /// Whether they are.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub status: Status,
}

pub(crate) struct Campaigns;

impl Entity for Campaigns {
    type Fields = Fields;
    type Shown = entity::Bare;
    const PATH: &'static str = "/v1/campaigns";
    const PARAM: &'static str = "campaign_id";
    const ID_COLUMN: &'static str = "campaign_id";
    const CHOSEN_ID: Option<&'static str> = Some("^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$");
    /// A public slug: 8 characters `[a-z0-9]`, never the name of a door.
    fn mint(_: millrace_schemas::time::Micros) -> Result<String, getrandom::Error> {
        loop {
            let mut random = [0u8; 8];
            getrandom::fill(&mut random)?;
            let slug: String = random
                .iter()
                .map(|byte| {
                    // 256 is no multiple of 36: the bias is of no account to a name.
                    let digit = u32::from(*byte) % 36;
                    char::from_digit(digit, 36).unwrap_or('0')
                })
                .collect();
            if slug != "identity" {
                return Ok(slug);
            }
        }
    }

    const SOURCE: Source = Source {
        from: "campaigns",
        columns: "campaign_id AS id, name, ref, routing, status, version, created_at, updated_at, updated_by",
        time: "created_at",
        id: "campaign_id",
        id_type: "text",
        ascending: false,
        windows: false,
    };

    fn read(row: &Row) -> Result<Stored<Fields>, Problem> {
        let routing: Value = row.try_get("routing")?;
        let fields = Fields {
            name: row.try_get("name")?,
            reference: row.try_get("ref")?,
            routing: crate::api::call::decode(&routing)?,
            status: Status::from_name(row.try_get("status")?),
        };
        Ok(Stored::read(row, fields)?)
    }

    fn archive(fields: &mut Fields) {
        fields.status = Status::Archived;
    }

    async fn check(
        call: &Call<'_>,
        id: &str,
        before: Option<&Fields>,
        fields: &Fields,
        faults: &mut Faults,
    ) -> Result<(), Problem> {
        check_name("/name", &fields.name, faults);
        if fields
            .reference
            .as_ref()
            .is_some_and(|r| r.chars().any(char::is_control))
        {
            faults.add("/ref", "malformed", "no control characters");
        }
        if before.is_none() {
            let taken = call
                .tx
                .query_opt("SELECT 1 FROM campaigns WHERE campaign_id = $1", &[&id])
                .await?;
            if taken.is_some() {
                return Err(Problem::new("id_taken", "the campaign id is taken"));
            }
        }
        // What stands unchanged is not asked again, unless the campaign comes back from the archive.
        let returns = before.is_some_and(|b| b.status == Status::Archived)
            && fields.status != Status::Archived;
        if returns || before.is_none_or(|b| b.routing != fields.routing) {
            check_routing(call, before.map(|b| &b.routing), &fields.routing, faults).await?;
        }
        Ok(())
    }

    async fn insert(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        let written = call
            .tx
            .execute(
                "INSERT INTO campaigns (campaign_id, workspace_id, name, ref, routing, status, updated_by)
                 VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (campaign_id) DO NOTHING",
                &[
                    &id,
                    &call.workspace()?,
                    &f.name,
                    &f.reference,
                    &to_json(&f.routing)?,
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        if written == 0 {
            return Err(Problem::new("id_taken", "the campaign id is taken"));
        }
        Ok(())
    }

    async fn update(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "UPDATE campaigns SET name = $3, ref = $4, routing = $5, status = $6, version = version + 1,
                        updated_at = now(), updated_by = $7
                 WHERE workspace_id = $1 AND campaign_id = $2",
                &[
                    &call.workspace()?,
                    &id,
                    &f.name,
                    &f.reference,
                    &to_json(&f.routing)?,
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }
}

/// Narrows the list of campaigns.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one status.
    status: Option<Status>,
}

fn list_campaigns<'a>(
    call: &'a Call<'a>,
) -> LocalBoxFuture<'a, Result<crate::api::call::Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("status = $", filter.status.map(Status::name));
        entity::list_by::<Campaigns>(call, conditions).await
    })
}

const PARAMS: &[Param] = &[Param {
    name: "campaign_id",
    summary: "The campaign's id, as in `/c/<id>`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let one = "/v1/campaigns/{campaign_id}";
    let read = |id, path, output, handler| Operation {
        scope: Some("entities:read"),
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    let write = |id, method, path, handler| Operation {
        scope: Some("links:write"),
        effect: Effect::Write,
        ..Operation::new(id, method, path, entity::view_schema::<Campaigns>, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "The workspace's campaigns, newest first.",
            ..read(
                "list_campaigns",
                "/v1/campaigns",
                entity::list_schema::<Campaigns>,
                list_campaigns,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One campaign.",
            ..read(
                "get_campaign",
                one,
                entity::view_schema::<Campaigns>,
                entity::get::<Campaigns>,
            )
        },
        Operation {
            status: 201,
            body: Some(entity::create_schema::<Campaigns>),
            summary: "Make a campaign; its id is the public one in `/c/<id>`.",
            ..write(
                "create_campaign",
                Method::Post,
                "/v1/campaigns",
                entity::create::<Campaigns>,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Honoured,
            body: Some(entity::fields_schema::<Campaigns>),
            summary: "Change a campaign, pause it or let it go on; journeys already served stay as they were.",
            ..write(
                "update_campaign",
                Method::Patch,
                one,
                entity::patch::<Campaigns>,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Required,
            body: Some(entity::fields_schema::<Campaigns>),
            summary: "Replace what a campaign says.",
            ..write(
                "replace_campaign",
                Method::Put,
                one,
                entity::replace::<Campaigns>,
            )
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "Archive a campaign: its door answers as for unknown, its facts stay.",
            ..write(
                "delete_campaign",
                Method::Delete,
                one,
                entity::archive::<Campaigns>,
            )
        },
    ]
}
