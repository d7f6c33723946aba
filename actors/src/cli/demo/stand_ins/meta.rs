//! The stand-in for Meta's Conversions API, as far as the demo needs it: it knows one dataset by its token, refuses a request with
//! an event older than seven days, knows an event again by dataset, name and id, and counts. Its first requests go wrong.

use super::Reply;
use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The demo's dataset. Its leading zeros matter.
pub const DATASET: &str = "0004200420042";
/// What it is opened with.
pub const TOKEN: &str = "the-demo-s-access-token";

const SEVEN_DAYS: i64 = 7 * 86_400;

/// How the first requests go wrong, one each.
const TROUBLE: [Trouble; 4] = [
    Trouble::Down,
    Trouble::Busy,
    Trouble::Error,
    Trouble::AnswerLost,
];

#[derive(Clone, Copy)]
enum Trouble {
    /// 503, nothing taken.
    Down,
    /// 429, to be tried again after a second; nothing taken.
    Busy,
    /// Meta's own error 2, "service temporarily unavailable"; nothing taken.
    Error,
    /// Taken, and the answer says 500: they come again, under their ids.
    AnswerLost,
}

/// What it counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaCounts {
    /// Requests.
    pub requests: u64,
    /// Requests of which nothing was taken.
    pub refused: u64,
    /// Events of all requests.
    pub arrivals: u64,
    /// Events that were not known before.
    pub unique: u64,
    /// Events that were.
    pub again: u64,
    /// What the unique ones were worth together.
    pub value: Decimal,
}

/// The stand-in.
#[derive(Default)]
pub struct Meta {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    counts: MetaCounts,
    known: HashSet<(String, String)>,
}

#[derive(Deserialize)]
struct Body<'a> {
    access_token: String,
    #[serde(borrow)]
    data: Vec<Event<'a>>,
}

#[derive(Deserialize)]
struct Event<'a> {
    event_name: String,
    event_id: String,
    event_time: i64,
    #[serde(borrow, default)]
    custom_data: CustomData<'a>,
}

#[derive(Default, Deserialize)]
struct CustomData<'a> {
    #[serde(borrow)]
    value: Option<&'a RawValue>,
}

impl Event<'_> {
    fn value(&self) -> Decimal {
        let text = self.custom_data.value.map(RawValue::get);
        text.and_then(|t| t.parse().ok()).unwrap_or_default()
    }
}

impl Meta {
    /// What it counted so far.
    #[must_use]
    pub fn counts(&self) -> MetaCounts {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.counts.clone()
    }

    /// Takes one request: `POST /<version>/<dataset>/events`.
    #[must_use]
    pub fn take(&self, path: &str, body: &[u8], now_secs: i64) -> Reply {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let nth = usize::try_from(state.counts.requests).unwrap_or(usize::MAX);
        state.counts.requests += 1;
        let body: Body<'_> = match serde_json::from_slice(body) {
            Ok(body) => body,
            Err(error) => return state.refuse(error_of(100, None, &error.to_string())),
        };
        state.counts.arrivals += u64::try_from(body.data.len()).unwrap_or(0);
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let &[_version, dataset, "events"] = segments.as_slice() else {
            return state.refuse(error_of(2500, None, "Unknown path components"));
        };
        if body.access_token != TOKEN {
            return state.refuse(error_of(190, None, "Invalid OAuth access token"));
        }
        if dataset != DATASET {
            return state.refuse(error_of(100, Some(33), "Object does not exist"));
        }
        let trouble = TROUBLE.get(nth).copied();
        match trouble {
            Some(Trouble::Down) => return state.refuse(Reply::new(503, json!({}))),
            Some(Trouble::Busy) => {
                return state.refuse(Reply {
                    retry_after: Some(1),
                    ..error_of(4, None, "Application request limit reached").with_status(429)
                });
            }
            Some(Trouble::Error) => {
                return state.refuse(error_of(2, None, "Service temporarily unavailable"));
            }
            Some(Trouble::AnswerLost) | None => {}
        }
        if body
            .data
            .iter()
            .any(|e| e.event_time < now_secs - SEVEN_DAYS)
        {
            return state.refuse(error_of(100, Some(2_804_003), "Event Timestamp Too Old"));
        }
        for event in &body.data {
            let key = (event.event_name.clone(), event.event_id.clone());
            if state.known.insert(key) {
                state.counts.unique += 1;
                state.counts.value += event.value();
            } else {
                state.counts.again += 1;
            }
        }
        match trouble {
            Some(_) => Reply::new(500, json!({})),
            None => Reply::new(
                200,
                json!({"events_received": body.data.len(), "messages": [], "fbtrace_id": "demo"}),
            ),
        }
    }
}

impl State {
    fn refuse(&mut self, reply: Reply) -> Reply {
        self.counts.refused += 1;
        reply
    }
}

impl Reply {
    fn with_status(self, status: u16) -> Reply {
        Reply { status, ..self }
    }
}

fn error_of(code: u32, subcode: Option<u32>, message: &str) -> Reply {
    let error = json!({"message": message, "code": code, "error_subcode": subcode});
    Reply::new(400, json!({"error": error}))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_770_000_000;

    fn body(token: &str, events: &[(&str, i64, &str)]) -> Vec<u8> {
        let data: Vec<_> = events
            .iter()
            .map(|(id, at, value)| {
                let value: serde_json::Value = serde_json::from_str(value).expect("a number");
                json!({"event_name": "Purchase", "event_id": id, "event_time": at,
                       "custom_data": {"value": value, "currency": "USD"}})
            })
            .collect();
        json!({"data": data, "access_token": token})
            .to_string()
            .into_bytes()
    }

    #[test]
    fn it_stumbles_and_then_knows_every_event_once() {
        let meta = Meta::default();
        let path = format!("/v24.0/{DATASET}/events");
        let two = body(TOKEN, &[("a", NOW, "12.5"), ("b", NOW, "0.25")]);
        let statuses: Vec<u16> = (0..5).map(|_| meta.take(&path, &two, NOW).status).collect();
        assert_eq!(statuses, [503, 429, 400, 500, 200]);
        let counts = meta.counts();
        assert_eq!(
            (counts.requests, counts.refused, counts.arrivals),
            (5, 3, 10)
        );
        assert_eq!((counts.unique, counts.again), (2, 2));
        assert_eq!(counts.value, Decimal::new(1_275, 2));

        let received = meta.take(&path, &two, NOW);
        assert_eq!(received.body["events_received"], 2);
        let code = |reply: Reply| reply.body["error"]["code"].as_u64();
        assert_eq!(
            code(meta.take(&path, &body("another", &[]), NOW)),
            Some(190)
        );
        assert_eq!(code(meta.take("/v24.0/1/events", &two, NOW)), Some(100));
        assert_eq!(code(meta.take("/v24.0", &two, NOW)), Some(2500));
        let old = body(TOKEN, &[("c", NOW - SEVEN_DAYS - 1, "1")]);
        assert_eq!(code(meta.take(&path, &old, NOW)), Some(100));
        assert_eq!(meta.counts().unique, 2);
    }
}
