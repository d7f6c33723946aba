use super::*;
use crate::delivery::email::address;

/// What a decoder makes of a header's value, by RFC 5322 and RFC 2047 and apart from what encoded it: unfolded, encoded words
/// decoded, the blanks between two of them dropped.
fn decoded(value: &str) -> String {
    let unfolded = value.replace("\r\n", "");
    let mut out = String::new();
    let mut after_word = false;
    for token in unfolded.split(' ') {
        let inside = token
            .strip_prefix("=?utf-8?B?")
            .and_then(|t| t.strip_suffix("?="));
        match inside {
            Some(inside) => {
                assert!(token.len() <= WORD_AT_MOST, "{token}");
                let bytes = STANDARD.decode(inside).expect("base64");
                // A character split over two words would not decode.
                let text = String::from_utf8(bytes).expect("whole characters");
                if !after_word && !out.is_empty() {
                    out.push(' ');
                }
                out.push_str(&text);
                after_word = true;
            }
            None => {
                if !out.is_empty() {
                    out.push(' ');
                }
                out.push_str(token);
                after_word = false;
            }
        }
    }
    out
}

fn compose_with(subject: &str, name: &str) -> String {
    let from = address::parse("news@sender.example").expect("an address");
    let to = address::parse("dora@example.com").expect("an address");
    let parts = Parts {
        id: Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
        domain: "sender.example",
        at: Micros(1_767_225_600_000_000),
        from: (Some(name), &from),
        reply_to: None,
        to: &to,
        subject,
        text: "Grüße\n.\n..dots\nend",
        html: "<p>Grüße</p>",
        unsubscribe: Some("https://m.example/unsubscribe/2.a.b.c.d"),
    };
    String::from_utf8(compose(&parts)).expect("ASCII")
}

/// A header's value as it stands in the message, folds and all.
fn header<'a>(message: &'a str, name: &str) -> &'a str {
    let head = message.split("\r\n\r\n").next().expect("a head");
    let at = head.find(&format!("{name}: ")).expect("the header") + name.len() + 2;
    let rest = &head[at..];
    let mut end = rest.len();
    for (i, _) in rest.match_indices("\r\n") {
        if !rest[i + 2..].starts_with(' ') {
            end = i;
            break;
        }
    }
    &rest[..end]
}

/// Faults `mail` of known_faults.tsv: a blank before an encoded word, a word torn, a line over 998 octets, a character split.
#[test]
fn a_subject_reads_back_letter_by_letter_and_no_line_is_too_long() {
    let long = "Überraschung für Zoë: das Häuschen am Fluß verfällt! ".repeat(40);
    let cjk = "房屋即将倒塌".repeat(300);
    let wide = "🏠".repeat(500);
    let ascii = "a".repeat(3_000);
    for subject in [
        "Plain",
        "Out of the ordinary: about us",
        "Überraschung",
        "Ein Wort about ut über ao ut",
        "trailing über ",
        " leading",
        "two  blanks",
        "=?utf-8?B?SGk=?=",
        "a =?utf-8?Q?b?= c",
        "",
        long.trim(),
        &cjk,
        &wide,
        &ascii,
        "tab\tand\u{1}control",
        "line\r\nBcc: victim@example.com",
    ] {
        let message = compose_with(subject, "Sosaria");
        for line in message.split("\r\n") {
            assert!(line.len() <= LINE_AT_MOST, "{}: {line}", line.len());
            assert!(!line.contains('\r') && !line.contains('\n'), "{line:?}");
        }
        assert!(message.is_ascii());
        let clean: String = subject.chars().filter(|c| !c.is_control()).collect();
        assert_eq!(decoded(header(&message, "Subject")), clean, "{subject:?}");
        assert!(!message.contains("\r\nBcc:"), "{message}");
    }
}

#[test]
fn a_sender_s_name_is_quoted_or_encoded_and_injects_nothing() {
    for (name, value) in [
        ("Sosaria", "\"Sosaria\" <news@sender.example>"),
        (
            "A \"b\" \\ c",
            "\"A \\\"b\\\" \\\\ c\" <news@sender.example>",
        ),
        ("", "news@sender.example"),
    ] {
        assert_eq!(header(&compose_with("s", name), "From"), value);
    }
    let message = compose_with("s", "Zoë\r\nBcc: x@example.com");
    let from = header(&message, "From");
    let (name, address) = from.rsplit_once(' ').expect("a name");
    assert_eq!(decoded(name), "ZoëBcc: x@example.com");
    assert_eq!(address, "<news@sender.example>");
}

#[test]
fn headers_of_unsubscription_are_one_line_each_and_https_stands_first() {
    let message = compose_with("s", "n");
    assert_eq!(
        header(&message, "List-Unsubscribe"),
        "<https://m.example/unsubscribe/2.a.b.c.d>"
    );
    assert_eq!(
        header(&message, "List-Unsubscribe-Post"),
        "List-Unsubscribe=One-Click"
    );
    assert_eq!(
        header(&message, "Message-ID"),
        "<0123456789abcdef0123456789abcdef@sender.example>"
    );
    assert_eq!(header(&message, "Date"), "Thu, 1 Jan 2026 00:00:00 +0000");
}

#[test]
fn the_text_part_comes_first_and_the_same_message_is_the_same_bytes() {
    let message = compose_with("s", "n");
    let plain = message.find("text/plain").expect("a text part");
    let html = message.find("text/html").expect("an HTML part");
    assert!(plain < html);
    assert!(message.contains("multipart/alternative"), "{message}");
    assert!(message.contains("Gr=C3=BC=C3=9Fe"), "{message}");
    assert_eq!(message, compose_with("s", "n"));
}
