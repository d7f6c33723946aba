//! One request to the Conversions API.
//!
//! The token stands in the body, never in the URL, so that no log of a proxy or an error of ours can hold it. Nothing is
//! followed, nothing is retried here, and an answer is read up to a bound.

use super::answer::{self, Meaning};
use super::settings::{Meta, Pixel};
use crate::delivery::{outbound, schedule};
use crate::runtime::clock::SharedClock;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::value::RawValue;
use sha2::Sha256;
use std::time::Duration;

/// Bytes of an answer that are read.
const ANSWER_AT_MOST: usize = 64 << 10;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// `delivery.meta.graph_url` is no URL.
    #[error("delivery.meta.graph_url `{0}` is no http(s) URL")]
    BadUrl(String),
    /// `delivery.meta.version` is none.
    #[error("delivery.meta.version `{0}` is no version such as v24.0")]
    BadVersion(String),
    /// The HTTP client could not be made.
    #[error("no HTTP client: {0}")]
    Http(#[from] reqwest::Error),
    /// TLS could not be set up.
    #[error("no TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// The Conversions API under one base URL and version. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    /// With the version, without a slash at its end.
    base: String,
    timeout: Duration,
    clock: SharedClock,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What it means.
    pub meaning: Meaning,
    /// What was said, redacted.
    pub excerpt: Option<String>,
}

impl Client {
    /// A client as the settings say.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn new(settings: &Meta, clock: SharedClock) -> Result<Client, ClientError> {
        let url = settings.graph_url.trim().trim_end_matches('/');
        let parsed = url::Url::parse(url).ok().filter(|u| {
            matches!(u.scheme(), "http" | "https")
                && u.has_host()
                && u.query().is_none()
                && u.fragment().is_none()
        });
        if parsed.is_none() {
            return Err(ClientError::BadUrl(settings.graph_url.clone()));
        }
        let version = settings.version.trim();
        let word = |b: u8| b.is_ascii_alphanumeric() || b == b'.';
        if !version.starts_with('v') || !version.bytes().all(word) {
            return Err(ClientError::BadVersion(settings.version.clone()));
        }
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(outbound::tls(&[])?)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .user_agent(outbound::USER_AGENT)
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_millis(settings.connect_timeout_ms.max(1)))
            .pool_max_idle_per_host(settings.concurrency.max(1) * 2)
            .pool_idle_timeout(Duration::from_secs(50))
            .build()?;
        Ok(Client {
            http,
            base: format!("{url}/{version}"),
            timeout: settings.timeout(),
            clock,
        })
    }

    /// How long one request may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends events (JSON objects, as they were frozen) and judges the answer, all within `limit` at most.
    pub async fn post(&self, pixel: &Pixel, events: &[&RawValue], limit: Duration) -> Reply {
        let proof = pixel.app_secret.as_deref().map(|s| proof(&pixel.token, s));
        let url = format!("{}/{}/events", self.base, pixel.dataset);
        let request = self
            .http
            .post(url)
            .timeout(limit.min(self.timeout))
            .header(reqwest::header::CONTENT_TYPE, "application/json")
            .body(body(pixel, proof.as_deref(), events));
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) => return lost(&error),
        };
        let status = response.status().as_u16();
        let now = self.clock.wall().0.div_euclid(1_000_000);
        let after = response
            .headers()
            .get(reqwest::header::RETRY_AFTER)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| schedule::retry_after(v, now));
        let (mut answer, mut cut) = (Vec::new(), false);
        loop {
            match response.chunk().await {
                Ok(Some(piece)) => {
                    let room = ANSWER_AT_MOST - answer.len();
                    answer.extend(piece.iter().take(room));
                    if piece.len() > room {
                        cut = true;
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => return lost(&error),
            }
        }
        let meaning = answer::judge(status, &answer, cut, after);
        let secrets = [
            pixel.token.as_str(),
            pixel.app_secret.as_deref().unwrap_or_default(),
            proof.as_deref().unwrap_or_default(),
        ];
        let excerpt = (!matches!(meaning, Meaning::Received(_)))
            .then(|| answer::excerpt(&answer, &secrets))
            .filter(|e| !e.is_empty());
        Reply { meaning, excerpt }
    }
}

/// No answer, or half of one. What never left cannot have arrived; everything else may have.
fn lost(error: &reqwest::Error) -> Reply {
    let (code, unsure) = if error.is_connect() {
        ("connect", false)
    } else if error.is_timeout() {
        ("timeout", true)
    } else {
        ("broken", true)
    };
    Reply {
        meaning: Meaning::Again {
            code: code.into(),
            after: None,
            unsure,
            dead: true,
        },
        excerpt: None,
    }
}

/// `appsecret_proof`: HMAC-SHA256 of the token under the app secret, hexadecimal.
#[must_use]
pub fn proof(token: &str, app_secret: &str) -> String {
    use std::fmt::Write;
    // A key of any length is taken.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(app_secret.as_bytes()) else {
        return String::new();
    };
    mac.update(token.as_bytes());
    let tag = mac.finalize().into_bytes();
    tag.iter().fold(String::with_capacity(64), |mut hex, b| {
        let _ = write!(hex, "{b:02x}");
        hex
    })
}

/// `{"data": […], "access_token": …}`: the frozen events byte for byte.
fn body(pixel: &Pixel, proof: Option<&str>, events: &[&RawValue]) -> Vec<u8> {
    let size: usize = events.iter().map(|e| e.get().len() + 1).sum();
    let mut out = Vec::with_capacity(size + pixel.token.len() + 256);
    out.extend_from_slice(b"{\"data\":[");
    for (at, event) in events.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(event.get().as_bytes());
    }
    out.push(b']');
    let members = [
        ("access_token", Some(pixel.token.as_str())),
        ("appsecret_proof", proof),
        ("test_event_code", pixel.test_event_code.as_deref()),
    ];
    for (name, value) in members {
        let Some(value) = value else { continue };
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        // A text is always written.
        let _ = serde_json::to_writer(&mut out, value);
    }
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proof_is_meta_s() {
        let vectors = include_str!("vectors.tsv");
        let row = vectors
            .lines()
            .find(|l| l.starts_with("appsecret_proof"))
            .unwrap();
        let columns: Vec<&str> = row.split('\t').collect();
        assert_eq!(columns[1], "token=accesstoken0 secret=appsecret1");
        assert_eq!(proof("accesstoken0", "appsecret1"), columns[4]);
    }

    #[test]
    fn a_body_holds_the_frozen_bytes_and_what_the_pixel_says() {
        let pixel = Pixel {
            dataset: "1".into(),
            test_event_code: Some("TEST\"1".into()),
            token: "t".into(),
            app_secret: None,
        };
        let raw = |t: &str| RawValue::from_string(t.to_owned()).unwrap();
        let (a, b) = (raw(r#"{"value":1.50}"#), raw("{ }"));
        assert_eq!(
            String::from_utf8(body(&pixel, Some("ab"), &[&a, &b])).unwrap(),
            r#"{"data":[{"value":1.50},{ }],"access_token":"t","appsecret_proof":"ab","test_event_code":"TEST\"1"}"#
        );
        assert!(!format!("{pixel:?}").contains("token"));
    }

    #[test]
    fn wrong_settings_are_named() {
        let of = |url: &str, version: &str| {
            let settings = Meta {
                graph_url: url.into(),
                version: version.into(),
                ..Meta::default()
            };
            let clock = std::sync::Arc::new(crate::runtime::clock::SystemClock);
            Client::new(&settings, clock).err().map(|e| e.to_string())
        };
        assert_eq!(of("https://graph.facebook.com/", "v24.0"), None);
        assert_eq!(of("http://127.0.0.1:1", "v1"), None);
        for (url, version) in [
            ("graph.facebook.com", "v1"),
            ("ftp://x", "v1"),
            ("http://x?a", "v1"),
        ] {
            assert!(of(url, version).unwrap().contains("graph_url"));
        }
        assert!(of("http://x", "../v1").unwrap().contains("version"));
    }
}
