//! How a message is signed and sent, and what each answer means.

use super::settings::{Endpoint, Webhook};
use super::signature;
use crate::delivery::address_guard::AddressGuard;
use crate::delivery::channel::{Answer, Leased, Sent, Verdict};
use crate::delivery::outbound::{self, ClientError, ClientOptions, NoReply, Reply};
use crate::runtime::clock::SharedClock;
use bytes::Bytes;
use millrace_schemas::ids;
use millrace_schemas::time::Micros;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;
use url::Url;

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const BODY_SIGNATURE: HeaderName = HeaderName::from_static("x-millrace-signature");

/// The code of an endpoint that is gone for good.
pub(super) const GONE: &str = "gone";

/// What requests go through: one client with its pool of warm connections for all endpoints.
pub(super) struct Connection {
    client: reqwest::Client,
    guard: AddressGuard,
    pub(super) clock: SharedClock,
}

impl Connection {
    pub(super) fn new(
        settings: &Webhook,
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
            clock,
        })
    }

    /// Sends each message in a request of its own.
    pub(super) async fn send(&self, endpoint: &Endpoint, messages: Vec<Leased>) -> Sent {
        let mut sent = Sent {
            answers: Vec::with_capacity(messages.len()),
            dead: false,
        };
        for message in messages {
            let outcome = self.exchange(endpoint, message).await;
            sent.dead |= is_dead(&outcome);
            sent.answers.push(judge(outcome, &endpoint.url));
        }
        sent
    }

    async fn exchange(&self, endpoint: &Endpoint, message: Leased) -> Result<Reply, NoReply> {
        let wall = self.clock.wall();
        let seconds = wall.millis().div_euclid(1_000);
        let headers = headers(endpoint, &message, seconds, wall).ok_or_else(|| NoReply {
            code: "not_sent",
            unsure: false,
            reason: "the signature fits in no header".to_owned(),
        })?;
        outbound::post(
            &self.client,
            &self.guard,
            &endpoint.url,
            headers,
            Bytes::from(message.payload),
            seconds,
        )
        .await
    }
}

/// The id under which a receiver knows a message: the same through all its attempts.
#[must_use]
fn id_of(message: &Leased) -> String {
    format!("msg_{}", ids::encode(message.id))
}

fn headers(endpoint: &Endpoint, message: &Leased, seconds: i64, wall: Micros) -> Option<HeaderMap> {
    let (id, timestamp) = (id_of(message), seconds.to_string());
    let body = message.payload.as_bytes();
    let previous = endpoint.previous_at(wall);
    let signed = signature::header(&endpoint.secret, previous, &id, &timestamp, body);
    let mut headers = HeaderMap::with_capacity(5);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(SIGNATURE, HeaderValue::try_from(signed).ok()?);
    headers.insert(
        BODY_SIGNATURE,
        HeaderValue::try_from(endpoint.secret.sign_body(body)).ok()?,
    );
    headers.insert(ID, HeaderValue::try_from(id).ok()?);
    headers.insert(TIMESTAMP, HeaderValue::try_from(timestamp).ok()?);
    Some(headers)
}

fn is_dead(outcome: &Result<Reply, NoReply>) -> bool {
    outcome.as_ref().map_or(true, |reply| reply.status >= 500)
}

/// What an outcome means: 2xx is success, 410 is the end of the endpoint, everything else (a redirect too: it is not followed)
/// is tried again by the schedule.
#[must_use]
pub fn judge(outcome: Result<Reply, NoReply>, url: &Url) -> Answer {
    let again = |after, unsure| Verdict::RetryAt { after, unsure };
    let (verdict, code) = match &outcome {
        Ok(reply) if reply.is_success() => (Verdict::Delivered, None),
        Ok(Reply { status: 410, .. }) => (Verdict::Cancelled, Some(GONE)),
        Ok(reply) if matches!(reply.status, 429 | 503) => (again(reply.retry_after, false), None),
        Ok(_) => (again(None, false), None),
        Err(none) => (again(None, none.unsure), None),
    };
    let mut answer = outbound::tell(verdict, outcome, url);
    if let Some(code) = code {
        answer.code = code.into();
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_answer_means() {
        let url = Url::parse("https://hooks.example.com/T0/secret").expect("a URL");
        let asked = Some(Duration::from_secs(7));
        let judged = |status| {
            let reply = Reply {
                status,
                retry_after: asked,
                excerpt: Some("said".to_owned()),
            };
            assert_eq!(is_dead(&Ok(reply.clone())), status >= 500);
            judge(Ok(reply), &url)
        };
        let again = |after, unsure| Verdict::RetryAt { after, unsure };
        for (status, verdict, code) in [
            (200, Verdict::Delivered, "200"),
            (204, Verdict::Delivered, "204"),
            (301, again(None, false), "301"),
            (400, again(None, false), "400"),
            (404, again(None, false), "404"),
            (410, Verdict::Cancelled, "gone"),
            (429, again(asked, false), "429"),
            (500, again(None, false), "500"),
            (503, again(asked, false), "503"),
        ] {
            let answer = judged(status);
            assert_eq!((answer.verdict, &*answer.code), (verdict, code));
            assert_eq!(answer.excerpt.as_deref(), Some("said"));
            assert_eq!(answer.target.as_deref(), Some("https://hooks.example.com"));
        }
        let none = NoReply {
            code: "timeout",
            unsure: true,
            reason: "late".to_owned(),
        };
        assert_eq!(judge(Err(none), &url).verdict, again(None, true));
    }
}
