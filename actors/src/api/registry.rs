//! The one registry of operations. Routes, the OpenAPI document and later tools and audit names come from it; nothing is
//! mounted beside it (clippy refuses actix's own route functions outside `mounter`).

use super::call::{Answer, Call};
use super::operations;
use super::problem::Problem;
use super::schema::Checked;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::sync::LazyLock;

/// An HTTP method of an operation. GETs answer HEAD too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Reads.
    Get,
    /// Makes, or acts.
    Post,
    /// Replaces.
    Put,
    /// Merges.
    Patch,
    /// Takes away.
    Delete,
}

impl Method {
    /// As in a request line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }
}

/// What an operation does to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it runs in a read-only transaction.
    Read,
    /// Changes rows.
    Write,
    /// Deletes, discards, purges, revokes.
    Destructive,
    /// Reaches outside.
    External,
}

impl Effect {
    /// As in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Effect::Read => "read",
            Effect::Write => "write",
            Effect::Destructive => "destructive",
            Effect::External => "external",
        }
    }
}

/// Why something has no tool: a closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExemptReason {
    /// Login, factors, passwords, sessions, consent.
    HumanOnly,
    /// Doors.
    DataPlane,
    /// Spend, batch, feed.
    MachineOnly,
    /// OAuth, health.
    Protocol,
    /// A page or document.
    Page,
}

impl ExemptReason {
    /// As in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ExemptReason::HumanOnly => "human_only",
            ExemptReason::DataPlane => "data_plane",
            ExemptReason::MachineOnly => "machine_only",
            ExemptReason::Protocol => "protocol",
            ExemptReason::Page => "page",
        }
    }
}

/// Whether an operation is a tool too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// It is, under its id.
    Offered,
    /// It is not.
    Exempt(ExemptReason),
}

/// Whose data it works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One workspace's.
    Workspace,
    /// The deployment's.
    Deployment,
    /// The actor itself, wherever it belongs.
    Actor,
}

/// What becomes of `If-Match`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing.
    None,
    /// Honoured if sent.
    Honoured,
    /// Must be sent (428).
    Required,
}

/// A parameter within a path.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its name, as in the path's braces.
    pub name: &'static str,
    /// What it names.
    pub summary: &'static str,
}

/// How a handler looks.
pub type Handler = for<'a> fn(&'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>>;

/// An operation. Build one from [`Operation::new`] and say what differs.
pub struct Operation {
    /// `verb_noun`, unique, never changed: also the tool's name, the audit's, and the one of `millrace call`.
    pub id: &'static str,
    /// The method.
    pub method: Method,
    /// The path, parameters in braces.
    pub path: &'static str,
    /// The scope it needs; none: any actor.
    pub scope: Option<&'static str>,
    /// What it does.
    pub effect: Effect,
    /// Whether a user must have authenticated within the last ten minutes. Keys need not.
    pub step_up: bool,
    /// One sentence for people and models.
    pub summary: &'static str,
    /// Whether it is a tool.
    pub tool: Tool,
    /// Whose data.
    pub place: Place,
    /// What becomes of `If-Match`.
    pub precondition: Precondition,
    /// Parameters of the path.
    pub params: &'static [Param],
    /// Whether it is a list: takes `limit`, `cursor`, `count`, answers `items`, `next_cursor`, `count`.
    pub list: bool,
    /// Whether it is there to show a secret.
    pub reveals: bool,
    /// The status of its success.
    pub status: u16,
    /// The schema of its query.
    pub query: fn() -> Value,
    /// The schema of its body. Of a PATCH: of the merged result.
    pub body: Option<fn() -> Value>,
    /// The schema of its answer.
    pub output: fn() -> Value,
    /// What runs.
    pub handler: Handler,
}

/// No parameters.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

impl Operation {
    /// A read of one workspace that answers 200.
    #[must_use]
    pub fn new(
        id: &'static str,
        method: Method,
        path: &'static str,
        output: fn() -> Value,
        handler: Handler,
    ) -> Operation {
        Operation {
            id,
            method,
            path,
            scope: None,
            effect: Effect::Read,
            step_up: false,
            summary: "",
            tool: Tool::Offered,
            place: Place::Workspace,
            precondition: Precondition::None,
            params: &[],
            list: false,
            reveals: false,
            status: 200,
            query: super::schema::input::<Nothing>,
            body: None,
            output,
            handler,
        }
    }

    /// Whether it may change anything.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.effect != Effect::Read
    }
}

/// An operation with its schemas compiled.
pub struct Registered {
    /// The operation.
    pub operation: Operation,
    /// Its query.
    pub query: Checked,
    /// Its body.
    pub body: Option<Checked>,
    /// Its answer.
    pub output: Value,
}

impl Registered {
    fn new(operation: Operation) -> Result<Registered, String> {
        Ok(Registered {
            query: Checked::new((operation.query)())?,
            body: operation.body.map(|b| Checked::new(b())).transpose()?,
            output: (operation.output)(),
            operation,
        })
    }
}

/// Something that answers beside the operations: listed here, so that whoever walks the router finds nothing unknown.
#[derive(Clone, Copy, Debug)]
pub struct Exempt {
    /// Its id, unique among operations too.
    pub id: &'static str,
    /// Its methods.
    pub methods: &'static [Method],
    /// Its path.
    pub path: &'static str,
    /// Why it is no operation.
    pub reason: ExemptReason,
    /// One sentence.
    pub summary: &'static str,
}

const fn exempt(
    id: &'static str,
    methods: &'static [Method],
    path: &'static str,
    reason: ExemptReason,
    summary: &'static str,
) -> Exempt {
    Exempt {
        id,
        methods,
        path,
        reason,
        summary,
    }
}

/// What answers without being an operation.
pub const EXEMPT: &[Exempt] = &[
    exempt(
        "visit_door",
        &[Method::Get],
        "/c/{campaign}",
        ExemptReason::DataPlane,
        "A visit: 302 to the routed offer",
    ),
    exempt(
        "click_door",
        &[Method::Post],
        "/e",
        ExemptReason::DataPlane,
        "A call-to-action or provider click",
    ),
    exempt(
        "postback_door",
        &[Method::Get, Method::Post],
        "/pb",
        ExemptReason::DataPlane,
        "A network's postback",
    ),
    exempt(
        "batch_visits",
        &[Method::Post],
        "/v1/batch/visits",
        ExemptReason::MachineOnly,
        "Visits as NDJSON",
    ),
    exempt(
        "batch_clicks",
        &[Method::Post],
        "/v1/batch/clicks",
        ExemptReason::MachineOnly,
        "Clicks as NDJSON",
    ),
    exempt(
        "batch_postbacks",
        &[Method::Post],
        "/v1/batch/postbacks",
        ExemptReason::MachineOnly,
        "Postbacks as NDJSON",
    ),
    exempt(
        "unsubscribe",
        &[Method::Get, Method::Post],
        "/unsubscribe/{token}",
        ExemptReason::Page,
        "What a link in a mail turns off; POST turns it off",
    ),
    exempt(
        "unsubscribe_public",
        &[Method::Get, Method::Post],
        "/api/v1/public/engagement/unsubscribe/{token}",
        ExemptReason::Page,
        "The same, where links of former mails lead",
    ),
    exempt(
        "unsubscribe_team",
        &[Method::Get, Method::Post],
        "/api/v1/public/teams/unsubscribe/{token}",
        ExemptReason::Page,
        "The same, where links of the first mails lead",
    ),
    exempt(
        "feed_door",
        &[Method::Get, Method::Post],
        "/feed/{shard}",
        ExemptReason::MachineOnly,
        "Frames of a shard: a WebSocket, or NDJSON both ways",
    ),
    exempt(
        "metrics",
        &[Method::Get],
        "/metrics",
        ExemptReason::Protocol,
        "Prometheus metrics",
    ),
    exempt(
        "healthz",
        &[Method::Get],
        "/healthz",
        ExemptReason::Protocol,
        "Whether the process lives; names stopped partitions",
    ),
    exempt(
        "readyz",
        &[Method::Get],
        "/readyz",
        ExemptReason::Protocol,
        "Whether the doors can accept",
    ),
    exempt(
        "openapi",
        &[Method::Get],
        "/v1/openapi.json",
        ExemptReason::Page,
        "This interface as OpenAPI 3.1",
    ),
];

/// The entry of [`EXEMPT`].
#[must_use]
pub fn find_exempt(id: &str) -> Option<&'static Exempt> {
    EXEMPT.iter().find(|e| e.id == id)
}

static REGISTRY: LazyLock<Vec<Registered>> = LazyLock::new(|| {
    let mut all: Vec<Registered> = operations::all()
        .into_iter()
        .filter_map(|operation| {
            let id = operation.id;
            Registered::new(operation)
                .inspect_err(
                    |e| tracing::error!(operation = id, error = %e, "its schema does not compile"),
                )
                .ok()
        })
        .collect();
    all.sort_by_key(|r| r.operation.id);
    all
});

/// Every operation, by id.
#[must_use]
pub fn registry() -> &'static [Registered] {
    &REGISTRY
}

/// An operation by its id.
#[must_use]
pub fn find(id: &str) -> Option<&'static Registered> {
    registry().iter().find(|r| r.operation.id == id)
}

/// The names within a path's braces.
#[must_use]
pub fn names_in(path: &str) -> Vec<&str> {
    path.split('{')
        .skip(1)
        .filter_map(|part| part.split_once('}').map(|(name, _)| name))
        .collect()
}

#[cfg(test)]
mod tests;
