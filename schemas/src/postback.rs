//! The wire record of topic `postbacks`, its parameters, and everything that can be said of them without state.
//!
//! A postback travels as its query, verbatim but for the secret, so that what the network sent is what the log keeps.
//! Door and actor read it with the same function: the door to answer 400, the actor to decide.

use crate::click::check_click_id;
use crate::ids::{ClickKey, has_control};
use crate::macros::is_unsubstituted;
use crate::money::{PayoutRules, parse_payout};
use crate::outcome::reason;
use crate::time::Micros;
use percent_encoding::percent_decode;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Longest text kept of a postback's field, in bytes. Transaction ids are never cut: a longer one is refused.
pub const MAX_FIELD: usize = 512;

/// The first coordinates of a replayed record: it is not accepted a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Replay {
    /// Topic number of the first acceptance.
    pub topic_no: i32,
    /// Partition of the first acceptance.
    pub partition: i32,
    /// Offset of the first acceptance.
    pub offset: i64,
}

/// A network's rules as they stood when the postback was accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NetworkRules {
    /// Its own words for a status, lower case, each to `approved`, `pending` or `rejected`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub status_words: BTreeMap<String, Status>,
    /// Reads `1,50`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub comma_decimals: bool,
    /// Drops `$`, `EUR` and the like.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub currency_signs: bool,
    /// Allows negative payouts and approved → rejected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reversals: bool,
}

impl NetworkRules {
    /// Whether nothing is out of the ordinary.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == NetworkRules::default()
    }
}

/// A record of topic `postbacks`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PostbackRecord {
    /// Wire version.
    pub v: u16,
    /// The workspace's number.
    pub workspace: i32,
    /// The network's id.
    pub network: String,
    /// When a door accepted it: stream time.
    pub accepted_at: Micros,
    /// When it happened, where the sender said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occurred_at: Option<Micros>,
    /// The query as it came, without its `secret`.
    pub query: String,
    /// The network's rules, where not the default ones.
    #[serde(default, skip_serializing_if = "NetworkRules::is_default")]
    pub rules: NetworkRules,
    /// Set by `dlq replay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
}

/// A conversion's status.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Counts and is paid.
    #[default]
    Approved,
    /// Waits for the network's word.
    Pending,
    /// Does not count.
    Rejected,
}

impl Status {
    /// The stored name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Status::Approved => "approved",
            Status::Pending => "pending",
            Status::Rejected => "rejected",
        }
    }

    /// From the stored name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Status> {
        match name {
            "approved" => Some(Status::Approved),
            "pending" => Some(Status::Pending),
            "rejected" => Some(Status::Rejected),
            _ => None,
        }
    }
}

/// Facts noted on a conversion that no column of its own holds.
pub mod flag {
    /// The payout was blank or absent: the offer's default was taken.
    pub const PAYOUT_DEFAULTED: &str = "payout_defaulted";
    /// The status word was unknown: `pending` was taken.
    pub const STATUS_UNKNOWN: &str = "status_unknown";
    /// A hash was an unsubstituted macro and was dropped.
    pub const HASH_DROPPED: &str = "hash_dropped";
    /// The returned offer id was an unsubstituted macro: navigation was credited.
    pub const OFFER_ID_MACRO: &str = "offer_id_macro";
    /// A returned offer id matched no sidecar offer: navigation was credited.
    pub const OFFER_ID_UNMATCHED: &str = "offer_id_unmatched";
    /// Neither postback nor offer names a payout: zero was booked.
    pub const PAYOUT_UNKNOWN: &str = "payout_unknown";
}

/// What a postback says, read and checked. Borrowed from its query where nothing was escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Postback<'a> {
    /// First non-empty of `click_id`, `ct1`, `sub2`.
    pub click_id: Cow<'a, str>,
    /// `txid` or `transaction_id`.
    pub txid: Option<Cow<'a, str>>,
    /// `external_conversion_id`.
    pub external_id: Option<Cow<'a, str>>,
    /// `event`, as sent.
    pub event: Option<Cow<'a, str>>,
    /// The provider's event type: explicit, or a numeric `event`.
    pub provider_event: Option<Cow<'a, str>>,
    /// `offer_id` as returned; None if blank or a macro.
    pub offer_id: Option<Cow<'a, str>>,
    /// The payout, None if blank or absent.
    pub payout: Option<Decimal>,
    /// The status.
    pub status: Status,
    /// Whether the status was said at all.
    pub status_given: bool,
    /// Supplied SHA-256 of the email.
    pub email_hash: Option<Cow<'a, str>>,
    /// Supplied SHA-256 of the phone.
    pub phone_hash: Option<Cow<'a, str>>,
    /// Supplied lead hash.
    pub lead_hash: Option<Cow<'a, str>>,
    /// See [`flag`].
    pub flags: smallvec::SmallVec<[&'static str; 2]>,
}

/// Decodes the pairs of a query: `+` is a blank, percent escapes are bytes; what is no UTF-8 becomes U+FFFD.
pub fn query_pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode_part(name), decode_part(value))
        })
}

fn decode_part(part: &str) -> Cow<'_, str> {
    if !part.bytes().any(|b| b == b'%' || b == b'+') {
        return Cow::Borrowed(part);
    }
    let spaced = part.replace('+', " ");
    Cow::Owned(
        percent_decode(spaced.as_bytes())
            .decode_utf8_lossy()
            .into_owned(),
    )
}

/// One field that may come under several names, or several times.
#[derive(Default)]
struct Field<'a> {
    value: Option<Cow<'a, str>>,
    conflict: bool,
}

impl<'a> Field<'a> {
    fn offer(&mut self, value: Cow<'a, str>) {
        let trimmed = value.trim();
        if trimmed.is_empty() {
            return;
        }
        let value = if trimmed.len() == value.len() {
            value
        } else {
            Cow::Owned(trimmed.to_owned())
        };
        match &self.value {
            None => self.value = Some(value),
            Some(held) if *held != value => self.conflict = true,
            Some(_) => {}
        }
    }
}

/// The click id that a query names, without any further check: what the record is keyed by. Empty if none.
#[must_use]
pub fn click_id_of(query: &str) -> Cow<'_, str> {
    let mut found: [Option<Cow<'_, str>>; 3] = [None, None, None];
    for (name, value) in query_pairs(query) {
        let slot = match &*name {
            "click_id" => found.first_mut(),
            "ct1" => found.get_mut(1),
            "sub2" => found.get_mut(2),
            _ => None,
        };
        if let Some(slot) = slot
            && slot.is_none()
            && !value.trim().is_empty()
        {
            *slot = Some(Cow::Owned(value.trim().to_owned()));
        }
    }
    found.into_iter().flatten().next().unwrap_or_default()
}

impl PostbackRecord {
    /// Reads and checks the query.
    ///
    /// # Errors
    /// The reason code with which this postback can never be booked.
    pub fn read(&self) -> Result<Postback<'_>, &'static str> {
        read(&self.query, self.workspace, self.accepted_at, &self.rules)
    }
}

/// Reads and checks a postback's query under a network's rules.
///
/// # Errors
/// The reason code with which it can never be booked.
pub fn read<'a>(
    query: &'a str,
    workspace: i32,
    accepted_at: Micros,
    rules: &NetworkRules,
) -> Result<Postback<'a>, &'static str> {
    let mut click: [Option<Cow<'a, str>>; 3] = [None, None, None];
    let mut payouts: [Option<Cow<'a, str>>; 2] = [None, None];
    let [
        mut txid,
        mut external,
        mut event,
        mut provider,
        mut offer,
        mut status,
        mut email,
        mut phone,
        mut lead,
    ]: [Field<'a>; 9] = std::array::from_fn(|_| Field::default());
    for (name, value) in query_pairs(query) {
        let first = |slot: Option<&mut Option<Cow<'a, str>>>, value: Cow<'a, str>| {
            if let Some(slot) = slot
                && slot.is_none()
                && !value.trim().is_empty()
            {
                *slot = Some(trimmed(value));
            }
        };
        match &*name {
            "click_id" => first(click.get_mut(0), value),
            "ct1" => first(click.get_mut(1), value),
            "sub2" => first(click.get_mut(2), value),
            "payout" => first(payouts.get_mut(0), value),
            "amount" => first(payouts.get_mut(1), value),
            "txid" | "transaction_id" => txid.offer(value),
            "external_conversion_id" => external.offer(value),
            "event" => event.offer(value),
            "provider_event_id" | "event_id" => provider.offer(value),
            "offer_id" => offer.offer(value),
            "status" => status.offer(value),
            "email_hash" => email.offer(value),
            "phone_hash" => phone.offer(value),
            "lead_hash" => lead.offer(value),
            _ => {}
        }
    }
    let click_id = click.into_iter().flatten().next().unwrap_or_default();
    let payout = payouts.into_iter().flatten().next();
    if click_id.is_empty() {
        return Err(reason::CLICK_ID_MISSING);
    }
    let whole = [Some(&click_id), payout.as_ref()];
    let named = [&txid, &external, &status, &event, &provider];
    if whole
        .into_iter()
        .flatten()
        .chain(named.iter().filter_map(|f| f.value.as_ref()))
        .any(|v| is_unsubstituted(v))
    {
        return Err(reason::MACRO_UNSUBSTITUTED);
    }
    check_click_id(&click_id, ClickKey::new(workspace, &click_id), accepted_at)?;
    if txid.conflict || external.conflict || event.conflict || provider.conflict {
        return Err(reason::ALIAS_CONFLICT);
    }
    for value in named.iter().filter_map(|f| f.value.as_ref()) {
        check_field(value)?;
    }
    // No store of text keeps a NUL; nothing else decodes to one.
    if query.contains("%00") {
        return Err(reason::FIELD_MALFORMED);
    }
    if event
        .value
        .as_ref()
        .is_some_and(|e| e.chars().count() > 100)
    {
        return Err(reason::FIELD_MALFORMED);
    }
    let numeric =
        |v: &Cow<'_, str>| (1..=20).contains(&v.len()) && v.bytes().all(|b| b.is_ascii_digit());
    let provider_event = match provider.value {
        Some(v) if !numeric(&v) => return Err(reason::PROVIDER_EVENT_MALFORMED),
        Some(v) => Some(v),
        None => event.value.as_ref().filter(|v| numeric(v)).cloned(),
    };
    let mut flags = smallvec::SmallVec::new();
    let payout = match payout {
        None => None,
        Some(text) => {
            let form = PayoutRules {
                comma_decimals: rules.comma_decimals,
                currency_signs: rules.currency_signs,
            };
            Some(parse_payout(&text, form).map_err(|()| reason::PAYOUT_MALFORMED)?)
        }
    };
    let status_given = status.value.is_some();
    let status = match &status.value {
        None => Status::Approved,
        Some(word) => {
            let word = word.to_lowercase();
            rules
                .status_words
                .get(&word)
                .copied()
                .or_else(|| Status::from_name(&word))
                .unwrap_or_else(|| {
                    flags.push(flag::STATUS_UNKNOWN);
                    Status::Pending
                })
        }
    };
    if payout.is_some_and(|p| p.is_sign_negative() && !p.is_zero())
        && status != Status::Rejected
        && !rules.reversals
    {
        return Err(reason::PAYOUT_MALFORMED);
    }
    let mut hash = |field: Field<'a>| match field.value {
        Some(v) if is_unsubstituted(&v) || v.len() > MAX_FIELD || has_control(&v) => {
            if !flags.contains(&flag::HASH_DROPPED) {
                flags.push(flag::HASH_DROPPED);
            }
            None
        }
        other => other,
    };
    let (email_hash, phone_hash, lead_hash) = (hash(email), hash(phone), hash(lead));
    let offer_id = match offer.value {
        Some(v) if is_unsubstituted(&v) => {
            flags.push(flag::OFFER_ID_MACRO);
            None
        }
        // Conflicting offer ids, like malformed ones, fall back to navigation; the query keeps the hints.
        Some(v) if offer.conflict || check_field(&v).is_err() => {
            flags.push(flag::OFFER_ID_UNMATCHED);
            None
        }
        other => other,
    };
    Ok(Postback {
        click_id,
        txid: txid.value,
        external_id: external.value,
        event: event.value,
        provider_event,
        offer_id,
        payout,
        status,
        status_given,
        email_hash,
        phone_hash,
        lead_hash,
        flags,
    })
}

fn trimmed(value: Cow<'_, str>) -> Cow<'_, str> {
    let t = value.trim();
    if t.len() == value.len() {
        value
    } else {
        Cow::Owned(t.to_owned())
    }
}

fn check_field(value: &str) -> Result<(), &'static str> {
    if value.len() > MAX_FIELD || has_control(value) {
        return Err(reason::FIELD_MALFORMED);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
