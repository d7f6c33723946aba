//! The receiver of webhooks: verifies each signature by itself, as standardwebhooks.com describes it, knows a message again by
//! `webhook-id`, and counts. Three messages do not get through at their first try.

use super::Reply;
use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

/// How far the clock of a sender may stand off, in seconds.
const SKEW_SECS: i64 = 300;

/// How the first messages go wrong at their first arrival, one each.
const TROUBLE: [Trouble; 3] = [Trouble::Down, Trouble::Busy, Trouble::AnswerLost];

#[derive(Clone, Copy)]
enum Trouble {
    /// 503, nothing taken.
    Down,
    /// 429, to be tried again after a second; nothing taken.
    Busy,
    /// Taken, and the answer says 500: it comes again, under its id.
    AnswerLost,
}

/// What it counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookCounts {
    /// Requests.
    pub requests: u64,
    /// Requests without a good signature.
    pub forged: u64,
    /// Messages that were taken, each once, by their `type`.
    pub messages: BTreeMap<String, u64>,
    /// Requests that brought a message that was taken before.
    pub again: u64,
    /// Those among them that said something else.
    pub altered: u64,
}

impl HookCounts {
    /// Messages that were taken, each once.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.messages.values().sum()
    }
}

/// The receiver.
#[derive(Default)]
pub struct Hook {
    key: OnceLock<Vec<u8>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    counts: HookCounts,
    /// Digests of bodies, by id.
    known: HashMap<String, [u8; 32]>,
    turned_away: HashSet<String>,
}

impl Hook {
    /// Tells it the webhook's secret, `whsec_…`.
    ///
    /// # Errors
    /// It is none.
    pub fn knows(&self, secret: &str) -> anyhow::Result<()> {
        let text = secret.strip_prefix("whsec_");
        let text = text.context("the webhook's secret does not begin with whsec_")?;
        let key = STANDARD.decode(text).context("the webhook's secret")?;
        let _ = self.key.set(key);
        Ok(())
    }

    /// What it counted so far.
    #[must_use]
    pub fn counts(&self) -> HookCounts {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.counts.clone()
    }

    /// Takes one request.
    #[must_use]
    pub fn take<'a>(
        &self,
        header: impl Fn(&str) -> Option<&'a str>,
        body: &[u8],
        now_secs: i64,
    ) -> Reply {
        let verified = self.verified(header, body, now_secs);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        state.counts.requests += 1;
        let Some(id) = verified else {
            state.counts.forged += 1;
            return Reply::new(401, json!({"error": "the signature is not good"}));
        };
        let digest: [u8; 32] = Sha256::digest(body).into();
        if let Some(before) = state.known.get(id) {
            state.counts.again += 1;
            state.counts.altered += u64::from(*before != digest);
            return Reply::new(200, json!({}));
        }
        let first = !state.turned_away.contains(id);
        let trouble = TROUBLE.get(state.turned_away.len()).filter(|_| first);
        if trouble.is_some() {
            state.turned_away.insert(id.to_owned());
        }
        match trouble {
            Some(Trouble::Down) => return Reply::new(503, json!({})),
            Some(Trouble::Busy) => {
                return Reply {
                    retry_after: Some(1),
                    ..Reply::new(429, json!({}))
                };
            }
            Some(Trouble::AnswerLost) | None => {}
        }
        state.known.insert(id.to_owned(), digest);
        let said: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let kind = said.get("type").and_then(|t| t.as_str()).unwrap_or("none");
        *state.counts.messages.entry(kind.to_owned()).or_default() += 1;
        Reply::new(if trouble.is_some() { 500 } else { 200 }, json!({}))
    }

    /// The message's id, if both signatures are good and it is no old one.
    fn verified<'a>(
        &self,
        header: impl Fn(&str) -> Option<&'a str>,
        body: &[u8],
        now_secs: i64,
    ) -> Option<&'a str> {
        let (id, timestamp) = (header("webhook-id")?, header("webhook-timestamp")?);
        let seconds: i64 = timestamp.parse().ok()?;
        if now_secs.abs_diff(seconds) > SKEW_SECS.unsigned_abs() {
            return None;
        }
        let begun = Hmac::<Sha256>::new_from_slice(self.key.get()?).ok()?;
        let mut signed = begun.clone();
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            signed.update(part);
        }
        let good = header("webhook-signature")?.split(' ').any(|signature| {
            signature
                .strip_prefix("v1,")
                .and_then(|text| STANDARD.decode(text).ok())
                .is_some_and(|tag| signed.clone().verify_slice(&tag).is_ok())
        });
        let mut bare = begun;
        bare.update(body);
        let mut wanted = String::from("sha256=");
        for byte in bare.finalize().into_bytes() {
            let _ = write!(wanted, "{byte:02x}");
        }
        (good && header("x-millrace-signature") == Some(&wanted)).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    /// The vector of the Standard Webhooks libraries.
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const AT: i64 = 1_614_265_330;

    fn take(hook: &Hook, id: &str, signature: &str, now: i64) -> u16 {
        // Reckoned with another implementation.
        let bare = "sha256=e2cb4f5251572539d458bfb8a7adb533b08801e6a794467e06f771debbb0818b";
        let headers = HashMap::from([
            ("webhook-id", id),
            ("webhook-timestamp", "1614265330"),
            ("webhook-signature", signature),
            ("x-millrace-signature", bare),
        ]);
        hook.take(|name| headers.get(name).copied(), BODY, now)
            .status
    }

    #[test]
    fn signatures_are_verified_and_ids_known_again() {
        let hook = Hook::default();
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        assert_eq!(take(&hook, id, SIGNATURE, AT), 401, "no secret is known");
        hook.knows(SECRET).expect("a secret");
        assert!(hook.knows("none").is_err());
        assert_eq!(take(&hook, id, SIGNATURE, AT), 503, "the first stumbles");
        assert_eq!(take(&hook, id, SIGNATURE, AT), 200);
        assert_eq!(take(&hook, id, &format!("v1,AAAA {SIGNATURE}"), AT), 200);
        assert_eq!(take(&hook, id, "v1,AAAA", AT), 401);
        assert_eq!(take(&hook, "msg_another", SIGNATURE, AT), 401);
        assert_eq!(take(&hook, id, SIGNATURE, AT + SKEW_SECS + 1), 401);
        let counts = hook.counts();
        assert_eq!((counts.requests, counts.forged), (7, 4));
        assert_eq!((counts.unique(), counts.again, counts.altered), (1, 1, 0));
    }
}
