//! What to enter at a network: its callback URL, the secret in it from the sealed copy.

use super::networks::seal_purpose;
use crate::api::call::{Answer, Call, to_json};
use crate::api::page::{Conditions, Source, list_of};
use crate::api::problem::Problem;
use crate::api::registry::{Method, Operation};
use crate::api::schema::{input, output};
use futures::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How a network calls back.
#[derive(Serialize, JsonSchema)]
struct PostbackInfo {
    /// The network.
    #[schemars(extend("x-class" = "open"))]
    network_id: String,
    /// Its name.
    #[schemars(extend("x-class" = "open"))]
    name: String,
    /// What to enter at the network, the braces being where its own macros go; null where the secret cannot be shown.
    #[schemars(extend("x-class" = "secret"))]
    url: Option<String>,
    /// Why there is no URL.
    #[schemars(extend("x-class" = "open"))]
    unavailable: Option<&'static str>,
}

fn postback_info_schema() -> Value {
    list_of(output::<PostbackInfo>())
}

const INFO: Source = Source {
    from: "networks",
    columns: "network_id, name, secret_sealed",
    time: "created_at",
    id: "network_id",
    id_type: "text",
    ascending: false,
    windows: false,
};

/// Which network.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InfoFilter {
    /// One network alone.
    network: Option<String>,
}

fn postback_info<'a>(call: &'a Call<'a>) -> LocalBoxFuture<'a, Result<Answer, Problem>> {
    Box::pin(async move {
        let filter: InfoFilter = call.query()?;
        let mut conditions = Conditions::of_workspace(call.workspace()?);
        conditions.and_plain("status = 'active'");
        conditions.and_some("network_id = $", filter.network);
        crate::api::page::list(call, INFO, conditions, |row| {
            let network_id: String = row.try_get("network_id")?;
            let sealed: Option<&[u8]> = row.try_get("secret_sealed")?;
            let (url, unavailable) = callback_url(call, &network_id, sealed);
            to_json(&PostbackInfo {
                network_id,
                name: row.try_get("name")?,
                url,
                unavailable,
            })
        })
        .await
    })
}

fn callback_url(
    call: &Call<'_>,
    network_id: &str,
    sealed: Option<&[u8]>,
) -> (Option<String>, Option<&'static str>) {
    let Some(sealed) = sealed else {
        return (
            None,
            Some(
                "the secret was made while MILLRACE_SECRET_KEY was not set, so no sealed copy of it exists; rotate it",
            ),
        );
    };
    let opened = call.state.seals.open(&seal_purpose(network_id), sealed);
    let Some(secret) = opened.ok().and_then(|s| String::from_utf8(s).ok()) else {
        return (
            None,
            Some(
                "the sealed secret does not open under MILLRACE_SECRET_KEY or MILLRACE_SECRET_KEY_OLD",
            ),
        );
    };
    let base = call.state.public_url.as_deref().unwrap_or_default();
    let url = format!(
        "{base}/pb?secret={secret}&click_id={{click_id}}&payout={{payout}}&txid={{txid}}&event={{event}}&status={{status}}"
    );
    let note = base
        .is_empty()
        .then_some("http.public_url is not set: put the doors' own address before it");
    (Some(url), note)
}

/// Entries of the registry.
#[must_use]
pub fn operations() -> Vec<Operation> {
    vec![Operation {
        scope: Some("links:write"),
        step_up: true,
        list: true,
        reveals: true,
        query: input::<InfoFilter>,
        summary: "The callback URL of each active network, its secret in it, from the sealed copy.",
        ..Operation::new(
            "get_postback_info",
            Method::Get,
            "/v1/postback-info",
            postback_info_schema,
            postback_info,
        )
    }]
}
