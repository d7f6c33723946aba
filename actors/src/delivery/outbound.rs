//! HTTP to whoever an operator names: one client a channel, one exchange at a time, and what can be known of it afterwards.
//!
//! Nothing is followed (no redirect, no proxy of the environment, no retry beneath us), every address passes the guard, what a
//! receiver says is read up to a bound and redacted, and an exchange says whether its request may have arrived.

use super::address_guard::{AddressGuard, AddressRefused, GuardedResolver};
use super::channel::{Answer, Verdict};
use super::redaction::redact;
use super::schedule;
use crate::postgres::tls::TlsError;
use bytes::Bytes;
use futures::StreamExt;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use rustls::pki_types::CertificateDer;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use url::Url;

/// How much of an answer's body is read.
pub const MOST_READ: usize = 8 << 10;
/// How long an answer's body is waited for once its head has come: it decides nothing, it only tells people something.
pub const BODY_PATIENCE: Duration = Duration::from_secs(1);
/// What a request says it comes from.
pub const USER_AGENT: &str = concat!("Millrace/", env!("CARGO_PKG_VERSION"));

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Names cannot be resolved.
    #[error("the resolver: {0}")]
    Resolver(String),
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A file of certificate authorities cannot be used.
    #[error(transparent)]
    Authorities(#[from] TlsError),
    /// The client refuses its settings.
    #[error("the HTTP client: {0}")]
    Http(#[from] reqwest::Error),
}

/// How a channel's client behaves.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// How long an exchange may take in all.
    pub timeout: Duration,
    /// How long resolving, connecting and greeting may take of it.
    pub connect_timeout: Duration,
    /// Connections kept open to one host. 0: a fresh one each time, for channels that must know whether a request left: a
    /// kept one may be closed by the other side in the moment of sending.
    pub idle_connections: usize,
}

/// A client that talks to whom the guard admits. It belongs to the runtime of the thread that uses it.
///
/// # Errors
/// [`ClientError`].
pub fn client(
    options: ClientOptions,
    guard: &AddressGuard,
) -> Result<reqwest::Client, ClientError> {
    let resolver = GuardedResolver::new(guard.clone()).map_err(ClientError::Resolver)?;
    Ok(reqwest::Client::builder()
        .tls_backend_preconfigured(tls(&[])?)
        .dns_resolver(resolver)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .no_proxy()
        .user_agent(USER_AGENT)
        .timeout(options.timeout)
        .connect_timeout(options.connect_timeout)
        .pool_max_idle_per_host(options.idle_connections)
        .pool_idle_timeout(Duration::from_secs(50))
        .tcp_nodelay(true)
        .build()?)
}

/// TLS with the system's authorities and these. A machine without any can still send in the clear.
pub(super) fn tls(more: &[CertificateDer<'static>]) -> Result<rustls::ClientConfig, rustls::Error> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    let (known, _) = roots.add_parsable_certificates(found.certs);
    for authority in more {
        roots.add(authority.clone())?;
    }
    if known == 0 && more.is_empty() {
        tracing::warn!(
            "no certificate authorities found on this system: nothing is delivered over HTTPS"
        );
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// What a receiver answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// `Retry-After`, if it was there and could be read.
    pub retry_after: Option<Duration>,
    /// The beginning of the body, redacted.
    pub excerpt: Option<String>,
}

impl Reply {
    /// 2xx.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// No answer came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoReply {
    /// A name from a closed list: `address_refused`, `unresolved`, `no_connection`, `timeout`, `connection_lost`, `not_sent`.
    pub code: &'static str,
    /// The request, or a part of it, left: it may have been taken.
    pub unsure: bool,
    /// For people; without the URL, which may hold a secret.
    pub reason: String,
}

/// Posts a body and reads what comes. `now_secs` (since 1970) is what a date in `Retry-After` is measured against.
///
/// # Errors
/// [`NoReply`].
pub async fn post(
    client: &reqwest::Client,
    guard: &AddressGuard,
    url: &Url,
    headers: HeaderMap,
    body: Bytes,
    now_secs: i64,
) -> Result<Reply, NoReply> {
    guard.check(url).map_err(|refused| NoReply {
        code: "address_refused",
        unsure: false,
        reason: refused.to_string(),
    })?;
    let request = client.post(url.clone()).headers(headers).body(body);
    let response = request.send().await.map_err(no_reply)?;
    let retry_after = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|v| v.to_str().ok())
        .and_then(|text| schedule::retry_after(text, now_secs));
    Ok(Reply {
        status: response.status().as_u16(),
        retry_after,
        excerpt: beginning(response, url).await,
    })
}

/// The answer to one message: its code (a status, or why there was none), what was said, and to whom: scheme, host and port, since
/// the rest of a URL may hold a secret.
#[must_use]
pub fn tell(verdict: Verdict, outcome: Result<Reply, NoReply>, url: &Url) -> Answer {
    let (code, said): (Cow<'static, str>, _) = match outcome {
        Ok(reply) => (reply.status.to_string().into(), reply.excerpt),
        Err(none) => (none.code.into(), Some(none.reason)),
    };
    let mut answer = Answer::new(verdict, code);
    if let Some(text) = said {
        answer = answer.said(text);
    }
    answer.target = Some(url.origin().ascii_serialization());
    answer
}

/// Letters of a part of a URL that may be what lets in; shorter ones are words.
const SECRET_AT_LEAST: usize = 12;

/// What a receiver said, without what stands behind the host of the URL that it was asked at: that may be a secret, and a receiver
/// may say it again.
fn without_own(text: &str, url: &Url) -> String {
    let path = url.path().trim_matches('/');
    // The whole before its parts.
    let parts = url.query().into_iter().chain([path]).chain(path.split('/'));
    parts
        .filter(|part| part.len() >= SECRET_AT_LEAST)
        .fold(text.to_owned(), |text, part| text.replace(part, "[url]"))
}

/// Reads a body up to its end or its bounds. Read to its end, the connection is good for another request; else it is closed.
async fn beginning(response: reqwest::Response, url: &Url) -> Option<String> {
    if response.content_length() == Some(0) {
        return None;
    }
    let until = Instant::now() + BODY_PATIENCE;
    let mut kept = Vec::new();
    let mut chunks = response.bytes_stream();
    while kept.len() < MOST_READ {
        // Whatever ends it (its end, a broken connection, our patience): what has come so far is all there is to tell.
        let Ok(Some(Ok(chunk))) = tokio::time::timeout_at(until.into(), chunks.next()).await else {
            break;
        };
        let room = MOST_READ - kept.len();
        kept.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
    }
    let text = redact(&without_own(&String::from_utf8_lossy(&kept), url));
    (!text.is_empty()).then_some(text)
}

fn no_reply(error: reqwest::Error) -> NoReply {
    let error = error.without_url();
    let refused = find::<AddressRefused>(&error);
    let (code, unsure) = if refused.is_some() {
        ("address_refused", false)
    } else if error.is_builder() {
        ("not_sent", false)
    } else if error.is_dns() {
        ("unresolved", false)
    } else if error.is_connect() {
        ("no_connection", false)
    } else if error.is_timeout() {
        ("timeout", true)
    } else {
        ("connection_lost", true)
    };
    let reason = match refused {
        Some(refused) => refused.to_string(),
        None => redact(&crate::postgres::pool::chain(&error)),
    };
    NoReply {
        code,
        unsure,
        reason,
    }
}

/// The first error of this kind among an error's causes.
fn find<'e, E: std::error::Error + 'static>(
    error: &'e (dyn std::error::Error + 'static),
) -> Option<&'e E> {
    std::iter::successors(Some(error), |e| e.source()).find_map(|e| e.downcast_ref::<E>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_behind_our_host_is_not_kept() {
        let url = Url::parse("https://push.example/wake/topic-of-a-device?key=abcdefghijkl");
        let url = url.expect("a URL");
        for (said, kept) in [
            ("no /wake/topic-of-a-device here", "no /[url] here"),
            ("topic-of-a-device: gone", "[url]: gone"),
            ("of key=abcdefghijkl", "of [url]"),
            ("wake up", "wake up"),
        ] {
            assert_eq!(without_own(said, &url), kept);
        }
        let bare = Url::parse("https://push.example/").expect("a URL");
        assert_eq!(without_own("anything", &bare), "anything");
    }
}
