//! The demo's scenery, made over the admin API: real requests with a real key.

use super::drive::Tally;
use super::scenery::{SIDECAR_ID, SOUTH, Scenery};
use super::shard;
use super::stand_ins::StandIns;
use super::stand_ins::meta::{DATASET, TOKEN};
use anyhow::{Context, bail};
use reqwest::header::AUTHORIZATION;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The demo's workspace.
pub const WORKSPACE: &str = "demo";
/// The parameter of the offers' URLs that carries the click id.
const CLICK_PARAMETER: &str = "cid";
/// How long the doors may take until they know a new campaign; they look once a second.
const KNOWN_WITHIN: Duration = Duration::from_secs(15);

/// A client that follows no redirect and knows no proxy: the demo talks to this machine alone.
///
/// # Errors
/// The client cannot be made.
pub fn http_client() -> anyhow::Result<reqwest::Client> {
    // Plain HTTP needs no TLS, but the client asks for a provider; a second installation is refused, and no matter.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(Duration::from_secs(30))
        .build()
        .context("the HTTP client")
}

/// Makes a pixel and a webhook that lead to the stand-ins, then networks, offers and campaigns, then the shard with its players, at
/// the API under `admin`; fills their ids in, and waits until the doors know them.
///
/// # Errors
/// The API refuses, or the doors do not come to know it.
pub async fn make(
    admin: &str,
    doors: &str,
    key: &str,
    scenery: &mut Scenery,
    stand_ins: &StandIns,
) -> anyhow::Result<()> {
    let api = Api {
        client: http_client()?,
        admin: admin.to_owned(),
        doors: doors.to_owned(),
        key: key.to_owned(),
    };
    let made = api
        .post(
            "/v1/pixels",
            &json!({
                "name": "The demo's dataset",
                "dataset_id": DATASET,
                "currency": "USD",
                "access_token": TOKEN,
            }),
        )
        .await?;
    scenery.pixel = text(&made, "id")?;
    let made = api
        .post(
            "/v1/webhooks",
            &json!({
                "name": "The demo's receiver",
                "url": stand_ins.hook_url,
                "events": ["click", "conversion"],
            }),
        )
        .await?;
    stand_ins.hook.knows(&text(&made, "secret")?)?;
    for network in &mut scenery.networks {
        let [approved, pending, rejected] = network.words;
        let words = if approved == "approved" {
            json!({})
        } else {
            json!({approved: "approved", pending: "pending", rejected: "rejected"})
        };
        let made = api
            .post(
                "/v1/networks",
                &json!({
                    "name": network.name,
                    "status_words": words,
                    "comma_decimals": network.loose,
                    "currency_signs": network.loose,
                    "reversals": network.loose,
                }),
            )
            .await?;
        network.id = text(&made, "id")?;
        network.secret = text(&made, "secret")?;
    }
    for offer in &mut scenery.offers {
        let network = scenery.networks.get(offer.network);
        let made = api
            .post(
                "/v1/offers",
                &json!({
                    "name": offer.name,
                    "url_template": format!("https://shop.example/welcome?{CLICK_PARAMETER}={{click_id}}&from={{link_id}}"),
                    "network_id": network.map(|n| &n.id),
                    "payout": offer.payout.to_string(),
                    "currency": "USD",
                }),
            )
            .await?;
        offer.id = text(&made, "id")?;
    }
    let id_of = |place: usize| scenery.offers.get(place).map(|o| o.id.as_str());
    let south = scenery.networks.get(SOUTH).map(|n| n.id.as_str());
    for campaign in &scenery.campaigns {
        let pixels = match campaign.pixel {
            true => json!([{"pixel": scenery.pixel}]),
            false => json!([]),
        };
        api.post(
            "/v1/campaigns",
            &json!({
                "id": campaign.id,
                "name": campaign.name,
                "routing": {
                    "offers": [{"offer": id_of(campaign.offer), "weight": 1}],
                    "sidecar_offers": [{
                        "offer": id_of(scenery.sidecar()),
                        "network": south,
                        "network_offer_id": SIDECAR_ID,
                    }],
                    "pixels": pixels,
                },
            }),
        )
        .await?;
    }
    scenery.feed_token = shard::furnish(&api, stand_ins.mail.address()).await?;
    api.known(scenery).await
}

/// The admin API, as the demo calls it.
pub(super) struct Api {
    client: reqwest::Client,
    admin: String,
    doors: String,
    key: String,
}

impl Api {
    /// Makes or changes something.
    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let request = self.client.post(format!("{}{path}", self.admin));
        self.ask(request.json(body), "POST", path).await
    }

    /// Does something that takes no words.
    pub(super) async fn act(&self, path: &str) -> anyhow::Result<Value> {
        let request = self.client.post(format!("{}{path}", self.admin));
        self.ask(request, "POST", path).await
    }

    /// Reads something.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let request = self.client.get(format!("{}{path}", self.admin));
        self.ask(request, "GET", path).await
    }

    async fn ask(
        &self,
        request: reqwest::RequestBuilder,
        method: &str,
        path: &str,
    ) -> anyhow::Result<Value> {
        let answer = request
            .header(AUTHORIZATION, format!("Bearer {}", self.key))
            .send()
            .await
            .with_context(|| format!("{method} {path}"))?;
        let status = answer.status();
        let said = answer.text().await?;
        if !status.is_success() {
            bail!("{method} {path} was answered {status}: {said}");
        }
        serde_json::from_str(&said).with_context(|| format!("{method} {path} was answered {said}"))
    }

    /// Doors read configuration once a second. A HEAD is answered as a GET and records nothing.
    async fn known(&self, scenery: &Scenery) -> anyhow::Result<()> {
        let deadline = Instant::now() + KNOWN_WITHIN;
        for campaign in &scenery.campaigns {
            loop {
                let url = format!("{}/c/{}", self.doors, campaign.id);
                let status = self.client.head(url).send().await?.status().as_u16();
                if status == 302 {
                    break;
                }
                if Instant::now() > deadline {
                    bail!(
                        "the doors do not know campaign `{}` yet: HEAD is answered {status}",
                        campaign.id
                    );
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }
}

/// A text of an answer.
pub(super) fn text(made: &Value, name: &str) -> anyhow::Result<String> {
    made.get(name)
        .and_then(Value::as_str)
        .map(str::to_owned)
        .with_context(|| format!("the API's answer has no `{name}`"))
}

/// The click id in a redirect's target.
#[must_use]
pub fn click_id_in(location: &str) -> Option<&str> {
    let (_, query) = location.split_once('?')?;
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find(|(name, _)| *name == CLICK_PARAMETER)
        .map(|(_, value)| value)
        .filter(|value| !value.is_empty())
}

/// What a batch door says of its lines, in sum.
#[must_use]
pub fn batch_tally(answer: &str) -> Option<Tally> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    Some(Tally {
        accepted: answer.get("accepted")?.as_u64()?,
        refused: answer.get("refused")?.as_u64()?,
    })
}

/// Whether a batch with a broken first line was turned away by the line's number.
#[must_use]
pub fn is_broken_batch_answer(status: u16, answer: &str) -> bool {
    let answer: Value = serde_json::from_str(answer).unwrap_or_default();
    status == 400 && answer.get("line").and_then(Value::as_u64) == Some(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        assert_eq!(
            click_id_in("https://shop.example/welcome?cid=abc&from=x"),
            Some("abc")
        );
        assert_eq!(click_id_in("https://shop.example/welcome?from=x"), None);
        let tally = batch_tally(r#"{"accepted": 2, "refused": 1, "lines": []}"#);
        assert_eq!(tally.map(|t| (t.accepted, t.refused)), Some((2, 1)));
        assert!(is_broken_batch_answer(400, r#"{"line": 1}"#));
        assert!(!is_broken_batch_answer(200, r#"{"line": 1}"#));
    }
}
