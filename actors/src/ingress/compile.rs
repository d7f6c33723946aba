//! Configuration as doors use it: rows made into one immutable [`Snapshot`], with everything that does not depend on the
//! request worked out beforehand (a served journey is serialised once a snapshot, not once a visit).

use super::feed::admission::{FeedToken, Shard};
use hashbrown::HashMap;
use millrace_schemas::ids::ClickKey;
use millrace_schemas::journey::{Journey, ServedOffer, SidecarOffer};
use millrace_schemas::postback::{NetworkRules, Status};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What may not stand in a `Location` header as it is: controls, blanks, everything beyond ASCII.
const LOCATION: &AsciiSet = &CONTROLS.add(b' ');

/// Greatest weight of an offer (spec: routing § 3, the walk).
const MAX_WEIGHT: u32 = 1_000_000;

/// All configuration of all active workspaces, at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The epoch it was read at.
    pub epoch: i64,
    /// Active workspaces by number.
    pub workspaces: HashMap<i32, Workspace>,
    /// Campaigns by slug, those that are not active too: a page that was served goes on sending beacons.
    pub campaigns: HashMap<Box<str>, Arc<Campaign>>,
    /// Active networks by the SHA-256 of their secret.
    pub networks_by_digest: HashMap<[u8; 32], Arc<Network>>,
    /// Active networks by id.
    pub networks: HashMap<Box<str>, Arc<Network>>,
    /// Shards, archived ones too, by workspace and id.
    pub shards: HashMap<(i32, Box<str>), Shard>,
    /// Live feed tokens by id.
    pub feed_tokens: HashMap<Box<str>, FeedToken>,
}

/// A workspace.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Its id outside.
    pub slug: String,
    /// Whether visits keep the client's address beside its hash.
    pub store_ip: bool,
}

/// A campaign, compiled.
#[derive(Debug)]
pub struct Campaign {
    /// Its slug.
    pub id: Box<str>,
    /// Its workspace.
    pub workspace: i32,
    /// Whether that one keeps addresses.
    pub store_ip: bool,
    /// Its name as saved.
    pub name: String,
    /// Its `ref`.
    pub reference: Option<String>,
    /// Whether its door is open.
    pub active: bool,
    picks: Vec<Pick>,
    total_weight: u64,
}

/// An offer that a visit may be led to.
#[derive(Debug)]
pub struct Pick {
    weight: u64,
    /// Where to, with placeholders; ASCII without controls.
    pub url_template: String,
    /// The journey that is stored when this offer is chosen.
    pub journey: Box<RawValue>,
}

/// A network.
#[derive(Debug)]
pub struct Network {
    /// Its id.
    pub id: String,
    /// Its workspace.
    pub workspace: i32,
    /// Its rules.
    pub rules: NetworkRules,
    /// The same, serialised; None where nothing is out of the ordinary.
    pub rules_json: Option<Box<RawValue>>,
}

impl Campaign {
    /// The offer for a click: a fixed function of the click id, so that a retry sees the same one. None: no active offer.
    #[must_use]
    pub fn route(&self, click: ClickKey) -> Option<&Pick> {
        // The low 62 bits of a minted id are random; those of a foreign one's digest as good as.
        let random = u64::try_from(click.key.as_u128() & ((1 << 62) - 1)).unwrap_or(0);
        let mut at = random.checked_rem(self.total_weight)?;
        self.picks.iter().find(|pick| {
            let here = at < pick.weight;
            at = at.saturating_sub(pick.weight);
            here
        })
    }
}

/// A row of `offers`.
#[derive(Clone, Debug)]
pub struct OfferRow {
    /// Its workspace.
    pub workspace: i32,
    /// Where it leads.
    pub url_template: String,
    /// Its network.
    pub network: Option<String>,
    /// Its default payout.
    pub payout: Option<Decimal>,
    /// The payout's currency.
    pub currency: String,
}

/// A row of `campaigns`.
#[derive(Clone, Debug)]
pub struct CampaignRow {
    /// Its slug.
    pub id: String,
    /// Its workspace.
    pub workspace: i32,
    /// Its name.
    pub name: String,
    /// Its `ref`.
    pub reference: Option<String>,
    /// Its routing, as stored.
    pub routing: String,
    /// Whether its status is `active`.
    pub active: bool,
}

/// Routing, the short form. Members of a later form are left alone.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Routing {
    offers: Vec<RoutedOffer>,
    sidecar_offers: Vec<RoutedSidecar>,
    pixels: Vec<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct RoutedOffer {
    offer: String,
    weight: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct RoutedSidecar {
    offer: String,
    network: String,
    network_offer_id: String,
}

/// Compiles a campaign. `offers` holds the active offers by id.
///
/// An offer that is not active, is another workspace's, or leads nowhere over http(s) is left out; so is a sidecar offer
/// that is not active. A campaign left without an offer answers as an unknown one.
///
/// # Errors
/// Its routing cannot be read; the campaign is then as one without offers.
pub fn campaign(
    row: CampaignRow,
    store_ip: bool,
    offers: &HashMap<String, OfferRow>,
) -> Result<Campaign, (Campaign, serde_json::Error)> {
    let mut out = Campaign {
        id: row.id.into(),
        workspace: row.workspace,
        store_ip,
        name: row.name,
        reference: row.reference.filter(|r| !r.trim().is_empty()),
        active: row.active,
        picks: Vec::new(),
        total_weight: 0,
    };
    match picks(&row.routing, row.workspace, offers) {
        Ok(picks) => {
            out.total_weight = picks.iter().map(|p| p.weight).sum();
            out.picks = picks;
            Ok(out)
        }
        Err(error) => Err((out, error)),
    }
}

fn picks(
    routing: &str,
    workspace: i32,
    offers: &HashMap<String, OfferRow>,
) -> Result<Vec<Pick>, serde_json::Error> {
    let routing: Routing = serde_json::from_str(routing)?;
    let active = |id: &str| offers.get(id).filter(|o| o.workspace == workspace);
    let sidecar_offers: Vec<SidecarOffer> = routing
        .sidecar_offers
        .iter()
        .filter_map(|s| {
            let offer = active(&s.offer)?;
            Some(SidecarOffer {
                offer: s.offer.clone(),
                network: s.network.clone(),
                network_offer_id: s.network_offer_id.clone(),
                payout: offer.payout.map(|p| p.normalize()),
                currency: Some(offer.currency.clone()),
            })
        })
        .collect();
    let mut out = Vec::with_capacity(routing.offers.len());
    for routed in &routing.offers {
        let Some(offer) = active(&routed.offer) else {
            continue;
        };
        let Some(url_template) = location(&offer.url_template) else {
            continue;
        };
        let journey = Journey {
            offer: Some(ServedOffer {
                id: routed.offer.clone(),
                network: offer.network.clone(),
                payout: offer.payout.map(|p| p.normalize()),
                currency: Some(offer.currency.clone()),
            }),
            sidecar_offers: sidecar_offers.clone(),
            pixels: routing.pixels.clone(),
        };
        out.push(Pick {
            // 0 or missing counts as 1.
            weight: u64::from(routed.weight.unwrap_or(1).clamp(1, MAX_WEIGHT)),
            url_template,
            journey: serde_json::value::to_raw_value(&journey)?,
        });
    }
    Ok(out)
}

/// A URL template as it may stand in a header; None where it is no http(s) URL.
fn location(template: &str) -> Option<String> {
    let trimmed = template.trim();
    let scheme = trimmed.split_once("://")?.0;
    if !scheme.eq_ignore_ascii_case("https") && !scheme.eq_ignore_ascii_case("http") {
        return None;
    }
    Some(utf8_percent_encode(trimmed, LOCATION).to_string())
}

/// A row of `networks`.
#[derive(Clone, Debug)]
pub struct NetworkRow {
    /// Its id.
    pub id: String,
    /// Its workspace.
    pub workspace: i32,
    /// Its words for a status, as stored.
    pub status_words: String,
    /// Reads `1,50`.
    pub comma_decimals: bool,
    /// Drops currency signs.
    pub currency_signs: bool,
    /// Allows reversals.
    pub reversals: bool,
}

/// Compiles a network. A word whose meaning is no status is left out: it will read as unknown, hence `pending`.
#[must_use]
pub fn network(row: NetworkRow) -> Network {
    let words: BTreeMap<String, String> =
        serde_json::from_str(&row.status_words).unwrap_or_default();
    let rules = NetworkRules {
        status_words: words
            .into_iter()
            .filter_map(|(word, status)| Some((word.to_lowercase(), Status::from_name(&status)?)))
            .collect(),
        comma_decimals: row.comma_decimals,
        currency_signs: row.currency_signs,
        reversals: row.reversals,
    };
    let rules_json = (!rules.is_default())
        .then(|| serde_json::value::to_raw_value(&rules).ok())
        .flatten();
    Network {
        id: row.id,
        workspace: row.workspace,
        rules,
        rules_json,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn offer(workspace: i32, url: &str) -> OfferRow {
        OfferRow {
            workspace,
            url_template: url.into(),
            network: Some("nw_1".into()),
            payout: Some("2.5000000000".parse().expect("decimal")),
            currency: "USD".into(),
        }
    }

    fn compiled(routing: &str) -> Campaign {
        let offers = [
            (
                "of_a".to_owned(),
                offer(1, "https://a.example/?c={click_id}"),
            ),
            ("of_b".to_owned(), offer(1, "https://b.example/é x")),
            ("of_foreign".to_owned(), offer(2, "https://f.example/")),
            ("of_script".to_owned(), offer(1, "javascript://x")),
        ]
        .into();
        let row = CampaignRow {
            id: "camp".into(),
            workspace: 1,
            name: "Camp".into(),
            reference: Some(" ".into()),
            routing: routing.into(),
            active: true,
        };
        campaign(row, false, &offers).unwrap_or_else(|(c, _)| c)
    }

    fn key(n: u128) -> ClickKey {
        ClickKey {
            workspace: 1,
            key: Uuid::from_u128(n),
        }
    }

    #[test]
    fn weights_split_the_active_offers_and_the_click_id_decides() {
        let c = compiled(
            r#"{"offers":[{"offer":"of_a","weight":3},{"offer":"gone"},{"offer":"of_b","weight":0},
                {"offer":"of_foreign"},{"offer":"of_script"}],
                "sidecar_offers":[{"offer":"of_b","network":"nw_2","network_offer_id":"007"},
                {"offer":"gone","network":"nw_2","network_offer_id":"8"}],"pixels":[{"id":"px_1"}]}"#,
        );
        let urls: Vec<&str> = (0..4)
            .map(|n| c.route(key(n)).expect("routes").url_template.as_str())
            .collect();
        assert_eq!(urls[..3], ["https://a.example/?c={click_id}"; 3]);
        assert_eq!(urls[3], "https://b.example/%C3%A9%20x");
        assert_eq!(
            c.route(key(0)).expect("routes").journey.get(),
            r#"{"offer":{"id":"of_a","network":"nw_1","payout":"2.5","currency":"USD"},"sidecar_offers":[{"offer":"of_b","network":"nw_2","network_offer_id":"007","payout":"2.5","currency":"USD"}],"pixels":[{"id":"px_1"}]}"#
        );
        assert_eq!(c.reference, None);
    }

    #[test]
    fn without_an_active_offer_or_readable_routing_there_is_no_way() {
        for routing in [
            "{}",
            r#"{"offers":[{"offer":"gone"}]}"#,
            r#"{"offers":7}"#,
            "[]",
        ] {
            assert!(compiled(routing).route(key(1)).is_none(), "{routing}");
        }
    }

    #[test]
    fn words_for_a_status_are_folded_and_nonsense_is_left_out() {
        let n = network(NetworkRow {
            id: "nw".into(),
            workspace: 1,
            status_words: r#"{"PAID":"approved","x":"nonsense"}"#.into(),
            comma_decimals: false,
            currency_signs: false,
            reversals: false,
        });
        assert_eq!(n.rules.status_words.len(), 1);
        assert_eq!(
            n.rules_json.as_deref().map(RawValue::get),
            Some(r#"{"status_words":{"paid":"approved"}}"#)
        );
    }
}
