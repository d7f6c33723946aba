//! The wire records as doors write them: the fields of `millrace_schemas`' `ClickRecord` and `PostbackRecord`, borrowed, so
//! that a request costs no copy of what it says. A test holds both forms against each other.

use millrace_schemas::WIRE_VERSION;
use millrace_schemas::click::Kind;
use millrace_schemas::time::Micros;
use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use uuid::Uuid;

/// A `ClickRecord`. `P` writes the captured query.
#[derive(Serialize)]
pub struct ClickOut<'a, P> {
    /// Wire version.
    pub v: u16,
    /// What it is.
    pub kind: Kind,
    /// The workspace's number.
    pub workspace: i32,
    /// The click id.
    pub click_id: &'a str,
    /// Stream time.
    pub accepted_at: Micros,
    /// When it happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occurred_at: Option<Micros>,
    /// The visit's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visit_id: Option<Uuid>,
    /// The campaign.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub campaign: Option<&'a str>,
    /// The page of the funnel.
    pub stage: u16,
    /// A direct link.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
    /// The served journey.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journey: Option<&'a RawValue>,
    /// The captured query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<P>,
    /// The client's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<&'a str>,
    /// Its hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_hash: Option<Uuid>,
    /// The user agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<Cow<'a, str>>,
    /// The page's URL without its query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_url: Option<&'a str>,
    /// Meta's browser id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fbp: Option<&'a str>,
    /// Meta's click id cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fbc: Option<&'a str>,
    /// A provider click: the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<&'a str>,
    /// A provider click: its offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_offer_id: Option<&'a str>,
    /// A provider click: its transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_txid: Option<&'a str>,
}

impl<'a, P> ClickOut<'a, P> {
    /// A record with nothing but what every record has.
    pub fn new(kind: Kind, workspace: i32, click_id: &'a str, accepted_at: Micros) -> Self {
        ClickOut {
            v: WIRE_VERSION,
            kind,
            workspace,
            click_id,
            accepted_at,
            occurred_at: None,
            visit_id: None,
            campaign: None,
            stage: 0,
            direct: false,
            journey: None,
            params: None,
            ip: None,
            ip_hash: None,
            user_agent: None,
            source_url: None,
            fbp: None,
            fbc: None,
            network: None,
            network_offer_id: None,
            provider_txid: None,
        }
    }
}

/// A `PostbackRecord`.
#[derive(Serialize)]
pub struct PostbackOut<'a> {
    /// Wire version.
    pub v: u16,
    /// The workspace's number.
    pub workspace: i32,
    /// The network's id.
    pub network: &'a str,
    /// Stream time.
    pub accepted_at: Micros,
    /// When it happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occurred_at: Option<Micros>,
    /// The query without its secret.
    pub query: &'a str,
    /// The network's rules, serialised once a snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<&'a RawValue>,
}

/// The captured query as one object: a string a name, a list where a name came several times, in the order of first
/// appearance.
pub struct Captured<'a>(pub Vec<(Cow<'a, str>, Values<'a>)>);

/// The values of one name, nearly always one.
pub type Values<'a> = smallvec::SmallVec<[Cow<'a, str>; 1]>;

impl Captured<'_> {
    /// The first value of a name.
    #[must_use]
    pub fn first(&self, name: &str) -> Option<&str> {
        let (_, values) = self.0.iter().find(|(n, _)| n == name)?;
        values.first().map(|v| &**v)
    }
}

impl Serialize for Captured<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, values) in &self.0 {
            match &values[..] {
                [one] => map.serialize_entry(name, one)?,
                several => map.serialize_entry(name, several)?,
            }
        }
        map.end()
    }
}

/// A record's bytes. `expected` is a guess of their number that saves growing.
///
/// # Errors
/// None that these types can bring about; serde's signature has one.
pub fn to_bytes(
    record: &impl Serialize,
    expected: usize,
) -> Result<bytes::Bytes, serde_json::Error> {
    let mut out = Vec::with_capacity(expected);
    serde_json::to_writer(&mut out, record)?;
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_schemas::click::ClickRecord;
    use millrace_schemas::postback::{NetworkRules, PostbackRecord, Status};
    use smallvec::smallvec;

    #[test]
    fn a_click_reads_back_as_the_shared_type_and_as_the_same_bytes() {
        let journey = RawValue::from_string(r#"{"offer":{"id":"of_1"}}"#.into()).expect("JSON");
        let out = ClickOut {
            occurred_at: Some(Micros(5)),
            visit_id: Some(Uuid::from_u128(7)),
            campaign: Some("camp"),
            stage: 2,
            direct: true,
            journey: Some(&journey),
            params: Some(Captured(vec![
                ("a".into(), smallvec!["1\"".into()]),
                ("b".into(), smallvec!["1".into(), "2".into()]),
            ])),
            ip: Some("1.2.3.4"),
            ip_hash: Some(Uuid::from_u128(9)),
            user_agent: Some("ua".into()),
            source_url: Some("https://x.example/c/camp"),
            fbp: Some("fb.1.2.3"),
            fbc: Some("fb.1.2.x"),
            network: Some("nw_1"),
            network_offer_id: Some("007"),
            provider_txid: Some("t"),
            ..ClickOut::new(Kind::Visit, 3, "abc", Micros(1))
        };
        let bytes = to_bytes(&out, 64).expect("serialises");
        let read: ClickRecord = serde_json::from_slice(&bytes).expect("reads");
        let again = serde_json::to_vec(&read).expect("serialises");
        assert_eq!(
            String::from_utf8_lossy(&bytes),
            String::from_utf8_lossy(&again)
        );
        assert_eq!(
            read.params.as_deref().map(RawValue::get),
            Some(r#"{"a":"1\"","b":["1","2"]}"#)
        );
    }

    #[test]
    fn a_postback_reads_back_as_the_shared_type() {
        let rules = NetworkRules {
            status_words: [("paid".to_owned(), Status::Approved)].into(),
            reversals: true,
            ..NetworkRules::default()
        };
        let raw = serde_json::value::to_raw_value(&rules).expect("serialises");
        let bytes = to_bytes(
            &PostbackOut {
                v: WIRE_VERSION,
                workspace: 3,
                network: "nw_1",
                accepted_at: Micros(1),
                occurred_at: None,
                query: "click_id=a&x=%00",
                rules: Some(&raw),
            },
            64,
        )
        .expect("serialises");
        let read: PostbackRecord = serde_json::from_slice(&bytes).expect("reads");
        assert_eq!(
            (read.query.as_str(), &read.rules),
            ("click_id=a&x=%00", &rules)
        );
        assert_eq!(bytes, serde_json::to_vec(&read).expect("serialises"));
    }
}
