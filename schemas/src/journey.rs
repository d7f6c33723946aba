//! The served journey: what a visitor was given, copied whole onto the visit, so that later edits of a campaign change
//! nothing that was served (spec: attribution § The ledger).

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

/// The served journey. Unknown members are kept by whoever stores the original text; this is the part that booking reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Journey {
    /// The offer selected for navigation. None on a page of a funnel that leads to no offer yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<ServedOffer>,
    /// Second offers of the page, each known to its network under an id of that network's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sidecar_offers: Vec<SidecarOffer>,
    /// Pixel attachments as they stood. Kept as they came: a journey of the batch door may hold others;
    /// [`Journey::pixel_attachments`] reads those of ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<serde_json::Value>")]
    pub pixels: Vec<serde_json::Value>,
}

/// An offer as it stood when it was served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ServedOffer {
    /// The offer's id, `of_…`.
    pub id: String,
    /// Its network's id, `nw_…`, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Its default payout as decimal text: taken when a postback brings none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub payout: Option<Decimal>,
    /// ISO 4217.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

/// A sidecar offer as it stood when it was served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SidecarOffer {
    /// The offer's id.
    pub offer: String,
    /// The network whose postbacks may credit it.
    pub network: String,
    /// The id under which that network knows the offer; opaque, leading zeros kept.
    pub network_offer_id: String,
    /// Its default payout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub payout: Option<Decimal>,
    /// ISO 4217.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

/// A pixel attached to a campaign, as it stood when the visitor was served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PixelAttachment {
    /// The pixel's id, `px_…`.
    pub pixel: String,
    /// What its events are called, instead of the pixel's own name for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// The value of its events, 0 included, as decimal text. None: the default, a conversion's payout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub amount: Option<Decimal>,
    /// ISO 4217: the currency of that value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// The conversion events that set it off. None: all do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversion_events: Vec<String>,
}

impl PixelAttachment {
    /// Whether a conversion under this event sets it off.
    #[must_use]
    pub fn is_set_off_by(&self, event: Option<&str>) -> bool {
        self.conversion_events.is_empty()
            || event.is_some_and(|e| self.conversion_events.iter().any(|c| c == e))
    }
}

/// In what part an offer is credited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The offer the visitor was led to.
    Navigation,
    /// A sidecar offer of the page.
    Monetization,
}

impl Role {
    /// The stored name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Role::Navigation => "navigation",
            Role::Monetization => "monetization",
        }
    }
}

/// The offer that a conversion credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credited<'a> {
    /// The offer's id.
    pub offer: &'a str,
    /// In what part.
    pub role: Role,
    /// Its default payout.
    pub payout: Option<Decimal>,
    /// Its currency.
    pub currency: Option<&'a str>,
}

impl Journey {
    /// Whether two journeys credit alike, whatever else differs.
    #[must_use]
    pub fn credits_like(&self, other: &Journey) -> bool {
        self.offer == other.offer && self.sidecar_offers == other.sidecar_offers
    }

    /// The pixel attachments that can be read. What else stands there is left alone: it is another's, or a later build's.
    pub fn pixel_attachments(&self) -> impl Iterator<Item = PixelAttachment> + '_ {
        self.pixels
            .iter()
            .filter_map(|p| PixelAttachment::deserialize(p).ok())
    }

    /// The credited offer of a postback from `network` that returned `offer_id`. Exactly one sidecar offer of that network
    /// under that id is credited; anything else falls back to navigation.
    #[must_use]
    pub fn credit(&self, network: &str, offer_id: Option<&str>) -> Option<Credited<'_>> {
        let offer = self.offer.as_ref()?;
        if let Some(returned) = offer_id.map(str::trim).filter(|s| !s.is_empty()) {
            let mut matching = self
                .sidecar_offers
                .iter()
                .filter(|s| s.network == network && s.network_offer_id == returned);
            if let (Some(found), None) = (matching.next(), matching.next()) {
                return Some(Credited {
                    offer: &found.offer,
                    role: Role::Monetization,
                    payout: found.payout,
                    currency: found.currency.as_deref(),
                });
            }
        }
        Some(Credited {
            offer: &offer.id,
            role: Role::Navigation,
            payout: offer.payout,
            currency: offer.currency.as_deref(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn attachments_of_others_are_left_alone() {
        let journey: Journey = serde_json::from_value(json!({"pixels": [
            {"pixel": "px_1", "amount": "1.50", "conversion_events": ["sale"], "later": true},
            {"kind": "meta", "n": 1.0},
            "px_2",
            {"pixel": 7},
            {"pixel": "px_3"},
        ]}))
        .expect("a journey");
        let read: Vec<PixelAttachment> = journey.pixel_attachments().collect();
        assert_eq!(
            read.iter().map(|p| p.pixel.as_str()).collect::<Vec<_>>(),
            ["px_1", "px_3"]
        );
        assert_eq!(read[0].amount, Some(Decimal::new(150, 2)));
        assert!(read[0].is_set_off_by(Some("sale")));
        assert!(!read[0].is_set_off_by(Some("lead")) && !read[0].is_set_off_by(None));
        assert!(read[1].is_set_off_by(None));
        assert_eq!(json!(read[1]), json!({"pixel": "px_3"}));
    }
}
