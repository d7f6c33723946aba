//! An event of the Conversions API, frozen when its cause is booked. Pure.
//!
//! What is frozen is `{"dataset": …, "event": {…}}`: the dataset stands beside the event so that a pixel that has been pointed
//! elsewhere since gets nothing that was meant for another. Credentials and the test code are no part of it: they are read when
//! it is sent.

use super::normalize::{self, Context, DIGEST_OF_NOTHING, Field};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// How far ahead of the present an event's time may lie and still be taken for the present, in seconds: a client's clock.
pub const FUTURE_SKEW_SECS: i64 = 300;

/// Why an event may not be sent: codes that the outbox keeps.
pub mod refused {
    /// No event id: two senders of one event could not be told from two events.
    pub const NO_EVENT_ID: &str = "event_id_missing";
    /// No event name.
    pub const NO_EVENT_NAME: &str = "event_name_missing";
    /// It is not known when it happened; the moment of sending is no answer.
    pub const NO_EVENT_TIME: &str = "event_time_missing";
    /// It happened later than a clock's error explains.
    pub const FUTURE: &str = "event_in_future";
    /// None of Meta's action sources.
    pub const BAD_ACTION_SOURCE: &str = "action_source_unknown";
    /// A website's event needs the page's URL.
    pub const NO_SOURCE_URL: &str = "event_source_url_missing";
    /// A website's event needs the client's user agent.
    pub const NO_USER_AGENT: &str = "client_user_agent_missing";
    /// A value without a currency.
    pub const NO_CURRENCY: &str = "currency_missing";
    /// No code of ISO 4217.
    pub const BAD_CURRENCY: &str = "currency_unknown";
    /// A purchase needs value and currency.
    pub const NO_VALUE: &str = "value_missing";
    /// Nothing by which Meta could find the person.
    pub const NO_USER_DATA: &str = "user_data_missing";
    /// No dataset to send to.
    pub const NO_DATASET: &str = "dataset_missing";
}

/// Limited Data Use, as a pixel's `data_processing` holds it: `{"options": ["LDU"], "country": 1, "state": 1000}`. Country and
/// state 0: Meta looks where the person is. No options at all: expressly unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataProcessing {
    /// `LDU`, or nothing.
    pub options: Vec<String>,
    /// Meta's number of the country.
    #[serde(default)]
    pub country: u32,
    /// Meta's number of the state.
    #[serde(default)]
    pub state: u32,
}

/// What happened. What is blank counts as not given.
#[derive(Clone, Debug, Default)]
pub struct Occasion<'a> {
    /// The pixel's dataset, as it is now.
    pub dataset: &'a str,
    /// Its id: the same in the browser, if that sends it too.
    pub event_id: &'a str,
    /// Its name, such as `Purchase`.
    pub event_name: &'a str,
    /// When it happened, in seconds since 1970.
    pub event_time: i64,
    /// The present, in seconds since 1970.
    pub now: i64,
    /// Where it happened, such as `website`.
    pub action_source: &'a str,
    /// The page; its query and fragment are cut off.
    pub event_source_url: Option<&'a str>,
    /// The client's user agent.
    pub client_user_agent: Option<&'a str>,
    /// The client's address.
    pub client_ip: Option<&'a str>,
    /// The cookie `_fbp`.
    pub fbp: Option<&'a str>,
    /// The cookie `_fbc`.
    pub fbc: Option<&'a str>,
    /// The parameter `fbclid` of the landing.
    pub fbclid: Option<&'a str>,
    /// When the click with that parameter came, in milliseconds since 1970.
    pub clicked_ms: Option<i64>,
    /// The SHA-256 of the email address, as supplied.
    pub email_hash: Option<&'a str>,
    /// The SHA-256 of the phone number, as supplied.
    pub phone_hash: Option<&'a str>,
    /// The lead's hash, as supplied.
    pub lead_hash: Option<&'a str>,
    /// The click.
    pub click_id: Option<&'a str>,
    /// What it was worth.
    pub value: Option<Decimal>,
    /// In which currency.
    pub currency: Option<&'a str>,
    /// The order.
    pub order_id: Option<&'a str>,
    /// Limited Data Use; none: nothing is said about it.
    pub data_processing: Option<&'a DataProcessing>,
}

/// A payload for the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    /// `{"dataset": …, "event": {…}}`.
    pub payload: String,
    /// It may not be sent, for this reason: of [`refused`].
    pub refused: Option<&'static str>,
}

#[derive(Serialize)]
struct Payload<'a> {
    dataset: &'a str,
    event: Event<'a>,
}

#[derive(Serialize)]
struct Event<'a> {
    event_name: &'a str,
    event_time: i64,
    event_id: &'a str,
    action_source: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_source_url: Option<String>,
    user_data: UserData,
    #[serde(skip_serializing_if = "CustomData::is_empty")]
    custom_data: CustomData<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_processing_options: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_processing_options_country: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_processing_options_state: Option<u32>,
}

#[derive(Serialize)]
struct UserData {
    #[serde(skip_serializing_if = "Option::is_none")]
    em: Option<[String; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ph: Option<[String; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    external_id: Option<[String; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_ip_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_user_agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fbc: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fbp: Option<String>,
}

#[derive(Default, Serialize)]
struct CustomData<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order_id: Option<&'a str>,
}

impl CustomData<'_> {
    fn is_empty(&self) -> bool {
        self.value.is_none() && self.currency.is_none() && self.order_id.is_none()
    }
}

/// Where an event may have happened, in Meta's words.
const ACTION_SOURCES: &[&str] = &[
    "website",
    "app",
    "email",
    "phone_call",
    "chat",
    "physical_store",
    "system_generated",
    "business_messaging",
    "other",
];

/// Freezes an event. One that may not be sent is frozen all the same, as far as it goes, with the reason: the outbox keeps it.
#[must_use]
pub fn freeze(occasion: &Occasion<'_>) -> Frozen {
    let mut refusals = Refusals(None);
    let o = occasion;
    refusals.unless(given(o.dataset).is_some(), refused::NO_DATASET);
    refusals.unless(given(o.event_id).is_some(), refused::NO_EVENT_ID);
    refusals.unless(given(o.event_name).is_some(), refused::NO_EVENT_NAME);
    refusals.unless(o.event_time > 0, refused::NO_EVENT_TIME);
    refusals.unless(
        o.event_time <= o.now.saturating_add(FUTURE_SKEW_SECS),
        refused::FUTURE,
    );
    let action_source = o.action_source.trim();
    refusals.unless(
        ACTION_SOURCES.contains(&action_source),
        refused::BAD_ACTION_SOURCE,
    );
    let event_source_url = o.event_source_url.and_then(page);
    let user_data = user_data(o);
    if action_source == "website" {
        refusals.unless(event_source_url.is_some(), refused::NO_SOURCE_URL);
        refusals.unless(
            user_data.client_user_agent.is_some(),
            refused::NO_USER_AGENT,
        );
    }
    refusals.unless(user_data.finds_somebody(), refused::NO_USER_DATA);
    let custom_data = custom_data(o, &mut refusals);
    let payload = Payload {
        dataset: o.dataset.trim(),
        event: Event {
            event_name: o.event_name.trim(),
            event_time: o.event_time.min(o.now),
            event_id: o.event_id.trim(),
            action_source,
            event_source_url,
            user_data,
            custom_data,
            data_processing_options: o.data_processing.map(|d| d.options.as_slice()),
            data_processing_options_country: limited(o).map(|d| d.country),
            data_processing_options_state: limited(o).map(|d| d.state),
        },
    };
    Frozen {
        // Texts, integers and numbers that were checked: it cannot fail.
        payload: serde_json::to_string(&payload).unwrap_or_else(|_| "{}".to_owned()),
        refused: refusals.0,
    }
}

struct Refusals(Option<&'static str>);

impl Refusals {
    /// The first reason counts.
    fn unless(&mut self, fine: bool, why: &'static str) {
        if !fine {
            self.0.get_or_insert(why);
        }
    }
}

fn given(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|t| !t.is_empty())
}

fn limited<'a>(o: &Occasion<'a>) -> Option<&'a DataProcessing> {
    o.data_processing.filter(|d| !d.options.is_empty())
}

impl UserData {
    fn finds_somebody(&self) -> bool {
        self.em.is_some()
            || self.ph.is_some()
            || self.external_id.is_some()
            || self.client_ip_address.is_some()
            || self.fbc.is_some()
            || self.fbp.is_some()
    }
}

fn user_data(o: &Occasion<'_>) -> UserData {
    let context = Context::default();
    let sent = |field, value: Option<&str>| {
        value.and_then(|v| normalize::normalize(field, v, &context).into_sent())
    };
    // A supplied hash that is none is dropped: hashed again it would match nobody, as it is it might be a contact.
    let digest = |value: Option<&str>| {
        value
            .and_then(normalize::as_digest)
            .filter(|d| d != DIGEST_OF_NOTHING)
            .map(|d| [d])
    };
    let lead = sent(Field::ExternalId, o.lead_hash).filter(|d| d != DIGEST_OF_NOTHING);
    let from_click = || {
        let (fbclid, ms) = (o.fbclid?, o.clicked_ms?);
        normalize::fbc_from_click(fbclid.trim(), ms)
    };
    // A bare click id in the cookie's place is no cookie: without its time in the context it is refused.
    let fbc = sent(Field::Fbc, o.fbc).or_else(from_click);
    UserData {
        em: digest(o.email_hash),
        ph: digest(o.phone_hash),
        external_id: lead
            .or_else(|| sent(Field::ExternalId, o.click_id))
            .map(|d| [d]),
        client_ip_address: sent(Field::ClientIpAddress, o.client_ip),
        client_user_agent: sent(Field::ClientUserAgent, o.client_user_agent),
        fbc,
        fbp: sent(Field::Fbp, o.fbp),
    }
}

fn custom_data<'a>(o: &Occasion<'a>, refusals: &mut Refusals) -> CustomData<'a> {
    let mut data = CustomData {
        order_id: o.order_id.and_then(given),
        ..CustomData::default()
    };
    let Some(value) = o.value else {
        refusals.unless(o.event_name.trim() != "Purchase", refused::NO_VALUE);
        return data;
    };
    match o.currency.and_then(given).map(str::to_ascii_uppercase) {
        None => refusals.unless(false, refused::NO_CURRENCY),
        Some(code) if iso_currency::Currency::from_code(&code).is_none() => {
            refusals.unless(false, refused::BAD_CURRENCY);
        }
        Some(code) => {
            // A decimal's text is a JSON number; it is never a float on the way.
            data.value = RawValue::from_string(value.to_string()).ok();
            data.currency = Some(code);
        }
    }
    data
}

/// The page without query, fragment and user info; none for what is no http(s) URL.
fn page(text: &str) -> Option<String> {
    let text = text.trim();
    let mut url = url::Url::parse(text).ok()?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return None;
    }
    if !url.username().is_empty() || url.password().is_some() {
        url.set_username("").ok()?;
        url.set_password(None).ok()?;
        url.set_query(None);
        url.set_fragment(None);
        return Some(url.into());
    }
    // As it was written: the browser reports the same text.
    text.split(['?', '#']).next().map(str::to_owned)
}

#[cfg(test)]
mod tests;
