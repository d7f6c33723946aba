//! Members of a batch's lines that need more than a type: ids, journeys, captured queries, decimals.

use crate::ingress::body::complaint;
use crate::ingress::errors::Refusal;
use millrace_schemas::ids;
use millrace_schemas::journey::Journey;
use millrace_schemas::outcome::reason;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A line's own id.
pub(super) fn check_id(id: &str) -> Result<(), Refusal> {
    if !ids::click_id_is_well_formed(id) {
        return Err(Refusal::bad(
            "id_malformed",
            "id is empty, longer than 200 bytes or holds control characters",
        ));
    }
    Ok(())
}

/// A journey that somebody else served. It is stored verbatim, so all of it must be what the store can read.
pub(super) fn check_journey(raw: &RawValue) -> Result<(), Refusal> {
    let bad = |detail: String| Refusal::bad(reason::JOURNEY_MALFORMED, detail);
    let value: serde_json::Value =
        serde_json::from_str(raw.get()).map_err(|e| bad(format!("journey: {}", complaint(&e))))?;
    if !value.is_object() {
        return Err(bad("journey is no object".into()));
    }
    let journey: Journey =
        serde_json::from_str(raw.get()).map_err(|e| bad(format!("journey: {}", complaint(&e))))?;
    let offers = journey.offer.iter().map(|o| &o.id);
    let sidecars = journey
        .sidecar_offers
        .iter()
        .flat_map(|s| [&s.offer, &s.network, &s.network_offer_id]);
    if offers
        .chain(sidecars)
        .any(|id| !ids::click_id_is_well_formed(id))
    {
        return Err(bad(
            "journey: an id is empty, longer than 200 bytes or holds control characters".into(),
        ));
    }
    Ok(())
}

/// A captured query: an object of strings or lists of strings.
pub(super) fn check_params(raw: &RawValue) -> Result<(), Refusal> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    #[expect(dead_code, reason = "read for its form alone")]
    enum Values {
        One(String),
        Several(Vec<String>),
    }
    serde_json::from_str::<BTreeMap<String, Values>>(raw.get())
        .map(|_| ())
        .map_err(|_| {
            Refusal::bad(
                "invalid",
                "params is no object of strings or lists of strings",
            )
        })
}

/// The text of a decimal string, or of a number as it stands; None for null.
pub(super) fn decimal_text(raw: &RawValue) -> Result<Option<String>, Refusal> {
    let text = raw.get();
    if text == "null" {
        return Ok(None);
    }
    if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return Ok(Some(text.to_owned()));
    }
    serde_json::from_str::<String>(text)
        .map(Some)
        .map_err(|_| Refusal::bad("invalid", "payout is neither a string nor a number"))
}
