//! What can be read off a request before anything is done: ids, credentials, headers, query, body.

use super::call::IfMatch;
use super::faults::Faults;
use super::json::{self, Unreadable};
use super::keys::ApiKey;
use super::page::{DEFAULT_LIMIT, MAX_LIMIT, PageRequest};
use super::problem::Problem;
use super::registry::{Method, Operation};
use actix_web::HttpRequest;
use actix_web::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use actix_web::web::{BytesMut, Payload};
use futures::StreamExt;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use std::time::Duration;

/// Bodies of operations at most, in bytes.
pub const MAX_BODY: usize = 1 << 20;

/// How long a body may take to come: a sender that never ends must not hold a connection for good.
pub const SLOWEST_BODY: Duration = Duration::from_secs(10);

/// The request's id: the client's if it is well formed, else `None`.
#[must_use]
pub fn request_id(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("X-Request-Id")?.to_str().ok()?;
    let good = (8..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    good.then(|| text.to_owned())
}

/// The query as pairs, decoded.
#[must_use]
pub fn query_pairs(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| {
        percent_decode_str(&text.replace('+', " "))
            .decode_utf8_lossy()
            .into_owned()
    };
    query
        .split('&')
        .filter(|p| !p.is_empty())
        .map(|p| {
            let (name, value) = p.split_once('=').unwrap_or((p, ""));
            (decode(name), decode(value))
        })
        .collect()
}

/// Refuses a key or token in the URL: it ends in logs and histories.
///
/// # Errors
/// `credential_in_url`.
pub fn refuse_credential_in_url(pairs: &[(String, String)]) -> Result<(), Problem> {
    const NAMES: &[&str] = &[
        "access_token",
        "api_key",
        "apikey",
        "authorization",
        "bearer",
        "token",
    ];
    const FORMS: &[&str] = &["sess_", "oat_", "ort_", "pl_"];
    let found = pairs.iter().any(|(name, value)| {
        NAMES.contains(&name.to_ascii_lowercase().as_str())
            || ApiKey::parse(value.trim()).is_some()
            || FORMS.iter().any(|f| value.starts_with(f))
    });
    if found {
        return Err(Problem::new(
            "credential_in_url",
            "a credential stands in the URL, where logs keep it; revoke it and use `Authorization: Bearer`",
        ));
    }
    Ok(())
}

/// The bearer of `Authorization`.
///
/// # Errors
/// `unauthenticated`.
pub fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let refused = || Problem::new("unauthenticated", "this needs `Authorization: Bearer rk_…`");
    let mut all = headers.get_all(AUTHORIZATION);
    let (Some(value), None) = (all.next(), all.next()) else {
        return Err(refused());
    };
    let (scheme, token) = value
        .to_str()
        .ok()
        .and_then(|v| v.split_once(' '))
        .ok_or_else(refused)?;
    if scheme.eq_ignore_ascii_case("bearer") {
        Ok(token.trim())
    } else {
        Err(refused())
    }
}

/// `If-Match`: `*`, or strong tags of versions.
///
/// # Errors
/// `header_malformed`; `if_match_required` where the operation needs one.
pub fn if_match(headers: &HeaderMap, operation: &Operation) -> Result<Option<IfMatch>, Problem> {
    use super::registry::Precondition;
    if operation.precondition == Precondition::None {
        return Ok(None);
    }
    let malformed = || {
        Problem::new(
            "header_malformed",
            "`If-Match` is `*` or a version in quotes, as \"3\"",
        )
    };
    let mut versions = Vec::new();
    let mut any = false;
    for value in headers.get_all("If-Match") {
        for tag in value
            .to_str()
            .map_err(|_| malformed())?
            .split(',')
            .map(str::trim)
        {
            if tag == "*" {
                any = true;
                continue;
            }
            let version = tag
                .strip_prefix('"')
                .and_then(|t| t.strip_suffix('"'))
                .and_then(|t| t.parse().ok())
                .ok_or_else(malformed)?;
            versions.push(version);
        }
    }
    match (any, versions.is_empty(), operation.precondition) {
        (true, _, _) => Ok(Some(IfMatch::Any)),
        (false, false, _) => Ok(Some(IfMatch::Versions(versions))),
        (false, true, Precondition::Required) => Err(Problem::new(
            "if_match_required",
            "send `If-Match` with the version that you replace",
        )),
        (false, true, _) => Ok(None),
    }
}

/// `Idempotency-Key` of a POST: 1–255 printable ASCII characters.
///
/// # Errors
/// `header_malformed`.
pub fn idempotency_key(
    headers: &HeaderMap,
    operation: &Operation,
) -> Result<Option<String>, Problem> {
    if operation.method != Method::Post || !operation.writes() {
        return Ok(None);
    }
    let Some(value) = headers.get("Idempotency-Key") else {
        return Ok(None);
    };
    let bytes = value.as_bytes();
    if (1..=255).contains(&bytes.len()) && bytes.iter().all(|b| (0x20..0x7f).contains(b)) {
        return Ok(value.to_str().ok().map(str::to_owned));
    }
    Err(Problem::new(
        "header_malformed",
        "`Idempotency-Key` has 1 to 255 printable ASCII characters",
    ))
}

/// The parameters that the plumbing takes out of a query, and the rest.
pub struct Plumbing {
    /// The operation's own parameters.
    pub own: Vec<(String, String)>,
    /// `dry_run=true`.
    pub dry_run: bool,
    /// The page asked for, its cursor still sealed.
    pub page: PageRequest,
    /// `cursor`.
    pub cursor: Option<String>,
}

/// Takes `dry_run`, and of lists `limit`, `cursor`, `count`, out of the query.
pub fn plumbing(
    pairs: Vec<(String, String)>,
    operation: &Operation,
    faults: &mut Faults,
) -> Plumbing {
    let mut out = Plumbing {
        own: Vec::new(),
        dry_run: false,
        page: PageRequest {
            limit: DEFAULT_LIMIT,
            ..PageRequest::default()
        },
        cursor: None,
    };
    let mut seen: Vec<String> = Vec::new();
    for (name, value) in pairs {
        let ours = match name.as_str() {
            "dry_run" => operation.writes(),
            "limit" | "cursor" | "count" => operation.list,
            _ => false,
        };
        if !ours {
            out.own.push((name, value));
            continue;
        }
        if seen.contains(&name) {
            faults.add(
                format!("?{name}"),
                "repeated",
                format!("`{name}` stands twice"),
            );
            continue;
        }
        match (name.as_str(), value.as_str()) {
            ("dry_run", "true" | "false") => out.dry_run = value == "true",
            ("count", "true" | "false") => out.page.count = value == "true",
            ("dry_run" | "count", _) => {
                faults.add(format!("?{name}"), "wrong_type", "want `true` or `false`");
            }
            ("limit", _) => match value.parse::<i64>() {
                Ok(n) if (1..=MAX_LIMIT).contains(&n) => out.page.limit = n,
                _ => faults.add("?limit", "out_of_range", format!("1 to {MAX_LIMIT}")),
            },
            _ => out.cursor = Some(value),
        }
        seen.push(name);
    }
    out
}

/// Reads the body, bounded. Empty where the operation takes none.
///
/// # Errors
/// `body_too_large`, `media_type`, `body_not_expected`, or the connection broke.
pub async fn body(
    request: &HttpRequest,
    mut payload: Payload,
    operation: &Operation,
) -> Result<BytesMut, Problem> {
    let too_large = || {
        Problem::new(
            "body_too_large",
            format!("a body has at most {MAX_BODY} bytes"),
        )
    };
    let length = request
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<usize>().ok());
    if length.is_some_and(|n| n > MAX_BODY) {
        return Err(too_large());
    }
    if operation.body.is_some() {
        check_media_type(request, operation)?;
    }
    let mut bytes = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk =
            chunk.map_err(|e| Problem::new("not_json", format!("the body broke off: {e}")))?;
        if operation.body.is_none() && !chunk.is_empty() {
            return Err(Problem::new(
                "body_not_expected",
                "this operation takes no body",
            ));
        }
        if bytes.len() + chunk.len() > MAX_BODY {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn check_media_type(request: &HttpRequest, operation: &Operation) -> Result<(), Problem> {
    let text = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default();
    let (kind, parameters) = text.split_once(';').unwrap_or((text, ""));
    let kind = kind.trim().to_ascii_lowercase();
    let parameters = parameters.trim().to_ascii_lowercase();
    let merge = operation.method == Method::Patch && kind == "application/merge-patch+json";
    let utf8 = matches!(
        parameters.as_str(),
        "" | "charset=utf-8" | "charset=\"utf-8\""
    );
    if (kind == "application/json" || merge) && utf8 {
        return Ok(());
    }
    Err(Problem::new(
        "media_type",
        if operation.method == Method::Patch {
            "want `application/merge-patch+json` or `application/json`, in UTF-8"
        } else {
            "want `application/json`, in UTF-8"
        },
    ))
}

/// The body as strict JSON.
///
/// # Errors
/// `not_json`, or `invalid` with all its faults.
pub fn parse_body(bytes: &[u8]) -> Result<Value, Problem> {
    json::parse(bytes).map_err(|e| match e {
        Unreadable::Syntax(message) => {
            Problem::new("not_json", format!("the body is no JSON: {message}"))
        }
        Unreadable::Faulty(faults) => faults.into(),
    })
}
