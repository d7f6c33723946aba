//! How an endpoint is woken, and what its answers mean.

use super::settings::{Endpoint, Origins, Push};
use crate::delivery::address_guard::AddressGuard;
use crate::delivery::channel::{Answer, Verdict};
use crate::delivery::outbound::{self, ClientError, ClientOptions, NoReply, Reply};
use crate::delivery::redaction::redact;
use crate::runtime::clock::SharedClock;
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use std::time::Duration;

/// All that is ever said to an endpoint.
#[derive(Serialize)]
struct Tickle<'a> {
    stream: &'a str,
    #[serde(rename = "ref")]
    reference: Option<String>,
}

/// The body of a push: which stream has something, and which notification it is, if that is known. Nothing of it.
#[must_use]
pub fn body(stream: &str, notification: Option<i64>) -> String {
    let tickle = Tickle {
        stream,
        reference: notification.map(|id| format!("notification:{id}")),
    };
    serde_json::to_string(&tickle).unwrap_or_else(|_| "{}".to_owned())
}

/// What an endpoint came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Woken {
    /// It took it.
    Yes(Answer),
    /// It is gone for good.
    Gone(Answer),
    /// It may not be asked at all.
    Never(Answer),
    /// Perhaps later.
    Later(Answer),
}

/// What requests go through.
pub(super) struct Connection {
    client: reqwest::Client,
    guard: AddressGuard,
    pub origins: Origins,
    pub clock: SharedClock,
}

impl Connection {
    pub fn new(
        settings: &Push,
        origins: Origins,
        guard: AddressGuard,
        clock: SharedClock,
    ) -> Result<Connection, ClientError> {
        let options = ClientOptions {
            timeout: Duration::from_millis(settings.timeout_ms),
            connect_timeout: Duration::from_millis(settings.connect_timeout_ms),
            idle_connections: settings.concurrency,
        };
        Ok(Connection {
            client: outbound::client(options, &guard)?,
            guard,
            origins,
            clock,
        })
    }

    /// Wakes one endpoint.
    pub async fn wake(&self, endpoint: &Endpoint, body: &str) -> Woken {
        let Some(url) = self.origins.admit(&endpoint.url) else {
            return Woken::Never(Answer::new(Verdict::Suppressed, "origin_refused"));
        };
        let mut headers = HeaderMap::with_capacity(2);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(
            HeaderName::from_static("ttl"),
            HeaderValue::from_static("86400"),
        );
        let now = self.clock.wall().millis().div_euclid(1_000);
        let body = Bytes::copy_from_slice(body.as_bytes());
        let outcome = outbound::post(&self.client, &self.guard, &url, headers, body, now).await;
        judge(outcome, &url)
    }
}

/// 2xx is success; 404 and 410 are the end of the endpoint; an address that may not be sent to is never asked; 429, 5xx and no
/// answer are tried again, other refusals are final. Of what was said nothing is kept where it was taken, which tells nobody
/// anything, and else all but the endpoint.
#[must_use]
pub fn judge(mut outcome: Result<Reply, NoReply>, url: &url::Url) -> Woken {
    if let Ok(reply) = &mut outcome {
        let said = reply.excerpt.take().filter(|_| !reply.is_success());
        reply.excerpt = said.map(|text| without_endpoint(&text, url));
    }
    let again = |after, unsure| Verdict::RetryAt { after, unsure };
    match &outcome {
        Ok(reply) if reply.is_success() => {
            Woken::Yes(outbound::tell(Verdict::Delivered, outcome, url))
        }
        Ok(Reply {
            status: 404 | 410, ..
        }) => Woken::Gone(outbound::tell(Verdict::Rejected, outcome, url)),
        Ok(reply) if reply.status == 429 || reply.status >= 500 => {
            let after = reply.retry_after;
            Woken::Later(outbound::tell(again(after, false), outcome, url))
        }
        Ok(_) => Woken::Never(outbound::tell(Verdict::Rejected, outcome, url)),
        Err(none) if none.code == "address_refused" => {
            Woken::Never(outbound::tell(Verdict::Suppressed, outcome, url))
        }
        Err(none) => {
            let unsure = none.unsure;
            Woken::Later(outbound::tell(again(None, unsure), outcome, url))
        }
    }
}

/// Longest piece of a path that is left where it stands, in bytes: nobody's secret is as short as that.
const NO_SECRET: usize = 2;

/// What an endpoint said, without the pieces of its path: servers repeat them (`topic upAbC… is reserved`), and whoever knows them
/// can wake the device. The text was redacted before, so that what that makes of a piece is looked for too.
fn without_endpoint(said: &str, url: &url::Url) -> String {
    let mut pieces: Vec<String> = Vec::new();
    for piece in url.path_segments().into_iter().flatten() {
        let read = percent_decode_str(piece).decode_utf8_lossy();
        pieces.extend([piece.to_owned(), redact(&read), read.into_owned()]);
    }
    pieces.retain(|piece| piece.len() > NO_SECRET);
    // One may stand within another.
    pieces.sort_unstable_by_key(|piece| std::cmp::Reverse(piece.len()));
    pieces.iter().fold(said.to_owned(), |text, piece| {
        text.replace(piece.as_str(), "…")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_s_secret_is_not_kept_though_its_server_repeats_it() {
        let said = |url: &str, status, text: &str| {
            let url = url::Url::parse(url).expect("a URL");
            let reply = Reply {
                status,
                retry_after: None,
                excerpt: Some(redact(text)),
            };
            match judge(Ok(reply), &url) {
                Woken::Yes(a) | Woken::Gone(a) | Woken::Never(a) | Woken::Later(a) => a.excerpt,
            }
        };
        let ntfy = "https://ntfy.sh/upAbCdEfGhIjKl?up=1";
        let echo = r#"{"event":"message","topic":"upAbCdEfGhIjKl"}"#;
        assert_eq!(said(ntfy, 200, echo), None);
        for (url, text, kept) in [
            (
                ntfy,
                r#"{"code":42901,"topic":"upAbCdEfGhIjKl"}"#,
                r#"{"code":42901,"topic":"…"}"#,
            ),
            // Redacting has broken it up.
            (
                "https://ntfy.sh/up12345678ab",
                "up12345678ab is reserved",
                "… is reserved",
            ),
            (
                "https://push.example/w/dora/dora2/%C3%BCnal",
                "dora2 of dora (ünal, %C3%BCnal): w is full",
                "… of … (…, …): w is full",
            ),
            (ntfy, "slow down", "slow down"),
        ] {
            for status in [404, 429, 400] {
                assert_eq!(said(url, status, text).as_deref(), Some(kept), "{text}");
            }
        }
    }

    #[test]
    fn a_push_says_which_stream_and_which_row_and_nothing_else() {
        assert_eq!(
            body("uo.house.idoc_warning", Some(7)),
            r#"{"stream":"uo.house.idoc_warning","ref":"notification:7"}"#
        );
        assert_eq!(body("s", None), r#"{"stream":"s","ref":null}"#);
    }

    #[test]
    fn what_each_answer_means() {
        let url = url::Url::parse("https://ntfy.sh/secret").expect("a URL");
        let of = |status| {
            let reply = Reply {
                status,
                retry_after: None,
                excerpt: None,
            };
            judge(Ok(reply), &url)
        };
        assert!(matches!(of(200), Woken::Yes(_)));
        for gone in [404, 410] {
            assert!(matches!(of(gone), Woken::Gone(_)));
        }
        for later in [429, 500, 503] {
            assert!(matches!(of(later), Woken::Later(_)));
        }
        for never in [301, 400, 403, 413] {
            assert!(matches!(of(never), Woken::Never(_)));
        }
        let Woken::Yes(answer) = of(200) else {
            panic!("taken");
        };
        assert_eq!(answer.target.as_deref(), Some("https://ntfy.sh"));
    }
}
