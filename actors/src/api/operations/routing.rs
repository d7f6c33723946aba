//! Where a campaign leads until routing graphs exist, and what protects the ledger from a wrong one.

use crate::api::call::Call;
use crate::api::faults::Faults;
use crate::api::problem::Problem;
use crate::api::workspaces::is_name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// An offer and its share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WeightedOffer {
    /// The offer's id.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub offer: String,
    /// Its share of visitors, against the sum of all.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1_000_000), extend("x-class" = "open"))]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

/// A second offer of the page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SidecarOffer {
    /// The offer's id.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub offer: String,
    /// The network whose postbacks may credit it.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub network: String,
    /// The id under which that network knows the offer; opaque, leading zeros kept.
    #[schemars(length(min = 1, max = 200), extend("x-class" = "open"))]
    pub network_offer_id: String,
}

/// A pixel attached to the campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PixelAttachment {
    /// The pixel's id.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub pixel: String,
    /// What its events are called, instead of the pixel's own name for them.
    #[serde(default)]
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub event: Option<String>,
    /// The value of its events, decimal text, 0 included; absent: the default, a conversion's payout.
    #[serde(default)]
    #[schemars(regex(pattern = r"^[0-9]{1,18}(\.[0-9]{1,10})?$"), extend("x-class" = "open"))]
    pub amount: Option<String>,
    /// ISO 4217: the currency of that value.
    #[serde(default)]
    #[schemars(regex(pattern = r"^[A-Z]{3}$"), extend("x-class" = "open"))]
    pub currency: Option<String>,
    /// The conversion events that set it off; none: all do.
    #[serde(default)]
    #[schemars(length(max = 100), inner(length(min = 1, max = 100)), extend("x-class" = "open"))]
    pub conversion_events: Vec<String>,
}

/// Where visitors are led.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Routing {
    /// Offers by weight. None: the campaign serves no redirect, and takes visits by the batch door alone.
    #[serde(default)]
    #[schemars(length(max = 100), extend("x-class" = "open"))]
    pub offers: Vec<WeightedOffer>,
    /// Second offers of the page.
    #[serde(default)]
    #[schemars(length(max = 100), extend("x-class" = "open"))]
    pub sidecar_offers: Vec<SidecarOffer>,
    /// Pixel attachments, copied whole onto each visit.
    #[serde(default)]
    #[schemars(length(max = 50), extend("x-class" = "open"))]
    pub pixels: Vec<PixelAttachment>,
}

/// Offers and networks must be the workspace's and active; they are locked until this is committed, so that none is
/// archived meanwhile.
pub(super) async fn check_routing(
    call: &Call<'_>,
    before: Option<&Routing>,
    routing: &Routing,
    faults: &mut Faults,
) -> Result<(), Problem> {
    check_pixels(call, before, routing, faults).await?;
    let workspace = call.workspace()?;
    let offers = active(
        call,
        "SELECT offer_id FROM offers WHERE workspace_id = $1 AND offer_id = ANY($2) AND status = 'active' ORDER BY 1 FOR SHARE",
        workspace,
        routing.offers.iter().map(|o| &o.offer).chain(routing.sidecar_offers.iter().map(|s| &s.offer)),
    )
    .await?;
    let networks = active(
        call,
        "SELECT network_id FROM networks WHERE workspace_id = $1 AND network_id = ANY($2) AND status = 'active' ORDER BY 1 FOR SHARE",
        workspace,
        routing.sidecar_offers.iter().map(|s| &s.network),
    )
    .await?;
    let mut seen = BTreeSet::new();
    for (i, o) in routing.offers.iter().enumerate() {
        let at = format!("/routing/offers/{i}/offer");
        if !offers.contains(&o.offer) {
            faults.add(at, "unknown_offer", "there is no active offer of this id");
        } else if !seen.insert(&o.offer) {
            faults.add(at, "repeated", "it stands twice");
        }
    }
    if !routing.offers.is_empty() && routing.offers.iter().all(|o| o.weight == 0) {
        faults.add(
            "/routing/offers",
            "no_weight",
            "at least one offer needs a weight above 0",
        );
    }
    let mut known: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (i, s) in routing.sidecar_offers.iter().enumerate() {
        let at = format!("/routing/sidecar_offers/{i}");
        if !offers.contains(&s.offer) {
            faults.add(
                format!("{at}/offer"),
                "unknown_offer",
                "there is no active offer of this id",
            );
        }
        if !networks.contains(&s.network) {
            faults.add(
                format!("{at}/network"),
                "unknown_network",
                "there is no active network of this id",
            );
        }
        if s.network_offer_id.trim() != s.network_offer_id
            || s.network_offer_id.chars().any(char::is_control)
        {
            faults.add(
                format!("{at}/network_offer_id"),
                "malformed",
                "no blanks around it, no control characters",
            );
        }
        // A postback could name neither of two alike, and would be credited to the navigation offer.
        if let Some(first) = known.insert((&s.network, &s.network_offer_id), i) {
            faults.add(
                format!("{at}/network_offer_id"),
                "repeated",
                format!("sidecar offer {first} has the same network and id there"),
            );
        }
    }
    Ok(())
}

/// A pixel that stood here already may have been archived since; it gets nothing then, and the campaign stays as it is.
async fn check_pixels(
    call: &Call<'_>,
    before: Option<&Routing>,
    routing: &Routing,
    faults: &mut Faults,
) -> Result<(), Problem> {
    let stood: Vec<String> = before
        .into_iter()
        .flat_map(|b| b.pixels.iter().map(|p| p.pixel.clone()))
        .collect();
    let mut named = Vec::new();
    for (i, p) in routing.pixels.iter().enumerate() {
        let at = format!("/routing/pixels/{i}");
        named.push((format!("{at}/pixel"), p.pixel.clone()));
        if p.event.as_deref().is_some_and(|e| !is_name(e)) {
            faults.add(
                format!("{at}/event"),
                "invalid_name",
                "a name has 1 to 100 characters, no control characters",
            );
        }
        if super::offers::decimal(p.amount.as_deref()).is_none() {
            faults.add(
                format!("{at}/amount"),
                "malformed",
                "at most 18 digits in all",
            );
        }
        for (n, event) in p.conversion_events.iter().enumerate() {
            if !is_name(event) || p.conversion_events.iter().take(n).any(|e| e == event) {
                faults.add(
                    format!("{at}/conversion_events/{n}"),
                    "invalid_name",
                    "a name has 1 to 100 characters, no control characters, and stands once",
                );
            }
        }
    }
    super::pixels::check_named(call, &named, &stood, faults).await
}

async fn active<'n>(
    call: &Call<'_>,
    sql: &str,
    workspace: i32,
    wanted: impl Iterator<Item = &'n String>,
) -> Result<BTreeSet<String>, Problem> {
    let wanted: Vec<&String> = wanted.collect();
    let rows = call.tx.query(sql, &[&workspace, &wanted]).await?;
    Ok(rows
        .iter()
        .map(|r| r.try_get(0))
        .collect::<Result<_, _>>()?)
}
