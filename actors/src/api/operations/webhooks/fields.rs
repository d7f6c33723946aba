//! What can be written of a webhook.

use crate::api::schema::HIDDEN_QUERY;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a webhook hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A visit was booked.
    Visit,
    /// A click was booked.
    Click,
    /// A conversion was booked, or changed.
    Conversion,
}

impl Event {
    /// The stored name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Event::Visit => "visit",
            Event::Click => "click",
            Event::Conversion => "conversion",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Event> {
        [Event::Visit, Event::Click, Event::Conversion]
            .into_iter()
            .find(|e| e.name() == name)
    }
}

/// Whether it hears anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It does.
    #[default]
    Active,
    /// It is off, by hand or because it failed for days.
    Disabled,
    /// It is gone.
    Archived,
}

impl Status {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Status::Active => "active",
            Status::Disabled => "disabled",
            Status::Archived => "archived",
        }
    }

    pub(super) fn from_name(name: &str) -> Status {
        match name {
            "disabled" => Status::Disabled,
            "archived" => Status::Archived,
            _ => Status::Active,
        }
    }
}

/// What can be written of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// Its name.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub name: String,
    /// Where it listens: https, or http where the deployment allows the address. Its query is shown to whoever may see
    /// identities alone.
    #[schemars(length(min = 1, max = 2_000), extend("x-class" = "url"))]
    pub url: String,
    /// What it hears of.
    #[schemars(length(min = 1, max = 3), extend("x-class" = "open", "uniqueItems" = true))]
    pub events: Vec<Event>,
    /// Whether it hears anything. Made active again, its failures are forgotten.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub status: Status,
}

/// Whether it is an http(s) URL with a host. Where that host leads is asked when something is sent there.
pub(super) fn check_url(text: &str) -> Result<(), &'static str> {
    if text.ends_with(HIDDEN_QUERY) {
        return Err("its query was hidden from its reader; say the whole URL");
    }
    let bare = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    if text.chars().any(bare) {
        return Err("a URL has no blanks, backslashes or control characters");
    }
    let url = reqwest::Url::parse(text).map_err(|_| "want an https URL with a host")?;
    if !matches!(url.scheme(), "https" | "http") || url.host_str().is_none_or(str::is_empty) {
        return Err("want an https URL with a host");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("credentials do not belong in a URL");
    }
    if url.fragment().is_some() {
        return Err("a fragment is never sent");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn urls_have_a_host_and_no_credentials() {
        for good in [
            "https://x.example/hook",
            "http://127.0.0.1:9000/?a=b",
            "https://[2001:db8::1]/",
        ] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "x.example",
            "ftp://x.example",
            "javascript:alert(1)",
            "https://",
            "https://a:b@x.example/",
            "https://a@x.example/",
            "https://x.example/#f",
            "https://x.example/a b",
            "https://x.example\\@y.example/",
            "https://x.example/?…",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn stored_names_are_the_wires() {
        for event in [Event::Visit, Event::Click, Event::Conversion] {
            assert_eq!(json!(event), json!(event.name()));
            assert_eq!(Event::from_name(event.name()), Some(event));
        }
        for status in [Status::Active, Status::Disabled, Status::Archived] {
            assert_eq!(json!(status), json!(status.name()));
            assert_eq!(Status::from_name(status.name()), status);
        }
    }
}
