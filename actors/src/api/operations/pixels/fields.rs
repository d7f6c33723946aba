//! What can be written of a pixel.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whose pixel it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Platform {
    /// Meta's Conversions API.
    #[default]
    Meta,
}

impl Platform {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Platform::Meta => "meta",
        }
    }
}

/// Where the conversions happen: Meta's closed list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionSource {
    /// By email.
    Email,
    /// On a website.
    #[default]
    Website,
    /// In an app.
    App,
    /// By telephone.
    PhoneCall,
    /// In a conversation.
    Chat,
    /// In a shop.
    PhysicalStore,
    /// By itself, as a renewal does.
    SystemGenerated,
    /// In a business messaging app.
    BusinessMessaging,
    /// Elsewhere.
    Other,
}

impl ActionSource {
    const ALL: [ActionSource; 9] = [
        ActionSource::Email,
        ActionSource::Website,
        ActionSource::App,
        ActionSource::PhoneCall,
        ActionSource::Chat,
        ActionSource::PhysicalStore,
        ActionSource::SystemGenerated,
        ActionSource::BusinessMessaging,
        ActionSource::Other,
    ];

    /// The stored name, and Meta's.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ActionSource::Email => "email",
            ActionSource::Website => "website",
            ActionSource::App => "app",
            ActionSource::PhoneCall => "phone_call",
            ActionSource::Chat => "chat",
            ActionSource::PhysicalStore => "physical_store",
            ActionSource::SystemGenerated => "system_generated",
            ActionSource::BusinessMessaging => "business_messaging",
            ActionSource::Other => "other",
        }
    }

    pub(super) fn from_name(name: &str) -> ActionSource {
        let found = ActionSource::ALL.into_iter().find(|a| a.name() == name);
        found.unwrap_or_default()
    }
}

/// How the platform may use an event's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProcessingOption {
    /// Limited Data Use.
    #[serde(rename = "LDU")]
    LimitedDataUse,
}

/// What is said of data processing with every event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataProcessing {
    /// `LDU`, or nothing: no restriction, said aloud.
    #[schemars(length(max = 1), extend("x-class" = "open"))]
    pub options: Vec<ProcessingOption>,
    /// 1 for the USA; 0: the platform finds out.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1), extend("x-class" = "open"))]
    pub country: i32,
    /// 1000 for California and so on; 0: the platform finds out.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_100), extend("x-class" = "open"))]
    pub state: i32,
}

/// Whether it gets events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It does.
    #[default]
    Active,
    /// It gets nothing, not even what waits.
    Archived,
}

impl Status {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Status::Active => "active",
            Status::Archived => "archived",
        }
    }
}

/// What can be written of a pixel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fields {
    /// Its name.
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub name: String,
    /// Whose it is.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub platform: Platform,
    /// The platform's id of it; opaque, leading zeros kept.
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._:~-]{0,63}$"), extend("x-class" = "open"))]
    pub dataset_id: String,
    /// What a conversion is called there, unless an attachment says otherwise.
    #[serde(default = "purchase")]
    #[schemars(length(min = 1, max = 100), extend("x-class" = "open"))]
    pub event_name: String,
    /// ISO 4217: the currency of values, where it is not the conversion's own.
    #[serde(default)]
    #[schemars(regex(pattern = r"^[A-Z]{3}$"), extend("x-class" = "open"))]
    pub currency: Option<String>,
    /// Where the conversions happen.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub action_source: ActionSource,
    /// What is said of data processing with every event; null: nothing.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub data_processing: Option<DataProcessing>,
    /// Sends events to the platform's test view under this code.
    #[serde(default)]
    #[schemars(regex(pattern = r"^[!-~]{1,64}$"), extend("x-class" = "open"))]
    pub test_event_code: Option<String>,
    /// Whether it gets events.
    #[serde(default)]
    #[schemars(extend("x-class" = "open"))]
    pub status: Status,
}

fn purchase() -> String {
    "Purchase".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stored_names_are_the_wires() {
        for source in ActionSource::ALL {
            assert_eq!(json!(source), json!(source.name()));
            assert_eq!(ActionSource::from_name(source.name()), source);
        }
        assert_eq!(json!(Platform::Meta), json!(Platform::Meta.name()));
    }
}
