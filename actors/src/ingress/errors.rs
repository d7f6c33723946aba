//! What a door says when it turns a request away: a small JSON body `{code, detail}`; under `/v1` problem+json
//! (spec: access § REST). Never a secret, never more of the input than the parser's own complaint.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use millrace_schemas::ids;
use serde::Serialize;
use std::borrow::Cow;
use uuid::Uuid;

/// Seconds after which a sender may try again when the log is away.
const RETRY_AFTER_SECS: &str = "2";

/// Why a door turned a request away. Nothing of it was accepted, with one exception that says so itself:
/// [`Refusal::never_booked`] answers 400 to a postback that the log has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: StatusCode,
    /// A code for programs; also the metric's `reason`.
    pub code: &'static str,
    /// A sentence for people.
    pub detail: Cow<'static, str>,
}

impl Refusal {
    /// Any refusal.
    pub fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Refusal {
        Refusal {
            status,
            code,
            detail: detail.into(),
        }
    }

    /// 400.
    pub fn bad(code: &'static str, detail: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, code, detail)
    }

    /// 413: the body is larger than the door takes.
    #[must_use]
    pub fn body_too_large(limit: usize) -> Refusal {
        Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            format!("the body has more than {limit} bytes"),
        )
    }

    /// 408: the body did not come in time.
    #[must_use]
    pub fn body_slow() -> Refusal {
        Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            "the body did not come in time",
        )
    }

    /// 400: a NUL character, which no store of text can keep.
    #[must_use]
    pub fn nul() -> Refusal {
        Refusal::bad("nul", "NUL characters are not accepted")
    }

    /// 503: the log did not acknowledge in time, or is away.
    #[must_use]
    pub fn log_away() -> Refusal {
        Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "log_unavailable",
            "the log did not acknowledge; send it again",
        )
    }

    /// 503: configuration is older than doors may use.
    #[must_use]
    pub fn configuration_stale() -> Refusal {
        Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "configuration_stale",
            "the configuration that this door holds is too old",
        )
    }

    /// 503: the disk under the log is nearly full.
    #[must_use]
    pub fn disk_low() -> Refusal {
        Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "disk_low",
            "the disk that holds the log is nearly full",
        )
    }

    /// 400 for a record that the log HAS, kept in the postback log, that can never be booked.
    #[must_use]
    pub fn never_booked(reason: &'static str) -> Refusal {
        Refusal::bad(
            reason,
            "received and kept, but it can never be booked; see code",
        )
    }

    /// As the doors answer: `{code, detail}`.
    #[must_use]
    pub fn response(&self) -> HttpResponse {
        #[derive(Serialize)]
        struct Body<'a> {
            code: &'a str,
            detail: &'a str,
        }
        let body = serde_json::to_vec(&Body {
            code: self.code,
            detail: &self.detail,
        })
        .unwrap_or_default();
        let mut builder = HttpResponse::build(self.status);
        builder
            .insert_header((CONTENT_TYPE, HeaderValue::from_static("application/json")))
            .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            builder.insert_header((RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECS)));
        }
        builder.body(body)
    }

    /// As routes under `/v1` answer: problem+json, with further members. `request_id`: the sender's own, else one is minted.
    #[must_use]
    pub fn problem(
        &self,
        request_id: Option<String>,
        more: serde_json::Map<String, serde_json::Value>,
    ) -> HttpResponse {
        let request_id = request_id.unwrap_or_else(|| {
            let mut random = [0u8; 16];
            // Without randomness it says nothing; the answer is more important than its name.
            let _ = getrandom::fill(&mut random);
            ids::encode(Uuid::from_bytes(random))
        });
        let mut body = serde_json::json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("error"),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
            "errors": [],
            "request_id": request_id,
        });
        if let Some(object) = body.as_object_mut() {
            object.extend(more);
        }
        let mut builder = HttpResponse::build(self.status);
        builder
            .insert_header((
                CONTENT_TYPE,
                HeaderValue::from_static("application/problem+json"),
            ))
            .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")))
            .insert_header(("X-Request-Id", request_id));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            builder.insert_header((RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECS)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            builder.insert_header((
                actix_web::http::header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer"),
            ));
        }
        builder.body(body.to_string())
    }
}

/// The one 404 of the click door: unknown campaign, campaign not active, no active offer; byte for byte the same, so that
/// nobody can tell them apart. On a listener of the doors alone every unmatched path gets it too.
#[must_use]
pub fn bare_not_found() -> HttpResponse {
    HttpResponse::NotFound().finish()
}
