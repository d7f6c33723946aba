//! Sends the plan through the doors: real HTTP, a bounded number of requests at a time, every answer checked.

use super::scenery::Scenery;
use super::traffic::{AdClick, BatchLine, Beacon, Call, ClickId, Door, Plan, Postback};
use anyhow::{Context, bail};
use futures::StreamExt;
use millrace_schemas::macros::encode_query_value;
use millrace_schemas::time::Micros;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, LOCATION, USER_AGENT};
use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Requests under way at once.
const AT_ONCE: usize = 64;
/// Surprises that are kept with their text.
const SURPRISES: usize = 5;

/// What one call came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Records that the log has.
    pub accepted: u64,
    /// Requests and lines turned away.
    pub refused: u64,
}

/// Counts of the whole run.
#[derive(Debug, Default)]
pub struct Sent {
    /// By door.
    pub doors: BTreeMap<Door, Tally>,
    /// Calls that were answered otherwise than planned.
    pub surprises: u64,
    /// The first of them, in words.
    pub first_surprises: Vec<String>,
}

impl Sent {
    /// Records that the log has.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.doors.values().map(|t| t.accepted).sum()
    }

    /// Requests and lines turned away.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.doors.values().map(|t| t.refused).sum()
    }
}

/// Knows where the doors are and what a sender needs.
pub struct Driver<'a> {
    client: reqwest::Client,
    base: String,
    key: String,
    scenery: &'a Scenery,
    minted: Vec<OnceLock<String>>,
    /// What is added to the log's times, in microseconds, so that its last line happened now.
    shift: i64,
    sent: Mutex<Sent>,
}

impl<'a> Driver<'a> {
    /// For doors at `base`. `shift` is added to the log's times.
    ///
    /// # Errors
    /// No HTTP client could be made.
    pub fn new(
        base: &str,
        key: &str,
        scenery: &'a Scenery,
        plan: &Plan,
        shift: i64,
    ) -> anyhow::Result<Driver<'a>> {
        let client = super::setup::http_client()?;
        Ok(Driver {
            client,
            base: base.to_owned(),
            key: key.to_owned(),
            scenery,
            minted: std::iter::repeat_with(OnceLock::new)
                .take(plan.slots)
                .collect(),
            shift,
            sent: Mutex::default(),
        })
    }

    /// Records that the log has so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.accepted()
    }

    /// What was sent.
    #[must_use]
    pub fn into_sent(self) -> Sent {
        self.sent
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A click id that a door minted.
    #[must_use]
    pub fn minted(&self, slot: usize) -> Option<&str> {
        self.minted.get(slot)?.get().map(String::as_str)
    }

    /// Sends calls, in no order, and returns when all are answered. `done` is called for each.
    pub async fn send_all(&self, calls: &[Call], done: impl Fn()) {
        futures::stream::iter(calls)
            .for_each_concurrent(AT_ONCE, |call| async {
                let result = self.send(call).await;
                let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
                match result {
                    Ok(tally) => {
                        let door = sent.doors.entry(call.door()).or_default();
                        door.accepted += tally.accepted;
                        door.refused += tally.refused;
                    }
                    Err(e) => {
                        sent.surprises += 1;
                        if sent.first_surprises.len() < SURPRISES {
                            let said = format!("{}: {e:#}", call.door().name());
                            sent.first_surprises.push(said);
                        }
                    }
                }
                drop(sent);
                done();
            })
            .await;
    }

    async fn send(&self, call: &Call) -> anyhow::Result<Tally> {
        match call {
            Call::Click(click) => self.click(click).await,
            Call::Beacon(beacon) => self.beacon(beacon).await,
            Call::Postback(postback) => self.postback(postback).await,
            Call::Batch(door, lines) => self.batch(*door, lines).await,
            Call::BrokenBatch(door) => self.broken_batch(*door).await,
        }
    }

    fn url(&self, door: Door) -> String {
        format!("{}{}", self.base, door.path())
    }

    fn click_id<'b>(&'b self, click: &'b ClickId) -> anyhow::Result<&'b str> {
        match click {
            ClickId::Own(id) => Ok(id),
            ClickId::Minted(slot) => self
                .minted(*slot)
                .context("the ad click before it was not answered"),
        }
    }

    async fn click(&self, click: &AdClick) -> anyhow::Result<Tally> {
        let url = format!(
            "{}{}?{}",
            self.url(Door::Click),
            click.campaign,
            click.query
        );
        let answer = self
            .client
            .get(url)
            .header(USER_AGENT, &click.agent)
            .header("X-Forwarded-For", &click.address)
            .send()
            .await?;
        let tally = expect_status(&answer, click.answer, &[302])?;
        if let Some(slot) = self.minted.get(click.slot) {
            let location = answer
                .headers()
                .get(LOCATION)
                .and_then(|l| l.to_str().ok())
                .context("a redirect without a Location")?;
            let id = super::setup::click_id_in(location)
                .with_context(|| format!("no click id in {location}"))?;
            let _ = slot.set(id.to_owned());
        }
        Ok(tally)
    }

    async fn beacon(&self, beacon: &Beacon) -> anyhow::Result<Tally> {
        let mut body = serde_json::json!({
            "click_id": self.click_id(&beacon.click)?,
            "link_id": beacon.campaign,
        });
        if beacon.padding > 0
            && let Some(members) = body.as_object_mut()
        {
            members.insert("padding".into(), "x".repeat(beacon.padding).into());
        }
        // As `navigator.sendBeacon` does it.
        let answer = self
            .client
            .post(self.url(Door::Beacon))
            .header(CONTENT_TYPE, "text/plain;charset=UTF-8")
            .body(body.to_string())
            .send()
            .await?;
        expect_status(&answer, beacon.answer, &[204])
    }

    async fn postback(&self, postback: &Postback) -> anyhow::Result<Tally> {
        let network = self
            .scenery
            .networks
            .get(postback.network)
            .context("a network that was not made")?;
        let secret = if postback.forged {
            "not-the-secret"
        } else {
            &network.secret
        };
        let mut query = format!("secret={}", encode_query_value(secret));
        let click = match &postback.click {
            Some(click) => Some(("click_id", self.click_id(click)?)),
            None => None,
        };
        let fields = postback.fields.iter().map(|(n, v)| (*n, v.as_str()));
        for (name, value) in click.into_iter().chain(fields) {
            query.push('&');
            query.push_str(network.name_of(name));
            query.push('=');
            query.push_str(&encode_query_value(value));
        }
        let url = format!("{}?{query}", self.url(Door::Postback));
        let request = if postback.post {
            self.client.post(url)
        } else {
            self.client.get(url)
        };
        // reqwest's errors carry the URL, and the URL the secret.
        let answer = request.send().await.map_err(reqwest::Error::without_url)?;
        // 400: received and kept, but it can never be booked.
        expect_status(&answer, postback.answer, &[200, 400])
    }

    async fn batch(&self, door: Door, lines: &[BatchLine]) -> anyhow::Result<Tally> {
        let mut body = String::new();
        for line in lines {
            let mut members = line.members.clone();
            members.insert("click_id".into(), self.click_id(&line.click)?.into());
            let at = Micros(line.at.0.saturating_add(self.shift));
            members.insert("occurred_at".into(), at.rfc3339().into());
            body.push_str(&serde_json::Value::Object(members).to_string());
            body.push('\n');
        }
        let (status, answer) = self.post_batch(door, body).await?;
        if status != 200 {
            bail!("status {status}: {}", excerpt(&answer));
        }
        let tally = super::setup::batch_tally(&answer)
            .with_context(|| format!("an answer of another form: {}", excerpt(&answer)))?;
        let sent = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        if (tally.accepted, tally.refused) != (sent, 0) {
            bail!(
                "of {sent} lines not all were accepted: {}",
                excerpt(&answer)
            );
        }
        Ok(tally)
    }

    async fn broken_batch(&self, door: Door) -> anyhow::Result<Tally> {
        let (status, answer) = self
            .post_batch(door, "{\"id\": \"broken\n".to_owned())
            .await?;
        super::setup::is_broken_batch_answer(status, &answer)
            .then_some(Tally {
                accepted: 0,
                refused: 1,
            })
            .with_context(|| format!("status {status}: {}", excerpt(&answer)))
    }

    async fn post_batch(&self, door: Door, body: String) -> anyhow::Result<(u16, String)> {
        let answer = self
            .client
            .post(self.url(door))
            .header(AUTHORIZATION, format!("Bearer {}", self.key))
            .header(CONTENT_TYPE, "application/x-ndjson")
            .body(body)
            .send()
            .await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }
}

/// What an answer of `status` means: accepted if it stands in `accepted`, refused otherwise.
fn expect_status(
    answer: &reqwest::Response,
    expected: u16,
    accepted: &[u16],
) -> anyhow::Result<Tally> {
    let status = answer.status().as_u16();
    if status != expected {
        bail!("status {status} instead of {expected}");
    }
    let taken = u64::from(accepted.contains(&status));
    Ok(Tally {
        accepted: taken,
        refused: 1 - taken,
    })
}

fn excerpt(text: &str) -> String {
    text.chars().take(300).collect()
}
