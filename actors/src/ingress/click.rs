//! `GET /c/:campaign`: a visit. Captures the query verbatim, mints the ids, chooses the offer, produces the visit, and after
//! the log's acknowledgement redirects. A direct link is itself the click, so one record books both.
//!
//! `source_url` is the door's own URL without its query (`http.public_url`, else the request's `Host`). `HEAD` answers as
//! `GET` and records nothing; a prefetch is 403 and records nothing, since nobody has clicked (spec: routing § 1).

use super::beacon::unwritable;
use super::compile::Campaign;
use super::errors::{Refusal, bare_not_found};
use super::postback::check_query_length;
use super::state::Door;
use super::wire::{self, Captured, ClickOut};
use actix_web::http::header::{
    CACHE_CONTROL, COOKIE, HOST, HeaderMap, HeaderValue, LOCATION, USER_AGENT,
};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse};
use millrace_schemas::click::Kind;
use millrace_schemas::ids::{self, ClickKey};
use millrace_schemas::macros;
use millrace_schemas::postback::query_pairs;
use std::borrow::Cow;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Names of a captured query at most.
const MAX_PARAMS: usize = 256;

/// Longest user agent kept, in bytes.
const MAX_USER_AGENT: usize = 1_024;

/// Longest `ref` taken from a query (spec: routing § 2).
const MAX_REF: usize = 200;

/// Takes a visit.
pub(super) async fn get(door: Rc<Door>, request: HttpRequest) -> HttpResponse {
    door.serve(&Cell::new(true), Duration::ZERO, take(&door, &request))
        .await
}

async fn take(door: &Door, request: &HttpRequest) -> Result<HttpResponse, Refusal> {
    let slug = request.match_info().get("campaign").unwrap_or_default();
    let campaign: Option<Arc<Campaign>> = {
        let open = door.open()?;
        open.as_ref()
            .and_then(|s| s.campaigns.get(slug))
            .filter(|c| c.active)
            .map(Arc::clone)
    };
    let Some(campaign) = campaign else {
        return Ok(not_found(door));
    };
    if is_prefetch(request.headers()) {
        return Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "prefetch",
            "a prefetch is no visit",
        ));
    }
    let captured = capture(request.query_string())?;
    let now = door.now();
    let (Ok(click), Ok(visit_id)) = (ids::mint(now), ids::mint(now)) else {
        return Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "no_randomness",
            "no id could be minted; try again",
        ));
    };
    let workspace = campaign.workspace;
    let key = ClickKey {
        workspace,
        key: click,
    };
    let Some(pick) = campaign.route(key) else {
        return Ok(not_found(door));
    };
    let click_id = ids::encode(click);
    let location = fill(
        &campaign,
        &pick.url_template,
        &captured,
        &click_id,
        visit_id,
    );
    if request.method() != Method::HEAD {
        let address = door.shared.trusted.client_of(request);
        let text = address.map(|a| a.to_string());
        let headers = request.headers();
        let source_url = source_url(door, headers, &campaign.id);
        let mut record = ClickOut::new(Kind::Visit, workspace, &click_id, now);
        record.visit_id = Some(visit_id);
        record.campaign = Some(&campaign.id);
        record.direct = true;
        record.journey = Some(&pick.journey);
        record.params = (!captured.0.is_empty()).then_some(&captured);
        record.ip = text.as_deref().filter(|_| campaign.store_ip);
        record.ip_hash = address.map(|a| ip_hash(workspace, a));
        record.user_agent = headers.get(USER_AGENT).map(user_agent);
        record.source_url = source_url.as_deref();
        record.fbp = cookie(headers, "_fbp").filter(|v| is_fbp(v));
        record.fbc = cookie(headers, "_fbc").filter(|v| is_fbc(v));
        let expected = 512 + request.query_string().len() + pick.journey.get().len();
        let bytes = wire::to_bytes(&record, expected).map_err(|_| unwritable())?;
        let partition_key = ids::partition_key(workspace, &click_id);
        door.accept(door.clicks(), partition_key.into(), bytes)
            .await?;
    }
    let location = HeaderValue::from_str(&location).map_err(|_| unwritable())?;
    Ok(HttpResponse::Found()
        .insert_header((LOCATION, location))
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")))
        .finish())
}

/// The bare 404, counted.
fn not_found(door: &Door) -> HttpResponse {
    door.counts.refused("unknown_campaign", 1);
    bare_not_found()
}

/// Whether the browser only looks ahead.
fn is_prefetch(headers: &HeaderMap) -> bool {
    ["sec-purpose", "purpose", "x-moz"].iter().any(|name| {
        headers
            .get_all(*name)
            .filter_map(|v| v.to_str().ok())
            .any(|v| {
                let v = v.to_ascii_lowercase();
                v.contains("prefetch") || v.contains("prerender")
            })
    })
}

/// The query, verbatim and in order; values of one name together.
pub(super) fn capture(query: &str) -> Result<Captured<'_>, Refusal> {
    check_query_length(query)?;
    let mut out = Captured(Vec::new());
    for (name, value) in query_pairs(query) {
        if name.contains('\0') || value.contains('\0') {
            return Err(Refusal::nul());
        }
        if let Some((_, values)) = out.0.iter_mut().find(|(n, _)| *n == name) {
            values.push(value);
            continue;
        }
        if out.0.len() == MAX_PARAMS {
            return Err(Refusal::new(
                StatusCode::URI_TOO_LONG,
                "too_many_parameters",
                format!("the query has more than {MAX_PARAMS} parameters"),
            ));
        }
        out.0.push((name, smallvec::smallvec![value]));
    }
    Ok(out)
}

/// The offer's URL with its placeholders filled. What a visit could have captured and did not is empty; any other unknown
/// name stays, since a network's own macros look alike.
fn fill(
    campaign: &Campaign,
    template: &str,
    captured: &Captured<'_>,
    click_id: &str,
    visit_id: Uuid,
) -> String {
    macros::fill(template, |name| {
        let value: Cow<'_, str> = match name {
            "click_id" => click_id.into(),
            "visit_id" => visit_id.to_string().into(),
            "link_id" | "campaign_id" => (&*campaign.id).into(),
            "campaign_name" => campaign.name.as_str().into(),
            "ref" => captured
                .first("ref")
                .filter(|r| !r.trim().is_empty() && r.chars().count() <= MAX_REF)
                .or(campaign.reference.as_deref())
                .unwrap_or_default()
                .into(),
            _ => match captured.first(name) {
                Some(value) => value.into(),
                None if is_captured_name(name) => "".into(),
                None => return None,
            },
        };
        Some(value)
    })
}

/// Names that ad platforms and sources put into a query (spec: attribution § Doors, routing § 7).
fn is_captured_name(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "ttclid",
        "fbclid",
        "gclid",
        "msclkid",
        "twclid",
        "oppref",
        "email",
        "phone",
        "email_hash",
        "phone_hash",
        "lead_hash",
        "first_name",
        "last_name",
        "traffic_source",
    ];
    let numbered = |prefix: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|n| (1..=2).contains(&n.len()) && n.bytes().all(|b| b.is_ascii_digit()))
    };
    NAMES.contains(&name)
        || name.starts_with("utm_")
        || numbered("sub")
        || numbered("ct")
        || numbered("t")
}

/// The client's address as a visit keeps it: a digest under its workspace.
pub(super) fn ip_hash(workspace: i32, address: IpAddr) -> Uuid {
    ids::digest(
        "ip",
        &[&workspace.to_be_bytes(), address.to_string().as_bytes()],
    )
}

fn source_url(door: &Door, headers: &HeaderMap, campaign: &str) -> Option<String> {
    match &door.shared.public_url {
        Some(base) => Some(format!("{base}/c/{campaign}")),
        None => {
            let host = headers.get(HOST)?.to_str().ok()?;
            (host.len() <= 255).then(|| format!("http://{host}/c/{campaign}"))
        }
    }
}

fn user_agent(value: &HeaderValue) -> Cow<'_, str> {
    let bytes = value.as_bytes();
    let kept = bytes.get(..MAX_USER_AGENT).unwrap_or(bytes);
    String::from_utf8_lossy(kept)
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers
        .get_all(COOKIE)
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(';'))
        .find_map(|pair| {
            let (n, value) = pair.trim().split_once('=')?;
            (n == name).then_some(value)
        })
}

fn digits(text: &str, len: std::ops::RangeInclusive<usize>) -> bool {
    len.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
}

/// `fb.<subdomain index>.<milliseconds>.<payload>`; the payload by its rule.
fn is_fb(value: &str, payload: impl Fn(&str) -> bool) -> bool {
    let mut parts = value.splitn(4, '.');
    let mut next = || parts.next().unwrap_or_default();
    next() == "fb" && digits(next(), 1..=2) && digits(next(), 10..=14) && payload(next())
}

/// Whether the value is Meta's browser id: its payload is a number.
pub(super) fn is_fbp(value: &str) -> bool {
    is_fb(value, |p| digits(p, 1..=32))
}

/// Whether the value is Meta's click id cookie: its payload is the `fbclid`, case and all.
pub(super) fn is_fbc(value: &str) -> bool {
    is_fb(value, |p| {
        (1..=500).contains(&p.len()) && p.bytes().all(|b| b.is_ascii_graphic())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_is_captured_verbatim() {
        let got = capture("utm_source=a+b&sub1=%C3%A9&utm_source=c&flag&=x").expect("captures");
        assert_eq!(
            serde_json::to_string(&got).expect("serialises"),
            r#"{"utm_source":["a b","c"],"sub1":"é","flag":"","":"x"}"#
        );
        assert_eq!(capture("a=%00").map_err(|r| r.code).err(), Some("nul"));
        let many: String = (0..257).map(|n| format!("p{n}=&")).collect();
        assert_eq!(
            capture(&many).map_err(|r| r.status).err(),
            Some(StatusCode::URI_TOO_LONG)
        );
    }

    #[test]
    fn metas_cookies_are_kept_only_if_well_formed() {
        assert!(is_fbp("fb.1.1558571054389.1098115397"));
        assert!(!is_fbp("fb.1.1558571054389.10981x"));
        assert!(!is_fbp("1098115397"));
        assert!(is_fbc(
            "fb.1.1554763741205.IwAR2F4-dbP0l7Mn1IawQQGCINEz7PYXQvwjNwB_qa2ofrHyiLjcbCRxTDMgk"
        ));
        assert!(!is_fbc("fb.1.1554763741205."));
        assert!(!is_fbc("fb.1.now.x"));
    }
}
