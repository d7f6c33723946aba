//! What the soak's deployment has configured: a network, an offer, a campaign with a pixel, a webhook.

use crate::delivery::sending::{KEY, endpoint_in, pixel_in};
use anyhow::Context;
use millrace_tests::meta_stand_in::MetaStandIn;
use millrace_tests::receivers::CountingReceiver;
use tokio_postgres::Client;

/// The campaign's id: `GET /c/<this>`.
pub(super) const CAMPAIGN: &str = "soak";
/// The network's secret.
pub(super) const SECRET: &str = "soak-secret";
/// What seals.
pub(super) const SEAL: &str = KEY;
const DATASET: &str = "1234567890";
const TOKEN: &str = "soak-token";
/// One message of so many is followed from due to sent.
pub(super) const SAMPLED: i32 = 16;

/// Makes it all, and a table that keeps when sampled messages were due: their rows vanish once they are sent.
pub(super) async fn set_up(
    client: &Client,
    hook: &CountingReceiver,
    meta: &MetaStandIn,
) -> anyhow::Result<()> {
    meta.dataset(DATASET, TOKEN, None);
    meta.keep(0);
    let workspace = millrace_tests::outbox::workspace(client, "soak").await?;
    let routing = r#"{"offers":[{"offer":"of_soak","weight":1}],"sidecar_offers":[],"pixels":[{"pixel":"px_soak"}]}"#;
    client
        .batch_execute(&format!(
            "INSERT INTO networks (network_id, workspace_id, name, secret_digest)
                VALUES ('nw_soak', {workspace}, 'Soak', sha256('{SECRET}'));
             INSERT INTO offers (offer_id, workspace_id, name, url_template, network_id, payout)
                VALUES ('of_soak', {workspace}, 'Soak', 'https://offer.example/?c={{click_id}}', 'nw_soak', 2.5);
             INSERT INTO campaigns (campaign_id, workspace_id, name, routing)
                VALUES ('{CAMPAIGN}', {workspace}, 'Soak', '{routing}');
             CREATE TABLE soak_due (outbox_id uuid PRIMARY KEY, due_at timestamptz NOT NULL, seen boolean NOT NULL DEFAULT false);
             CREATE INDEX soak_due_open ON soak_due (outbox_id) WHERE NOT seen;
             CREATE FUNCTION soak_keep_due() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                INSERT INTO soak_due SELECT outbox_id, due_at FROM born
                WHERE get_byte(uuid_send(outbox_id), 15) % {SAMPLED} = 0 ON CONFLICT DO NOTHING;
                RETURN NULL;
             END $$;
             CREATE TRIGGER soak_keep AFTER INSERT ON outbox_due REFERENCING NEW TABLE AS born
                FOR EACH STATEMENT EXECUTE FUNCTION soak_keep_due()"
        ))
        .await
        .context("scenery")?;
    pixel_in(client, workspace, "px_soak", DATASET, TOKEN).await?;
    // Meta takes no amount without a currency.
    client
        .batch_execute("UPDATE pixels SET currency = 'USD'")
        .await?;
    endpoint_in(client, workspace, "wh_soak", &hook.url("/hook")).await?;
    Ok(())
}
