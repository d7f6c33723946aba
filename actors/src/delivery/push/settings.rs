//! `[delivery.push]` of config/millrace.toml, and the endpoints of users. All SQL on `push_subscriptions` that delivery needs.

use crate::runtime::session::Session;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use tokio_postgres::Error;
use url::{Host, Url};

/// The channel `push`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Push {
    /// Origins (`https://ntfy.sh`) whose endpoints may be woken; without any the channel is off.
    pub origins: Vec<String>,
    /// How long one request may take in all, in milliseconds.
    pub timeout_ms: u64,
    /// How long resolving, connecting and greeting may take of it, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Messages under way at once, at most.
    pub concurrency: usize,
}

impl Default for Push {
    fn default() -> Push {
        Push {
            origins: Vec::new(),
            timeout_ms: 10_000,
            connect_timeout_ms: 5_000,
            concurrency: 32,
        }
    }
}

/// One of `origins` cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("delivery.push.origins: `{0}` is no origin such as https://ntfy.sh")]
pub struct BadOrigin(pub String);

/// Whose endpoints may be woken.
#[derive(Clone, Debug, Default)]
pub struct Origins(Vec<String>);

impl Origins {
    /// From the operator's list. They are HTTPS; a loopback address alone may be listed without.
    ///
    /// # Errors
    /// [`BadOrigin`].
    pub fn new(listed: &[String]) -> Result<Origins, BadOrigin> {
        let read = |text: &String| {
            let bad = || BadOrigin(text.clone());
            let url = Url::parse(text.trim()).map_err(|_| bad())?;
            let bare = url.path() == "/" && url.query().is_none() && url.username().is_empty();
            (bare && is_secure(&url))
                .then(|| url.origin().ascii_serialization())
                .ok_or_else(bad)
        };
        Ok(Origins(listed.iter().map(read).collect::<Result<_, _>>()?))
    }

    /// Whether there is any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An endpoint that may be woken, as far as its text goes; where its host leads is judged when it is resolved.
    #[must_use]
    pub fn admit(&self, endpoint: &str) -> Option<Url> {
        let url = Url::parse(endpoint).ok()?;
        let known = self.0.contains(&url.origin().ascii_serialization());
        let plain = url.username().is_empty() && url.password().is_none();
        (known && plain && is_secure(&url)).then_some(url)
    }
}

fn is_secure(url: &Url) -> bool {
    let loopback = match url.host() {
        Some(Host::Ipv4(v4)) => IpAddr::V4(v4).is_loopback(),
        Some(Host::Ipv6(v6)) => IpAddr::V6(v6).is_loopback(),
        _ => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && loopback)
}

/// An endpoint of a user.
#[derive(Clone)]
pub struct Endpoint {
    /// `ps_…`.
    pub id: String,
    /// Its workspace.
    pub workspace: i32,
    /// Its user.
    pub user: String,
    /// Where it is. Whoever knows it can wake the device: never logged.
    pub url: String,
}

/// The endpoints of these users.
///
/// # Errors
/// The store's.
pub async fn endpoints(
    session: &Session,
    workspaces: &[i32],
    users: &[&str],
) -> Result<Vec<Endpoint>, Error> {
    let rows = session
        .query(
            "SELECT DISTINCT p.subscription_id, p.workspace_id, p.user_id, p.endpoint
             FROM unnest($1::int4[], $2::text[]) AS u(workspace_id, user_id) JOIN push_subscriptions p USING (workspace_id, user_id)
             ORDER BY 1",
            &[&workspaces, &users],
        )
        .await?;
    let read = |row: &tokio_postgres::Row| Endpoint {
        id: row.get(0),
        workspace: row.get(1),
        user: row.get(2),
        url: row.get(3),
    };
    Ok(rows.iter().map(read).collect())
}

/// Removes endpoints that are gone, each only where it is still the one that said so.
///
/// # Errors
/// The store's.
pub async fn remove(session: &Session, gone: &[(String, String)]) -> Result<u64, Error> {
    let (ids, urls): (Vec<&str>, Vec<&str>) = gone
        .iter()
        .map(|(id, url)| (id.as_str(), url.as_str()))
        .unzip();
    session
        .execute(
            "DELETE FROM push_subscriptions p USING unnest($1::text[], $2::text[]) AS g(id, endpoint)
             WHERE p.subscription_id = g.id AND p.endpoint = g.endpoint",
            &[&ids, &urls],
        )
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_origins_over_https_are_woken() {
        let listed = [
            "https://ntfy.sh".to_owned(),
            " https://push.example:8443/ ".to_owned(),
        ];
        let origins = Origins::new(&listed).expect("origins");
        for (endpoint, may) in [
            ("https://ntfy.sh/upABC?up=1", true),
            ("https://push.example:8443/x", true),
            ("https://push.example/x", false),
            ("http://ntfy.sh/upABC", false),
            ("https://ntfy.sh.evil.example/x", false),
            ("https://ntfy.sh@evil.example/x", false),
            ("https://user:pw@ntfy.sh/x", false),
            ("https://evil.example/ntfy.sh", false),
            ("file:///etc/passwd", false),
            ("", false),
        ] {
            assert_eq!(origins.admit(endpoint).is_some(), may, "{endpoint}");
        }
        for bad in [
            "ntfy.sh",
            "http://ntfy.sh",
            "https://ntfy.sh/topic",
            "https://a@b.example",
            "",
        ] {
            assert!(Origins::new(&[bad.to_owned()]).is_err(), "{bad}");
        }
        let local = Origins::new(&["http://127.0.0.1:9".to_owned()]).expect("loopback");
        assert!(local.admit("http://127.0.0.1:9/x").is_some());
        assert!(Origins::default().admit("https://ntfy.sh/x").is_none());
    }
}
