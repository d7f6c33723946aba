//! Who am I.

use crate::api::call::{Answer, Call};
use crate::api::problem::Problem;
use crate::api::registry::{Method, Operation, Place};
use crate::api::schema::output;
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::Serialize;

/// The actor of a request.
#[derive(Serialize, JsonSchema)]
struct Me {
    /// `key`; later also `session`, `oauth`, `portal`, `cli`.
    #[schemars(extend("x-class" = "open"))]
    actor: &'static str,
    /// Its id.
    #[schemars(extend("x-class" = "open"))]
    id: String,
    /// Its name.
    #[schemars(extend("x-class" = "open"))]
    name: String,
    /// The workspace it works in; null for the deployment's own.
    #[schemars(extend("x-class" = "open"))]
    workspace: Option<String>,
    /// Exactly what it may do now.
    #[schemars(extend("x-class" = "open"))]
    scopes: Vec<&'static str>,
    /// Whether a password must be changed first; a key has none.
    #[schemars(extend("x-class" = "open"))]
    must_change_pw: bool,
    /// Its time zone; a key reads the default.
    #[schemars(extend("x-class" = "open"))]
    timezone: &'static str,
}

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    vec![Operation {
        place: Place::Actor,
        summary: "Who the credential is, in which workspace, with exactly which scopes.",
        ..Operation::new("whoami", Method::Get, "/v1/me", output::<Me>, whoami)
    }]
}

fn whoami<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        Answer::of(&Me {
            actor: "key",
            id: call.actor.key_id.clone(),
            name: call.actor.name.clone(),
            workspace: call.actor.workspace.as_ref().map(|w| w.slug.clone()),
            scopes: call.actor.scopes.iter().collect(),
            must_change_pw: false,
            timezone: "UTC",
        })
    })
}
