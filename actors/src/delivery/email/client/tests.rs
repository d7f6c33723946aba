use super::*;

fn judged(stage: Stage, code: u16, text: &str) -> (Verdict, bool) {
    let said = Said::Reply {
        code,
        text: text.to_owned(),
    };
    let (answer, dead) = judge(&Err(Refusal { stage, said }), "dora");
    (answer.verdict, dead)
}

fn again(unsure: bool) -> Verdict {
    Verdict::RetryAt {
        after: None,
        unsure,
    }
}

#[test]
fn a_refusal_speaks_of_us_of_the_session_or_of_the_mailbox() {
    let nobody = "5.1.1 user unknown";
    for (stage, code, text, verdict, dead) in [
        (
            Stage::Greeting,
            554,
            "no service for you",
            again(false),
            true,
        ),
        (Stage::Greeting, 421, "busy", again(false), true),
        (Stage::Auth, 454, "later", again(false), true),
        (
            Stage::Auth,
            535,
            "5.7.8 no",
            Verdict::PauseDestination,
            false,
        ),
        (
            Stage::Mail,
            530,
            "log in first",
            Verdict::PauseDestination,
            false,
        ),
        // The same words at MAIL FROM speak of the sender, whose every mail they would end.
        (Stage::Mail, 550, nobody, Verdict::PauseDestination, false),
        (Stage::Mail, 451, "later", again(false), false),
        // SMTPUTF8 is asked for where one mail needs it.
        (
            Stage::Mail,
            555,
            "5.6.7 not supported",
            Verdict::Rejected,
            false,
        ),
        (Stage::Rcpt, 550, nobody, Verdict::Bounced, false),
        (Stage::Rcpt, 550, "5.7.1 policy", Verdict::Rejected, false),
        (Stage::Rcpt, 450, "4.2.1 greylisted", again(false), false),
        (Stage::Rcpt, 452, "4.2.2 full", again(false), false),
        (
            Stage::Data,
            554,
            "5.5.1 no valid recipients",
            Verdict::Rejected,
            false,
        ),
        (Stage::Body, 550, nobody, Verdict::Bounced, false),
        (Stage::Body, 552, "5.3.4 too big", Verdict::Rejected, false),
        (Stage::Body, 421, "shutting down", again(false), true),
    ] {
        assert_eq!(
            judged(stage, code, text),
            (verdict, dead),
            "{stage:?} {code} {text}"
        );
    }
}

#[test]
fn what_pauses_a_transport_is_told_apart() {
    for (stage, code, name) in [
        (Stage::Auth, 535, CREDENTIALS_REFUSED),
        (Stage::Mail, 530, CREDENTIALS_REFUSED),
        (Stage::Mail, 550, SENDER_REFUSED),
        (Stage::Mail, 553, SENDER_REFUSED),
    ] {
        let said = Said::Reply {
            code,
            text: "5.7.1 not from here".to_owned(),
        };
        let (answer, _) = judge(&Err(Refusal { stage, said }), "dora");
        assert_eq!(
            (answer.verdict, &*answer.code),
            (Verdict::PauseDestination, name)
        );
        let step = if stage == Stage::Mail { "" } else { "login: " };
        let kept = format!("{step}{code} 5.7.1 not from here");
        assert_eq!(answer.excerpt.as_deref(), Some(kept.as_str()));
    }
}

#[test]
fn only_a_connection_lost_with_the_message_leaves_doubt() {
    for (stage, unsure) in [
        (Stage::Resolve, false),
        (Stage::Connect, false),
        (Stage::Mail, false),
        (Stage::Data, false),
        (Stage::Body, true),
    ] {
        let refusal = Refusal::lost(stage, "connection_lost", "gone");
        assert_eq!(refusal.is_closed(), stage != Stage::Body);
        let (answer, dead) = judge(&Err(refusal), "dora");
        assert_eq!((answer.verdict, dead), (again(unsure), true), "{stage:?}");
    }
    let unable = Refusal {
        stage: Stage::Mail,
        said: Said::Unable("address_needs_smtputf8"),
    };
    assert!(!unable.is_closed());
    assert_eq!(judge(&Err(unable), "dora").0.verdict, Verdict::Rejected);
}

#[test]
fn what_a_server_says_is_kept_without_addresses() {
    for text in [
        "5.1.1 <dora@example.com>: no such user",
        "5.1.1 dora... User unknown",
        "5.1.1 Mailbox DORA does not exist",
    ] {
        let said = Said::Reply {
            code: 550,
            text: text.to_owned(),
        };
        let stage = Stage::Rcpt;
        let (answer, _) = judge(&Err(Refusal { stage, said }), "Dora");
        assert_eq!(answer.verdict, Verdict::Bounced, "{text}");
        let excerpt = answer.excerpt.expect("said");
        assert!(excerpt.starts_with("550 5.1.1"), "{excerpt}");
        assert!(!excerpt.to_lowercase().contains("dora"), "{excerpt}");
    }
    let (answer, _) = judge(&Ok("2.1.5 dora Ok".to_owned()), "dora");
    assert_eq!(answer.excerpt.as_deref(), Some("2.1.5 [address] Ok"));
}
