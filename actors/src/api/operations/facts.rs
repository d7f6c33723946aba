//! Visits and clicks, and what lists of records have in common.

use super::{moment, time_text};
use crate::api::call::{Answer, Call, to_json};
use crate::api::faults::Faults;
use crate::api::page::{Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Method, Operation};
use crate::api::schema::{input, output};
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::ids::{self, ClickKey, RecordId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;
use uuid::Uuid;

/// A click id as text: stored where it is foreign, else it follows from its 16 bytes.
pub(super) fn click_id(row: &Row) -> Result<Option<String>, tokio_postgres::Error> {
    let stored: Option<String> = row.try_get("click_id")?;
    let key: Option<Uuid> = row.try_get("click_key")?;
    Ok(stored.or_else(|| {
        key.filter(|k| ids::minted_millis(*k).is_some())
            .map(ids::encode)
    }))
}

/// A record's coordinates as text.
pub(super) fn record_id(row: &Row, column: &str) -> Result<String, tokio_postgres::Error> {
    Ok(RecordId::from_uuid(row.try_get(column)?).to_string())
}

/// The 16 bytes of a record's coordinates in a path; what is written otherwise is nothing's id.
pub(super) fn parse_record_id(text: &str) -> Result<Uuid, Problem> {
    let id: RecordId = text.parse().map_err(|_| Problem::not_found())?;
    if id.to_string() == text {
        Ok(id.to_uuid())
    } else {
        Err(Problem::not_found())
    }
}

/// Narrows to one click id.
pub(super) fn of_click(conditions: &mut Conditions, workspace: i32, click_id: Option<&str>) {
    conditions.and_some(
        "click_key = $",
        click_id.map(|c| ClickKey::new(workspace, c).key),
    );
}

/// Narrows a list of visits or clicks.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one campaign.
    campaign: Option<String>,
    /// Those of one click id.
    click_id: Option<String>,
    /// Accepted at or after, RFC 3339.
    from: Option<String>,
    /// Accepted before, RFC 3339.
    to: Option<String>,
}

impl Filter {
    fn conditions(&self, workspace: i32) -> Result<Conditions, Problem> {
        let mut conditions = Conditions::of_workspace(workspace);
        of_click(&mut conditions, workspace, self.click_id.as_deref());
        conditions.and_some("campaign_id = $", self.campaign.clone());
        within(&mut conditions, self.from.as_deref(), self.to.as_deref())?;
        Ok(conditions)
    }
}

/// Narrows to a span of acceptance.
pub(super) fn within(
    conditions: &mut Conditions,
    from: Option<&str>,
    to: Option<&str>,
) -> Result<(), Problem> {
    let mut faults = Faults::new();
    let from = moment("from", from, &mut faults);
    let to = moment("to", to, &mut faults);
    if !faults.is_empty() {
        return Err(faults.into());
    }
    conditions.and_some("accepted_at >= $", from);
    conditions.and_some("accepted_at < $", to);
    Ok(())
}

/// A visit.
#[derive(Serialize, JsonSchema)]
struct Visit {
    /// Its own id.
    #[schemars(extend("x-class" = "open"))]
    visit_id: String,
    /// The record it came in, topic-partition-offset.
    #[schemars(extend("x-class" = "open"))]
    record_id: String,
    /// The click id.
    #[schemars(extend("x-class" = "open"))]
    click_id: Option<String>,
    /// The campaign.
    #[schemars(extend("x-class" = "open"))]
    campaign_id: String,
    /// The offer that the visitor was led to.
    #[schemars(extend("x-class" = "open"))]
    offer_id: Option<String>,
    /// The zero-based page of the funnel.
    #[schemars(extend("x-class" = "open"))]
    stage: i16,
    /// Whether it is itself the click.
    #[schemars(extend("x-class" = "open"))]
    direct: bool,
    /// When it was accepted.
    #[schemars(extend("x-class" = "open"))]
    accepted_at: String,
    /// When it happened, where the sender said so.
    #[schemars(extend("x-class" = "open"))]
    occurred_at: Option<String>,
    /// The page's URL without its query.
    #[schemars(extend("x-class" = "open"))]
    source_url: Option<String>,
    /// The client's address, where the workspace keeps it.
    #[schemars(extend("x-class" = "identity"))]
    ip: Option<String>,
    /// The user agent.
    #[schemars(extend("x-class" = "identity"))]
    user_agent: Option<String>,
    /// Meta's browser id.
    #[schemars(extend("x-class" = "identity"))]
    fbp: Option<String>,
    /// Meta's click id.
    #[schemars(extend("x-class" = "identity"))]
    fbc: Option<String>,
    /// The captured query.
    #[schemars(extend("x-class" = "identity", "x-open-keys" = ["utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content"]))]
    params: Option<Value>,
    /// The journey as it was served.
    #[schemars(extend("x-class" = "identity", "x-open-keys" = ["offer", "sidecar_offers"]))]
    journey: Option<Value>,
}

const VISITS: Source = Source {
    from: "visits",
    columns: "click_key, visit_id, record_id, accepted_at, occurred_at, stage, direct, click_id, campaign_id, offer_id, ip, \
              user_agent, source_url, fbp, fbc, params, journey",
    time: "accepted_at",
    id: "record_id",
    id_type: "uuid",
    ascending: false,
    windows: true,
};

fn visit(row: &Row) -> Result<Value, Problem> {
    to_json(&Visit {
        visit_id: row.try_get::<_, Uuid>("visit_id")?.to_string(),
        record_id: record_id(row, "record_id")?,
        click_id: click_id(row)?,
        campaign_id: row.try_get("campaign_id")?,
        offer_id: row.try_get("offer_id")?,
        stage: row.try_get("stage")?,
        direct: row.try_get("direct")?,
        accepted_at: row.try_get::<_, Tz>("accepted_at")?.0.rfc3339(),
        occurred_at: time_text(row.try_get("occurred_at")?),
        source_url: row.try_get("source_url")?,
        ip: row.try_get("ip")?,
        user_agent: row.try_get("user_agent")?,
        fbp: row.try_get("fbp")?,
        fbc: row.try_get("fbc")?,
        params: row.try_get("params")?,
        journey: row.try_get("journey")?,
    })
}

/// A click.
#[derive(Serialize, JsonSchema)]
struct Click {
    /// The record it came in, topic-partition-offset.
    #[schemars(extend("x-class" = "open"))]
    record_id: String,
    /// The click id.
    #[schemars(extend("x-class" = "open"))]
    click_id: Option<String>,
    /// The campaign.
    #[schemars(extend("x-class" = "open"))]
    campaign_id: String,
    /// The offer.
    #[schemars(extend("x-class" = "open"))]
    offer_id: Option<String>,
    /// The zero-based page of the funnel.
    #[schemars(extend("x-class" = "open"))]
    stage: i16,
    /// When it was accepted.
    #[schemars(extend("x-class" = "open"))]
    accepted_at: String,
    /// When it happened, where the sender said so.
    #[schemars(extend("x-class" = "open"))]
    occurred_at: Option<String>,
}

const CLICKS: Source = Source {
    from: "clicks",
    columns: "click_key, record_id, accepted_at, occurred_at, stage, click_id, campaign_id, offer_id",
    ..VISITS
};

fn click(row: &Row) -> Result<Value, Problem> {
    to_json(&Click {
        record_id: record_id(row, "record_id")?,
        click_id: click_id(row)?,
        campaign_id: row.try_get("campaign_id")?,
        offer_id: row.try_get("offer_id")?,
        stage: row.try_get("stage")?,
        accepted_at: row.try_get::<_, Tz>("accepted_at")?.0.rfc3339(),
        occurred_at: time_text(row.try_get("occurred_at")?),
    })
}

fn list_visits<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move { list_facts(call, VISITS, visit).await })
}

fn list_clicks<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move { list_facts(call, CLICKS, click).await })
}

async fn list_facts(
    call: &Call<'_>,
    source: Source,
    read: impl Fn(&Row) -> Result<Value, Problem>,
) -> Result<Answer, Problem> {
    let filter: Filter = call.query()?;
    // One click id has few rows, and an index.
    let source = Source {
        windows: source.windows && filter.click_id.is_none(),
        ..source
    };
    list(call, source, filter.conditions(call.workspace()?)?, read).await
}

fn visits_schema() -> Value {
    list_of(output::<Visit>())
}

fn clicks_schema() -> Value {
    list_of(output::<Click>())
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
            query: input::<Filter>,
            summary: "Visits, newest first.",
            ..of("list_visits", "/v1/visits", visits_schema, list_visits)
        },
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "Clicks, newest first.",
            ..of("list_clicks", "/v1/clicks", clicks_schema, list_clicks)
        },
    ]
}
