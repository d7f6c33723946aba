//! What a receiver says, made fit to be kept: it may repeat what it was sent, so whatever looks like a contact, a credential or
//! a signature is taken out. Pure.

use regex::Regex;
use std::sync::LazyLock;

struct Rule {
    find: Regex,
    put: &'static str,
}

static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    [
        // The order matters: what is most telling goes first.
        (r"[^\s@<>,;:]{1,128}@+[^\s@<>,;:]{1,255}", "[address]"),
        (r"(?i)\bbearer\s+\S+", "[token]"),
        (r"\?[^\s]+", "?[query]"),
        // Long runs of the letters of base64, hexadecimal and keys with at least one digit in them; words have none.
        (r"[A-Za-z_/+=.-]*[0-9][A-Za-z0-9_/+=.-]{23,}", "[token]"),
        (r"[A-Za-z0-9_/+=.-]{23,}[0-9][A-Za-z_/+=.-]*", "[token]"),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "[address]"),
        (r"(?i)\b[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){3,7}\b", "[address]"),
        // Seven digits or more, however they are grouped: telephones, cards. Not a time: those have colons or a T.
        (r"\+?\(?\d(?:[ ().-]{0,2}\d){6,}", "[number]"),
    ]
    .into_iter()
    .filter_map(|(find, put)| {
        let find = Regex::new(find).ok()?;
        Some(Rule { find, put })
    })
    .collect()
});

/// How many rules there must be: a pattern that does not compile is a fault of ours which a test finds.
#[cfg(test)]
const RULES_MADE: usize = 8;

/// The text without contacts, credentials and long numbers, on one line, without control characters.
#[must_use]
pub fn redact(text: &str) -> String {
    let mut out: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    for rule in RULES.iter() {
        if let std::borrow::Cow::Owned(changed) = rule.find.replace_all(&out, rule.put) {
            out = changed;
        }
    }
    out.trim().to_owned()
}

/// As [`redact`], and without the recipient's own name at their provider (`local`, what stands before the @), which servers repeat
/// bare: `550 5.1.1 jane.doe... User unknown`. In any case, and only as a word of its own.
#[must_use]
pub fn redact_recipient(text: &str, local: &str) -> String {
    redact(&without_word(text, local))
}

fn without_word(text: &str, word: &str) -> String {
    // Nothing else is left to stand for it, if it cannot be looked for: what a server said is worth less than an address.
    let Ok(find) = regex::RegexBuilder::new(&regex::escape(word))
        .case_insensitive(true)
        .build()
    else {
        return String::new();
    };
    if word.is_empty() {
        return text.to_owned();
    }
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::new();
    let mut rest_at = 0;
    for found in find.find_iter(text) {
        let before = text
            .get(..found.start())
            .and_then(|t| t.chars().next_back());
        let after = text.get(found.end()..).and_then(|t| t.chars().next());
        if before.is_some_and(joins) || after.is_some_and(joins) {
            continue;
        }
        out.push_str(text.get(rest_at..found.start()).unwrap_or_default());
        // Whole addresses are found by their @ afterwards, whatever stands before it.
        out.push_str("[address]");
        rest_at = found.end();
    }
    out.push_str(text.get(rest_at..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipient_s_own_name_goes_wherever_it_stands_as_a_word() {
        for (said, local, kept) in [
            (
                "550 5.1.1 jane.doe... User unknown",
                "jane.doe",
                "550 5.1.1 [address]... User unknown",
            ),
            (
                "550 <JANE.Doe> unknown, (jane.doe)",
                "Jane.doe",
                "550 <[address]> unknown, ([address])",
            ),
            (
                "550 jane.doe@example.com unknown",
                "jane.doe",
                "550 [address] unknown",
            ),
            ("550 Ünal unknown", "ünal", "550 [address] unknown"),
            // A pattern is no pattern here.
            ("550 jane+x unknown", "jane+x", "550 [address] unknown"),
            ("550 janedoe unknown", "jane.doe", "550 janedoe unknown"),
            // Part of another word it is not.
            ("550 user unknown", "us", "550 user unknown"),
            ("550 unknown", "", "550 unknown"),
        ] {
            assert_eq!(redact_recipient(said, local), kept, "{said}");
        }
    }

    #[test]
    fn contacts_and_credentials_go_and_words_stay() {
        assert_eq!(RULES.len(), RULES_MADE);
        for (said, kept) in [
            (
                "no such user jane.doe+x@example.com, sorry",
                "no such user [address], sorry",
            ),
            (
                "553 <bad@@example.com>... syntax",
                "553 <[address]>... syntax",
            ),
            ("call +1 (555) 123-4567 now", "call [number] now"),
            ("card 4111111111111111", "card [number]"),
            ("Authorization: Bearer abc", "Authorization: [token]"),
            ("key whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "key [token]"),
            (
                "got v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
                "got v1,[token]",
            ),
            (
                "5d41402abc4b2a76b9719d911017c592 is unknown",
                "[token] is unknown",
            ),
            (
                "from 203.0.113.9 and 2001:db8:0:1::2",
                "from [address] and [address]",
            ),
            ("POST /x?access_token=a failed", "POST /x?[query] failed"),
            ("line one\r\n\tline two\0", "line one   line two"),
            (
                "invalid_request_body_missing_required_field",
                "invalid_request_body_missing_required_field",
            ),
            (
                "error 400: quota of 1000 is used up",
                "error 400: quota of 1000 is used up",
            ),
            ("", ""),
        ] {
            assert_eq!(redact(said), kept, "{said}");
        }
    }
}
