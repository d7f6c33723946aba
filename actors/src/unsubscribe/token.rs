//! What a link carries: `2.<uid>.<channel>.<scope>.<mac>`, each part of letters that a path can hold. Whoever has it can turn that
//! one channel off for that one user, in that one scope, and nothing else; it can be used again, and has no end. Pure.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// What a link turns off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The user's workspace; 0: the link names none (version 1).
    pub workspace: i32,
    /// The user.
    pub user: String,
    /// The channel.
    pub channel: String,
    /// The scope; empty: the channel as a whole.
    pub scope: String,
}

/// Letters of a token at most: what a header line has room for.
pub const TOKEN_AT_MOST: usize = 700;

/// What signs links.
#[derive(Clone)]
pub struct Key(Vec<u8>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// Of these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Key {
        Key(bytes.to_vec())
    }

    /// The token of a subscription; none where the format cannot carry it: a channel with a dot would be read as another one.
    #[must_use]
    pub fn sign(&self, subscription: &Subscription) -> Option<String> {
        let channel = &subscription.channel;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if channel.is_empty() || !channel.bytes().all(plain) {
            return None;
        }
        let uid = format!("{}:{}", subscription.workspace, subscription.user);
        let signed = format!(
            "2.{}.{channel}.{}",
            URL_SAFE_NO_PAD.encode(uid),
            URL_SAFE_NO_PAD.encode(&subscription.scope)
        );
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(self.mac(&signed)?));
        (token.len() <= TOKEN_AT_MOST).then_some(token)
    }

    /// A token of version 1, as mails carried it before channels had links of their own: `<uid>.<team>.<mac>`.
    #[must_use]
    pub fn sign_v1(&self, user: &str, team: &str) -> Option<String> {
        let signed = format!("{user}.{team}");
        Some(format!(
            "{signed}.{}",
            URL_SAFE_NO_PAD.encode(self.mac(&signed)?)
        ))
    }

    /// What a token turns off; none: it is not of ours. Version 1 could only ever arrive in a mail, and named a team: mail, in that
    /// team's scope.
    #[must_use]
    pub fn read(&self, token: &str) -> Option<Subscription> {
        if token.len() > TOKEN_AT_MOST {
            return None;
        }
        let (signed, mac) = token.rsplit_once('.')?;
        let mac = URL_SAFE_NO_PAD.decode(mac).ok()?;
        self.started(signed)?.verify_slice(&mac).ok()?;
        let parts: Vec<&str> = signed.split('.').collect();
        match parts.as_slice() {
            ["2", uid, channel, scope] => {
                let uid = text(uid)?;
                let (workspace, user) = uid.split_once(':')?;
                Some(Subscription {
                    workspace: workspace.parse().ok().filter(|no| *no > 0)?,
                    user: user.to_owned(),
                    channel: (*channel).to_owned(),
                    scope: text(scope)?,
                })
            }
            [user, team] if !user.is_empty() && !team.is_empty() => Some(Subscription {
                workspace: 0,
                user: (*user).to_owned(),
                channel: "email".to_owned(),
                scope: format!("team:{team}"),
            }),
            _ => None,
        }
    }

    fn mac(&self, signed: &str) -> Option<Vec<u8>> {
        Some(self.started(signed)?.finalize().into_bytes().to_vec())
    }

    fn started(&self, signed: &str) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(signed.as_bytes());
        Some(mac)
    }
}

fn text(encoded: &str) -> Option<String> {
    String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(channel: &str, user: &str, scope: &str) -> Subscription {
        Subscription {
            workspace: 7,
            user: user.to_owned(),
            channel: channel.to_owned(),
            scope: scope.to_owned(),
        }
    }

    #[test]
    fn a_token_reads_back_and_no_letter_of_it_can_be_changed() {
        let key = Key::new(b"k");
        for one in [
            of("email", "u1", ""),
            of("email", "a.b:c/ü", "team:12"),
            of("push", "", "x.y"),
        ] {
            let token = key.sign(&one).expect("a token");
            assert!(token.starts_with("2."), "{token}");
            let path = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
            assert!(token.bytes().all(path), "{token}");
            assert_eq!(key.read(&token), Some(one));
            assert_eq!(Key::new(b"other").read(&token), None);
            for at in 0..token.len() {
                let mut bytes = token.clone().into_bytes();
                bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
                let changed = String::from_utf8(bytes).expect("text");
                // The last letter of a base64 text has bits to spare.
                if at + 1 < token.len() {
                    assert_eq!(key.read(&changed), None, "{changed}");
                }
            }
        }
    }

    #[test]
    fn what_the_format_cannot_carry_has_no_token() {
        let key = Key::new(b"k");
        assert_eq!(key.sign(&of("discord.dm", "u", "")), None);
        assert_eq!(key.sign(&of("", "u", "")), None);
        assert_eq!(key.sign(&of("email", "u", &"x".repeat(1_000))), None);
        for bad in ["", ".", "2.a.email..", "2.a.b.c.d.e", "a.b.c"] {
            assert_eq!(key.read(bad), None, "{bad}");
        }
    }

    #[test]
    fn version_1_is_mail_of_a_team_and_nothing_else() {
        let key = Key::new(b"k");
        let token = key.sign_v1("42", "12").expect("a token");
        let read = key.read(&token).expect("it reads");
        assert_eq!(
            (
                read.user.as_str(),
                read.channel.as_str(),
                read.scope.as_str()
            ),
            ("42", "email", "team:12")
        );
        assert_eq!(read.workspace, 0);
    }
}
