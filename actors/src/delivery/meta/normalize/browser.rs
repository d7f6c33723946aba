//! What the browser says: Meta's cookies and the client's address. Never hashed; what is invalid is left out, since Meta
//! refuses the whole event for it.

use super::omitted;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest click id that is taken for one.
const MAX_CLICK_ID: usize = 2_048;

/// The cookie `fb.<digit>.<ms>.<click id>`, its case kept; or made of a bare click id where it is known when it came.
pub(super) fn fbc(value: &str, clicked_ms: Option<i64>) -> Result<String, &'static str> {
    if value.starts_with("fb.") {
        let rest = after_stamp(value).filter(|click| is_click_id(click));
        return rest.map(|_| value.to_owned()).ok_or(omitted::BAD_FBC);
    }
    clicked_ms
        .and_then(|ms| fbc_from_click(value, ms))
        .ok_or(omitted::BAD_FBC)
}

/// `fb.1.<ms when the click came>.<fbclid>`: 1 is what servers state for the domain's depth. None for what is no fbclid.
#[must_use]
pub fn fbc_from_click(fbclid: &str, clicked_ms: i64) -> Option<String> {
    let stamp = clicked_ms.to_string();
    (is_stamp(&stamp) && is_click_id(fbclid)).then(|| format!("fb.1.{stamp}.{fbclid}"))
}

/// The cookie `fb.<digit>.<ms>.<digits>`, which some of Meta's own libraries extend by one short part.
pub(super) fn fbp(value: &str) -> Result<String, &'static str> {
    let valid = after_stamp(value).is_some_and(|rest| {
        let (number, extension) = match rest.split_once('.') {
            Some((number, extension)) => (number, Some(extension)),
            None => (rest, None),
        };
        (1..=20).contains(&number.len())
            && number.bytes().all(|b| b.is_ascii_digit())
            && extension.is_none_or(|e| (1..=16).contains(&e.len()) && e.bytes().all(is_word))
    });
    if valid {
        Ok(value.to_owned())
    } else {
        Err(omitted::BAD_FBP)
    }
}

/// What follows `fb.<digit>.<ms>.`.
fn after_stamp(value: &str) -> Option<&str> {
    let (depth, rest) = value.strip_prefix("fb.")?.split_once('.')?;
    let (stamp, rest) = rest.split_once('.')?;
    (depth.len() == 1 && depth.bytes().all(|b| b.is_ascii_digit()) && is_stamp(stamp))
        .then_some(rest)
}

/// Milliseconds since 1970 of this age: thirteen digits. Seconds are a common mistake.
fn is_stamp(text: &str) -> bool {
    text.len() == 13 && text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0')
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')
}

fn is_click_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=MAX_CLICK_ID).contains(&bytes.len())
        && bytes
            .iter()
            .all(|b| is_word(*b) || matches!(b, b'.' | b'~'))
        && bytes.iter().any(u8::is_ascii_alphanumeric)
        && !text.eq_ignore_ascii_case("null")
        && !text.eq_ignore_ascii_case("undefined")
}

/// The address without port and brackets, of a list (`X-Forwarded-For`) the first that the world can reach.
pub(super) fn client_ip(value: &str) -> Result<String, &'static str> {
    let mut why = omitted::BAD_IP;
    for hop in value.split(',').map(str::trim) {
        let Some((text, address)) = address(hop) else {
            continue;
        };
        if is_private(address) {
            why = omitted::PRIVATE_IP;
        } else {
            return Ok(text);
        }
    }
    Err(why)
}

fn address(hop: &str) -> Option<(String, IpAddr)> {
    let text = if let Ok(with_port) = hop.parse::<SocketAddr>() {
        with_port.ip().to_string()
    } else {
        let inner = hop.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        inner.unwrap_or(hop).to_owned()
    };
    match text.parse().ok()? {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => Some((v4.to_string(), IpAddr::V4(v4))),
            None => Some((text, IpAddr::V6(v6))),
        },
        v4 => Some((text, v4)),
    }
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => {
            let [first, second, ..] = a.octets();
            a.is_private()
                || a.is_loopback()
                || a.is_link_local()
                || a.is_multicast()
                || a == Ipv4Addr::BROADCAST
                || first == 0
                || (first == 100 && (64..128).contains(&second))
        }
        IpAddr::V6(a) => {
            a.is_loopback()
                || a.is_multicast()
                || a.is_unique_local()
                || a.is_unicast_link_local()
                || a == Ipv6Addr::UNSPECIFIED
        }
    }
}
