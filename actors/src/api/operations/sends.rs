//! The send log: one row an attempt, newest first. What a row does not say (the payload, the whole address) is nowhere to be had.

use super::{moment, time_text};
use crate::api::call::{Answer, Call, to_json};
use crate::api::faults::Faults;
use crate::api::page::{Conditions, Source, list, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Method, Operation};
use crate::api::schema::{input, output};
use crate::postgres::types::Tz;
use futures::future::LocalBoxFuture;
use millrace_schemas::ids;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Row;
use uuid::Uuid;

/// One attempt, or an end without one.
#[derive(Serialize, JsonSchema)]
struct Send {
    /// The delivery.
    #[schemars(extend("x-class" = "open"))]
    delivery_id: String,
    /// `email`, `webhook` and so on.
    #[schemars(extend("x-class" = "open"))]
    channel: String,
    /// Its destination's number.
    #[schemars(extend("x-class" = "open"))]
    destination_no: i32,
    /// When it was over.
    #[schemars(extend("x-class" = "open"))]
    at: Option<String>,
    /// Which attempt, from 1; 0: an end without one.
    #[schemars(extend("x-class" = "open"))]
    attempt: i16,
    /// `delivered`, `retry`, `rejected`, `bounced`, `suppressed`, `cancelled`, `paused` or `unknown`.
    #[schemars(extend("x-class" = "open"))]
    result: String,
    /// An HTTP or SMTP status, a provider's code, or a reason's name.
    #[schemars(extend("x-class" = "open"))]
    code: Option<String>,
    /// How long it took, in milliseconds.
    #[schemars(extend("x-class" = "open"))]
    duration_ms: Option<i32>,
    /// To whom, masked.
    #[schemars(extend("x-class" = "open"))]
    target: Option<String>,
    /// What the receiver said, redacted.
    #[schemars(extend("x-class" = "open"))]
    excerpt: Option<String>,
}

const SOURCE: Source = Source {
    from: "send_log",
    columns: "outbox_id, channel, destination_no, sent_at, attempt, result, code, duration_ms, target, excerpt",
    time: "sent_at",
    id: "outbox_id",
    id_type: "uuid",
    ascending: false,
    windows: true,
};

fn read(row: &Row) -> Result<Value, Problem> {
    to_json(&Send {
        delivery_id: ids::encode(row.try_get::<_, Uuid>("outbox_id")?),
        channel: row.try_get("channel")?,
        destination_no: row.try_get("destination_no")?,
        at: time_text(row.try_get::<_, Option<Tz>>("sent_at")?),
        attempt: row.try_get("attempt")?,
        result: row.try_get("result")?,
        code: row.try_get("code")?,
        duration_ms: row.try_get("duration_ms")?,
        target: row.try_get("target")?,
        excerpt: row.try_get("excerpt")?,
    })
}

/// How an attempt ended.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// It arrived.
    Delivered,
    /// Again later.
    Retry,
    /// Refused for good.
    Rejected,
    /// There is no such mailbox.
    Bounced,
    /// It may not be sent.
    Suppressed,
    /// Called off.
    Cancelled,
    /// Its destination was paused for it.
    Paused,
    /// It may have arrived, and may not be sent twice.
    Unknown,
}

impl Outcome {
    const fn name(self) -> &'static str {
        match self {
            Outcome::Delivered => "delivered",
            Outcome::Retry => "retry",
            Outcome::Rejected => "rejected",
            Outcome::Bounced => "bounced",
            Outcome::Suppressed => "suppressed",
            Outcome::Cancelled => "cancelled",
            Outcome::Paused => "paused",
            Outcome::Unknown => "unknown",
        }
    }
}

/// Narrows the log.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Filter {
    /// Those of one channel.
    channel: Option<String>,
    /// Those that ended so.
    result: Option<Outcome>,
    /// Over at or after, RFC 3339.
    since: Option<String>,
    /// Over before, RFC 3339.
    until: Option<String>,
}

fn list_sends<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: Filter = call.query()?;
        let mut faults = Faults::new();
        let since = moment("since", filter.since.as_deref(), &mut faults);
        let until = moment("until", filter.until.as_deref(), &mut faults);
        if !faults.is_empty() {
            return Err(faults.into());
        }
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_some("channel = $", filter.channel);
        conditions.and_some("result = $", filter.result.map(Outcome::name));
        conditions.and_some("sent_at >= $", since);
        conditions.and_some("sent_at < $", until);
        list(call, SOURCE, conditions, read).await
    })
}

fn list_schema() -> Value {
    list_of(output::<Send>())
}

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    vec![Operation {
        scope: Some("records:read"),
        list: true,
        query: input::<Filter>,
        summary: "The send log: every attempt on every channel, newest first, masked.",
        ..Operation::new(
            "list_sends",
            Method::Get,
            "/v1/sends",
            list_schema,
            list_sends,
        )
    }]
}
