//! Conversions, and how they changed.

use super::facts::{click_id, of_click, parse_record_id, record_id, within};
use super::time_text;
use crate::api::call::{Answer, Call, to_json};
use crate::api::page::{Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Method, Operation, Param};
use crate::api::schema::{input, output};
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::postback::Status;
use rust_decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;
use uuid::Uuid;

/// A conversion.
#[derive(Serialize, JsonSchema)]
struct Conversion {
    /// Its id: the record of the postback that booked it, topic-partition-offset.
    #[schemars(extend("x-class" = "open"))]
    conversion_id: String,
    /// The click id.
    #[schemars(extend("x-class" = "open"))]
    click_id: Option<String>,
    /// The visit whose journey is credited.
    #[schemars(extend("x-class" = "open"))]
    visit_id: String,
    /// The campaign.
    #[schemars(extend("x-class" = "open"))]
    campaign_id: String,
    /// The credited offer.
    #[schemars(extend("x-class" = "open"))]
    offer_id: String,
    /// `navigation` or `monetization`.
    #[schemars(extend("x-class" = "open"))]
    role: String,
    /// The network.
    #[schemars(extend("x-class" = "open"))]
    network_id: String,
    /// The network's own id of the conversion.
    #[schemars(extend("x-class" = "open"))]
    external_id: Option<String>,
    /// Its transaction.
    #[schemars(extend("x-class" = "open"))]
    txid: Option<String>,
    /// The conversion event.
    #[schemars(extend("x-class" = "open"))]
    event: Option<String>,
    /// The provider's event type.
    #[schemars(extend("x-class" = "open"))]
    provider_event: Option<String>,
    /// The offer id as the network returned it.
    #[schemars(extend("x-class" = "open"))]
    returned_offer: Option<String>,
    /// What it pays, decimal text.
    #[schemars(extend("x-class" = "open"))]
    payout: String,
    /// ISO 4217.
    #[schemars(extend("x-class" = "open"))]
    currency: String,
    /// `approved`, `pending` or `rejected`.
    #[schemars(extend("x-class" = "open"))]
    status: String,
    /// Since when.
    #[schemars(extend("x-class" = "open"))]
    status_at: String,
    /// When its postback was accepted.
    #[schemars(extend("x-class" = "open"))]
    accepted_at: String,
    /// When it happened, where the sender said so.
    #[schemars(extend("x-class" = "open"))]
    occurred_at: Option<String>,
    /// When it was booked: later than accepted, if it had to wait for its visit.
    #[schemars(extend("x-class" = "open"))]
    booked_at: String,
    /// What was out of the ordinary.
    #[schemars(extend("x-class" = "open"))]
    flags: Vec<String>,
    /// Supplied hash of the email address.
    #[schemars(extend("x-class" = "identity"))]
    email_hash: Option<String>,
    /// Supplied hash of the phone number.
    #[schemars(extend("x-class" = "identity"))]
    phone_hash: Option<String>,
    /// Supplied hash of the lead.
    #[schemars(extend("x-class" = "identity"))]
    lead_hash: Option<String>,
}

const CONVERSIONS: Source = Source {
    from: "conversions",
    columns: "conversion_id, click_key, accepted_at, occurred_at, booked_at, click_id, campaign_id, visit_id, offer_id, role, \
              network_id, external_id, txid, event, provider_event, returned_offer, payout, currency, status, status_at, \
              email_hash, phone_hash, lead_hash, flags",
    time: "accepted_at",
    id: "conversion_id",
    id_type: "uuid",
    ascending: false,
    windows: false,
};

fn conversion_of(row: &Row) -> Result<Conversion, Problem> {
    let flags: String = row.try_get("flags")?;
    Ok(Conversion {
        conversion_id: record_id(row, "conversion_id")?,
        click_id: click_id(row)?,
        visit_id: row.try_get::<_, Uuid>("visit_id")?.to_string(),
        campaign_id: row.try_get("campaign_id")?,
        offer_id: row.try_get("offer_id")?,
        role: row.try_get("role")?,
        network_id: row.try_get("network_id")?,
        external_id: row.try_get("external_id")?,
        txid: row.try_get("txid")?,
        event: row.try_get("event")?,
        provider_event: row.try_get("provider_event")?,
        returned_offer: row.try_get("returned_offer")?,
        payout: row.try_get::<_, Decimal>("payout")?.normalize().to_string(),
        currency: row.try_get("currency")?,
        status: row.try_get("status")?,
        status_at: row.try_get::<_, Tz>("status_at")?.0.rfc3339(),
        accepted_at: row.try_get::<_, Tz>("accepted_at")?.0.rfc3339(),
        occurred_at: time_text(row.try_get("occurred_at")?),
        booked_at: row.try_get::<_, Tz>("booked_at")?.0.rfc3339(),
        flags: flags
            .split([',', ' '])
            .filter(|f| !f.is_empty())
            .map(str::to_owned)
            .collect(),
        email_hash: row.try_get("email_hash")?,
        phone_hash: row.try_get("phone_hash")?,
        lead_hash: row.try_get("lead_hash")?,
    })
}

/// Narrows the list of conversions.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ConversionFilter {
    /// Those of one event.
    event: Option<String>,
    /// Those of one status.
    status: Option<Status>,
    /// Those of one campaign.
    campaign: Option<String>,
    /// Those of one network.
    network: Option<String>,
    /// Those that credit one offer.
    offer: Option<String>,
    /// Those of one click id.
    click_id: Option<String>,
    /// Those of one transaction.
    txid: Option<String>,
    /// Accepted at or after, RFC 3339.
    from: Option<String>,
    /// Accepted before, RFC 3339.
    to: Option<String>,
}

fn list_conversions<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: ConversionFilter = call.query()?;
        let workspace = call.workspace()?;
        let mut conditions = Conditions::of_workspace(workspace);
        of_click(&mut conditions, workspace, filter.click_id.as_deref());
        conditions.and_some("event = $", filter.event);
        conditions.and_some("status = $", filter.status.map(Status::name));
        conditions.and_some("campaign_id = $", filter.campaign);
        conditions.and_some("network_id = $", filter.network);
        conditions.and_some("offer_id = $", filter.offer);
        conditions.and_some("txid = $", filter.txid);
        within(
            &mut conditions,
            filter.from.as_deref(),
            filter.to.as_deref(),
        )?;
        list(call, CONVERSIONS, conditions, |row| {
            to_json(&conversion_of(row)?)
        })
        .await
    })
}

/// A change of a booked conversion.
#[derive(Serialize, JsonSchema)]
struct Step {
    /// When.
    #[schemars(extend("x-class" = "open"))]
    changed_at: String,
    /// The record that brought it.
    #[schemars(extend("x-class" = "open"))]
    record_id: String,
    /// The status before.
    #[schemars(extend("x-class" = "open"))]
    old_status: String,
    /// The status after.
    #[schemars(extend("x-class" = "open"))]
    new_status: String,
    /// The payout before, decimal text.
    #[schemars(extend("x-class" = "open"))]
    old_payout: String,
    /// The payout after, decimal text.
    #[schemars(extend("x-class" = "open"))]
    new_payout: String,
}

/// A conversion with its history.
#[derive(Serialize, JsonSchema)]
struct Detailed {
    #[serde(flatten)]
    conversion: Conversion,
    /// Its changes, oldest first.
    #[schemars(extend("x-class" = "open"))]
    history: Vec<Step>,
}

fn get_conversion<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let id = parse_record_id(call.param("conversion_id")?)?;
        let workspace = call.workspace()?;
        let row = call
            .tx
            .query_opt(
                &format!(
                    "SELECT {} FROM conversions WHERE conversion_id = $1 AND workspace_id = $2",
                    CONVERSIONS.columns
                ),
                &[&id, &workspace],
            )
            .await?
            .ok_or_else(Problem::not_found)?;
        let history = call
            .tx
            .query(
                "SELECT changed_at, record_id, old_status, new_status, old_payout, new_payout FROM conversion_history
                 WHERE conversion_id = $1 AND workspace_id = $2 ORDER BY changed_at, record_id LIMIT 1000",
                &[&id, &workspace],
            )
            .await?
            .iter()
            .map(|row| {
                Ok(Step {
                    changed_at: row.try_get::<_, Tz>("changed_at")?.0.rfc3339(),
                    record_id: record_id(row, "record_id")?,
                    old_status: row.try_get("old_status")?,
                    new_status: row.try_get("new_status")?,
                    old_payout: row.try_get::<_, Decimal>("old_payout")?.normalize().to_string(),
                    new_payout: row.try_get::<_, Decimal>("new_payout")?.normalize().to_string(),
                })
            })
            .collect::<Result<_, Problem>>()?;
        Answer::of(&Detailed {
            conversion: conversion_of(&row)?,
            history,
        })
    })
}

fn conversions_schema() -> Value {
    list_of(output::<Conversion>())
}

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let of = |id, path, output, handler| Operation {
        scope: Some("reports:read"),
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<ConversionFilter>,
            summary: "Conversions, newest first.",
            ..of(
                "list_conversions",
                "/v1/conversions",
                conversions_schema,
                list_conversions,
            )
        },
        Operation {
            params: &[Param {
                name: "conversion_id",
                summary: "The conversion's id, topic-partition-offset.",
            }],
            summary: "One conversion and how it changed.",
            ..of(
                "get_conversion",
                "/v1/conversions/{conversion_id}",
                output::<Detailed>,
                get_conversion,
            )
        },
    ]
}
