//! Many records in one value: a byte that names the form, then for each record the lengths of key and payload (four bytes
//! each, little-endian), the key, the payload.

/// The form written by this build.
const FORM: u8 = 1;

/// A chunk is closed before it would grow beyond this: with its row's header it then fills one page and stays in line.
pub const TARGET: usize = 8_000;

/// Bytes before each record.
const HEADER: usize = 8;

/// The bytes are no chunk that this build reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
    /// They are cut, or never were a chunk.
    #[error("a damaged chunk of the log")]
    Bytes,
    /// A newer build wrote them.
    #[error(
        "a chunk of the log in form {0}: upgrade this process first, then let the partition go on"
    )]
    Newer(u8),
}

/// Whether a chunk that holds something has room for one more record without passing [`TARGET`].
#[must_use]
pub fn has_room(chunk: &[u8], key: &[u8], payload: &[u8]) -> bool {
    chunk.is_empty() || chunk.len() + HEADER + key.len() + payload.len() <= TARGET
}

/// Appends a record; false if a length needs more than 32 bits.
#[must_use]
pub fn push(chunk: &mut Vec<u8>, key: &[u8], payload: &[u8]) -> bool {
    let (Ok(key_len), Ok(payload_len)) = (u32::try_from(key.len()), u32::try_from(payload.len()))
    else {
        return false;
    };
    if chunk.is_empty() {
        chunk.push(FORM);
    }
    chunk.extend_from_slice(&key_len.to_le_bytes());
    chunk.extend_from_slice(&payload_len.to_le_bytes());
    chunk.extend_from_slice(key);
    chunk.extend_from_slice(payload);
    true
}

/// The records of a chunk, in order.
///
/// # Errors
/// The form is unknown.
pub fn records(chunk: &[u8]) -> Result<Records<'_>, Damaged> {
    match chunk.split_first() {
        Some((&FORM, rest)) => Ok(Records { rest }),
        Some((form, _)) if *form > FORM => Err(Damaged::Newer(*form)),
        _ => Err(Damaged::Bytes),
    }
}

/// Iterates over (key, payload).
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Damaged> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Damaged::Bytes)?;
        self.rest = rest;
        Ok(head)
    }

    fn length(&mut self) -> Result<usize, Damaged> {
        let bytes: [u8; 4] = self.take(4)?.try_into().map_err(|_| Damaged::Bytes)?;
        usize::try_from(u32::from_le_bytes(bytes)).map_err(|_| Damaged::Bytes)
    }

    fn record(&mut self) -> Result<(&'a [u8], &'a [u8]), Damaged> {
        let (key, payload) = (self.length()?, self.length()?);
        Ok((self.take(key)?, self.take(payload)?))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.record();
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let mut chunk = Vec::new();
        let long = vec![7_u8; 9_000];
        for (key, payload) in [(&b"k"[..], &b"p"[..]), (b"", b""), (b"key", &long)] {
            assert!(push(&mut chunk, key, payload));
        }
        let out: Vec<_> = records(&chunk).unwrap().map(Result::unwrap).collect();
        assert_eq!(out, [(&b"k"[..], &b"p"[..]), (b"", b""), (b"key", &long)]);
        assert!(!has_room(&chunk, b"", b""));
        assert!(has_room(&[], b"", &long));
    }

    #[test]
    fn damage_is_said_once() {
        let mut chunk = Vec::new();
        assert!(push(&mut chunk, b"key", b"payload"));
        chunk.pop();
        let out: Vec<_> = records(&chunk).unwrap().collect();
        assert_eq!(out, [Err(Damaged::Bytes)]);
        assert!(records(&[]).is_err());
        assert_eq!(records(&[9, 0]).err(), Some(Damaged::Newer(9)));
        assert_eq!(records(&[0]).err(), Some(Damaged::Bytes));
    }
}
