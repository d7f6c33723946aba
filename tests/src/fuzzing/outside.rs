//! What receivers and operators say: answers of Meta, of webhooks and of push servers, contacts to be matched, networks.

use millrace::delivery::address_guard::{AddressGuard, is_public};
use millrace::delivery::channel::Verdict;
use millrace::delivery::meta::answer::{Meaning, excerpt, judge};
use millrace::delivery::meta::normalize::{
    Context, DIGEST_OF_NOTHING, Field, Normalized, normalize,
};
use millrace::delivery::outbound::Reply;
use millrace::delivery::push::{self, Woken};
use millrace::delivery::redaction::redact;
use millrace::delivery::{schedule, webhook};
use millrace::ingress::client::TrustedProxies;
use std::net::IpAddr;

const SECRET: &str = "EAAB-a\"secret/0123456789abcdef";
const CONTACT: &str = "jane.doe@private.example";

/// An answer: status (two bytes), a line of `Retry-After`, the body.
fn parts(data: &[u8]) -> (u16, Option<std::time::Duration>, &[u8]) {
    let (status, rest) = data.split_at_checked(2).unwrap_or((&[0, 0], data));
    let status = 100 + u16::from_le_bytes([status[0], status[1]]) % 500;
    let mut lines = rest.splitn(2, |b| *b == b'\n');
    let asked = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let after = schedule::retry_after(&asked, 1_767_225_600);
    (status, after, lines.next().unwrap_or_default())
}

/// Meta's answers: something is meant by each, and what is kept of them is short and free of secrets and contacts.
pub(super) fn meta_answer(data: &[u8]) {
    let (status, after, body) = parts(data);
    let meaning = judge(status, body, data.len() % 2 == 1, after);
    if let Meaning::Received(_) = meaning {
        assert!((200..300).contains(&status), "a receipt with {status}");
    }
    let kept = excerpt(body, &[SECRET]);
    assert!(kept.chars().count() <= 500);
    assert!(!kept.contains(SECRET), "{kept}");
    assert!(!kept.chars().any(char::is_control), "{kept:?}");
}

/// Answers of webhooks.
pub(super) fn webhook_answer(data: &[u8]) {
    let (status, retry_after, body) = parts(data);
    let reply = Reply {
        status,
        retry_after,
        excerpt: Some(redact(&String::from_utf8_lossy(body))),
    };
    let url = "https://hooks.example/T0/secret".parse().expect("a URL");
    let answer = webhook::judge(Ok(reply), &url);
    let delivered = answer.verdict == Verdict::Delivered;
    assert_eq!(delivered, (200..300).contains(&status), "{status}");
    assert!(!answer.target.unwrap_or_default().contains("secret"));
    if let Verdict::RetryAt {
        after: Some(asked), ..
    } = answer.verdict
    {
        let within = schedule::within_bounds(asked);
        assert!(
            within <= schedule::RETRY_AFTER_AT_MOST && within >= schedule::RETRY_AFTER_AT_LEAST
        );
    }
}

/// Answers of push servers: each means what its status says, and of a refusal nothing of the endpoint is kept, whoever knows which
/// can wake the device.
pub(super) fn push_answer(data: &[u8]) {
    const DEVICE: &str = "upAbCd0123EfGh";
    let (status, retry_after, body) = parts(data);
    let reply = Reply {
        status,
        retry_after,
        excerpt: Some(redact(&String::from_utf8_lossy(body))),
    };
    let url = format!("https://push.example/{DEVICE}");
    let woken = push::judge(Ok(reply), &url.parse().expect("a URL"));
    let as_meant = match (&woken, status) {
        (Woken::Yes(answer), 200..300) => answer.excerpt.is_none(),
        (Woken::Gone(_), 404 | 410) | (Woken::Later(_), 429 | 500..) => true,
        (Woken::Never(_), _) => !matches!(status, 200..300 | 404 | 410 | 429 | 500..),
        _ => false,
    };
    assert!(as_meant, "{status}: {woken:?}");
    let (Woken::Yes(answer) | Woken::Gone(answer) | Woken::Never(answer) | Woken::Later(answer)) =
        woken;
    assert_eq!(answer.code, status.to_string());
    for kept in [answer.excerpt, answer.target].into_iter().flatten() {
        assert!(kept.chars().count() <= 500);
        assert!(!kept.contains(DEVICE), "{kept}");
    }
}

/// What is kept of words: one line, no contact.
pub(super) fn redaction(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let kept = redact(&text);
    assert!(!kept.chars().any(char::is_control), "{kept:?}");
    let (before, after) = text.split_once('\n').unwrap_or((&text, ""));
    for said in [
        CONTACT.to_owned(),
        "+1 (650) 555-1212".to_owned(),
        "203.0.113.9".to_owned(),
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned(),
    ] {
        let kept = redact(&format!("{before} {said} {after}"));
        let own = text.contains(&said);
        assert!(own || !kept.contains(&said), "{kept}");
    }
}

/// What people are matched by: nothing raw of a hashed field leaves, nothing is never hashed, and one form is one form.
fn normalize_one(field: Field, value: &str, context: &Context<'_>) {
    match normalize(field, value, context) {
        Normalized::Hashed {
            normalised,
            sha256_hex,
        } => {
            assert!(field.is_hashed() && !normalised.is_empty());
            let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
            assert!(sha256_hex.len() == 64 && sha256_hex.bytes().all(hex));
            assert!(sha256_hex != DIGEST_OF_NOTHING || normalised == sha256_hex);
            // What was cut or completed by the context stays as it is without one.
            let again = normalize(field, &normalised, &Context::default());
            assert_eq!(
                again.into_sent().as_deref(),
                Some(&*sha256_hex),
                "{field:?} {value:?} became {normalised:?}"
            );
        }
        Normalized::Plain(sent) => {
            assert!(!field.is_hashed() && !sent.is_empty());
            let again = normalize(field, &sent, &Context::default());
            assert_eq!(again, Normalized::Plain(sent), "{field:?} {value:?}");
        }
        Normalized::Omitted(why) => assert!(!why.is_empty()),
    }
}

/// See [`normalize_one`]; the first byte is the field, the second the context.
pub(super) fn normalize_any(data: &[u8]) {
    let (field, data) = super::choice(data, Field::ALL.len());
    let (known, data) = super::choice(data, 4);
    let context = Context {
        country: [None, Some("us"), Some("GB"), Some("??")][known],
        calling_code: [None, Some("1"), Some("44"), Some("")][known],
        clicked_ms: known.is_multiple_of(2).then_some(1_767_225_600_000),
    };
    normalize_one(Field::ALL[field], &String::from_utf8_lossy(data), &context);
}

/// Networks, addresses and URLs, one a line.
pub(super) fn networks(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let _ = TrustedProxies::parse(&lines);
    let _ = AddressGuard::new(&lines);
    let none: [&str; 0] = [];
    let guard = AddressGuard::new(&none).expect("an empty list");
    for line in &lines {
        if let Ok(address) = line.parse::<IpAddr>() {
            assert_eq!(guard.admits(address), is_public(address));
            let inside =
                address.is_loopback() || address.is_unspecified() || address.is_multicast();
            assert!(!inside || !is_public(address), "{address}");
        }
        if let Ok(url) = line.parse::<reqwest::Url>()
            && guard.check(&url).is_ok()
            && let Some(host) = url.host_str()
        {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let bare: Option<IpAddr> = host.parse().ok();
            assert!(bare.is_none_or(is_public), "{url}");
        }
    }
}
