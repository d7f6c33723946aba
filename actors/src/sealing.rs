//! Secrets at rest: AES-256-GCM under `MILLRACE_SECRET_KEY`; `MILLRACE_SECRET_KEY_OLD` still opens.
//!
//! A blob is `1`, the key's id (8 bytes of a SHA-256 over it), a random nonce (12), ciphertext and tag. What a blob is for
//! (`network-secret:nw_…`) is authenticated with it, so that one moved to another row does not open.

pub mod stored;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Key, Nonce};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use std::path::Path;

const FORM: u8 = 1;
const KEY_ID: usize = 8;
const NONCE: usize = 12;

/// Why a secret was not sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// No key is configured.
    #[error("MILLRACE_SECRET_KEY is not set")]
    Unconfigured,
    /// The key is no 32 bytes.
    #[error("{0} is not 32 bytes in base64 or hexadecimal")]
    BadKey(String),
    /// Sealed under a key that is neither the current nor the old one.
    #[error("sealed under key {0}, which is neither the current nor the old one")]
    UnknownKey(String),
    /// No blob of ours, damaged, or another's.
    #[error("the sealed secret is damaged, or belongs elsewhere")]
    Damaged,
    /// The operating system's random source failed.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
    /// The key's file could not be read or written.
    #[error("{path}: {error}")]
    File {
        /// Which file.
        path: String,
        /// What failed.
        error: std::io::Error,
    },
}

/// Which key a blob names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// `MILLRACE_SECRET_KEY`.
    Current,
    /// `MILLRACE_SECRET_KEY_OLD`.
    Old,
    /// Neither, or it is no blob.
    Unknown,
}

struct SealKey {
    id: [u8; KEY_ID],
    cipher: Aes256Gcm,
}

impl SealKey {
    fn new(bytes: [u8; 32]) -> SealKey {
        let mut hash = Sha256::new();
        hash.update(b"millrace sealing key id");
        hash.update(bytes);
        let digest: [u8; 32] = hash.finalize().into();
        let mut id = [0u8; KEY_ID];
        for (to, from) in id.iter_mut().zip(digest) {
            *to = from;
        }
        SealKey {
            id,
            cipher: Aes256Gcm::new(&Key::<Aes256Gcm>::from(bytes)),
        }
    }
}

/// The sealing keys of this process.
#[derive(Default)]
pub struct Seals {
    current: Option<SealKey>,
    old: Option<SealKey>,
}

impl std::fmt::Debug for Seals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = |k: &Option<SealKey>| k.as_ref().map(|k| hex(&k.id));
        write!(f, "Seals({:?}, {:?})", id(&self.current), id(&self.old))
    }
}

impl Seals {
    /// No keys: nothing is sealed, nothing opens.
    #[must_use]
    pub fn none() -> Seals {
        Seals::default()
    }

    /// From the texts of the current and the old key.
    ///
    /// # Errors
    /// [`SealError::BadKey`].
    pub fn from_texts(current: Option<&str>, old: Option<&str>) -> Result<Seals, SealError> {
        let key = |name: &str, text: Option<&str>| {
            text.map(str::trim)
                .filter(|t| !t.is_empty())
                .map(|t| parse_key(t).ok_or_else(|| SealError::BadKey(name.to_owned())))
                .transpose()
                .map(|k| k.map(SealKey::new))
        };
        Ok(Seals {
            current: key("MILLRACE_SECRET_KEY", current)?,
            old: key("MILLRACE_SECRET_KEY_OLD", old)?,
        })
    }

    /// From `MILLRACE_SECRET_KEY` and `MILLRACE_SECRET_KEY_OLD`.
    ///
    /// # Errors
    /// [`SealError::BadKey`].
    pub fn from_environment() -> Result<Seals, SealError> {
        let of = |name| std::env::var(name).ok();
        Seals::from_texts(
            of("MILLRACE_SECRET_KEY").as_deref(),
            of("MILLRACE_SECRET_KEY_OLD").as_deref(),
        )
    }

    /// From the environment, or else from the file, which is made with a fresh key (mode 0600) where it does not exist.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn from_environment_or_file(path: &Path) -> Result<Seals, SealError> {
        let old = std::env::var("MILLRACE_SECRET_KEY_OLD").ok();
        if let Ok(text) = std::env::var("MILLRACE_SECRET_KEY") {
            return Seals::from_texts(Some(&text), old.as_deref());
        }
        let text = load_or_generate(path)?;
        Seals::from_texts(Some(&text), old.as_deref())
            .map_err(|_| SealError::BadKey(path.display().to_string()))
    }

    /// Whether secrets can be sealed.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.current.is_some()
    }

    /// Whether there is an old key.
    #[must_use]
    pub fn has_old(&self) -> bool {
        self.old.is_some()
    }

    /// The key that a blob names; whether it opens is another question.
    #[must_use]
    pub fn under(&self, blob: &[u8]) -> Under {
        let id = blob
            .split_first()
            .filter(|(form, _)| **form == FORM)
            .and_then(|(_, rest)| rest.first_chunk::<KEY_ID>());
        let named = |key: &Option<SealKey>| key.as_ref().is_some_and(|k| Some(&k.id) == id);
        match (named(&self.current), named(&self.old)) {
            (true, _) => Under::Current,
            (false, true) => Under::Old,
            (false, false) => Under::Unknown,
        }
    }

    /// Seals a secret for a purpose.
    ///
    /// # Errors
    /// [`SealError::Unconfigured`], or no random bytes.
    pub fn seal(&self, purpose: &str, secret: &[u8]) -> Result<Vec<u8>, SealError> {
        let key = self.current.as_ref().ok_or(SealError::Unconfigured)?;
        let mut nonce = [0u8; NONCE];
        getrandom::fill(&mut nonce)?;
        let sealed = key
            .cipher
            .encrypt(
                &Nonce::from(nonce),
                Payload {
                    msg: secret,
                    aad: purpose.as_bytes(),
                },
            )
            .map_err(|_| SealError::Damaged)?;
        let mut blob = Vec::with_capacity(1 + KEY_ID + NONCE + sealed.len());
        blob.push(FORM);
        blob.extend_from_slice(&key.id);
        blob.extend_from_slice(&nonce);
        blob.extend_from_slice(&sealed);
        Ok(blob)
    }

    /// Opens a blob that was sealed for the purpose.
    ///
    /// # Errors
    /// [`SealError::UnknownKey`], [`SealError::Damaged`].
    pub fn open(&self, purpose: &str, blob: &[u8]) -> Result<Vec<u8>, SealError> {
        let (form, rest) = blob.split_first().ok_or(SealError::Damaged)?;
        let (id, rest) = rest
            .split_first_chunk::<KEY_ID>()
            .ok_or(SealError::Damaged)?;
        let (nonce, sealed) = rest
            .split_first_chunk::<NONCE>()
            .ok_or(SealError::Damaged)?;
        if *form != FORM {
            return Err(SealError::Damaged);
        }
        let key = [&self.current, &self.old]
            .into_iter()
            .flatten()
            .find(|k| k.id == *id)
            .ok_or_else(|| SealError::UnknownKey(hex(id)))?;
        key.cipher
            .decrypt(
                &Nonce::from(*nonce),
                Payload {
                    msg: sealed,
                    aad: purpose.as_bytes(),
                },
            )
            .map_err(|_| SealError::Damaged)
    }
}

/// The key's text from the file; where there is none, a fresh one is written there, readable by its owner alone.
///
/// # Errors
/// [`SealError::File`], or no random bytes.
pub fn load_or_generate(path: &Path) -> Result<String, SealError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let file_error = |error| SealError::File {
        path: path.display().to_string(),
        error,
    };
    match std::fs::read_to_string(path) {
        Ok(text) => return Ok(text.trim().to_owned()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(file_error(e)),
    }
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes)?;
    let text = hex(&bytes);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(file_error)?;
    }
    let opened = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    match opened {
        Ok(mut file) => {
            file.write_all(format!("{text}\n").as_bytes())
                .and_then(|()| file.sync_all())
                .map_err(file_error)?;
            Ok(text)
        }
        // Another process was faster; its key is the key.
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => std::fs::read_to_string(path)
            .map(|t| t.trim().to_owned())
            .map_err(file_error),
        Err(e) => Err(file_error(e)),
    }
}

fn parse_key(text: &str) -> Option<[u8; 32]> {
    if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        let mut key = [0u8; 32];
        for (slot, pair) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *slot = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        return Some(key);
    }
    [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD]
        .iter()
        .find_map(|engine| engine.decode(text).ok()?.try_into().ok())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "0101010101010101010101010101010101010101010101010101010101010101";
    const B: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

    fn seals(current: Option<&str>, old: Option<&str>) -> Seals {
        Seals::from_texts(current, old).expect("good keys")
    }

    #[test]
    fn what_is_sealed_opens_for_its_purpose_alone() {
        let s = seals(Some(A), None);
        let blob = s.seal("network-secret:nw_1", b"secret").expect("sealed");
        assert_eq!(
            s.open("network-secret:nw_1", &blob).expect("opens"),
            b"secret"
        );
        assert!(matches!(
            s.open("network-secret:nw_2", &blob),
            Err(SealError::Damaged)
        ));
        for at in 0..blob.len() {
            let mut bad = blob.clone();
            bad[at] ^= 1;
            assert!(s.open("network-secret:nw_1", &bad).is_err(), "byte {at}");
            assert!(
                s.open("network-secret:nw_1", &blob[..at]).is_err(),
                "cut at {at}"
            );
        }
    }

    #[test]
    fn the_old_key_still_opens_and_never_seals() {
        let blob = seals(Some(A), None).seal("p", b"x").expect("sealed");
        assert_eq!(
            seals(Some(B), Some(A)).open("p", &blob).expect("opens"),
            b"x"
        );
        assert!(matches!(
            seals(Some(B), None).open("p", &blob),
            Err(SealError::UnknownKey(_))
        ));
        assert_eq!(seals(Some(A), Some(B)).under(&blob), Under::Current);
        assert_eq!(seals(Some(B), Some(A)).under(&blob), Under::Old);
        assert_eq!(seals(Some(B), None).under(&blob), Under::Unknown);
        assert_eq!(seals(Some(A), None).under(&blob[..5]), Under::Unknown);
        assert!(matches!(
            seals(None, Some(A)).seal("p", b"x"),
            Err(SealError::Unconfigured)
        ));
    }

    #[test]
    fn a_bad_key_is_named() {
        for bad in ["x", "0101", &A[..62], "AgIC"] {
            let e = Seals::from_texts(Some(bad), None).expect_err("refused");
            assert!(e.to_string().contains("MILLRACE_SECRET_KEY"), "{e}");
        }
    }

    #[test]
    fn a_file_is_made_once_and_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("millrace-seal-{}", std::process::id()));
        let path = dir.join("secret.key");
        let first = load_or_generate(&path).expect("made");
        assert_eq!(load_or_generate(&path).expect("read"), first);
        let mode = std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(Seals::from_texts(Some(&first), None).is_ok());
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
