//! What people are told and what they and others say of it: payloads of notices, links of mails, replies of mail servers, addresses;
//! and what operators write: manifests, conditions, segments, recordings.

use super::records::{NOW, stable};
use millrace::api::faults::Faults;
use millrace::cli::feed::recording;
use millrace::delivery::channel::Verdict;
use millrace::delivery::email::address::{mask, parse};
use millrace::delivery::email::bounce::{self, NO_MAILBOX};
use millrace::delivery::email::message::{Parts, compose};
use millrace::delivery::email::{Refusal, Said, Stage, judge};
use millrace::directory::conditions::{self, Conditions};
use millrace::directory::segment::{self, Leaf, Segment};
use millrace::modules::{Modules, compile};
use millrace::templates::{Brand, inbox, mail};
use millrace::thresholds::plan::Plan;
use millrace::unsubscribe::token::TOKEN_AT_MOST;
use millrace::unsubscribe::{Key, Subscription};
use millrace_schemas::ceiling::Ceiling;
use millrace_schemas::notification::Notification;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use uuid::Uuid;

const CONTACT: &str = "jane.doe@private.example";

/// The first line, and the rest.
fn line(text: &str) -> (&str, &str) {
    text.split_once('\n').unwrap_or((text, ""))
}

/// Payloads of outbox rows that people are told by: they become a mail whose head holds what we put there and nothing else, a text
/// that no reader runs, an inbox item that leads nowhere else.
pub(super) fn notification(data: &[u8]) {
    let Ok(notice) = serde_json::from_slice::<Notification>(data) else {
        return;
    };
    stable(&notice);
    let said = notice.said();
    let brand = Brand {
        name: "Acme".to_owned(),
        accent: "#224466".to_owned(),
        site: "https://site.example/".parse().ok(),
    };
    let link = "https://site.example/unsubscribe/t";
    let rendered = mail(&said, &brand, Some(link));
    assert!(!rendered.subject.chars().any(char::is_control));
    let html = rendered.html.to_lowercase();
    assert!(
        !html.contains("<script") && !html.contains("href=\"javascript:"),
        "{html}"
    );
    let item = inbox(&said);
    let inside = |url: &str| url.starts_with('/') && !url.starts_with("//");
    assert!(item.url.as_deref().is_none_or(inside), "{:?}", item.url);
    let address = parse("a@b.example").expect("an address");
    let message = compose(&Parts {
        id: Uuid::nil(),
        domain: "b.example",
        at: NOW,
        from: (Some("Acme"), &address),
        reply_to: None,
        to: &address,
        subject: &rendered.subject,
        text: &rendered.text,
        html: &rendered.html,
        unsubscribe: Some(link),
    });
    assert!(message.is_ascii(), "it needs more than 7 bits");
    let message = String::from_utf8_lossy(&message);
    let head = message.split("\r\n\r\n").next().unwrap_or_default();
    let starts = |name: &str| head.split("\r\n").filter(|l| l.starts_with(name)).count();
    assert_eq!((starts("To:"), starts("Subject:")), (1, 1), "{head}");
    assert_eq!((starts("Cc:"), starts("Bcc:")), (0, 0), "{head}");
    let lines = head.replace("\r\n", " ");
    assert!(!lines.contains(['\r', '\n']), "{head:?}");
}

/// Tokens of links: as they stand; signed as a former build did, so that what stands within is reached; and made of a user and a
/// scope, which must be read back.
pub(super) fn unsubscribe_token(data: &[u8]) {
    let (form, data) = super::choice(data, 3);
    let text = String::from_utf8_lossy(data);
    let (one, other) = line(&text);
    let key = Key::new(b"k");
    let token = match form {
        0 => Some(text.clone().into_owned()),
        1 => key.sign_v1(one, other),
        _ => {
            let subscription = Subscription {
                workspace: 7,
                user: one.to_owned(),
                channel: "email".to_owned(),
                scope: other.to_owned(),
            };
            let token = key.sign(&subscription);
            if let Some(token) = &token {
                assert_eq!(key.read(token), Some(subscription));
            }
            token
        }
    };
    let Some(token) = token else { return };
    assert_eq!(
        Key::new(b"other").read(&token),
        None,
        "anybody's key opens it"
    );
    if let Some(read) = key.read(&token) {
        assert!(token.len() <= TOKEN_AT_MOST);
        assert!(read.workspace >= 0);
        if let Some(again) = key.sign(&read) {
            assert_eq!(
                key.read(&again).as_ref(),
                Some(&read).filter(|r| r.workspace > 0)
            );
        }
    }
}

/// Replies of mail servers: nobody is suppressed by a reply that does not say so, and what is kept names nobody.
pub(super) fn smtp_reply(data: &[u8]) {
    let (stage, data) = super::choice(data, 5);
    let stage = [
        Stage::Greeting,
        Stage::Auth,
        Stage::Mail,
        Stage::Rcpt,
        Stage::Body,
    ][stage];
    let text = String::from_utf8_lossy(data);
    let judged = bounce::classify(&text);
    assert!(!judged.code().is_empty() && !judged.to_string().is_empty());
    if let bounce::Verdict::Suppress(why) = &judged {
        let basic = text.trim_start().get(..3).unwrap_or_default();
        assert!(matches!(basic, "550" | "551" | "553"), "{basic}");
        if let bounce::Evidence::Status(status) = why {
            assert!(NO_MAILBOX.contains(status), "{status}");
        }
    }
    let (code, rest) = text.split_at_checked(3).unwrap_or(("550", &*text));
    let code: u16 = code.parse().unwrap_or(550);
    let said = Said::Reply {
        code,
        text: format!("{rest} <{CONTACT}> {CONTACT}"),
    };
    let (answer, _) = judge(&Err(Refusal { stage, said }), "jane.doe");
    let bounced = answer.verdict == Verdict::Bounced;
    assert!(!bounced || (code >= 500 && stage > Stage::Mail), "{code}");
    let kept = answer.excerpt.unwrap_or_default();
    assert!(text.contains("jane") || !kept.contains(CONTACT), "{kept}");
    assert!(!kept.chars().any(char::is_control), "{kept:?}");
}

/// Addresses: what is taken is written in one way, fits an envelope, and is shown by its first letter.
pub(super) fn mail_address(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = mask(&text);
    let Some(address) = parse(&text) else { return };
    let plain = address.to_string();
    assert!(
        !plain.contains(|c: char| c.is_control() || c.is_whitespace()),
        "{plain:?}"
    );
    assert!(address.domain().is_ascii() && !address.domain().ends_with('.'));
    assert_eq!(parse(&plain).map(|a| a.to_string()), Some(plain.clone()));
    let shown = mask(&plain);
    let local = address.user();
    let told = local.chars().count() > 1 && !local.contains('*');
    assert!(
        !told || !shown.contains(local) || address.domain().contains(local),
        "{shown}"
    );
}

/// Manifests of modules: compiled whole, or each fault named.
pub(super) fn manifest(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match compile("manifest", &text) {
        Ok(module) => {
            if let Ok(all) = Modules::assemble(vec![("manifest".to_owned(), module)]) {
                let _ = Plan::new(Arc::new(all));
            }
        }
        Err(faults) => {
            assert!(!faults.is_empty(), "refused without a reason");
            for fault in faults {
                assert!(fault.to_string().starts_with("manifest: "), "{fault}");
            }
        }
    }
}

/// Conditions: a line of variables, then the tree.
pub(super) fn condition_tree(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (vars, tree) = line(&text);
    let vars: Map<String, Value> = serde_json::from_str(vars).unwrap_or_default();
    let Ok(tree) = serde_json::from_str::<Value>(tree) else {
        return;
    };
    let lookup = |name: &str| vars.get(name);
    let read = Conditions::read(&tree);
    let holds = conditions::hold(Some(&tree), &lookup);
    let want = read.as_ref().map_or(tree.is_null(), |c| c.hold(&lookup));
    assert_eq!(holds, want, "{tree}");
    for trigger in super::streams::modules().triggers().take(8) {
        let mut faults = Faults::new();
        let checked = Conditions::check(&tree, "/conditions", &trigger.variables, &mut faults);
        if faults.is_empty() {
            assert_eq!(checked, read, "{tree}");
        }
        for fault in faults.into_vec() {
            assert!(fault.path.starts_with("/conditions"), "{}", fault.path);
        }
    }
}

/// Segments: nobody is in one who is in none of its audiences, and its ceiling is one of theirs or narrower.
pub(super) fn segment_tree(data: &[u8]) {
    let Ok(tree) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    let Some(read) = Segment::read(&tree) else {
        return;
    };
    let leaves = read.leaves();
    assert!(
        !leaves.is_empty() && leaves.len() <= segment::MOST,
        "{tree}"
    );
    let of = |leaf: &Leaf| -> BTreeSet<usize> {
        let text: usize = leaf.params.iter().map(|(_, p)| p.text().len()).sum();
        (text % 3..text % 3 + leaf.audience.len() % 5).collect()
    };
    let all: BTreeSet<usize> = leaves.iter().flat_map(|leaf| of(leaf)).collect();
    assert!(read.members(&of).is_subset(&all), "{tree}");
    let words = ["owner", "members", "subscribers", "staff"];
    let declared = |id: &str| Ceiling::of_word(words[id.len() % words.len()]);
    let _ = read.ceiling(declared);
    assert!(read.ceiling(|_| None).is_err(), "nobody declares it");
}

/// Recorded sessions for `feed send`: what is read is written and read again.
pub(super) fn feed_recording(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(runs) = recording::parse(&text) else {
        return;
    };
    assert!(runs.iter().any(|r| !r.frames.is_empty()));
    let mut again = String::new();
    for run in &runs {
        let hello = json!({"type": "hello", "protocol": run.protocol, "boot": run.boot});
        again.push_str(&format!("{hello}\n"));
        for pair in run.frames.windows(2) {
            assert_eq!(pair[0].seq + 1, pair[1].seq);
        }
        for frame in &run.frames {
            again.push_str(&frame.line);
            again.push('\n');
        }
    }
    assert_eq!(recording::parse(&again).as_ref(), Ok(&runs));
}
