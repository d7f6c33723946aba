//! Where a campaign leads until routing graphs exist, and what protects the ledger from a wrong one.

use crate::api::call::Call;
use crate::api::faults::Faults;
use crate::api::problem::Problem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
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
    #[schemars(length(max = 50), extend("x-class" = "open", "x-free-because" = "written by whoever may read it, no person's data"))]
    pub pixels: Vec<Value>,
}

/// Offers and networks must be the workspace's and active; they are locked until this is committed, so that none is
/// archived meanwhile.
pub(super) async fn check_routing(
    call: &Call<'_>,
    routing: &Routing,
    faults: &mut Faults,
) -> Result<(), Problem> {
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
            faults.add(
                at,
                "unknown_offer",
                format!("there is no active offer `{}`", o.offer),
            );
        } else if !seen.insert(&o.offer) {
            faults.add(at, "repeated", format!("`{}` stands twice", o.offer));
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
                format!("there is no active offer `{}`", s.offer),
            );
        }
        if !networks.contains(&s.network) {
            faults.add(
                format!("{at}/network"),
                "unknown_network",
                format!("there is no active network `{}`", s.network),
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
