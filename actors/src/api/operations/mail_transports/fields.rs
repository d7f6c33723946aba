//! What can be written of a mail transport.

use crate::api::faults::Faults;
use crate::delivery::email::address;
use reqwest::Url;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How its connection is secured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Security {
    /// TLS from the first byte (port 465).
    Tls,
    /// STARTTLS, before anything is said (port 587); a server without it is not talked to.
    #[default]
    Starttls,
    /// None: for a server on the same machine or network.
    None,
}

impl Security {
    /// The stored name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Security::Tls => "tls",
            Security::Starttls => "starttls",
            Security::None => "none",
        }
    }

    pub(super) fn from_name(name: &str) -> Security {
        match name {
            "none" => Security::None,
            "tls" => Security::Tls,
            _ => Security::Starttls,
        }
    }
}

/// What can be written of a mail transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// Whether anything is sent through it. Off, what waits for it waits, and nothing new is written.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub enabled: bool,
    /// The server's name or address. One at no public address must be within the deployment's `delivery.allowed_networks`.
    #[schemars(length(min = 1, max = 253), extend("x-class" = "open"))]
    pub host: String,
    /// Its port.
    #[schemars(range(min = 1, max = 65_535), extend("x-class" = "open"))]
    pub port: u16,
    /// How the connection is secured.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub security: Security,
    /// Who we are to the server; absent: nobody. The password is set apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 300), extend("x-class" = "open"))]
    pub username: Option<String>,
    /// The name of whoever sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub sender_name: Option<String>,
    /// The address of whoever sends.
    #[schemars(length(min = 3, max = 320), extend("x-class" = "open"))]
    pub sender_address: String,
    /// Whom answers go to; absent: the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 320), extend("x-class" = "open"))]
    pub reply_to: Option<String>,
    /// The name that its mails end with.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub brand_name: String,
    /// The one accent colour of its mails, `#rrggbb`.
    #[serde(default = "default_accent")]
    #[schemars(regex(pattern = r"^#[0-9a-f]{6}$"), extend("x-class" = "open"))]
    pub brand_accent: String,
    /// Where site-relative links lead; absent: they are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 500), extend("x-class" = "open"))]
    pub site_url: Option<String>,
}

fn default_accent() -> String {
    "#2f5d8a".to_owned()
}

impl Fields {
    /// What the schema cannot say.
    pub(super) fn check(&self, faults: &mut Faults) {
        let bare = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '/' | '@');
        if self.host.chars().any(bare) {
            faults.add(
                "/host",
                "invalid_host",
                "want a name or an address, nothing around it",
            );
        }
        if address::parse(&self.sender_address).is_none() {
            faults.add(
                "/sender_address",
                "invalid_address",
                "want an address such as news@example.com",
            );
        }
        if let Some(reply_to) = &self.reply_to
            && address::parse(reply_to).is_none()
        {
            faults.add(
                "/reply_to",
                "invalid_address",
                "want an address such as team@example.com",
            );
        }
        for (at, text) in [
            ("/sender_name", self.sender_name.as_deref()),
            ("/username", self.username.as_deref()),
            ("/brand_name", Some(&*self.brand_name)),
        ] {
            if text.is_some_and(|t| t.chars().any(char::is_control)) {
                faults.add(at, "invalid_name", "no control characters");
            }
        }
        if let Some(site) = &self.site_url {
            let good = Url::parse(site).is_ok_and(|url| {
                matches!(url.scheme(), "https" | "http")
                    && url.has_host()
                    && url.username().is_empty()
                    && url.query().is_none()
            });
            if !good {
                faults.add("/site_url", "invalid_url", "want an https URL with a host");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_schema_cannot_say_is_said_with_its_place() {
        let good = Fields {
            enabled: true,
            host: "smtp.example.com".to_owned(),
            port: 587,
            security: Security::Starttls,
            username: None,
            sender_name: Some("News".to_owned()),
            sender_address: "news@bücher.example".to_owned(),
            reply_to: None,
            brand_name: "Books".to_owned(),
            brand_accent: default_accent(),
            site_url: Some("https://www.example.com".to_owned()),
        };
        let mut faults = Faults::new();
        good.check(&mut faults);
        assert!(faults.is_empty());
        for bad in [
            Fields {
                host: "smtp.example.com:25/x".to_owned(),
                ..good.clone()
            },
            Fields {
                sender_address: "nobody".to_owned(),
                ..good.clone()
            },
            Fields {
                reply_to: Some("a@b.example\r\nBcc: c@d.example".to_owned()),
                ..good.clone()
            },
            Fields {
                sender_name: Some("a\r\nb".to_owned()),
                ..good.clone()
            },
            Fields {
                site_url: Some("ftp://x.example".to_owned()),
                ..good.clone()
            },
        ] {
            let mut faults = Faults::new();
            bad.check(&mut faults);
            assert!(!faults.is_empty(), "{bad:?}");
        }
    }
}
