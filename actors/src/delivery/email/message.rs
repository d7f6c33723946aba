//! What goes over the wire: headers and a multipart/alternative body, text first. Pure: the same message under the same id is the
//! same bytes but for its date.
//!
//! Headers are written here and not by a builder: one that is plain ASCII goes on one line as it is (a folded `List-Unsubscribe`
//! breaks signatures at some relays), and everything else becomes encoded words of at most 75 characters that never split a
//! character, each on a line of its own. A decoder joins them without a blank, so that a word is never torn and never grows one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lettre::Address;
use lettre::message::{MultiPart, SinglePart};
use millrace_schemas::time::Micros;
use uuid::Uuid;

/// A line of a message at most, without its end (RFC 5322).
pub const LINE_AT_MOST: usize = 998;
/// Characters of an encoded word at most (RFC 2047).
const WORD_AT_MOST: usize = 75;

/// What a message is made of.
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    /// The outbox row: behind the Message-ID, the same through all attempts.
    pub id: Uuid,
    /// What stands behind the @ of the Message-ID.
    pub domain: &'a str,
    /// When it is sent.
    pub at: Micros,
    /// Who sends: a name, if there is one, and the address.
    pub from: (Option<&'a str>, &'a Address),
    /// Whom answers go to, if not to the sender.
    pub reply_to: Option<&'a Address>,
    /// Whom it goes to.
    pub to: &'a Address,
    /// One line.
    pub subject: &'a str,
    /// The text part.
    pub text: &'a str,
    /// The HTML part.
    pub html: &'a str,
    /// Where one click ends such mail; none: transactional.
    pub unsubscribe: Option<&'a str>,
}

/// The id under which a receiver knows a message.
#[must_use]
pub fn message_id(id: Uuid, domain: &str) -> String {
    format!("<{}@{domain}>", id.simple())
}

/// The message as SMTP's DATA takes it, before dots are doubled.
#[must_use]
pub fn compose(parts: &Parts<'_>) -> Vec<u8> {
    let mut head = String::with_capacity(1_024);
    let mut header = |name: &str, value: &str| {
        head.push_str(name);
        head.push_str(": ");
        head.push_str(value);
        head.push_str("\r\n");
    };
    header("Date", &date(parts.at));
    header("Message-ID", &message_id(parts.id, parts.domain));
    header("From", &mailbox(parts.from.0, parts.from.1, "From"));
    if let Some(reply_to) = parts.reply_to {
        header("Reply-To", reply_to.as_ref());
    }
    header("To", parts.to.as_ref());
    header("Subject", &unstructured(parts.subject, "Subject"));
    if let Some(url) = parts.unsubscribe.filter(|url| url.is_ascii()) {
        header("List-Unsubscribe", &format!("<{url}>"));
        header("List-Unsubscribe-Post", "List-Unsubscribe=One-Click");
    }
    header("Auto-Submitted", "auto-generated");
    header("MIME-Version", "1.0");
    let body = MultiPart::alternative()
        // No line of a quoted-printable part can hold it, and the id makes it differ from any text quoted within.
        .boundary(format!("=_{}", parts.id.simple()))
        .singlepart(SinglePart::plain(crlf(parts.text)))
        .singlepart(SinglePart::html(crlf(parts.html)));
    let mut out = head.into_bytes();
    out.extend_from_slice(&body.formatted());
    out
}

/// Every line ends in CR LF, whatever ended it before.
fn crlf(text: &str) -> String {
    text.replace("\r\n", "\n")
        .replace('\r', "\n")
        .replace('\n', "\r\n")
}

/// RFC 5322's date, in UTC.
fn date(at: Micros) -> String {
    let moment = jiff::Timestamp::from_microsecond(at.0).unwrap_or_default();
    let zoned = moment.to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::rfc2822::to_string(&zoned)
        .unwrap_or_else(|_| "Thu, 1 Jan 1970 00:00:00 +0000".to_owned())
}

fn mailbox(name: Option<&str>, address: &Address, header: &str) -> String {
    match name.map(str::trim).filter(|n| !n.is_empty()) {
        None => address.to_string(),
        Some(name) => format!("{} <{address}>", phrase(name, header)),
    }
}

/// A display name: quoted where it is plain, else encoded words.
fn phrase(name: &str, header: &str) -> String {
    let plain = name.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    if plain && !name.contains("=?") && name.len() <= 200 {
        let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
        return format!("\"{quoted}\"");
    }
    encoded(name, header)
}

/// Free text: as it is where that fits on one line and cannot be taken for an encoded word.
fn unstructured(text: &str, header: &str) -> String {
    let plain = text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    // A blank at an end, or two in a row, would be lost to whoever unfolds or trims.
    let kept = text.trim() == text && !text.contains("  ");
    if plain && kept && !text.contains("=?") && header.len() + 2 + text.len() <= 900 {
        return text.to_owned();
    }
    encoded(text, header)
}

/// Encoded words in UTF-8 and base64, one a line.
fn encoded(text: &str, header: &str) -> String {
    const BEFORE: &str = "=?utf-8?B?";
    const AFTER: &str = "?=";
    // Base64 makes four characters of three bytes. The first line holds the header's name too.
    let room = |before: usize| {
        let left = WORD_AT_MOST.saturating_sub(BEFORE.len() + AFTER.len() + before);
        (left / 4 * 3).max(4)
    };
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        let limit = room(if words.is_empty() {
            header.len() + 2
        } else {
            0
        });
        if !word.is_empty() && word.len() + c.len_utf8() > limit {
            words.push(std::mem::take(&mut word));
        }
        word.push(c);
    }
    if !word.is_empty() || words.is_empty() {
        words.push(word);
    }
    let words: Vec<String> = words
        .iter()
        .map(|word| format!("{BEFORE}{}{AFTER}", STANDARD.encode(word)))
        .collect();
    words.join("\r\n ")
}

#[cfg(test)]
mod tests;
