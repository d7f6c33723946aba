//! `POST /e`: the beacon of a call to action, or of a provider's click, JSON `{click_id, link_id, stage?, provider_click?}`.
//!
//! Browsers send it from any page: the answer allows every origin and carries nothing. `navigator.sendBeacon` sends
//! `text/plain`, so the content type is not looked at. Members that are not known are ignored.

use super::body;
use super::errors::Refusal;
use super::state::{Door, SLOWEST_BODY};
use super::wire::{self, ClickOut};
use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, HeaderValue,
};
use actix_web::web::{Bytes, Payload};
use millrace_schemas::click::Kind;
use millrace_schemas::ids;
use millrace_schemas::macros::is_unsubstituted;
use millrace_schemas::outcome::reason;
use millrace_schemas::postback::MAX_FIELD;
use millrace_schemas::time::Micros;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

/// Greatest stage: what the ledger's column holds.
pub(super) const MAX_STAGE: u16 = 32_767;

/// What a page sends.
#[derive(Deserialize)]
struct Beacon<'a> {
    #[serde(borrow)]
    click_id: Cow<'a, str>,
    #[serde(borrow)]
    link_id: Cow<'a, str>,
    #[serde(default)]
    stage: Option<u16>,
    #[serde(default, borrow)]
    provider_click: Option<ProviderClick<'a>>,
}

/// A provider's own click, seen in the page: correlation only, never a click.
#[derive(Deserialize)]
struct ProviderClick<'a> {
    #[serde(borrow)]
    network: Cow<'a, str>,
    #[serde(borrow)]
    network_offer_id: Cow<'a, str>,
    #[serde(borrow)]
    txid: Cow<'a, str>,
}

/// Takes a beacon.
pub(super) async fn post(door: Rc<Door>, mut payload: Payload) -> HttpResponse {
    let body_read = Cell::new(false);
    let work = pin!(async {
        let (key, record) = {
            let body = body::read(&mut payload, door.shared.setup.http.max_body).await?;
            body_read.set(true);
            record(&door, &body)?
        };
        door.accept(door.clicks(), key, record).await?;
        Ok::<_, Refusal>(HttpResponse::NoContent().finish())
    });
    let mut response = door.serve(&body_read, SLOWEST_BODY, work).await;
    response
        .headers_mut()
        .insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}

/// Answers a browser that asks before it sends.
pub(super) fn preflight(door: &Door) -> HttpResponse {
    door.counts.answered(StatusCode::NO_CONTENT);
    HttpResponse::NoContent()
        .insert_header((ACCESS_CONTROL_ALLOW_ORIGIN, "*"))
        .insert_header((ACCESS_CONTROL_ALLOW_METHODS, "POST"))
        .insert_header((ACCESS_CONTROL_ALLOW_HEADERS, "content-type"))
        .insert_header((ACCESS_CONTROL_MAX_AGE, "86400"))
        .finish()
}

/// Key and record of a beacon. Made before anything is waited for: a request that waits for the log keeps only these.
fn record(door: &Door, body: &[u8]) -> Result<(Bytes, Bytes), Refusal> {
    body::check_raw_object(body)?;
    let beacon: Beacon<'_> = serde_json::from_slice(body).map_err(|e| body::parse_refusal(&e))?;
    let now = door.now();
    check_click_id(&beacon.click_id, now)?;
    let stage = check_stage(beacon.stage)?;
    let workspace = {
        let open = door.open()?;
        open.as_ref()
            .and_then(|s| s.campaigns.get(&*beacon.link_id))
            .map(|c| c.workspace)
            .ok_or_else(unknown_link)?
    };
    let kind = match beacon.provider_click {
        None => Kind::Click,
        Some(_) => Kind::ProviderClick,
    };
    let mut record = ClickOut::<&RawValue>::new(kind, workspace, &beacon.click_id, now);
    record.campaign = Some(&beacon.link_id);
    record.stage = stage;
    if let Some(provider) = &beacon.provider_click {
        for (name, value) in [
            ("network", &provider.network),
            ("network_offer_id", &provider.network_offer_id),
            ("txid", &provider.txid),
        ] {
            if value.is_empty() || value.len() > MAX_FIELD || value.chars().any(char::is_control) {
                return Err(Refusal::bad(
                    reason::FIELD_MALFORMED,
                    format!("provider_click.{name} is empty, too long or holds control characters"),
                ));
            }
        }
        record.network = Some(&provider.network);
        record.network_offer_id = Some(&provider.network_offer_id);
        record.provider_txid = Some(&provider.txid);
    }
    let key = ids::partition_key(workspace, &beacon.click_id);
    let bytes = wire::to_bytes(&record, 128 + body.len()).map_err(|_| unwritable())?;
    Ok((key.into(), bytes))
}

/// What any door can say of a click id before it is looked up.
///
/// # Errors
/// 400 with the reason's code.
pub(super) fn check_click_id(click_id: &str, now: Micros) -> Result<(), Refusal> {
    if click_id.is_empty() {
        return Err(Refusal::bad(reason::CLICK_ID_MISSING, "click_id is empty"));
    }
    if !ids::click_id_is_well_formed(click_id) {
        return Err(Refusal::bad(
            reason::CLICK_ID_MALFORMED,
            "click_id is too long or holds control characters",
        ));
    }
    if is_unsubstituted(click_id) {
        return Err(Refusal::bad(
            reason::MACRO_UNSUBSTITUTED,
            "click_id is a macro that was not filled in",
        ));
    }
    let latest = now.plus_secs(ids::FUTURE_SKEW_SECS).millis();
    if ids::decode(click_id)
        .and_then(ids::minted_millis)
        .is_some_and(|minted| minted > latest)
    {
        return Err(Refusal::bad(
            reason::CLICK_ID_IN_FUTURE,
            "click_id says that it was minted in the future",
        ));
    }
    Ok(())
}

/// The stage, 0 where none is said.
///
/// # Errors
/// 400 beyond [`MAX_STAGE`].
pub(super) fn check_stage(stage: Option<u16>) -> Result<u16, Refusal> {
    let stage = stage.unwrap_or(0);
    if stage > MAX_STAGE {
        return Err(Refusal::bad(
            "invalid",
            format!("stage is greater than {MAX_STAGE}"),
        ));
    }
    Ok(stage)
}

fn unknown_link() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "unknown_link",
        "no campaign has this link_id",
    )
}

/// A record that cannot be written as JSON: none that the doors make.
pub(super) fn unwritable() -> Refusal {
    Refusal::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "unwritable",
        "the record cannot be written",
    )
}
