//! Addresses that get no mail: by mask, never whole; added and lifted by hand.

use super::time_text;
use crate::api::call::{Answer, Call, to_json};
use crate::api::faults::{ChangeError, Faults};
use crate::api::page::{Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Precondition};
use crate::api::schema::{input, output};
use crate::delivery::email::{address, suppression};
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::ids;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;
use uuid::Uuid;

/// An address that gets no mail but what its user asked for.
#[derive(Serialize, JsonSchema)]
struct Suppression {
    /// Its id, `sp_…`: what it is lifted by.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    /// The address, masked: `d***@example.com`.
    #[schemars(extend("x-class" = "open"))]
    address: String,
    /// `hard_bounce`, `complaint` or `manual`.
    #[schemars(extend("x-class" = "open"))]
    reason: String,
    /// What its server said, redacted, or what was written by hand.
    #[schemars(extend("x-class" = "open"))]
    detail: Option<String>,
    /// Who added it; null: a server's refusal.
    #[schemars(extend("x-class" = "open"))]
    created_by: Option<String>,
    /// The delivery whose refusal it was.
    #[schemars(extend("x-class" = "open"))]
    delivery_id: Option<String>,
    /// Since when.
    #[schemars(extend("x-class" = "open"))]
    created_at: Option<String>,
}

const SOURCE: Source = Source {
    from: "suppressions",
    columns: "suppression_id, address_masked, reason, detail, created_by, outbox_id, created_at",
    time: "created_at",
    id: "suppression_id",
    id_type: "text",
    ascending: false,
    windows: false,
};

fn read(row: &Row) -> Result<Value, Problem> {
    to_json(&Suppression {
        id: row.try_get("suppression_id")?,
        address: row.try_get("address_masked")?,
        reason: row.try_get("reason")?,
        detail: row.try_get("detail")?,
        created_by: row.try_get("created_by")?,
        delivery_id: row
            .try_get::<_, Option<Uuid>>("outbox_id")?
            .map(ids::encode),
        created_at: time_text(row.try_get::<_, Option<Tz>>("created_at")?),
    })
}

/// Why an address is suppressed.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Reason {
    /// Its server said that there is no such mailbox.
    HardBounce,
    /// Its owner complained.
    Complaint,
    /// Somebody added it.
    Manual,
}

impl Reason {
    const fn name(self) -> &'static str {
        match self {
            Reason::HardBounce => "hard_bounce",
            Reason::Complaint => "complaint",
            Reason::Manual => "manual",
        }
    }
}

/// Narrows the list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one reason.
    reason: Option<Reason>,
}

fn list_suppressions<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("reason = $", filter.reason.map(Reason::name));
        list(call, SOURCE, conditions, read).await
    })
}

/// An address to suppress.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct New {
    /// The address. It is kept as a hash and a mask alone.
    #[schemars(length(min = 3, max = 320), extend("writeOnly" = true))]
    address: String,
    /// Why, for people.
    #[schemars(length(min = 1, max = 500))]
    detail: Option<String>,
}

fn checked(text: &str) -> Result<&str, Problem> {
    if address::parse(text).is_some() {
        return Ok(text);
    }
    let mut faults = Faults::new();
    faults.add(
        "/address",
        "invalid_address",
        "want an address such as dora@example.com",
    );
    Err(faults.into())
}

async fn one(call: &Call<'_>, id: &str) -> Result<Value, Problem> {
    let sql = format!(
        "SELECT {} FROM suppressions WHERE workspace_id = $1 AND suppression_id = $2",
        SOURCE.columns
    );
    let row = call.tx.query_opt(&sql, &[&call.workspace()?, &id]).await?;
    read(&row.ok_or_else(Problem::not_found)?)
}

/// Adding one that is there changes nothing and is no fault.
fn add<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let new: New = call.body()?;
        let address = checked(&new.address)?;
        let (detail, by) = (new.detail.as_deref(), &call.actor.key_id);
        let minted = ids::mint(call.state.clock.wall()).map_err(ChangeError::from)?;
        let new = suppression::id_of(minted);
        let workspace = call.workspace()?;
        let id = suppression::add(call.tx, workspace, (new.as_str(), address), detail, by).await?;
        Ok(Answer {
            body: one(call, &id).await?,
            ..Answer::default()
        })
    })
}

/// What was lifted.
#[derive(Serialize, JsonSchema)]
struct Lifted {
    /// Whether it was suppressed before.
    #[schemars(extend("x-class" = "open"))]
    lifted: bool,
}

fn remove<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = call.param("suppression_id")?;
        let before = one(call, id).await?;
        // It is written once and never changed: its only version is the first.
        call.check_version(1, &call.actor.key_id, call.state.clock.wall())?;
        let lifted = suppression::lift(call.tx, call.workspace()?, id).await?;
        let mut answer = Answer::of(&Lifted { lifted })?;
        answer.before = Some(before);
        Ok(answer)
    })
}

/// An address to be mailed again.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Address {
    /// The address, in whatever case.
    #[schemars(length(min = 3, max = 320), extend("writeOnly" = true))]
    address: String,
}

fn lift<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let given: Address = call.body()?;
        let address = checked(&given.address)?;
        let lifted = suppression::lift_address(call.tx, call.workspace()?, address).await?;
        Answer::of(&Lifted { lifted })
    })
}

fn list_schema() -> Value {
    list_of(output::<Suppression>())
}

const PARAMS: &[Param] = &[Param {
    name: "suppression_id",
    summary: "The suppression's id, `sp_…`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let manage = |id, method, path, output, handler| Operation {
        scope: Some("deliverability:manage"),
        ..Operation::new(id, method, path, output, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "Addresses that get no mail but what their users asked for, newest first, masked.",
            ..manage(
                "list_suppressions",
                Method::Get,
                "/v1/suppressions",
                list_schema,
                list_suppressions,
            )
        },
        Operation {
            status: 201,
            effect: Effect::Write,
            body: Some(input::<New>),
            summary: "Suppress an address; one that is suppressed already stays as it is.",
            ..manage(
                "create_suppression",
                Method::Post,
                "/v1/suppressions",
                output::<Suppression>,
                add,
            )
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "Lift a suppression: the address is mailed again.",
            ..manage(
                "delete_suppression",
                Method::Delete,
                "/v1/suppressions/{suppression_id}",
                output::<Lifted>,
                remove,
            )
        },
        Operation {
            effect: Effect::Destructive,
            body: Some(input::<Address>),
            summary: "Lift the suppression of an address, however it is written.",
            ..manage(
                "release_suppression",
                Method::Post,
                "/v1/suppressions/release",
                output::<Lifted>,
                lift,
            )
        },
    ]
}
