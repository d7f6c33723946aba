//! Every reply of the cases, said by a server to a real client: who is suppressed, and who is not.

use super::*;
use millrace::cli::demo::stand_ins::mail::{Act, Step};
use millrace::delivery::channel::Verdict;

const REPLIES: &str = include_str!("../../../actors/src/delivery/email/bounce/replies.tsv");

fn again() -> Verdict {
    Verdict::RetryAt {
        after: None,
        unsure: false,
    }
}

/// Several lines joined by a blank in the file, as a server says them.
fn as_said(reply: &str) -> String {
    let code = &reply[..3];
    let mut lines: Vec<String> = vec![String::new()];
    for word in reply.split(' ') {
        let begins = word
            .strip_prefix(code)
            .is_some_and(|rest| rest.starts_with('-'));
        let last = lines.last_mut().unwrap();
        if begins && !last.is_empty() {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    // Only the last line has a blank behind its code.
    let n = lines.len();
    for (i, line) in lines.iter_mut().enumerate() {
        let sign = if i + 1 == n { " " } else { "-" };
        line.replace_range(3..line.len().min(4), sign);
    }
    lines.join("\r\n")
}

/// Faults `bounce` of known_faults.tsv too: the address mailed is judged, each by its own reply, and the suppression is written in
/// the transaction that ends the message.
#[actix::test]
async fn every_reply_is_judged_at_the_wire() {
    let bench = Bench::new().await;
    let mut seen = (0, 0, 0, 0);
    for line in REPLIES.lines().filter(|l| !l.starts_with('#')) {
        let mut columns = line.split('\t');
        let (right, reply) = (columns.next().unwrap(), columns.next().unwrap());
        let code: u16 = reply[..3].parse().unwrap();
        // A 421 closes the session: on a kept connection the mail goes out over a fresh one.
        if !(400..600).contains(&code) || code == 421 || !reply.is_ascii() {
            continue;
        }
        bench.mail.script([Act::Say(Step::Rcpt, as_said(reply))]);
        let answer = bench.send(&news("dora")).await;
        let wanted = match (right, code) {
            ("suppress", _) => Verdict::Bounced,
            (_, 400..500) => again(),
            (_, 530 | 534 | 535 | 538) => Verdict::PauseDestination,
            _ => Verdict::Rejected,
        };
        assert_eq!(answer.verdict, wanted, "{reply}: {answer:?}");
        assert_eq!(answer.target.as_deref(), Some("D***@Example.com"));
        let excerpt = answer.excerpt.unwrap_or_default();
        assert!(!excerpt.contains('@'), "{excerpt}");
        let suppressed = bench
            .ground
            .count("SELECT count(*) FROM suppressions")
            .await;
        assert_eq!(suppressed, i64::from(right == "suppress"), "{reply}");
        match wanted {
            Verdict::Bounced => {
                seen.0 += 1;
                // From now on nothing is even tried.
                let before = bench.mail.counts().connections;
                let answer = bench.send(&news("dora")).await;
                assert_eq!(
                    (answer.verdict, &*answer.code),
                    (Verdict::Suppressed, "address_bounced")
                );
                assert_eq!(bench.mail.counts().connections, before);
                bench.ground.sql("DELETE FROM suppressions").await;
            }
            Verdict::Rejected => seen.1 += 1,
            Verdict::PauseDestination => seen.2 += 1,
            _ => seen.3 += 1,
        }
    }
    assert!(seen.0 >= 15 && seen.1 >= 25 && seen.3 >= 1, "{seen:?}");
    assert_eq!(bench.mail.counts().taken, 0);
    // The server was well all the time: what it refused at RCPT never cost the connection.
    assert_eq!(bench.send(&news("dora")).await.verdict, Verdict::Delivered);
}

#[actix::test]
async fn one_recipient_s_bounce_is_no_other_s_and_a_stale_password_is_nobody_s() {
    let bench = Bench::new().await;
    bench.ground.user("emil", "emil@example.com").await;
    bench
        .mail
        .refuse("Dora@example.com", "550 5.1.1 no such user");
    assert_eq!(bench.send(&news("dora")).await.verdict, Verdict::Bounced);
    assert_eq!(bench.send(&news("emil")).await.verdict, Verdict::Delivered);
    let row = bench
        .ground
        .session
        .client()
        .query_one(
            "SELECT address_masked, reason, detail, created_by, outbox_id IS NOT NULL FROM suppressions",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>(0), "D***@Example.com");
    assert_eq!(row.get::<_, &str>(1), "hard_bounce");
    assert!(row.get::<_, &str>(2).starts_with("550 5.1.1"));
    assert_eq!(row.get::<_, Option<&str>>(3), None);
    assert!(row.get::<_, bool>(4));

    // Another address of the same user is another mailbox.
    bench
        .ground
        .sql("UPDATE users SET email = 'dora@elsewhere.example' WHERE user_id = 'dora'")
        .await;
    assert_eq!(bench.send(&news("dora")).await.verdict, Verdict::Delivered);

    bench.mail.script([Act::Say(
        Step::Mail,
        "530 5.7.0 user unknown, log in first".to_owned(),
    )]);
    let answer = bench.send(&news("emil")).await;
    assert_eq!(answer.verdict, Verdict::PauseDestination);
    assert_eq!(answer.dead_address, None);
    assert_eq!(
        bench
            .ground
            .count("SELECT count(*) FROM suppressions")
            .await,
        1
    );
}
