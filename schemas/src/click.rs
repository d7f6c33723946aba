//! The wire record of topic `clicks`: visits, clicks and provider clicks (later identity and lead forms). One flat struct,
//! since it decodes half again as fast as a tagged enum.

use crate::ids::{self, ClickKey};
use crate::outcome::reason;
use crate::postback::Replay;
use crate::time::Micros;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

/// What a record of `clicks` is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A page (or redirect) was served to a visitor.
    #[default]
    Visit,
    /// A call to action was clicked.
    Click,
    /// A provider's own click id was seen in the page: correlation only.
    ProviderClick,
}

/// A record of topic `clicks`. Absent members are `None`; unknown ones are ignored, so that an older build reads a newer
/// record of the same version.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClickRecord {
    /// Wire version, [`crate::WIRE_VERSION`].
    pub v: u16,
    /// What it is.
    pub kind: Kind,
    /// The workspace's number.
    pub workspace: i32,
    /// The click id, opaque.
    pub click_id: String,
    /// When a door accepted it: stream time.
    pub accepted_at: Micros,
    /// When it happened, where the sender said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occurred_at: Option<Micros>,
    /// The visit's own id (visits).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visit_id: Option<Uuid>,
    /// The campaign's id: of the visit, or as a click names it (`link_id`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub campaign: Option<String>,
    /// The zero-based page of the funnel.
    #[serde(default)]
    pub stage: u16,
    /// A direct link: the visit is itself the click.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
    /// The served journey, verbatim ([`crate::journey::Journey`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<crate::journey::Journey>")]
    pub journey: Option<Box<RawValue>>,
    /// The captured query, verbatim, as one JSON object of strings or lists of strings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<std::collections::BTreeMap<String, serde_json::Value>>")]
    pub params: Option<Box<RawValue>>,
    /// The client's address, where the workspace stores addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// The client's address, hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_hash: Option<Uuid>,
    /// The user agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
    /// The page's URL without its query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_url: Option<String>,
    /// Meta's browser id cookie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fbp: Option<String>,
    /// Meta's click id cookie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fbc: Option<String>,
    /// A provider click: the network's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// A provider click: the offer under the network's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_offer_id: Option<String>,
    /// A provider click: the provider's transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_txid: Option<String>,
    /// Set by `dlq replay`: the record's first coordinates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
}

impl ClickRecord {
    /// The key that everything about this click is kept under.
    #[must_use]
    pub fn key(&self) -> ClickKey {
        ClickKey::new(self.workspace, &self.click_id)
    }

    /// What can be said of the record without state.
    ///
    /// # Errors
    /// The reason code with which it can never be booked.
    pub fn check(&self) -> Result<(), &'static str> {
        self.check_under(self.key())
    }

    /// As [`ClickRecord::check`], for who knows its key already.
    ///
    /// # Errors
    /// The reason code with which it can never be booked.
    pub fn check_under(&self, key: ClickKey) -> Result<(), &'static str> {
        check_click_id(&self.click_id, key, self.accepted_at)?;
        if self.kind == Kind::Visit && (self.visit_id.is_none() || self.campaign.is_none()) {
            return Err(reason::JOURNEY_MALFORMED);
        }
        Ok(())
    }
}

/// Checks a click id against its acceptance.
///
/// # Errors
/// The reason code.
pub fn check_click_id(
    click_id: &str,
    key: ClickKey,
    accepted_at: Micros,
) -> Result<(), &'static str> {
    if click_id.is_empty() {
        return Err(reason::CLICK_ID_MISSING);
    }
    if !ids::click_id_is_well_formed(click_id) {
        return Err(reason::CLICK_ID_MALFORMED);
    }
    let latest = accepted_at.plus_secs(ids::FUTURE_SKEW_SECS).millis();
    if key.minted_millis().is_some_and(|t| t > latest) {
        return Err(reason::CLICK_ID_IN_FUTURE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_record_keeps_its_journey_verbatim() {
        let text = r#"{"v":1,"kind":"visit","workspace":3,"click_id":"abc","accepted_at":5,"visit_id":"018f0000-0000-7000-8000-000000000000","campaign":"c","journey":{"offer":{"id":"of_1"},"x":1.0},"later":true}"#;
        let r: ClickRecord = serde_json::from_str(text).expect("decodes");
        assert_eq!(
            r.journey.as_deref().map(RawValue::get),
            Some(r#"{"offer":{"id":"of_1"},"x":1.0}"#)
        );
        assert_eq!(r.check(), Ok(()));
    }

    #[test]
    fn a_click_id_from_the_future_is_refused() {
        let minted = ids::mint(Micros(1_000_000_000_000_000)).expect("random bytes");
        let mut r = ClickRecord {
            kind: Kind::Click,
            click_id: ids::encode(minted),
            ..ClickRecord::default()
        };
        r.accepted_at = Micros(1_000_000_000_000_000 - 301_000_000);
        assert_eq!(r.check(), Err(reason::CLICK_ID_IN_FUTURE));
        r.accepted_at = Micros(1_000_000_000_000_000 - 299_000_000);
        assert_eq!(r.check(), Ok(()));
    }
}
