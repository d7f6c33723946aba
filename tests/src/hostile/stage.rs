//! A deployment on the Postgres log, all roles in one process, with everything made that hostile requests may name.

use super::requests::Names;
use super::sample::Known;
use crate::deployment::{Deployment, Log, PATIENCE};
use crate::process::{Process, eventually, free_address};
use crate::receivers::Receiver;
use crate::shard_session::{PROTOCOL, SEED, session};
use anyhow::{Context, ensure};
use millrace::unsubscribe::{self, Subscription};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;

const SEAL: &str = "2f2e3d4c5b6a79881f2e3d4c5b6a79881f2e3d4c5b6a79881f2e3d4c5b6a7988";

/// The module that is enabled, and the protocol of its frames.
const MODULE: &str = "uo";

/// Shards whose feeds are attacked.
const SHARDS: usize = 4;
/// Frames of the recorded session that the attack is made of.
const FRAMES: usize = 400;

/// The deployment under attack.
pub struct Stage {
    /// Database and log.
    pub deployment: Deployment,
    /// The product, all roles.
    pub process: Process,
    /// Where doors and admin API listen.
    pub address: SocketAddr,
    /// What requests may name.
    pub known: Arc<Names>,
    /// Takes what the webhook is told.
    _hook: Receiver,
}

impl Stage {
    /// Starts it. `log_level` is the product's `RUST_LOG`.
    ///
    /// # Errors
    /// Some part of it did not start.
    pub async fn start(name: &str, log_level: &str) -> anyhow::Result<Stage> {
        let mut deployment = Deployment::start(name, Log::Postgres, 4).await?;
        deployment.set("modules.enabled", MODULE);
        let command = |name: &str| -> anyhow::Result<_> {
            Ok(deployment.launch(name)?.env("MILLRACE_SECRET_KEY", SEAL))
        };
        let words = ["workspace", "create", "acme", "--name", "Acme"];
        command("workspace")?.args(words).run(PATIENCE).await?;
        let mut keys = Vec::new();
        for (name, scopes) in [("good", "full,ingest:write"), ("narrow", "ingest:write")] {
            let words = [
                "key",
                "create",
                "--workspace",
                "acme",
                "--name",
                name,
                "--scopes",
                scopes,
            ];
            let said = command(name)?
                .env("RUST_LOG", "off")
                .args(words)
                .run(PATIENCE)
                .await?;
            keys.push(key_in(&said)?);
        }
        let words = ["key", "create", "--name", "ops", "--scopes", "ops:read"];
        let said = command("ops")?
            .env("RUST_LOG", "off")
            .args(words)
            .run(PATIENCE)
            .await?;
        keys.push(key_in(&said)?);
        let address = free_address()?;
        let hook = Receiver::start()?;
        let mut process = command("everything")?
            .args(["run"])
            .env("RUST_LOG", log_level)
            .setting("http.doors", address)
            .setting("http.admin", address)
            .setting("delivery.allowed_networks", "127.0.0.0/8")
            // Small, so that memory shows what a request leaves behind and not what the actors may hold.
            .setting("attribution.slice_clicks", 2_000)
            .spawn()?;
        process.wait_for_log("millrace is up", PATIENCE).await?;
        let mut known = make(address, &keys, &hook).await?;
        known.links = links(&deployment).await?;
        Ok(Stage {
            deployment,
            process,
            address,
            known: Arc::new(known),
            _hook: hook,
        })
    }

    /// Outcomes by name.
    pub(super) async fn outcomes(&self) -> anyhow::Result<Vec<(String, i64)>> {
        let sql = "SELECT outcome, coalesce(reason, ''), sum(n)::bigint FROM outcomes GROUP BY 1, 2 ORDER BY 1, 2";
        let rows = self.deployment.store().await.query(sql, &[]).await?;
        Ok(rows
            .iter()
            .map(|row| {
                let (code, reason): (i16, String) = (row.get(0), row.get(1));
                let end = crate::generator::End::ALL
                    .into_iter()
                    .find(|e| e.code() == code);
                let name =
                    end.map_or_else(|| code.to_string(), |e| format!("{e:?}").to_lowercase());
                let name = if reason.is_empty() {
                    name
                } else {
                    format!("{name} ({reason})")
                };
                (name, row.get(2))
            })
            .collect())
    }
}

fn key_in(said: &str) -> anyhow::Result<String> {
    let key = said.split_whitespace().find(|w| w.starts_with("rk_"));
    key.map(str::to_owned).context("no key was printed")
}

/// What a shard says: kinds and bodies of the recorded session.
fn frames() -> Vec<(String, Value)> {
    let text = session(SEED);
    let lines = text.lines().filter_map(|l| serde_json::from_str(l).ok());
    let frames = lines.filter_map(|line: Value| {
        let kind = line["kind"].as_str()?.to_owned();
        Some((kind, line["body"].clone()))
    });
    frames.take(FRAMES).collect()
}

/// Users, and links of mails that they got: of today's form and of the first one.
async fn links(deployment: &Deployment) -> anyhow::Result<Vec<String>> {
    let store = deployment.store().await;
    let sql = "INSERT INTO users (workspace_id, user_id, email, email_verified, changed_at)
               SELECT workspace_id, 'u' || n, 'u' || n || '@private.example', true, now()
               FROM workspaces, generate_series(1, 5) AS n WHERE slug = 'acme' RETURNING workspace_id";
    let rows = store.query(sql, &[]).await?;
    let workspace: i32 = rows.first().context("users")?.try_get(0)?;
    let key = unsubscribe::key(&store).await?;
    let mut links = Vec::new();
    for n in 1..=6 {
        for (channel, scope) in [
            ("email", ""),
            ("push", "team:12"),
            ("inapp", "<b>\u{202e}&"),
        ] {
            // The last user is nobody.
            links.extend(key.sign(&Subscription {
                workspace,
                user: format!("u{n}"),
                channel: channel.to_owned(),
                scope: scope.to_owned(),
            }));
        }
        links.extend(key.sign_v1(&format!("u{n}"), "12"));
    }
    Ok(links)
}

/// Makes what honest senders use, and beside it what may be destroyed.
async fn make(address: SocketAddr, keys: &[String], hook: &Receiver) -> anyhow::Result<Names> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()?;
    let key = keys.first().context("a key")?;
    let post = async |path: &str, body: Value| -> anyhow::Result<Value> {
        let request = http
            .post(format!("http://{address}{path}"))
            .bearer_auth(key)
            .json(&body);
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        ensure!(status.is_success(), "{path}: {status} {text}");
        Ok(serde_json::from_str(&text)?)
    };
    let mut ids = Vec::new();
    let mut secret = String::new();
    let mut network_id = String::new();
    for (n, campaign) in ["spring", "victim"].into_iter().enumerate() {
        let network = post(
            "/v1/networks",
            json!({"name": "n", "status_words": {"paid": "approved"}}),
        )
        .await?;
        let offer = json!({"name": "o", "network_id": network["id"], "payout": "5", "currency": "USD",
            "url_template": "https://shop.example/?cid={click_id}&s={sub1}"});
        let offer = post("/v1/offers", offer).await?;
        let pixel = post("/v1/pixels", json!({"name": "p", "dataset_id": "77"})).await?;
        let routing = json!({"offers": [{"offer": offer["id"]}]});
        post(
            "/v1/campaigns",
            json!({"id": campaign, "name": "c", "routing": routing}),
        )
        .await?;
        if n == 0 {
            secret = network["secret"].as_str().unwrap_or_default().to_owned();
            network_id = network["id"].as_str().unwrap_or_default().to_owned();
            let events = json!(["conversion"]);
            post(
                "/v1/webhooks",
                json!({"name": "w", "url": hook.url("/hook"), "events": events}),
            )
            .await?;
            continue;
        }
        for made in [&network, &offer, &pixel] {
            ids.extend(made["id"].as_str().map(str::to_owned));
        }
        ids.push(campaign.to_owned());
        let made = post(
            "/v1/keys",
            json!({"name": "victim", "scopes": ["ingest:write"]}),
        )
        .await?;
        ids.extend(made["id"].as_str().map(str::to_owned));
        let url = hook.url("/victim");
        let made = post(
            "/v1/webhooks",
            json!({"name": "v", "url": url, "events": ["conversion"]}),
        )
        .await?;
        ids.extend(made["id"].as_str().map(str::to_owned));
    }
    let mut feeds = Vec::new();
    for n in 0..=SHARDS {
        let id = format!("shard-{n}");
        let shard = json!({"id": id, "name": "S", "module": MODULE, "protocol": PROTOCOL});
        post("/v1/shards", shard).await?;
        let made = post("/v1/feed-tokens", json!({"shard": id, "name": "t"})).await?;
        let token = made["token"].as_str().context("a token")?.to_owned();
        // The last may be destroyed.
        if n < SHARDS {
            feeds.push((id, token));
        } else {
            ids.push(id);
            ids.extend(made["id"].as_str().map(str::to_owned));
        }
    }
    let door = format!("http://{address}/c/spring");
    eventually("the doors know the campaign", PATIENCE, async || {
        let status = http.head(&door).send().await?.status();
        Ok((status.as_u16() == 302).then_some(()))
    })
    .await?;
    Ok(Names {
        keys: keys.to_vec(),
        secret,
        network: network_id,
        feeds,
        frames: frames(),
        links: Vec::new(),
        known: Known { ids },
    })
}
