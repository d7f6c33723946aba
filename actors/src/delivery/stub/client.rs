//! How a message is sent, and what each answer means where a message must not be sent twice.

use crate::delivery::address_guard::AddressGuard;
use crate::delivery::channel::{Answer, Leased, Sent, Verdict};
use crate::delivery::outbound::{self, ClientError, ClientOptions, NoReply, Reply};
use crate::runtime::clock::SharedClock;
use bytes::Bytes;
use millrace_schemas::ids;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;
use url::Url;

/// The header that names the message: the same through all its attempts.
pub const MESSAGE_ID: &str = "x-millrace-message";

/// What requests go through.
pub(super) struct Connection {
    client: reqwest::Client,
    guard: AddressGuard,
    clock: SharedClock,
}

impl Connection {
    pub(super) fn new(
        timeout: Duration,
        guard: AddressGuard,
        clock: SharedClock,
    ) -> Result<Connection, ClientError> {
        let options = ClientOptions {
            timeout,
            connect_timeout: timeout.min(Duration::from_secs(5)),
            // A fresh connection each time: then a failure to connect surely means that nothing was sent.
            idle_connections: 0,
        };
        Ok(Connection {
            client: outbound::client(options, &guard)?,
            guard,
            clock,
        })
    }
}

/// Sends each message in a request of its own.
pub(super) async fn send(connection: &Connection, url: &Url, messages: Vec<Leased>) -> Sent {
    let mut sent = Sent {
        answers: Vec::with_capacity(messages.len()),
        dead: false,
    };
    for message in messages {
        let mut headers = HeaderMap::with_capacity(2);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Ok(id) = HeaderValue::try_from(ids::encode(message.id)) {
            headers.insert(HeaderName::from_static(MESSAGE_ID), id);
        }
        let outcome = outbound::post(
            &connection.client,
            &connection.guard,
            url,
            headers,
            Bytes::from(message.payload),
            connection.clock.wall().millis().div_euclid(1_000),
        )
        .await;
        sent.dead |= is_dead(&outcome);
        sent.answers.push(judge(outcome, url));
    }
    sent
}

fn is_dead(outcome: &Result<Reply, NoReply>) -> bool {
    outcome.as_ref().map_or(true, |reply| reply.status >= 500)
}

/// What an outcome means. Only what surely never left is tried again. A refusal (3xx, 4xx) is an end; a fault of the receiver's
/// (5xx, often of a gateway before it) does not say whether the message was taken.
fn judge(outcome: Result<Reply, NoReply>, url: &Url) -> Answer {
    let verdict = match &outcome {
        Ok(reply) => match reply.status {
            200..=299 => Verdict::Delivered,
            500.. => Verdict::RetryAt {
                after: None,
                unsure: true,
            },
            _ => Verdict::Rejected,
        },
        Err(none) => Verdict::RetryAt {
            after: None,
            unsure: none.unsure,
        },
    };
    outbound::tell(verdict, outcome, url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_never_left_is_tried_again() {
        let reply = |status| {
            Ok(Reply {
                status,
                retry_after: Some(Duration::from_secs(7)),
                excerpt: None,
            })
        };
        let url = Url::parse("http://u:p@h:81/secret?x").expect("a URL");
        let again = |unsure| Verdict::RetryAt {
            after: None,
            unsure,
        };
        for (status, verdict) in [
            (200, Verdict::Delivered),
            (299, Verdict::Delivered),
            (302, Verdict::Rejected),
            (400, Verdict::Rejected),
            (429, Verdict::Rejected),
            (500, again(true)),
            (504, again(true)),
        ] {
            assert_eq!(judge(reply(status), &url).verdict, verdict, "{status}");
            assert_eq!(is_dead(&reply(status)), status >= 500);
        }
        for (code, unsure) in [("no_connection", false), ("timeout", true)] {
            let none = Err(NoReply {
                code,
                unsure,
                reason: "said".to_owned(),
            });
            assert!(is_dead(&none));
            let answer = judge(none, &url);
            assert_eq!(answer.verdict, again(unsure));
            assert_eq!(
                (&*answer.code, answer.excerpt.as_deref()),
                (code, Some("said"))
            );
            assert_eq!(answer.target.as_deref(), Some("http://h:81"));
        }
    }
}
