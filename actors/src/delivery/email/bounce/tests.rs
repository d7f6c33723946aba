use super::*;
use proptest::prelude::*;

const REPLIES: &str = include_str!("replies.tsv");

fn replies() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = REPLIES.lines().filter(|l| !l.starts_with('#'));
    lines.map(|line| {
        let mut columns = line.split('\t');
        (columns.next().unwrap(), columns.next().unwrap())
    })
}

#[test]
fn every_reply_is_judged_as_it_is_right() {
    let wrong: Vec<String> = replies()
        .filter(|(right, reply)| classify(reply).word() != *right)
        .map(|(right, reply)| format!("{right}, not {:?}: {reply}", classify(reply)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(replies().count(), 70);
}

#[test]
fn a_reason_is_named() {
    let verdict = classify("550 5.1.10 no");
    assert_eq!(verdict.code(), "status_of_no_mailbox");
    assert!(verdict.to_string().contains("5.1.10"), "{verdict}");
    let verdict = classify("550 5.1.1 over quota");
    assert_eq!(verdict.code(), "veto_word");
    assert!(verdict.to_string().contains("quota"), "{verdict}");
    assert_eq!(classify("").code(), "no_reply");
    assert_eq!(classify("5501 user unknown").code(), "no_reply");
}

/// A veto that is quoted, or stands in the possessive, is one.
#[test]
fn apostrophes_hide_no_veto() {
    for reply in [
        "550 5.1.2 sender's domain does not resolve",
        "550 5.1.1 refused by 'policy'",
    ] {
        assert_eq!(classify(reply).code(), "veto_word", "{reply}");
    }
    assert_eq!(classify("550 user doesn't exist").word(), "suppress");
}

#[test]
fn words_of_an_address_are_nobodys_verdict() {
    for address in [
        "<no-such-user@example.org>",
        "no.such.user@example.org",
        "\"no such user\"@example.org",
        "<\"user unknown\"@example.org>",
    ] {
        let verdict = classify(&format!("550 {address} is frozen"));
        assert_eq!(verdict, Verdict::Keep(Doubt::NothingSaid), "{address}");
        let verdict = classify(&format!("550 5.1.1 {address} user unknown"));
        assert_eq!(verdict.word(), "suppress", "{address}");
    }
    assert_eq!(
        classify("550 <spam@policy.example> User unknown").word(),
        "suppress"
    );
}

#[test]
fn lines_that_disagree_are_doubt() {
    assert_eq!(
        classify("550-5.1.1 no\r\n550 5.7.1 such").code(),
        "other_status"
    );
    assert_eq!(
        classify("550-5.1.1 no\r\n550 5.1.1 such").word(),
        "suppress"
    );
}

proptest! {
    #[test]
    fn nothing_is_suppressed_but_by_a_permanent_code_of_a_mailbox(reply in "[245][0-9]{2}[ -](5\\.[0-9]\\.[0-9]{1,2} )?\\PC{0,40}") {
        if classify(&reply).word() == "suppress" {
            prop_assert!(["550", "551", "553"].contains(&&reply[..3]), "{}", reply);
        }
    }

    #[test]
    fn a_veto_wins_over_any_code(veto in proptest::sample::select(VETO.to_vec()), reply in proptest::sample::select(replies().collect::<Vec<_>>())) {
        prop_assert_eq!(classify(&format!("{} {veto}", reply.1)).word(), "keep");
    }

    #[test]
    fn any_text_is_judged(reply in "\\PC*|[\\s\\S]{0,60}") {
        let _ = classify(&reply);
    }
}
