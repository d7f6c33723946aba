//! The operations: one file a kind of thing, each with its entries of the registry and their handlers.

pub mod account_links;
pub mod campaigns;
pub mod conversions;
pub mod dead_letters;
pub mod deliveries;
pub mod destinations;
pub mod events;
pub mod facts;
pub mod feed_tokens;
pub mod keys;
pub mod mail_transports;
pub mod me;
pub mod networks;
pub mod offers;
pub mod outcomes;
pub mod pixels;
pub mod postback_info;
pub mod push_subscriptions;
pub mod routing;
pub mod rules;
pub mod segments;
pub mod sends;
pub mod shards;
pub mod suppressions;
pub mod triggers;
pub mod users;
pub mod waiting;
pub mod webhooks;
pub mod workspaces;

use super::registry::Operation;

/// Every operation.
#[must_use]
pub fn all() -> Vec<Operation> {
    let mut all = Vec::new();
    all.extend(me::operations());
    all.extend(workspaces::operations());
    all.extend(keys::operations());
    all.extend(networks::operations());
    all.extend(postback_info::operations());
    all.extend(offers::operations());
    all.extend(campaigns::operations());
    all.extend(pixels::operations());
    all.extend(webhooks::operations());
    all.extend(users::operations());
    all.extend(account_links::operations());
    all.extend(triggers::operations());
    all.extend(segments::operations());
    all.extend(rules::operations());
    all.extend(mail_transports::operations());
    all.extend(suppressions::operations());
    all.extend(push_subscriptions::operations());
    all.extend(deliveries::operations());
    all.extend(sends::operations());
    all.extend(destinations::operations());
    all.extend(facts::operations());
    all.extend(conversions::operations());
    all.extend(waiting::operations());
    all.extend(dead_letters::operations());
    all.extend(outcomes::operations());
    all.extend(events::operations());
    all.extend(shards::operations());
    all.extend(feed_tokens::operations());
    all
}

/// Text of a stored record for whoever may see it: what is no UTF-8 is replaced.
fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A stored moment as text.
fn time_text(time: Option<crate::postgres::types::Tz>) -> Option<String> {
    time.map(|t| t.0.rfc3339())
}

/// A moment of a query.
fn moment(
    name: &str,
    text: Option<&str>,
    faults: &mut super::faults::Faults,
) -> Option<crate::postgres::types::Tz> {
    let text = text?;
    match millrace_schemas::time::Micros::parse_rfc3339(text) {
        Ok(time) => Some(crate::postgres::types::Tz(time)),
        Err(_) => {
            faults.add(
                format!("?{name}"),
                "malformed",
                "want RFC 3339, as 2025-01-31T00:00:00Z",
            );
            None
        }
    }
}
