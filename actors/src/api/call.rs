//! What a handler is given, and what it gives back. A handler never sees a credential, a header or a socket.

use super::ApiState;
use super::keys::KeyActor;
use super::page::PageRequest;
use super::problem::Problem;
use super::schema::Checked;
use crate::modules::Modules;
use millrace_schemas::time::Micros;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_postgres::Transaction;

/// A request's `If-Match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// `*`.
    Any,
    /// One of these versions.
    Versions(Vec<i64>),
}

/// An authorised request with a checked query and body, and the transaction it runs in.
pub struct Call<'a> {
    /// The API's state.
    pub state: &'a ApiState,
    /// What the enabled modules declare: one set for the whole request.
    pub modules: &'a Modules,
    /// Who asks.
    pub actor: &'a KeyActor,
    /// The transaction: read-only for reads, rolled back after a refusal or a dry run.
    pub tx: &'a Transaction<'a>,
    /// Parameters of the path.
    pub params: &'a [(String, String)],
    /// The query, checked.
    pub query: &'a Value,
    /// The body; checked unless it is a PATCH, whose merged result is to be.
    pub body: &'a Value,
    /// The schema of the body.
    pub body_schema: Option<&'a Checked>,
    /// Which page of a list.
    pub page: &'a PageRequest,
    /// Versions the caller has seen.
    pub if_match: Option<&'a IfMatch>,
}

impl Call<'_> {
    /// The workspace's number. Every query of a workspace's operation filters by it.
    ///
    /// # Errors
    /// `deployment_key`.
    pub fn workspace(&self) -> Result<i32, Problem> {
        self.actor.workspace.as_ref().map(|w| w.id).ok_or_else(|| {
            Problem::new(
                "deployment_key",
                "a key of the deployment sees no workspace's data",
            )
        })
    }

    /// A parameter of the path.
    ///
    /// # Errors
    /// `not_found`: the registry does not declare it.
    pub fn param(&self, name: &str) -> Result<&str, Problem> {
        self.params
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
            .ok_or_else(Problem::not_found)
    }

    /// The query as its type.
    ///
    /// # Errors
    /// `invalid`, where the type is narrower than its schema.
    pub fn query<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        decode(self.query)
    }

    /// The body as its type.
    ///
    /// # Errors
    /// `invalid`, where the type is narrower than its schema.
    pub fn body<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        decode(self.body)
    }

    /// Compares `If-Match` with the version as it stands.
    ///
    /// # Errors
    /// `version_stale`, naming the version, its author and time.
    pub fn check_version(&self, version: i64, by: &str, at: Micros) -> Result<(), Problem> {
        match self.if_match {
            None | Some(IfMatch::Any) => Ok(()),
            Some(IfMatch::Versions(seen)) if seen.contains(&version) => Ok(()),
            Some(IfMatch::Versions(_)) => Err(Problem::new(
                "version_stale",
                format!("it is at version {version}, changed by {by} at {at}"),
            )
            .with(
                "current",
                json!({"version": version, "updated_by": by, "updated_at": at.rfc3339()}),
            )),
        }
    }
}

/// JSON as a type.
///
/// # Errors
/// `invalid`.
pub fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, Problem> {
    T::deserialize(value).map_err(|e| {
        let mut faults = super::faults::Faults::new();
        faults.add("", "invalid", e.to_string());
        faults.into()
    })
}

/// What a handler answers.
#[derive(Debug, Default)]
pub struct Answer {
    /// The body.
    pub body: Value,
    /// The object's version: the ETag.
    pub version: Option<i64>,
    /// Where a new object is.
    pub location: Option<String>,
    /// The object as it was, for dry runs.
    pub before: Option<Value>,
    /// What the caller should know, for dry runs.
    pub warnings: Vec<String>,
}

impl Answer {
    /// A body.
    ///
    /// # Errors
    /// `internal`: it has no JSON form.
    pub fn of<T: serde::Serialize>(body: &T) -> Result<Answer, Problem> {
        Ok(Answer {
            body: to_json(body)?,
            ..Answer::default()
        })
    }

    /// With a version.
    #[must_use]
    pub fn version(mut self, version: i64) -> Answer {
        self.version = Some(version);
        self
    }
}

/// A value as JSON.
///
/// # Errors
/// `internal`: it has no JSON form.
pub fn to_json<T: serde::Serialize>(value: &T) -> Result<Value, Problem> {
    serde_json::to_value(value).map_err(|e| {
        tracing::error!(error = %e, "an answer has no JSON form");
        Problem::new("internal", "something went wrong here")
    })
}
