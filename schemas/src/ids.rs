//! Ids: minted, derived from coordinates, and foreign. All are opaque strings outside; inside, 16 bytes.
//!
//! A minted id is a UUIDv7 in 26 lower-case Crockford base-32 characters: time-ordered, URL-safe, and it survives systems
//! that fold case. A foreign id (one that we did not mint) is hashed to 16 bytes with the version nibble 8, so that no
//! foreign string can name the 16 bytes of a minted id.

use crate::time::Micros;
use sha2::{Digest, Sha256};
use uuid::Uuid;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Longest click id that is accepted, in bytes.
pub const MAX_CLICK_ID: usize = 200;

/// How far ahead of its acceptance a minted id's time may lie, in seconds.
pub const FUTURE_SKEW_SECS: i64 = 300;

/// A fresh time-ordered id for the given moment.
///
/// # Errors
/// The operating system's random source failed.
pub fn mint(now: Micros) -> Result<Uuid, getrandom::Error> {
    let mut random = [0u8; 10];
    getrandom::fill(&mut random)?;
    let millis = u64::try_from(now.millis()).unwrap_or(0);
    Ok(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
}

/// The text of 16 bytes: 26 characters, the first of them 0–7.
#[must_use]
pub fn encode(id: Uuid) -> String {
    let value = id.as_u128();
    let mut out = String::with_capacity(26);
    for i in (0..26).rev() {
        let index = usize::try_from((value >> (5 * i)) & 31).unwrap_or(0);
        out.push(char::from(ALPHABET.get(index).copied().unwrap_or(b'0')));
    }
    out
}

/// The 16 bytes of a text made by [`encode`]; `None` for every other text (upper case included: the mapping is one to one).
#[must_use]
pub fn decode(text: &str) -> Option<Uuid> {
    let bytes = text.as_bytes();
    if bytes.len() != 26 || !bytes.first().is_some_and(|b| (b'0'..=b'7').contains(b)) {
        return None;
    }
    let mut value: u128 = 0;
    for b in bytes {
        let digit = DECODE.get(usize::from(*b)).copied().filter(|d| *d < 32)?;
        value = (value << 5) | u128::from(digit);
    }
    Some(Uuid::from_u128(value))
}

const DECODE: [u8; 256] = {
    let mut table = [255u8; 256];
    let mut i: u8 = 0;
    while i < 32 {
        #[expect(
            clippy::indexing_slicing,
            reason = "evaluated by the compiler, both indexes are in range"
        )]
        {
            table[ALPHABET[i as usize] as usize] = i;
        }
        i += 1;
    }
    table
};

/// The time inside a minted id, in milliseconds; `None` where the 16 bytes are not a UUIDv7.
#[must_use]
pub fn minted_millis(id: Uuid) -> Option<i64> {
    let v = id.as_u128();
    let version = (v >> 76) & 0xf;
    let variant = (v >> 62) & 0x3;
    (version == 7 && variant == 2).then(|| i64::try_from(v >> 80).unwrap_or(i64::MAX))
}

/// A UUIDv8 from a SHA-256 over the parts, each prefixed with its length.
#[must_use]
pub fn digest(domain: &str, parts: &[&[u8]]) -> Uuid {
    let mut hash = Sha256::new();
    hash.update(domain.as_bytes());
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    let out = hash.finalize();
    let mut bytes = [0u8; 16];
    for (to, from) in bytes.iter_mut().zip(out.iter()) {
        *to = *from;
    }
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// A click id as state knows it: the workspace and 16 bytes. Everything about a click is keyed by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClickKey {
    /// The workspace's number.
    pub workspace: i32,
    /// The minted id itself, or the digest of a foreign one.
    pub key: Uuid,
}

impl ClickKey {
    /// The key of a click id within a workspace.
    #[must_use]
    pub fn new(workspace: i32, click_id: &str) -> ClickKey {
        let key = decode(click_id)
            .filter(|id| minted_millis(*id).is_some())
            .unwrap_or_else(|| digest("click", &[click_id.as_bytes()]));
        ClickKey { workspace, key }
    }

    /// The time inside, in milliseconds, if minted.
    #[must_use]
    pub fn minted_millis(&self) -> Option<i64> {
        minted_millis(self.key)
    }

    /// The text, if minted; a foreign id's text must be stored beside its key.
    #[must_use]
    pub fn minted_text(&self) -> Option<String> {
        self.minted_millis().map(|_| encode(self.key))
    }
}

/// What may stand as a click id: 1–200 bytes, no control characters (NUL among them).
#[must_use]
pub fn click_id_is_well_formed(click_id: &str) -> bool {
    !click_id.is_empty() && click_id.len() <= MAX_CLICK_ID && !has_control(click_id)
}

/// Whether a text holds control characters. Looks at bytes where there is nothing but ASCII, which is nearly always.
#[must_use]
pub fn has_control(text: &str) -> bool {
    if text.is_ascii() {
        text.bytes().any(|b| b.is_ascii_control())
    } else {
        text.chars().any(char::is_control)
    }
}

/// The partition key of everything about one click: `<workspace>:<click id>`.
#[must_use]
pub fn partition_key(workspace: i32, click_id: &str) -> String {
    // Once a record at every door: written without the formatter, which costs more than all the rest of it.
    let mut number = itoa::Buffer::new();
    let number = number.format(workspace);
    let mut key = String::with_capacity(number.len() + 1 + click_id.len());
    key.push_str(number);
    key.push(':');
    key.push_str(click_id);
    key
}

/// A record's coordinates as one id: topic number (32 bits), partition (32), offset (64). Reversible, so that every row
/// born of a record names it. A topic's number is unique to (name, generation): a topic made anew gets another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId {
    /// The topic's number in the catalogue.
    pub topic_no: i32,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
}

impl RecordId {
    /// As 16 bytes.
    #[must_use]
    pub fn to_uuid(self) -> Uuid {
        Uuid::from_u128(
            (u128::from(self.topic_no.cast_unsigned()) << 96)
                | (u128::from(self.partition.cast_unsigned()) << 64)
                | u128::from(self.offset.cast_unsigned()),
        )
    }

    /// From 16 bytes.
    #[must_use]
    pub fn from_uuid(id: Uuid) -> RecordId {
        let v = id.as_u128();
        let low = |v: u128| u32::try_from(v & 0xffff_ffff).unwrap_or(0);
        RecordId {
            topic_no: low(v >> 96).cast_signed(),
            partition: low(v >> 64).cast_signed(),
            offset: u64::try_from(v & u128::from(u64::MAX))
                .unwrap_or(0)
                .cast_signed(),
        }
    }
}

impl std::fmt::Display for RecordId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.topic_no, self.partition, self.offset)
    }
}

impl std::str::FromStr for RecordId {
    type Err = String;
    fn from_str(text: &str) -> Result<RecordId, String> {
        let mut parts = text.splitn(3, '-');
        let mut next = || {
            parts
                .next()
                .ok_or_else(|| format!("`{text}` is no record id: want TOPIC-PARTITION-OFFSET"))
        };
        let (a, b, c) = (next()?, next()?, next()?);
        let bad = |e: std::num::ParseIntError| format!("`{text}` is no record id: {e}");
        Ok(RecordId {
            topic_no: a.parse().map_err(bad)?,
            partition: b.parse().map_err(bad)?,
            offset: c.parse().map_err(bad)?,
        })
    }
}

/// Whether the text may be a workspace slug: `[a-z][a-z0-9-]{1,39}`.
#[must_use]
pub fn is_workspace_slug(text: &str) -> bool {
    (2..=40).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_and_bytes_are_one_to_one(v in any::<u128>()) {
            let text = encode(Uuid::from_u128(v));
            prop_assert_eq!(text.len(), 26);
            prop_assert_eq!(decode(&text), Some(Uuid::from_u128(v)));
        }

        #[test]
        fn order_of_text_is_order_of_bytes(a in any::<u128>(), b in any::<u128>()) {
            prop_assert_eq!(encode(Uuid::from_u128(a)).cmp(&encode(Uuid::from_u128(b))), a.cmp(&b));
        }

        #[test]
        fn a_foreign_id_never_names_a_minted_one(text in "\\PC{1,60}") {
            let key = ClickKey::new(1, &text);
            match key.minted_text() {
                Some(minted) => prop_assert_eq!(minted, text),
                None => prop_assert_eq!(key.key.get_version_num(), 8),
            }
        }

        #[test]
        fn coordinates_come_back(topic_no in any::<i32>(), partition in any::<i32>(), offset in any::<i64>()) {
            let id = RecordId { topic_no, partition, offset };
            prop_assert_eq!(RecordId::from_uuid(id.to_uuid()), id);
        }
    }

    #[test]
    fn minted_ids_carry_their_time() {
        let now = Micros(1_764_500_000_123_456);
        let id = mint(now).expect("random bytes");
        assert_eq!(minted_millis(id), Some(now.millis()));
        assert_eq!(ClickKey::new(7, &encode(id)).key, id);
    }

    #[test]
    fn upper_case_is_another_id() {
        let text = encode(mint(Micros(1)).expect("random bytes")).to_uppercase();
        assert_eq!(decode(&text), None);
    }
}
