//! What proves to a receiver that a request is ours, as standardwebhooks.com has it: `v1,` and the base64 of an HMAC-SHA256 over
//! `<id>.<timestamp>.<body>`; and beside it, for receivers that know no more, one over the raw body alone. Pure.

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// What a secret's text begins with.
pub const PREFIX: &str = "whsec_";

/// Padded or not.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A signing secret, ready to sign.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// From its text, `whsec_` and base64 of the key: 24 to 64 bytes, as the standard demands. `None` for every other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Secret> {
        let key = LENIENT.decode(text.trim().strip_prefix(PREFIX)?).ok()?;
        if !(24..=64).contains(&key.len()) {
            return None;
        }
        Hmac::new_from_slice(&key).ok().map(Secret)
    }

    fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = self.0.clone();
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// One signature of `webhook-signature`: `v1,` and base64. `timestamp` in seconds since 1970.
    #[must_use]
    pub fn sign(&self, id: &str, timestamp: &str, body: &[u8]) -> String {
        let mac = self.mac(&[id.as_bytes(), b".", timestamp.as_bytes(), b".", body]);
        let mut out = String::with_capacity(47);
        out.push_str("v1,");
        STANDARD.encode_string(mac, &mut out);
        out
    }

    /// The value of `X-Millrace-Signature`: `sha256=` and the hexadecimal HMAC of the raw body.
    #[must_use]
    pub fn sign_body(&self, body: &[u8]) -> String {
        use std::fmt::Write;
        let mut out = String::with_capacity(71);
        out.push_str("sha256=");
        for byte in self.mac(&[body]) {
            // Writing into a String cannot fail.
            let _ = write!(out, "{byte:02x}");
        }
        out
    }
}

/// The value of `webhook-signature`: under the current secret, and while an older one is still good under that too.
#[must_use]
pub fn header(
    current: &Secret,
    previous: Option<&Secret>,
    id: &str,
    timestamp: &str,
    body: &[u8],
) -> String {
    let mut out = current.sign(id, timestamp, body);
    if let Some(previous) = previous {
        out.push(' ');
        out.push_str(&previous.sign(id, timestamp, body));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OTHER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    /// The vector of the Standard Webhooks libraries.
    #[test]
    fn it_signs_as_the_standard_does() {
        let secret = Secret::parse(SECRET).expect("a secret");
        assert_eq!(
            secret.sign(
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                "1614265330",
                br#"{"test": 2432232314}"#
            ),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    /// Reckoned with another implementation.
    #[test]
    fn the_raw_body_is_signed_in_hexadecimal() {
        let secret = Secret::parse(OTHER).expect("a secret");
        assert_eq!(
            secret.sign_body(b"{\"a\":1}"),
            "sha256=b4cebde30982443ec36c18fa99ad10a70e705bba779f57c37e84decb64ae50fb"
        );
    }

    #[test]
    fn during_a_rotation_both_secrets_sign() {
        let (new, old) = (
            Secret::parse(OTHER).expect("a secret"),
            Secret::parse(SECRET).expect("a secret"),
        );
        let both = header(&new, Some(&old), "msg_1", "1", b"{}");
        let expected = format!(
            "{} {}",
            new.sign("msg_1", "1", b"{}"),
            old.sign("msg_1", "1", b"{}")
        );
        assert_eq!(both, expected);
        assert_eq!(
            header(&new, None, "msg_1", "1", b"{}"),
            new.sign("msg_1", "1", b"{}")
        );
    }

    #[test]
    fn what_is_no_secret_is_refused_and_a_secret_is_never_shown() {
        for bad in [
            "",
            "whsec_",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_AAEC",
            "whsec_!!!!",
            "WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        ] {
            assert!(Secret::parse(bad).is_none(), "{bad}");
        }
        let unpadded = Secret::parse(OTHER.trim_end_matches('=')).expect("a secret");
        assert_eq!(
            unpadded.sign_body(b"x"),
            Secret::parse(OTHER).expect("a secret").sign_body(b"x")
        );
        assert_eq!(format!("{unpadded:?}"), "Secret(…)");
    }
}
