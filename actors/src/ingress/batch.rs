//! `POST /v1/batch/{visits,clicks,postbacks}`: NDJSON for servers that already track; an API key with `ingest:write`.
//!
//! A line that is no JSON at all refuses the whole batch (400 with its number), and nothing is produced. A line that is JSON
//! and wrong is answered by itself. Everything else is produced at once and its acknowledgements awaited together; the
//! answer says of each line `accepted` with its ids, `refused` or `unavailable` with the reason. Ids are derived, never
//! minted, so that a retry of a batch ends in duplicates.

mod lines;
mod members;

use super::body;
use super::errors::Refusal;
use super::keys::{INGEST_SCOPE, KeyError};
use super::state::{Door, SLOWEST_BATCH, acknowledged};
use crate::api::request::request_id;
use crate::runtime::failpoint;
use actix_web::http::StatusCode;
use actix_web::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING};
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use lines::{Context, Ready};
use millrace_topics::contract::Acknowledgement;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::cell::Cell;
use std::rc::Rc;
use uuid::Uuid;

/// Lines of one batch at most: each costs an answer.
const MAX_LINES: usize = 50_000;

/// Which stream a batch is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// `/v1/batch/visits`
    Visits,
    /// `/v1/batch/clicks`
    Clicks,
    /// `/v1/batch/postbacks`
    Postbacks,
}

/// What is said of one line.
#[derive(Serialize)]
struct LineAnswer {
    /// Its number, from 1; blank lines count.
    line: usize,
    /// Its `id`, where it could be read.
    id: Option<String>,
    /// `accepted`, `refused`, `unavailable`.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    click_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    visit_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<LineError>,
}

#[derive(Serialize)]
struct LineError {
    code: &'static str,
    message: String,
}

impl LineAnswer {
    fn refused(line: usize, id: Option<String>, refusal: &Refusal) -> LineAnswer {
        LineAnswer {
            line,
            id,
            status: if refusal.status == StatusCode::SERVICE_UNAVAILABLE {
                "unavailable"
            } else {
                "refused"
            },
            click_id: None,
            visit_id: None,
            error: Some(LineError {
                code: refusal.code,
                message: refusal.detail.to_string(),
            }),
        }
    }
}

/// A refusal of the whole batch, with members beside the usual ones.
struct Whole(Refusal, Map<String, Value>);

impl From<Refusal> for Whole {
    fn from(refusal: Refusal) -> Whole {
        Whole(refusal, Map::new())
    }
}

/// Takes a batch.
pub(super) async fn post(
    door: Rc<Door>,
    stream: Stream,
    request: HttpRequest,
    mut payload: Payload,
) -> HttpResponse {
    let body_read = Cell::new(false);
    door.serve(&body_read, SLOWEST_BATCH, async {
        Ok(
            match take(&door, stream, &request, &mut payload, &body_read).await {
                Ok(response) => response,
                Err(Whole(refusal, more)) => {
                    // With lines in it, they have been counted one by one.
                    if !more.contains_key("lines") {
                        door.counts.refused(refusal.code, 1);
                    }
                    refusal.problem(request_id(request.headers()), more)
                }
            },
        )
    })
    .await
}

async fn take(
    door: &Door,
    stream: Stream,
    request: &HttpRequest,
    payload: &mut Payload,
    body_read: &Cell<bool>,
) -> Result<HttpResponse, Whole> {
    let workspace = authorise(door, request).await?;
    if let Some(name) = request.query_string().split(['=', '&']).next()
        && !name.is_empty()
    {
        return Err(Refusal::bad("unknown_parameter", "batch doors take no query").into());
    }
    if request
        .headers()
        .get(CONTENT_ENCODING)
        .is_some_and(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "media_type",
            "send the body without content encoding",
        )
        .into());
    }
    let body = body::read(payload, door.shared.setup.http.max_batch_body).await?;
    body_read.set(true);
    let raw = split(&body)?;
    let (mut answers, waiting) = produce(door, stream, workspace, &raw)?;
    let mut accepted = 0u64;
    let mut unavailable = 0usize;
    let started = door.counts.start();
    for (at, acknowledgement) in waiting {
        let verdict = match tokio::time::timeout(
            door.shared
                .setup
                .ack_timeout
                .saturating_add(std::time::Duration::from_secs(1)),
            acknowledgement,
        )
        .await
        {
            Ok(answer) => acknowledged(answer),
            Err(_) => Err(Refusal::log_away()),
        };
        match verdict {
            Ok(()) => accepted += 1,
            Err(refusal) => {
                if refusal.status == StatusCode::SERVICE_UNAVAILABLE {
                    unavailable += 1;
                }
                if let Some(answer) = answers.get_mut(at) {
                    *answer = LineAnswer::refused(answer.line, answer.id.take(), &refusal);
                }
            }
        }
    }
    door.counts.end(started);
    door.counts.accepted(accepted);
    if failpoint::hit("batch_door.produced") {
        return Err(Refusal::log_away().into());
    }
    for answer in &answers {
        if let Some(error) = &answer.error {
            door.counts.refused(error.code, 1);
        }
    }
    answer(accepted, unavailable, &answers)
}

/// The whole answer: 200 if anything was accepted (or nothing was sent), 503 if the log took none of what was fit for it, 400
/// if no line was.
fn answer(
    accepted: u64,
    unavailable: usize,
    answers: &[LineAnswer],
) -> Result<HttpResponse, Whole> {
    let refused = answers
        .len()
        .saturating_sub(usize::try_from(accepted).unwrap_or(usize::MAX));
    let lines = serde_json::to_value(answers).unwrap_or_default();
    if accepted > 0 || answers.is_empty() {
        let body = json!({"accepted": accepted, "refused": refused, "lines": lines});
        return Ok(HttpResponse::Ok()
            .insert_header((CACHE_CONTROL, "no-store"))
            .content_type("application/json")
            .body(body.to_string()));
    }
    let refusal = if unavailable > 0 {
        Refusal::log_away()
    } else {
        Refusal::bad("no_valid_line", "no line of the batch is valid")
    };
    let more = [
        ("accepted".to_owned(), json!(0)),
        ("refused".to_owned(), json!(refused)),
        ("lines".to_owned(), lines),
    ];
    Err(Whole(refusal, more.into_iter().collect()))
}

/// The workspace that the bearer may write into.
async fn authorise(door: &Door, request: &HttpRequest) -> Result<i32, Whole> {
    let unauthenticated = || {
        Refusal::new(
            StatusCode::UNAUTHORIZED,
            "unauthenticated",
            "a valid API key is needed",
        )
    };
    let forbidden = |code: &'static str, detail: &'static str| {
        Refusal::new(StatusCode::FORBIDDEN, code, detail)
    };
    let bearer = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| {
            let (scheme, token) = v.split_once(' ')?;
            scheme
                .eq_ignore_ascii_case("bearer")
                .then_some(token.trim())
        })
        .filter(|t| !t.is_empty())
        .ok_or_else(unauthenticated)?;
    let client = door.shared.trusted.client_of(request);
    let holder = match door.shared.keys.resolve(bearer, client).await {
        Ok(holder) => holder,
        Err(KeyError::Unauthenticated) => return Err(unauthenticated().into()),
        Err(KeyError::AddressRefused) => {
            return Err(forbidden(
                "address_refused",
                "the key may not be used from this address",
            )
            .into());
        }
        Err(KeyError::WorkspaceArchived) => {
            return Err(forbidden("workspace_archived", "the workspace is archived").into());
        }
        Err(KeyError::Unavailable) => {
            return Err(Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "keys_unavailable",
                "the key cannot be checked now; try again",
            )
            .into());
        }
    };
    if !holder.may_ingest {
        let more = [("scope".to_owned(), json!(INGEST_SCOPE))];
        return Err(Whole(
            forbidden("scope_missing", "the key lacks the scope ingest:write"),
            more.into_iter().collect(),
        ));
    }
    let Some(workspace) = holder.workspace else {
        return Err(forbidden(
            "deployment_key",
            "a key of the deployment feeds no workspace",
        )
        .into());
    };
    let open = door.open()?;
    let slug = open
        .as_ref()
        .and_then(|s| s.workspaces.get(&workspace))
        .map(|w| w.slug.as_bytes())
        .ok_or_else(|| forbidden("workspace_archived", "the workspace is archived"))?;
    if request
        .headers()
        .get("x-workspace")
        .is_some_and(|v| v.as_bytes() != slug)
    {
        return Err(forbidden("workspace_pinned", "the key is pinned to another workspace").into());
    }
    Ok(workspace)
}

/// The lines that are not blank, with their numbers; every one of them is JSON.
fn split(body: &Bytes) -> Result<Vec<(usize, &[u8])>, Whole> {
    let mut out = Vec::new();
    for (index, line) in body.split(|b| *b == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let number = index + 1;
        let read = std::str::from_utf8(line)
            .map_err(|e| e.to_string())
            .and_then(|text| {
                serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|e| e.to_string())
            });
        if let Err(error) = read {
            let refusal = Refusal::bad("not_json", format!("line {number} is not JSON: {error}"));
            let errors =
                json!([{"path": format!("line {number}"), "code": "not_json", "message": error}]);
            let more = [
                ("line".to_owned(), json!(number)),
                ("errors".to_owned(), errors),
            ];
            return Err(Whole(refusal, more.into_iter().collect()));
        }
        if out.len() == MAX_LINES {
            return Err(Refusal::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_many_lines",
                format!("a batch has at most {MAX_LINES} lines"),
            )
            .into());
        }
        out.push((number, line));
    }
    Ok(out)
}

type Produced = (Vec<LineAnswer>, Vec<(usize, Acknowledgement)>);

/// Reads every line and hands over what is fit, in order; answers by line and what is to be awaited (by the index of its
/// answer).
fn produce(
    door: &Door,
    stream: Stream,
    workspace: i32,
    raw: &[(usize, &[u8])],
) -> Result<Produced, Whole> {
    if failpoint::hit("batch_door.before_produce") {
        return Err(Refusal::log_away().into());
    }
    let open = door.open()?;
    let Some(snapshot) = open.as_ref() else {
        return Err(Refusal::configuration_stale().into());
    };
    let context = Context {
        workspace,
        snapshot,
        now: door.now(),
    };
    let topic = match stream {
        Stream::Visits | Stream::Clicks => door.clicks(),
        Stream::Postbacks => door.postbacks(),
    };
    let mut answers = Vec::with_capacity(raw.len());
    let mut waiting = Vec::with_capacity(raw.len());
    for (number, line) in raw {
        let read = match stream {
            Stream::Visits => context.visit(line),
            Stream::Clicks => context.click(line),
            Stream::Postbacks => context.postback(line),
        };
        match read {
            Ok(Ready {
                id,
                click_id,
                visit_id,
                key,
                payload,
            }) => {
                waiting.push((answers.len(), door.produce(topic, key.into(), payload)));
                answers.push(LineAnswer {
                    line: *number,
                    id: Some(id),
                    status: "accepted",
                    click_id: Some(click_id),
                    visit_id,
                    error: None,
                });
            }
            Err((id, refusal)) => answers.push(LineAnswer::refused(*number, id, &refusal)),
        }
    }
    Ok((answers, waiting))
}
