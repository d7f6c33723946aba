//! `GET|POST /pb`: a network's postback. Parameters come from the query alone, for POST too.
//!
//! The secret says which network it is, and leaves the query before anything else happens. Every authenticated request is
//! produced; then the answer is `1`, or 400 with the reason why it can never be booked (the record is kept nevertheless). A
//! bad secret is 403 and a count, never a log line.

use super::beacon::unwritable;
use super::body;
use super::compile::Network;
use super::errors::Refusal;
use super::state::{Door, SLOWEST_BODY};
use super::wire::{self, PostbackOut};
use actix_web::http::StatusCode;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use millrace_schemas::postback::query_pairs;
use millrace_schemas::{WIRE_VERSION, ids, postback};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Longest query of a door, in bytes.
pub(super) const MAX_QUERY: usize = 16 << 10;

/// Takes a postback.
pub(super) async fn any(
    door: Rc<Door>,
    request: HttpRequest,
    mut payload: Payload,
) -> HttpResponse {
    let body_read = Cell::new(false);
    door.serve(&body_read, SLOWEST_BODY, async {
        body::discard(&mut payload, door.shared.setup.http.max_body).await?;
        body_read.set(true);
        take(&door, request.query_string()).await
    })
    .await
}

async fn take(door: &Door, raw: &str) -> Result<HttpResponse, Refusal> {
    check_query_length(raw)?;
    let (query, secret) = split_secret(raw);
    let network = network_of(door, secret.as_deref())?;
    let now = door.now();
    let click_id = postback::click_id_of(&query);
    // Without a click id it is still kept (and will be rejected); its query spreads such ones over the partitions.
    let key = ids::partition_key(
        network.workspace,
        if click_id.is_empty() {
            &query
        } else {
            &click_id
        },
    );
    let record = PostbackOut {
        v: WIRE_VERSION,
        workspace: network.workspace,
        network: &network.id,
        accepted_at: now,
        occurred_at: None,
        query: &query,
        rules: network.rules_json.as_deref(),
    };
    let bytes = wire::to_bytes(&record, 128 + query.len()).map_err(|_| unwritable())?;
    door.accept(door.postbacks(), key.into(), bytes).await?;
    match postback::read(&query, network.workspace, now, &network.rules) {
        Ok(_) => Ok(HttpResponse::Ok()
            .insert_header((CONTENT_TYPE, HeaderValue::from_static("text/plain")))
            .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")))
            .body("1")),
        // It was accepted: answered, not refused.
        Err(reason) => Ok(Refusal::never_booked(reason).response()),
    }
}

fn network_of(door: &Door, secret: Option<&str>) -> Result<Arc<Network>, Refusal> {
    let open = door.open()?;
    let digest: [u8; 32] = Sha256::digest(secret.unwrap_or_default().as_bytes()).into();
    open.as_ref()
        .and_then(|s| s.networks_by_digest.get(&digest))
        .filter(|_| secret.is_some())
        .map(Arc::clone)
        .ok_or_else(|| {
            Refusal::new(
                StatusCode::FORBIDDEN,
                "bad_secret",
                "the secret is missing or belongs to no network",
            )
        })
}

/// 414 where the query is longer than a door takes.
pub(super) fn check_query_length(raw: &str) -> Result<(), Refusal> {
    if raw.len() > MAX_QUERY {
        return Err(Refusal::new(
            StatusCode::URI_TOO_LONG,
            "query_too_long",
            format!("the query has more than {MAX_QUERY} bytes"),
        ));
    }
    Ok(())
}

/// The query without any `secret`, otherwise as it came, and the first secret.
fn split_secret(raw: &str) -> (String, Option<Cow<'_, str>>) {
    let mut rest = String::with_capacity(raw.len());
    let mut secret = None;
    for pair in raw.split('&') {
        // One pair in, at most one out.
        match query_pairs(pair).next() {
            Some((name, value)) if name == "secret" => {
                secret.get_or_insert(value);
            }
            _ => {
                if !rest.is_empty() {
                    rest.push('&');
                }
                rest.push_str(pair);
            }
        }
    }
    (rest, secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_secret_leaves_the_query_however_it_is_spelt() {
        for (raw, rest, secret) in [
            ("secret=a&click_id=1", "click_id=1", Some("a")),
            (
                "click_id=%41&%73ecret=a%2Bb&x",
                "click_id=%41&x",
                Some("a+b"),
            ),
            ("secret=a&secret=b&x=1", "x=1", Some("a")),
            ("x=1&secret", "x=1", Some("")),
            ("Secret=a&x=1&&y", "Secret=a&x=1&&y", None),
            ("", "", None),
        ] {
            let (got, found) = split_secret(raw);
            assert_eq!((got.as_str(), found.as_deref()), (rest, secret), "{raw}");
        }
    }
}
