//! Refusals: `application/problem+json` (RFC 9457), with one list of codes.

use super::faults::{ChangeError, Fault, Faults};
use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, CACHE_CONTROL, RETRY_AFTER, WWW_AUTHENTICATE};
use actix_web::{HttpResponse, HttpResponseBuilder};
use serde_json::{Map, Value, json};
use tokio_postgres::error::SqlState;

/// Every code there is: its status, and what it means. It stands in the OpenAPI document.
pub const CODES: &[(&str, u16, &str)] = &[
    (
        "invalid",
        400,
        "The request is not valid; `errors` names every fault",
    ),
    ("not_json", 400, "The body is no JSON"),
    ("body_not_expected", 400, "This operation takes no body"),
    (
        "credential_in_url",
        400,
        "A credential stands in the URL; it belongs in `Authorization`",
    ),
    (
        "cursor_mismatch",
        400,
        "The cursor belongs to another list, filter or workspace",
    ),
    ("header_malformed", 400, "A header cannot be read"),
    (
        "workspace_required",
        400,
        "Say which workspace in `X-Workspace`",
    ),
    (
        "unauthenticated",
        401,
        "No valid credential came with the request",
    ),
    (
        "scope_missing",
        403,
        "The actor lacks the scope named in `scope`",
    ),
    (
        "scope_not_held",
        403,
        "Nobody gives scopes that they do not hold",
    ),
    (
        "workspace_pinned",
        403,
        "The key belongs to another workspace than `X-Workspace` names",
    ),
    (
        "deployment_key",
        403,
        "A key of the deployment sees no workspace's data",
    ),
    ("workspace_archived", 403, "The workspace is archived"),
    (
        "address_refused",
        403,
        "The key may not be used from this address",
    ),
    ("not_found", 404, "There is nothing of that name here"),
    (
        "method_not_allowed",
        405,
        "The path takes other methods; see `Allow`",
    ),
    ("body_timeout", 408, "The body did not come in time"),
    ("conflict", 409, "It collides with what is there"),
    ("id_taken", 409, "The id is taken"),
    ("slug_taken", 409, "The workspace's id is, or was, in use"),
    ("email_taken", 409, "Another user has the address"),
    ("in_use", 409, "Something still refers to it"),
    (
        "too_many_keys",
        409,
        "There are as many live keys as there may be",
    ),
    ("key_revoked", 409, "The key is revoked or has expired"),
    (
        "sealing_unconfigured",
        409,
        "MILLRACE_SECRET_KEY is not set, so that no secret can be kept",
    ),
    (
        "being_sent",
        409,
        "The message is being sent; its end is known in a moment",
    ),
    (
        "delivery_ended",
        409,
        "The message has ended; there is nothing to cancel",
    ),
    (
        "not_releasable",
        409,
        "Only what failed, was cancelled or is unknown can be released",
    ),
    (
        "may_repeat_required",
        409,
        "It may have arrived, and its receiver cannot tell a second one: say `may_repeat`",
    ),
    (
        "idempotency_conflict",
        409,
        "The idempotency key was used for another body",
    ),
    (
        "idempotency_in_progress",
        409,
        "A request with this idempotency key is still running",
    ),
    (
        "version_stale",
        412,
        "It was changed since; `current` says how it stands",
    ),
    ("body_too_large", 413, "The body is larger than 1 MiB"),
    (
        "media_type",
        415,
        "The body's type is not one that is read here",
    ),
    (
        "if_match_required",
        428,
        "The operation needs `If-Match` with the version it replaces",
    ),
    (
        "internal",
        500,
        "Something went wrong here; the request id finds it in the log",
    ),
    ("unavailable", 503, "The store does not answer now"),
];

struct Inner {
    code: &'static str,
    detail: String,
    errors: Vec<Fault>,
    more: Map<String, Value>,
    headers: Vec<(actix_web::http::header::HeaderName, String)>,
}

/// A refusal.
pub struct Problem(Box<Inner>);

impl std::fmt::Debug for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.0.code, self.0.detail)
    }
}

impl Problem {
    /// A refusal with one of [`CODES`].
    #[must_use]
    pub fn new(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem(Box::new(Inner {
            code,
            detail: detail.into(),
            errors: Vec::new(),
            more: Map::new(),
            headers: Vec::new(),
        }))
    }

    /// A body, query or header with faults, all of them.
    #[must_use]
    pub fn invalid(errors: Vec<Fault>) -> Problem {
        let mut problem = Problem::new(
            "invalid",
            format!(
                "{} fault{}, the first: {}",
                errors.len(),
                if errors.len() == 1 { "" } else { "s" },
                errors.first().map_or("", |f| f.message.as_str())
            ),
        );
        problem.0.errors = errors;
        problem
    }

    /// Nothing of that id in this workspace; whether another has it is never said.
    #[must_use]
    pub fn not_found() -> Problem {
        Problem::new("not_found", "there is nothing of that name here")
    }

    /// The scope that is missing.
    #[must_use]
    pub fn scope(scope: &str) -> Problem {
        Problem::new("scope_missing", format!("this needs the scope `{scope}`"))
            .with("scope", json!(scope))
    }

    /// Another member of the answer.
    #[must_use]
    pub fn with(mut self, name: &str, value: Value) -> Problem {
        self.0.more.insert(name.to_owned(), value);
        self
    }

    /// The methods that the path takes.
    #[must_use]
    pub fn method_not_allowed(allow: &str) -> Problem {
        let mut problem = Problem::new("method_not_allowed", format!("this path takes {allow}"));
        problem.0.headers.push((ALLOW, allow.to_owned()));
        problem
    }

    /// The store is away.
    #[must_use]
    pub fn unavailable() -> Problem {
        let mut problem = Problem::new("unavailable", "the store does not answer now; try again");
        problem.0.headers.push((RETRY_AFTER, "1".to_owned()));
        problem
    }

    /// Its code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    fn row(&self) -> (u16, &'static str) {
        CODES
            .iter()
            .find(|(code, _, _)| *code == self.0.code)
            .map_or((500, "Something went wrong here"), |(_, status, title)| {
                (*status, title)
            })
    }

    /// The answer.
    #[must_use]
    pub fn respond(&self, request_id: &str) -> HttpResponse {
        let (status, title) = self.row();
        let mut body = self.0.more.clone();
        for (name, value) in [
            (
                "type",
                json!(format!("urn:millrace:problem:{}", self.0.code)),
            ),
            ("title", json!(title)),
            ("status", json!(status)),
            ("detail", json!(self.0.detail)),
            ("code", json!(self.0.code)),
            ("errors", json!(self.0.errors)),
            ("request_id", json!(request_id)),
        ] {
            body.insert(name.to_owned(), value);
        }
        let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer: HttpResponseBuilder = HttpResponse::build(code);
        answer
            .content_type("application/problem+json")
            .insert_header(("X-Request-Id", request_id))
            .insert_header((CACHE_CONTROL, "no-store"));
        if code == StatusCode::UNAUTHORIZED {
            answer.insert_header((WWW_AUTHENTICATE, "Bearer"));
        }
        for (name, value) in &self.0.headers {
            answer.insert_header((name.clone(), value.as_str()));
        }
        answer.body(Value::Object(body).to_string())
    }
}

impl From<Faults> for Problem {
    fn from(faults: Faults) -> Problem {
        Problem::invalid(faults.into_vec())
    }
}

impl From<tokio_postgres::Error> for Problem {
    fn from(e: tokio_postgres::Error) -> Problem {
        let Some(code) = e.code() else {
            tracing::warn!(error = %e, "the store did not answer an operation");
            return Problem::unavailable();
        };
        if *code == SqlState::UNIQUE_VIOLATION || *code == SqlState::FOREIGN_KEY_VIOLATION {
            return Problem::new("conflict", "it collides with what is there; read it again");
        }
        match code.code().get(..2) {
            // Connection, rollback, resources, intervention: worth another try.
            Some("08" | "40" | "53" | "55" | "57") => {
                let error = crate::runtime::session::describe(&e);
                tracing::warn!(%error, "the store could not serve an operation");
                Problem::unavailable()
            }
            _ => {
                // Without its detail, which quotes values: an address may be among them.
                let error = crate::runtime::session::describe(&e);
                tracing::error!(%error, "the store refused an operation");
                Problem::new("internal", "something went wrong here")
            }
        }
    }
}

impl From<ChangeError> for Problem {
    fn from(e: ChangeError) -> Problem {
        match e {
            ChangeError::Invalid(faults) => Problem::invalid(faults),
            ChangeError::NotFound => Problem::not_found(),
            ChangeError::NotHeld(lacking) => Problem::new(
                "scope_not_held",
                format!("the actor does not hold {}", lacking.join(", ")),
            )
            .with("scope", json!(lacking)),
            ChangeError::Conflict { code, message } => Problem::new(code, message),
            ChangeError::Store(e) => e.into(),
            ChangeError::Random(e) => {
                tracing::error!(error = %e, "no random bytes");
                Problem::new("internal", "something went wrong here")
            }
            ChangeError::Seal(crate::sealing::SealError::Unconfigured) => Problem::new(
                "sealing_unconfigured",
                "MILLRACE_SECRET_KEY is not set, so that the secret cannot be kept",
            ),
            ChangeError::Seal(e) => {
                tracing::error!(error = %e, "a secret could not be sealed");
                Problem::new("internal", "a secret could not be sealed")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique() {
        let mut codes: Vec<_> = CODES.iter().map(|c| c.0).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), CODES.len());
    }
}
