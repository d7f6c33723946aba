//! What a contact is compared by. Pure.

use crate::delivery::meta::normalize::{
    Context, DIGEST_OF_NOTHING, Field, Normalized, as_digest, normalize,
};
use millrace_schemas::postback::query_pairs;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use std::borrow::Cow;

/// What stands where a contact stood.
pub const ERASED: &str = "erased";

/// Between these characters a text is looked at piece by piece.
const BETWEEN: &[char] = &[
    '"', '\'', '<', '>', ',', ';', ':', '&', '=', '?', '#', '/', '\\', '|', '{', '}', '[', ']',
];

/// Parameters of a postback that tell a person by their very name.
const TELLING: &[&str] = &[
    "email_hash",
    "phone_hash",
    "lead_hash",
    "email",
    "phone",
    "em",
    "ph",
];

/// It is no contact that could be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAContact {
    /// No SHA-256.
    #[error("want a SHA-256: 64 hexadecimal digits")]
    NoDigest,
    /// The digest of an empty text, which senders without a contact send.
    #[error("that is the digest of an empty text, which belongs to nobody")]
    Nothing,
    /// No address.
    #[error("want an email address")]
    NoAddress,
    /// No number.
    #[error("want a telephone number of at least seven digits, with its country code")]
    NoNumber,
}

/// A contact, known by its digest.
#[derive(Clone, PartialEq, Eq)]
pub struct Contact {
    digest: String,
}

impl std::fmt::Debug for Contact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Contact(…)")
    }
}

impl Contact {
    /// By its SHA-256.
    ///
    /// # Errors
    /// [`NotAContact`].
    pub fn from_digest(text: &str) -> Result<Contact, NotAContact> {
        let digest = as_digest(text.trim()).ok_or(NotAContact::NoDigest)?;
        match digest == DIGEST_OF_NOTHING {
            true => Err(NotAContact::Nothing),
            false => Ok(Contact { digest }),
        }
    }

    /// By the address itself, which goes no further than here.
    ///
    /// # Errors
    /// [`NotAContact`].
    pub fn from_email(text: &str) -> Result<Contact, NotAContact> {
        let digest = email(text).ok_or(NotAContact::NoAddress)?;
        Ok(Contact { digest })
    }

    /// By the number itself, with its country code.
    ///
    /// # Errors
    /// [`NotAContact`].
    pub fn from_phone(text: &str) -> Result<Contact, NotAContact> {
        let digest = phones(text).next().ok_or(NotAContact::NoNumber)?;
        Ok(Contact { digest })
    }

    /// Its SHA-256, 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Whether a whole value is this contact, raw or as its digest.
    #[must_use]
    pub fn is(&self, value: &str) -> bool {
        let value = value.trim();
        as_digest(value).is_some_and(|d| d == self.digest)
            || email(value).is_some_and(|d| d == self.digest)
            || phones(value).any(|d| d == self.digest)
    }

    /// The text without this contact; `None`: it is not in it.
    #[must_use]
    pub fn scrub(&self, text: &str) -> Option<String> {
        if self.is(text) {
            return Some(ERASED.to_owned());
        }
        let mut out = String::new();
        let (mut found, mut rest) = (false, text);
        while !rest.is_empty() {
            let ends = |c: char| c.is_whitespace() || BETWEEN.contains(&c);
            let at = rest.find(ends).unwrap_or(rest.len());
            let (piece, after) = rest.split_at(at);
            match self.is_encoded(piece) {
                true => {
                    out.push_str(ERASED);
                    found = true;
                }
                false => out.push_str(piece),
            }
            let mut next = after.chars();
            out.extend(next.next());
            rest = next.as_str();
        }
        found.then_some(out)
    }

    /// As [`Contact::is`], of a piece that may be percent-encoded, with blanks as `+`.
    fn is_encoded(&self, piece: &str) -> bool {
        if piece.is_empty() {
            return false;
        }
        let decoded: Cow<'_, str> = percent_decode_str(piece).decode_utf8_lossy();
        self.is(&decoded) || (piece.contains('+') && self.is(&decoded.replace('+', " ")))
    }

    /// Scrubs every text inside. True: something was found.
    pub fn scrub_json(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => match self.scrub(text) {
                Some(scrubbed) => {
                    *text = scrubbed;
                    true
                }
                None => false,
            },
            Value::Array(items) => {
                let mut found = false;
                for item in items {
                    found |= self.scrub_json(item);
                }
                found
            }
            Value::Object(members) => {
                let mut found = false;
                for member in members.values_mut() {
                    found |= self.scrub_json(member);
                }
                found
            }
            // A telephone number may be written as one.
            Value::Number(number) if self.is(&number.to_string()) => {
                *value = Value::from(ERASED);
                true
            }
            _ => false,
        }
    }

    /// A record's bytes without this contact: as JSON where they are JSON, as text else. `None`: it is not in them.
    #[must_use]
    pub fn scrub_bytes(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        match serde_json::from_slice::<Value>(bytes) {
            Ok(mut value) => self
                .scrub_json(&mut value)
                .then(|| value.to_string().into_bytes()),
            Err(_) => self
                .scrub(&String::from_utf8_lossy(bytes))
                .map(String::into_bytes),
        }
    }
}

/// A query without the parameters that tell a person; `None`: it has none of them.
#[must_use]
pub fn without_contacts(query: &str) -> Option<String> {
    let mut dropped = false;
    let kept: Vec<&str> = query
        .split('&')
        .filter(|pair| {
            let telling = query_pairs(pair).any(|(name, _)| TELLING.contains(&&*name));
            dropped |= telling;
            !telling
        })
        .collect();
    dropped.then(|| kept.join("&"))
}

fn hashed(field: Field, value: &str, calling_code: Option<&str>) -> Option<String> {
    let context = Context {
        calling_code,
        ..Context::default()
    };
    match normalize(field, value, &context) {
        Normalized::Hashed { sha256_hex, .. } => Some(sha256_hex),
        _ => None,
    }
}

fn email(value: &str) -> Option<String> {
    let (local, domain) = value.trim().split_once('@')?;
    (!local.is_empty() && domain.len() > 2 && !domain.contains('@'))
        .then(|| hashed(Field::Em, value, None))?
}

/// Digests of a telephone number: as written, and with the country code of North America, which is often left out there.
fn phones(value: &str) -> impl Iterator<Item = String> {
    let value = value.trim();
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    let written = value
        .chars()
        .all(|c| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | '(' | ')' | ' '));
    let number = (written && (7..=18).contains(&digits)).then_some(value);
    let with = |code| number.and_then(|v| hashed(Field::Ph, v, code));
    [with(None), with(Some("1"))].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const JANE: &str = "Jane.Doe+x@Example.com";

    fn jane() -> Contact {
        Contact::from_email(JANE).unwrap()
    }

    #[test]
    fn a_contact_is_known_raw_and_as_its_digest() {
        let jane = jane();
        let digest = jane.digest().to_owned();
        assert_eq!(
            Contact::from_digest(&digest.to_uppercase()),
            Ok(jane.clone())
        );
        for it in [
            JANE,
            " jane.doe+x@example.COM ",
            &digest,
            &digest.to_uppercase(),
        ] {
            assert!(jane.is(it), "{it}");
        }
        for other in ["", "jane.doe@example.com", "x", &digest[..63]] {
            assert!(!jane.is(other), "{other}");
        }
        let phone = Contact::from_phone("+1 (555) 123-4567").unwrap();
        for it in [
            "15551234567",
            "555-123-4567",
            "001 555 123 4567",
            "+15551234567",
        ] {
            assert!(phone.is(it), "{it}");
        }
        assert!(!phone.is("5551234568") && !phone.is("order 15551234567x"));
    }

    #[test]
    fn what_belongs_to_nobody_is_no_contact() {
        assert_eq!(
            Contact::from_digest(DIGEST_OF_NOTHING),
            Err(NotAContact::Nothing)
        );
        for bad in ["", "zz", &"g".repeat(64)] {
            assert_eq!(Contact::from_digest(bad), Err(NotAContact::NoDigest));
        }
        assert_eq!(Contact::from_email("jane"), Err(NotAContact::NoAddress));
        assert_eq!(
            Contact::from_email("@example.com"),
            Err(NotAContact::NoAddress)
        );
        assert_eq!(Contact::from_phone("12"), Err(NotAContact::NoNumber));
        assert!(!format!("{:?}", jane()).contains(jane().digest()));
    }

    #[test]
    fn it_goes_out_of_queries_texts_and_json_and_nothing_else_does() {
        let jane = jane();
        let digest = jane.digest();
        assert_eq!(
            jane.scrub(&format!(
                "click_id=a&email_hash={digest}&e=Jane.Doe%2Bx%40example.com&payout=1.50"
            )),
            Some("click_id=a&email_hash=erased&e=erased&payout=1.50".to_owned())
        );
        assert_eq!(
            jane.scrub("mail <jane.doe+x@example.com>, please"),
            Some("mail <erased>, please".to_owned())
        );
        assert_eq!(jane.scrub("click_id=a&email=john@example.com"), None);
        let mut value = json!({"a": [JANE, 1], "b": {"c": digest}, "d": "stays"});
        assert!(jane.scrub_json(&mut value));
        assert_eq!(
            value,
            json!({"a": [ERASED, 1], "b": {"c": ERASED}, "d": "stays"})
        );
        assert!(!jane.scrub_json(&mut value));
        let phone = Contact::from_phone("+15551234567").unwrap();
        assert_eq!(
            phone.scrub_bytes(br#"{"n":15551234567,"q":"tel=%2B1+555+123+4567"}"#),
            Some(br#"{"n":"erased","q":"tel=erased"}"#.to_vec())
        );
        assert_eq!(phone.scrub_bytes(b"\xff no JSON"), None);
        let damaged = format!("\u{fffd} {JANE} no JSON");
        assert!(jane.scrub_bytes(damaged.as_bytes()).is_some());
    }

    #[test]
    fn telling_parameters_go_by_their_names() {
        assert_eq!(
            without_contacts("click_id=a&phone_hash=x&txid=t&e%6Dail=b"),
            Some("click_id=a&txid=t".to_owned())
        );
        assert_eq!(without_contacts("click_id=a&txid=t"), None);
    }
}
