//! Offers: where visitors are led.

use super::networks::{Status, in_use};
use crate::api::call::Call;
use crate::api::entity::{self, Entity, Stored};
use crate::api::faults::Faults;
use crate::api::page::{Conditions, Source};
use crate::api::problem::Problem;
use crate::api::registry::{Effect, Method, Operation, Param, Precondition};
use crate::api::schema::input;
use crate::api::workspaces::check_name;
use futures::future::LocalBoxFuture;
use rust_decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

/// What can be written of an offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// Its name.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub name: String,
    /// Where it leads, http or https; `{click_id}`, `{ref}`, `{link_id}` and captured parameters are filled in.
    #[schemars(length(min = 8, max = 4000), extend("x-class" = "open"))]
    pub url_template: String,
    /// The network whose postbacks credit it.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub network_id: Option<String>,
    /// What a conversion pays if its postback brings no payout, as decimal text.
    #[serde(default)]
    #[schemars(regex(pattern = r"^[0-9]{1,18}(\.[0-9]{1,10})?$"), extend("x-class" = "open"))]
    pub payout: Option<String>,
    /// ISO 4217.
    #[serde(default = "usd")]
    #[schemars(regex(pattern = r"^[A-Z]{3}$"), extend("x-class" = "open"))]
    pub currency: String,
    /// Whether visitors are led there.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub status: Status,
}

fn usd() -> String {
    "USD".to_owned()
}

pub(crate) struct Offers;

impl Entity for Offers {
    type Fields = Fields;
    type Shown = entity::Bare;
    const PATH: &'static str = "/v1/offers";
    const PARAM: &'static str = "offer_id";
    const ID_COLUMN: &'static str = "offer_id";
    const PREFIX: &'static str = "of_";
    const SOURCE: Source = Source {
        from: "offers",
        columns: "offer_id AS id, name, url_template, network_id, payout, currency, status, version, created_at, updated_at, \
                  updated_by",
        time: "created_at",
        id: "offer_id",
        id_type: "text",
        ascending: false,
        windows: false,
    };

    fn read(row: &Row) -> Result<Stored<Fields>, Problem> {
        let payout: Option<Decimal> = row.try_get("payout")?;
        let fields = Fields {
            name: row.try_get("name")?,
            url_template: row.try_get("url_template")?,
            network_id: row.try_get("network_id")?,
            payout: payout.map(|p| p.normalize().to_string()),
            currency: row.try_get("currency")?,
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
        if let Err(why) = check_url(&fields.url_template) {
            faults.add("/url_template", "malformed", why);
        }
        if decimal(fields.payout.as_deref()).is_none() {
            faults.add("/payout", "malformed", "at most 18 digits in all");
        }
        let network = fields
            .network_id
            .as_ref()
            .filter(|n| before.and_then(|b| b.network_id.as_ref()) != Some(n));
        if let Some(network) = network {
            // Shared lock: the network cannot be archived before this is committed.
            let there = call
                .tx
                .query_opt(
                    "SELECT 1 FROM networks WHERE workspace_id = $1 AND network_id = $2 AND status = 'active' FOR SHARE",
                    &[&call.workspace()?, network],
                )
                .await?;
            if there.is_none() {
                faults.add(
                    "/network_id",
                    "unknown_network",
                    "there is no active network of this id",
                );
            }
        }
        let archives =
            fields.status == Status::Archived && before.is_some_and(|b| b.status == Status::Active);
        if archives {
            let users: Vec<String> = call
                .tx
                .query(
                    "SELECT campaign_id FROM campaigns WHERE workspace_id = $1 AND status <> 'archived'
                       AND (routing @> jsonb_build_object('offers', jsonb_build_array(jsonb_build_object('offer', $2::text)))
                         OR routing @> jsonb_build_object('sidecar_offers', jsonb_build_array(jsonb_build_object('offer', $2::text))))
                     ORDER BY campaign_id LIMIT 10",
                    &[&call.workspace()?, &id],
                )
                .await?
                .iter()
                .map(|r| r.try_get(0))
                .collect::<Result<_, _>>()?;
            if !users.is_empty() {
                return Err(in_use(&users));
            }
        }
        Ok(())
    }

    async fn insert(call: &Call<'_>, id: &str, f: &Fields) -> Result<(), Problem> {
        call.tx
            .execute(
                "INSERT INTO offers (offer_id, workspace_id, name, url_template, network_id, payout, currency, status, updated_by)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                &[
                    &id,
                    &call.workspace()?,
                    &f.name,
                    &f.url_template,
                    &f.network_id,
                    &decimal(f.payout.as_deref()).flatten(),
                    &f.currency,
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
                "UPDATE offers SET name = $3, url_template = $4, network_id = $5, payout = $6, currency = $7, status = $8,
                        version = version + 1, updated_at = now(), updated_by = $9
                 WHERE workspace_id = $1 AND offer_id = $2",
                &[
                    &call.workspace()?,
                    &id,
                    &f.name,
                    &f.url_template,
                    &f.network_id,
                    &decimal(f.payout.as_deref()).flatten(),
                    &f.currency,
                    &f.status.name(),
                    &call.actor.key_id,
                ],
            )
            .await?;
        Ok(())
    }
}

/// `Some(None)`: none given. `None`: more digits than the ledger keeps.
pub(super) fn decimal(text: Option<&str>) -> Option<Option<Decimal>> {
    match text {
        None => Some(None),
        Some(text) => millrace_schemas::money::parse_payout(
            text,
            millrace_schemas::money::PayoutRules::default(),
        )
        .ok()
        .map(Some),
    }
}

/// An absolute http or https URL with a host; placeholders anywhere behind it.
fn check_url(template: &str) -> Result<(), &'static str> {
    let rest = template
        .strip_prefix("https://")
        .or_else(|| template.strip_prefix("http://"))
        .ok_or("want an http or https URL")?;
    if template
        .chars()
        .any(|c| c.is_control() || c.is_whitespace())
    {
        return Err("a URL has no blanks or control characters");
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let uri: Result<actix_web::http::Uri, _> = format!("http://{authority}/").parse();
    let host = uri.ok().and_then(|u| u.host().map(|h| !h.is_empty()));
    if authority.contains(['@', '{', '}', '\\']) || host != Some(true) {
        return Err(
            "the host must be a plain name or address, without credentials or placeholders",
        );
    }
    Ok(())
}

/// Narrows the list of offers.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one status.
    status: Option<Status>,
    /// Those of one network.
    network: Option<String>,
}

fn list_offers<'a>(
    call: &'a Call<'a>,
) -> LocalBoxFuture<'a, Result<crate::api::call::Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("status = $", filter.status.map(Status::name));
        conditions.and_some("network_id = $", filter.network);
        entity::list_by::<Offers>(call, conditions).await
    })
}

const PARAMS: &[Param] = &[Param {
    name: "offer_id",
    summary: "The offer's id, `of_…`.",
}];

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let one = "/v1/offers/{offer_id}";
    let view = entity::view_schema::<Offers>;
    let read = |id, path, output, handler| Operation {
        scope: Some("entities:read"),
        ..Operation::new(id, Method::Get, path, output, handler)
    };
    let write = |id, method, path, handler| Operation {
        scope: Some("offers:write"),
        effect: Effect::Write,
        ..Operation::new(id, method, path, entity::view_schema::<Offers>, handler)
    };
    vec![
        Operation {
            list: true,
            query: input::<Filter>,
            summary: "The workspace's offers, newest first.",
            ..read(
                "list_offers",
                "/v1/offers",
                entity::list_schema::<Offers>,
                list_offers,
            )
        },
        Operation {
            params: PARAMS,
            summary: "One offer.",
            ..read("get_offer", one, view, entity::get::<Offers>)
        },
        Operation {
            status: 201,
            body: Some(entity::create_schema::<Offers>),
            summary: "Make an offer.",
            ..write(
                "create_offer",
                Method::Post,
                "/v1/offers",
                entity::create::<Offers>,
            )
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Honoured,
            body: Some(entity::fields_schema::<Offers>),
            summary: "Change an offer; journeys already served keep what they were served.",
            ..write("update_offer", Method::Patch, one, entity::patch::<Offers>)
        },
        Operation {
            params: PARAMS,
            precondition: Precondition::Required,
            body: Some(entity::fields_schema::<Offers>),
            summary: "Replace what an offer says.",
            ..write("replace_offer", Method::Put, one, entity::replace::<Offers>)
        },
        Operation {
            effect: Effect::Destructive,
            params: PARAMS,
            precondition: Precondition::Required,
            summary: "Archive an offer that no campaign uses; its facts stay.",
            ..write(
                "delete_offer",
                Method::Delete,
                one,
                entity::archive::<Offers>,
            )
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::check_url;

    #[test]
    fn urls_are_http_with_a_plain_host() {
        for good in [
            "https://x.example",
            "http://x.example:8080/a?c={click_id}",
            "https://[2001:db8::1]/{ref}",
            "https://x.example?sub={sub1}",
        ] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "x",
            "ftp://x.example",
            "javascript:alert(1)",
            "https://",
            "https:///a",
            "https://{host}/",
            "https://u:p@x.example/",
            "https://x example/",
            "https://x.example/\u{7}",
            "//x.example",
            "HTTPS://x.example",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }
}
