//! Which group protocol the brokers have.

use crate::kafka::client::Quiet;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::config::FromClientConfigAndContext;
use std::time::Duration;

/// Bound of each question.
const WAIT: Duration = Duration::from_secs(3);

/// Asks a broker which rebalance protocols its coordinator serves. `None`: it did not say (away, or this client may not ask);
/// brokers older than the question have the classic one alone.
///
/// The client library would find out by itself that a broker's group requests are too old for it, but tells nobody: it asks
/// again for ever.
pub(super) fn has_kip_848(base: &ClientConfig) -> Option<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .ok()?;
    let admin: AdminClient<Quiet> = AdminClient::from_config_and_context(base, Quiet).ok()?;
    let broker = admin
        .inner()
        .fetch_metadata(None, WAIT)
        .ok()?
        .brokers()
        .first()?
        .id();
    let options = AdminOptions::new().request_timeout(Some(WAIT));
    let broker = ResourceSpecifier::Broker(broker);
    let asked = admin.describe_configs([&broker], &options);
    let answer = runtime
        .block_on(async { tokio::time::timeout(WAIT, asked).await })
        .ok()?
        .ok()?;
    let described = answer.into_iter().next()?.ok()?;
    Some(
        described
            .get("group.coordinator.rebalance.protocols")
            .and_then(|entry| entry.value.as_deref())
            .is_some_and(|list| list.split(',').any(|name| name.trim() == "consumer")),
    )
}
