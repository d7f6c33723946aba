//! What Meta asks of one event. Written from Meta's public reference, without a line of the product's.

use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::net::IpAddr;

/// Why an event is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `error_subcode`.
    pub subcode: u64,
    /// For people.
    pub title: &'static str,
}

const SEVEN_DAYS: i64 = 7 * 86_400;
/// How far ahead of its clock an event's time may lie.
const AHEAD: i64 = 600;

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    event_name: Option<Cow<'a, str>>,
    event_time: Option<i64>,
    #[serde(borrow)]
    event_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    action_source: Option<Cow<'a, str>>,
    #[serde(borrow)]
    event_source_url: Option<Cow<'a, str>>,
    #[serde(borrow)]
    user_data: Option<UserData<'a>>,
    #[serde(borrow)]
    custom_data: Option<CustomData<'a>>,
    #[serde(borrow)]
    data_processing_options: Option<Vec<Cow<'a, str>>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<'a> {
    Many(#[serde(borrow)] Vec<Cow<'a, str>>),
    One(#[serde(borrow)] Cow<'a, str>),
}

impl OneOrMany<'_> {
    fn all(&self, good: impl Fn(&str) -> bool) -> bool {
        match self {
            OneOrMany::Many(values) => !values.is_empty() && values.iter().all(|v| good(v)),
            OneOrMany::One(value) => good(value),
        }
    }
}

#[derive(Deserialize)]
struct UserData<'a> {
    #[serde(borrow)]
    em: Option<OneOrMany<'a>>,
    #[serde(borrow)]
    ph: Option<OneOrMany<'a>>,
    #[serde(borrow)]
    external_id: Option<OneOrMany<'a>>,
    #[serde(borrow)]
    client_ip_address: Option<Cow<'a, str>>,
    #[serde(borrow)]
    client_user_agent: Option<Cow<'a, str>>,
    #[serde(borrow)]
    fbc: Option<Cow<'a, str>>,
    #[serde(borrow)]
    fbp: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct CustomData<'a> {
    value: Option<f64>,
    #[serde(borrow)]
    currency: Option<Cow<'a, str>>,
    #[serde(borrow)]
    order_id: Option<Cow<'a, str>>,
}

const fn bad(subcode: u64, title: &'static str) -> Refusal {
    Refusal { subcode, title }
}

/// Judges an event at a moment. Good: its name and id.
///
/// # Errors
/// The first rule that it breaks.
pub fn check(event: &RawValue, now_secs: i64) -> Result<(Cow<'_, str>, Cow<'_, str>), Refusal> {
    let event: Event<'_> = serde_json::from_str(event.get())
        .map_err(|_| bad(2_804_008, "A parameter has the wrong type"))?;
    let name = event
        .event_name
        .filter(|n| !n.is_empty())
        .ok_or(bad(2_804_002, "Event name missing"))?;
    let time = event
        .event_time
        .ok_or(bad(2_804_005, "Event time missing"))?;
    if time < now_secs - SEVEN_DAYS {
        return Err(bad(2_804_003, "Event Timestamp Too Old"));
    }
    if time > now_secs + AHEAD {
        return Err(bad(2_804_004, "Event Timestamp In The Future"));
    }
    let source = event.action_source.as_deref().unwrap_or_default();
    let known = [
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
    if !known.contains(&source) {
        return Err(bad(2_804_006, "Action source missing or unknown"));
    }
    let user = event
        .user_data
        .ok_or(bad(2_804_050, "Not enough customer information"))?;
    user.check()?;
    if source == "website"
        && (event.event_source_url.is_none_or(|u| u.is_empty())
            || user.client_user_agent.is_none_or(|u| u.is_empty()))
    {
        return Err(bad(2_804_019, "A website event needs URL and user agent"));
    }
    let custom = event.custom_data.unwrap_or(CustomData {
        value: None,
        currency: None,
        order_id: None,
    });
    let currency = custom.currency.as_deref();
    if currency.is_some_and(|c| c.len() != 3 || !c.bytes().all(|b| b.is_ascii_alphabetic()))
        || custom.order_id.is_some_and(|o| o.is_empty())
    {
        return Err(bad(2_804_011, "Currency or order id invalid"));
    }
    if name == "Purchase" && (custom.value.is_none() || currency.is_none()) {
        return Err(bad(2_804_009, "A purchase needs value and currency"));
    }
    let options = event.data_processing_options.unwrap_or_default();
    if options.iter().any(|o| o != "LDU") {
        return Err(bad(2_804_030, "Limited Data Use Selection Required"));
    }
    Ok((name, event.event_id.unwrap_or_default()))
}

impl UserData<'_> {
    fn check(&self) -> Result<(), Refusal> {
        let digest =
            |v: &str| v.len() == 64 && v.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let hashed = [&self.em, &self.ph, &self.external_id];
        if hashed.into_iter().flatten().any(|f| !f.all(digest)) {
            return Err(bad(2_804_017, "Customer information is not hashed"));
        }
        let cookie = |v: &str, last: &dyn Fn(&str) -> bool| {
            let mut parts = v.splitn(4, '.');
            let digits = |p: Option<&str>| {
                p.is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
            };
            parts.next() == Some("fb")
                && digits(parts.next())
                && digits(parts.next())
                && parts.next().is_some_and(last)
        };
        if let Some(fbc) = &self.fbc
            && !cookie(fbc, &|p| !p.is_empty() && !p.contains(char::is_whitespace))
        {
            return Err(bad(2_804_001, "fbc invalid"));
        }
        if let Some(fbp) = &self.fbp
            && !cookie(fbp, &|p| p.starts_with(|c: char| c.is_ascii_digit()))
        {
            return Err(bad(2_804_016, "fbp invalid"));
        }
        if let Some(ip) = &self.client_ip_address
            && ip.parse::<IpAddr>().is_err()
        {
            return Err(bad(2_804_018, "client_ip_address invalid"));
        }
        let somebody = hashed.into_iter().any(Option::is_some)
            || self.fbc.is_some()
            || self.fbp.is_some()
            || self.client_ip_address.is_some();
        if somebody {
            Ok(())
        } else {
            Err(bad(2_804_050, "Not enough customer information"))
        }
    }
}
