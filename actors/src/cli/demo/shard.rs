//! An evening of a game's shard: the module's recorded session, its players, and the wait until everything of it is decided.
//!
//! The session is config/demo/shard.ndjson, carried inside the program. It is streamed through the shard's feed by what
//! `millrace feed send` sends with. Its times are moved so that its last frame happened now, as the access log's are.

use super::setup::{Api, text};
use crate::cli::feed;
use crate::cli::lag;
use crate::cli::log::Log;
use anyhow::{Context, bail};
use millrace_schemas::time::Micros;
use millrace_topics::catalogue;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// The module whose frames the session has.
pub const MODULE: &str = "uo";
/// The recorded session.
const SESSION: &str = include_str!("../../../../config/demo/shard.ndjson");
/// The shard that plays it.
const SHARD: &str = "atlantic";
/// The protocol of its frames.
const PROTOCOL: u32 = 5;
/// Players whose accounts are linked, and what they are. Mail is asked for by all but the last, who is of the staff.
const PLAYERS: [(&str, &str, &str); 5] = [
    ("ana", "Ana", "user"),
    ("ben", "Ben", "user"),
    ("cleo", "Cleo", "user"),
    ("dara", "Dara", "user"),
    ("eli", "Eli", "admin"),
];
/// Who never asked for mail: it is held back, and the table says so.
const WITHOUT_MAIL: &str = "eli";
/// How long the doors may take until they know a new feed token; they look once a second.
const KNOWN_WITHIN: Duration = Duration::from_secs(15);
/// How long nothing may move before the demo stops waiting.
const PATIENCE: Duration = Duration::from_secs(30);

/// The session as the shard's feed took it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Frames of the session.
    pub frames: u64,
    /// Those among them that the feed has acknowledged.
    pub acknowledged: u64,
    /// Those that it refused, each with its reason.
    pub refused: Vec<String>,
}

/// Makes the shard with a token of its feed, the players with their links and what they asked for, a mail transport that leads to
/// the catcher at `mail`, and switches the module's rules on. Answers the token.
pub(super) async fn furnish(api: &Api, mail: SocketAddr) -> anyhow::Result<String> {
    let host = mail.ip().to_string();
    api.post(
        "/v1/mail-transports",
        &json!({
            "enabled": true,
            "host": host,
            "port": mail.port(),
            "security": "none",
            "sender_name": "The demo",
            "sender_address": "news@demo.example",
            "brand_name": "The demo",
            "site_url": "https://demo.example",
        }),
    )
    .await?;
    api.post(
        "/v1/shards",
        &json!({"id": SHARD, "name": "Atlantic", "module": MODULE, "protocol": PROTOCOL}),
    )
    .await?;
    let made = api
        .post(
            "/v1/feed-tokens",
            &json!({"shard": SHARD, "name": "the demo's sidecar"}),
        )
        .await?;
    let token = text(&made, "token")?;
    for (id, name, role) in PLAYERS {
        api.post(
            "/v1/users",
            &json!({
                "id": id,
                "name": name,
                "email": format!("{id}@players.example"),
                "email_verified": true,
                "role": role,
            }),
        )
        .await?;
        api.post(
            "/v1/account-links",
            &json!({"module": MODULE, "shard": SHARD, "account": id, "user_id": id}),
        )
        .await?;
        if id != WITHOUT_MAIL {
            api.post(
                &format!("/v1/users/{id}/preferences"),
                &json!({"preferences": [{"id": "", "channel": "email", "mode": "instant"}]}),
            )
            .await?;
        }
    }
    let rules = api.get("/v1/rules?limit=100").await?;
    let rules = rules.get("items").and_then(Value::as_array);
    let mut on = 0;
    for rule in rules.context("the list of rules has no `items`")? {
        if text(rule, "trigger_id")?.starts_with("uo.") {
            api.act(&format!("/v1/rules/{}/enable", text(rule, "id")?))
                .await?;
            on += 1;
        }
    }
    if on == 0 {
        bail!("the module's rules did not come with the workspace");
    }
    Ok(token)
}

/// Streams the session to the shard's feed of the doors. They know a new token within a second: until then it is tried again, and
/// sent twice it does nothing twice.
///
/// # Errors
/// The feed refuses it, or nothing moves for a while.
pub async fn stream(doors: &str, token: &str) -> anyhow::Result<Session> {
    // Not there twice: whoever put one in first keeps it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let session = ending_at(SESSION, Micros(jiff::Timestamp::now().as_microsecond()))?;
    let url = format!("{doors}/feed/{SHARD}");
    let deadline = Instant::now() + KNOWN_WITHIN;
    loop {
        match feed::play(&session, &url, token, PATIENCE).await {
            Ok(played) => {
                return Ok(Session {
                    frames: played.frames,
                    acknowledged: played.acknowledged,
                    refused: played.refused,
                });
            }
            Err(error) if Instant::now() > deadline => {
                return Err(error.context("the shard's session"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// The same session, its frames' times moved so that the last one happened at `end`.
fn ending_at(session: &str, end: Micros) -> anyhow::Result<String> {
    let at = |line: &Value| Micros::parse_rfc3339(line.get("at")?.as_str()?).ok();
    let mut lines = Vec::new();
    for (index, line) in session.lines().enumerate() {
        let line: Value = serde_json::from_str(line)
            .with_context(|| format!("line {} of the shard's session", index + 1))?;
        lines.push(line);
    }
    let last = lines.iter().filter_map(at).map(|t| t.0).max();
    let shift = last.map_or(0, |last| end.0.saturating_sub(last));
    let mut moved = String::with_capacity(session.len());
    for mut line in lines {
        if let Some(was) = at(&line)
            && let Some(members) = line.as_object_mut()
        {
            let now = Micros(was.0.saturating_add(shift));
            members.insert("at".to_owned(), now.rfc3339().into());
        }
        moved.push_str(&line.to_string());
        moved.push('\n');
    }
    Ok(moved)
}

/// Waits until every group has consumed its topics and what they tell each other has arrived. Gives up, without failing, when
/// nothing moves for a while: the recount then says what is missing.
///
/// # Errors
/// The store failed.
pub(super) async fn drained(client: &Client, log: &Log) -> anyhow::Result<()> {
    // What was behind, what was under way and where the log ended, the last time; since when it stands.
    let mut last = ((i64::MAX, 0, 0), Instant::now());
    loop {
        let topics = catalogue::load(client).await?;
        // In this order, and twice with the same ends: what a group consumed in between shows as under way, or as a later end.
        let lags = lag::measure(client, log, &topics).await?;
        let behind: i64 = lags.iter().map(|l| l.lag).sum();
        let end: i64 = lags.iter().map(|l| l.end).sum();
        let row = client
            .query_one("SELECT count(*) FROM emits", &[])
            .await
            .context("reading what is under way")?;
        let under_way: i64 = row.try_get(0)?;
        let now = (behind, under_way, end);
        if now == (0, 0, end) && now == last.0 {
            return Ok(());
        }
        if now != last.0 {
            last = (now, Instant::now());
        } else if last.1.elapsed() > PATIENCE {
            eprintln!(
                "nothing was decided for {} s: {behind} records are not consumed, {under_way} wait for the log",
                PATIENCE.as_secs()
            );
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_ends_now_and_keeps_its_pace() {
        let end = Micros(1_800_000_000_000_000);
        let moved = ending_at(SESSION, end).expect("a session");
        assert_eq!(moved.lines().count(), SESSION.lines().count());
        let times = |text: &str| -> Vec<i64> {
            text.lines()
                .filter_map(|line| {
                    let line: Value = serde_json::from_str(line).expect("JSON");
                    Some(
                        Micros::parse_rfc3339(line["at"].as_str()?)
                            .expect("a time")
                            .0,
                    )
                })
                .collect()
        };
        let (before, after) = (times(SESSION), times(&moved));
        assert_eq!(after.last(), Some(&end.0));
        let shift = after.first().expect("a time") - before.first().expect("a time");
        assert!(before.iter().zip(&after).all(|(b, a)| a - b == shift));
    }
}
