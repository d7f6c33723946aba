//! Does a server's refusal say that the mailbox is not there? Only then may an address be suppressed.
//!
//! This is another question than "is it of use to try again": a wrong password and a relay that objects to us are final and say
//! nothing of the recipient. Whoever suppresses on them empties a whole list with one stale credential. So: a permanent reply
//! whose enhanced status (RFC 3463) is one of six, or, where a reply carries none, one of three basic codes beside words that
//! say so; and no word in it that speaks of us, of rules or of limits, since providers misuse the six. Unsure means kept: a
//! message too many costs a refusal, an address too many is a person who never hears again.

use regex::Regex;
use std::fmt;
use std::sync::OnceLock;

/// What a reply says of its recipient's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is no such mailbox: nothing is to be sent there any more.
    Suppress(Evidence),
    /// Nothing that counts was said against the address.
    Keep(Doubt),
}

impl Verdict {
    /// `suppress` or `keep`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Verdict::Suppress(_) => "suppress",
            Verdict::Keep(_) => "keep",
        }
    }

    /// The reason's name, for rows and programs.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Verdict::Suppress(Evidence::Status(_)) => "status_of_no_mailbox",
            Verdict::Suppress(Evidence::Words(_)) => "words_of_no_mailbox",
            Verdict::Keep(Doubt::NoReply) => "no_reply",
            Verdict::Keep(Doubt::NotPermanent(_)) => "not_permanent",
            Verdict::Keep(Doubt::NotOfTheRecipient(_)) => "not_of_the_recipient",
            Verdict::Keep(Doubt::OtherStatus(_)) => "other_status",
            Verdict::Keep(Doubt::Veto(_)) => "veto_word",
            Verdict::Keep(Doubt::NothingSaid) => "nothing_said",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Suppress(Evidence::Status(s)) => {
                write!(f, "{s} says that there is no such mailbox")
            }
            Verdict::Suppress(Evidence::Words(words)) => {
                write!(f, "no enhanced status, but it says \"{words}\"")
            }
            Verdict::Keep(Doubt::NoReply) => {
                f.write_str("it does not begin with the three digits of a reply")
            }
            Verdict::Keep(Doubt::NotPermanent(basic)) => write!(f, "{basic} is not permanent"),
            Verdict::Keep(Doubt::NotOfTheRecipient(basic)) => {
                write!(
                    f,
                    "{basic} speaks of the message, the session or ourselves, never of a mailbox"
                )
            }
            Verdict::Keep(Doubt::OtherStatus(s)) => {
                write!(f, "{s} does not say that there is no such mailbox")
            }
            Verdict::Keep(Doubt::Veto(word)) => {
                write!(
                    f,
                    "\"{word}\" speaks of rules, limits or ourselves, whatever the code says"
                )
            }
            Verdict::Keep(Doubt::NothingSaid) => {
                f.write_str("no enhanced status, and no word of a missing mailbox")
            }
        }
    }
}

/// Why an address is to be suppressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// An enhanced status out of [`NO_MAILBOX`].
    Status(Status),
    /// No enhanced status, and these words.
    Words(&'static str),
}

/// Why it is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// No three digits at its head.
    NoReply,
    /// A basic code that is not 5xx.
    NotPermanent(u16),
    /// A basic code that does not speak of the recipient: 552, 554, credentials, protocol.
    NotOfTheRecipient(u16),
    /// An enhanced status that is not in [`NO_MAILBOX`].
    OtherStatus(Status),
    /// A word that wins over any code.
    Veto(&'static str),
    /// Neither status nor words.
    NothingSaid,
}

/// An enhanced status code (RFC 3463), as three numbers: 5.1.10 is not 5.1.1, and 5.1.351 is neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16, pub u16, pub u16);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The statuses that say that there is no such mailbox, and nothing else.
pub const NO_MAILBOX: [Status; 6] = [
    Status(5, 1, 1),
    Status(5, 1, 2),
    Status(5, 1, 3),
    Status(5, 1, 6),
    Status(5, 1, 10),
    Status(5, 2, 1),
];

/// Basic codes that speak of a mailbox; the others are of the message (552), of nothing in particular (554) or of the session.
const OF_A_MAILBOX: [u16; 3] = [550, 551, 553];

/// Whole words (and pairs of them) that speak of us, of rules or of limits.
const VETO: [&str; 52] = [
    "spam",
    "spammer",
    "spamming",
    "junk",
    "bulk",
    "policy",
    "policies",
    "blocked",
    "block",
    "blacklisted",
    "blacklist",
    "blocklisted",
    "blocklist",
    "listed",
    "banned",
    "reputation",
    "rate",
    "rates",
    "ratelimit",
    "throttled",
    "limit",
    "limited",
    "limits",
    "frequency",
    "quota",
    "full",
    "exceeded",
    "too many",
    "too much",
    "temporarily",
    "greylisted",
    "greylisting",
    "graylisted",
    "authentication",
    "authenticated",
    "authenticate",
    "unauthenticated",
    "unauthorized",
    "auth",
    "sender",
    "senders",
    "spf",
    "dkim",
    "dmarc",
    "virus",
    "malware",
    "content",
    "relay",
    "relaying",
    "denied",
    "preferences",
    "ip",
];

/// Words that say that there is no such mailbox.
const NOBODY: [&str; 24] = [
    "user unknown",
    "unknown user",
    "no such user",
    "user does not exist",
    "user doesn't exist",
    "user not exist",
    "user not found",
    "no such mailbox",
    "mailbox does not exist",
    "mailbox doesn't exist",
    "mailbox not found",
    "mailbox unknown",
    "unknown mailbox",
    "no such recipient",
    "recipient unknown",
    "unknown recipient",
    "recipient not found",
    "recipient does not exist",
    "invalid recipient",
    "no such address",
    "address does not exist",
    "address unknown",
    "no such account",
    "account does not exist",
];

/// Judges one reply to one recipient, its lines joined or not.
#[must_use]
pub fn classify(reply: &str) -> Verdict {
    let Some(basic) = basic_code(reply) else {
        return Verdict::Keep(Doubt::NoReply);
    };
    if !(500..600).contains(&basic) {
        return Verdict::Keep(Doubt::NotPermanent(basic));
    }
    if !OF_A_MAILBOX.contains(&basic) {
        return Verdict::Keep(Doubt::NotOfTheRecipient(basic));
    }
    let said = without_addresses(reply);
    let statuses = statuses(&said);
    if let Some(other) = statuses.iter().find(|s| !NO_MAILBOX.contains(s)) {
        return Verdict::Keep(Doubt::OtherStatus(*other));
    }
    let words = words(&said);
    // A quoted or possessive word is the word, too: `sender's`, `'policy'`.
    let apart = words.replace('\'', " ");
    if let Some(veto) = first_of(&VETO, &words).or_else(|| first_of(&VETO, &apart)) {
        return Verdict::Keep(Doubt::Veto(veto));
    }
    if let Some(status) = statuses.first() {
        return Verdict::Suppress(Evidence::Status(*status));
    }
    match first_of(&NOBODY, &words) {
        Some(nobody) => Verdict::Suppress(Evidence::Words(nobody)),
        None => Verdict::Keep(Doubt::NothingSaid),
    }
}

/// Three digits at the head, alone.
fn basic_code(reply: &str) -> Option<u16> {
    let reply = reply.trim_start();
    let digits = reply
        .get(..3)
        .filter(|d| d.bytes().all(|b| b.is_ascii_digit()))?;
    let alone = !reply
        .as_bytes()
        .get(3)
        .is_some_and(u8::is_ascii_alphanumeric);
    digits.parse().ok().filter(|_| alone)
}

/// What was said, without addresses and URLs: what stands in them is nobody's verdict.
fn without_addresses(reply: &str) -> String {
    static FOUND: OnceLock<Option<Regex>> = OnceLock::new();
    const PATTERN: &str = r#"(?i)https?://\S+|<[^<>]*>|"[^"]*"@\S+|\S*@\S*"#;
    let found = FOUND.get_or_init(|| Regex::new(PATTERN).ok());
    match found {
        Some(found) => found.replace_all(reply, " ").into_owned(),
        None => String::new(),
    }
}

/// All enhanced statuses, in whatever line they stand. Four numbers in a row are an IP address.
fn statuses(said: &str) -> Vec<Status> {
    said.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '-' || c == '_'))
        .filter_map(|token| {
            // Of `550-5.1.1` the head of a further line is no part.
            let token = token
                .rsplit_once('-')
                .map_or(token, |(_, t)| t)
                .trim_end_matches('.');
            let numbers: Vec<u16> = token
                .split('.')
                .map(|n| n.parse().ok())
                .collect::<Option<_>>()?;
            match numbers.as_slice() {
                [class @ (2 | 4 | 5), subject, detail] => Some(Status(*class, *subject, *detail)),
                _ => None,
            }
        })
        .collect()
}

/// Lower-case words, one blank between and around them.
fn words(said: &str) -> String {
    let lower = said.to_lowercase();
    let kept = lower.split(|c: char| !(c.is_alphanumeric() || c == '\''));
    kept.filter(|w| !w.is_empty())
        .fold(String::from(" "), |all, word| all + word + " ")
}

fn first_of(list: &[&'static str], words: &str) -> Option<&'static str> {
    list.iter().copied().find(|phrase| {
        words.match_indices(phrase).any(|(at, _)| {
            let before = words.as_bytes().get(at.wrapping_sub(1));
            let after = words.as_bytes().get(at + phrase.len());
            before == Some(&b' ') && after == Some(&b' ')
        })
    })
}

#[cfg(test)]
mod tests;
