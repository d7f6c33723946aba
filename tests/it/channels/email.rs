//! Mail over SMTP: what goes out, over which connection, and what a broken one leaves behind.

use super::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use millrace::cli::demo::stand_ins::mail::{Act, Caught, Step};
use millrace::delivery::channel::Verdict;
use millrace::delivery::email::settings::{seal_purpose, test_purpose};
use millrace::unsubscribe::{self, Subscription};

fn text(caught: &Caught) -> String {
    String::from_utf8(caught.data.clone()).unwrap()
}

fn retry(unsure: bool) -> Verdict {
    Verdict::RetryAt {
        after: None,
        unsure,
    }
}

#[actix::test]
async fn a_mail_is_whole_and_offers_its_end_in_one_click() {
    let bench = Bench::new().await;
    let message = bench.ground.message(&news("dora"));
    let answer = bench.deliver(&message).await;
    assert_eq!(answer.verdict, Verdict::Delivered, "{answer:?}");
    let caught = bench.mail.caught();
    let [mail] = caught.as_slice() else {
        panic!("{caught:?}");
    };
    assert_eq!(mail.from, "news@sender.example");
    assert_eq!(mail.to, ["Dora@example.com"]);
    let id = format!("<{}@sender.example>", message.id.simple());
    assert_eq!(mail.header("Message-ID"), Some(id));
    assert_eq!(
        mail.header("From").as_deref(),
        Some("\"Sosaria\" <news@sender.example>")
    );
    let content = mail.header("Content-Type").unwrap();
    assert!(content.starts_with("multipart/alternative"), "{content}");
    let body = text(mail);
    assert!(body.find("text/plain").unwrap() < body.find("text/html").unwrap());
    assert_eq!(
        mail.header("List-Unsubscribe-Post").as_deref(),
        Some("List-Unsubscribe=One-Click")
    );
    let link = mail.header("List-Unsubscribe").unwrap();
    let token = link
        .strip_prefix("<https://m.example/unsubscribe/")
        .and_then(|l| l.strip_suffix('>'))
        .unwrap();
    let key = unsubscribe::key(bench.ground.session.client())
        .await
        .unwrap();
    assert_eq!(
        key.read(token),
        Some(Subscription {
            workspace: bench.ground.workspace,
            user: "dora".to_owned(),
            channel: "email".to_owned(),
            scope: "team:12".to_owned(),
        })
    );
    // What its user asked for offers no end.
    let asked = Notification {
        transactional: true,
        ..news("dora")
    };
    assert_eq!(bench.send(&asked).await.verdict, Verdict::Delivered);
    let last = bench.mail.caught().pop().unwrap();
    assert_eq!(last.header("List-Unsubscribe"), None);
    assert!(!text(&last).contains("unsubscribe"));
}

/// Faults `mail`: a kept connection that the server closed, said (421, 221) or unsaid, is no failure.
#[actix::test]
async fn a_connection_closed_meanwhile_is_made_anew_and_nothing_is_sent_twice() {
    let bench = Bench::new().await;
    for (nth, farewell) in ["421 4.4.2 idle timeout, closing", "221 2.0.0 idle timeout"]
        .into_iter()
        .enumerate()
    {
        bench.mail.script([Act::Farewell(farewell.to_owned())]);
        assert_eq!(bench.send(&news("dora")).await.verdict, Verdict::Delivered);
        let answer = bench.send(&news("dora")).await;
        assert_eq!(answer.verdict, Verdict::Delivered, "{farewell}: {answer:?}");
        assert_eq!(bench.mail.counts().connections, 2 + nth);
    }
    for step in [Step::Mail, Step::Rcpt, Step::Data] {
        bench.mail.script([Act::Die(step)]);
        let answer = bench.send(&news("dora")).await;
        assert_eq!(answer.verdict, Verdict::Delivered, "{step:?}: {answer:?}");
    }
    let counts = bench.mail.counts();
    assert_eq!((counts.taken, counts.message_ids), (7, 7));
    // On a fresh connection it is a failure, and tried again later.
    let fresh = bench.ground.email(&quick());
    bench.mail.script([Act::Die(Step::Mail)]);
    let message = bench.ground.message(&news("dora"));
    let answer = bench
        .ground
        .deliver(&fresh, &bench.destination, &message)
        .await;
    assert_eq!(answer.verdict, retry(false), "{answer:?}");
}

/// Faults `mail`: every send has an end, whatever the server does.
#[actix::test]
async fn a_server_that_says_nothing_is_given_up_in_time() {
    let bench = Bench::new().await;
    for (step, unsure) in [
        (Step::Greeting, false),
        (Step::Mail, false),
        (Step::Body, true),
    ] {
        let quiet = bench.ground.email(&quick());
        bench.mail.script([Act::Stall(step)]);
        let message = bench.ground.message(&news("dora"));
        let begun = std::time::Instant::now();
        let answer = bench
            .ground
            .deliver(&quiet, &bench.destination, &message)
            .await;
        assert_eq!(answer.verdict, retry(unsure), "{step:?}: {answer:?}");
        assert_eq!(answer.code, "timeout");
        assert!(begun.elapsed() < SOON);
    }
}

/// A server that takes a message and dies before it says so: the next attempt bears the same Message-ID.
#[actix::test]
async fn a_message_that_may_have_arrived_comes_again_under_its_own_id() {
    let bench = Bench::new().await;
    bench.mail.script([Act::Die(Step::Body)]);
    let message = bench.ground.message(&news("dora"));
    let answer = bench.deliver(&message).await;
    assert_eq!(answer.verdict, retry(true), "{answer:?}");
    // The sender may change meanwhile: the id does not.
    bench
        .ground
        .sql("UPDATE mail_transports SET sender_address = 'other@else.example', version = version + 1")
        .await;
    let second = Leased {
        attempt: 2,
        unsure_since: Some(START),
        ..message.clone()
    };
    assert_eq!(bench.deliver(&second).await.verdict, Verdict::Delivered);
    let counts = bench.mail.counts();
    assert_eq!((counts.taken, counts.message_ids), (2, 1));
}

#[actix::test]
async fn what_changed_while_a_mail_waited_counts() {
    let bench = Bench::new().await;
    let ground = &bench.ground;
    let refused = async |sql: &str, undo: &str, code: &str| {
        ground.sql(sql).await;
        let answer = bench.send(&news("dora")).await;
        assert_eq!(
            (answer.verdict, &*answer.code),
            (Verdict::Suppressed, code),
            "{sql}"
        );
        ground.sql(undo).await;
    };
    refused(
        "UPDATE users SET status = 'disabled'",
        "UPDATE users SET status = 'active'",
        "user_inactive",
    )
    .await;
    refused(
        "UPDATE users SET email_verified = false",
        "UPDATE users SET email_verified = true",
        "unverified",
    )
    .await;
    refused(
        "UPDATE users SET email = NULL",
        "UPDATE users SET email = 'dora@example.com'",
        "no_address",
    )
    .await;
    refused(
        "UPDATE preferences SET mode = 'off' WHERE channel = 'email'",
        "UPDATE preferences SET mode = 'instant'",
        "preference",
    )
    .await;
    let nobody = bench.send(&news("nobody")).await;
    assert_eq!(&*nobody.code, "user_gone");
    assert_eq!(bench.mail.counts().connections, 0);

    // An unverified address is mailed where the workspace does not mind, and always with what was asked for.
    ground
        .sql("UPDATE users SET email_verified = false; UPDATE workspaces SET verified_email_only = false")
        .await;
    assert_eq!(bench.send(&news("dora")).await.verdict, Verdict::Delivered);
    ground
        .sql("UPDATE workspaces SET verified_email_only = true")
        .await;
    let asked = Notification {
        transactional: true,
        ..news("dora")
    };
    ground
        .sql("UPDATE preferences SET mode = 'off' WHERE channel = 'email'")
        .await;
    millrace::delivery::email::suppression::add(
        ground.session.client(),
        ground.workspace,
        ("sp_1", " DORA@example.COM"),
        None,
        "test",
    )
    .await
    .unwrap();
    assert_eq!(bench.send(&asked).await.verdict, Verdict::Delivered);
    ground
        .sql("UPDATE preferences SET mode = 'instant'; UPDATE users SET email_verified = true")
        .await;
    assert_eq!(&*bench.send(&news("dora")).await.code, "address_suppressed");
}

#[actix::test]
async fn a_transport_that_is_off_or_shut_pauses_and_a_wrong_password_too() {
    let bench = Bench::new().await;
    bench
        .ground
        .sql("UPDATE mail_transports SET enabled = false")
        .await;
    let code = async || match bench.prepare().await.err() {
        Some(Unready::Pause { code, .. }) => code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code().await, "unconfigured");
    bench
        .ground
        .sql("UPDATE mail_transports SET enabled = true, username = 'u', password_sealed = '\\x00'")
        .await;
    assert_eq!(code().await, "secret_unreadable");

    bench.mail.ask_for("u", "right");
    let set = async |password: &str| {
        let sealed = seals()
            .seal(&seal_purpose(TRANSPORT), password.as_bytes())
            .unwrap();
        bench
            .ground
            .session
            .client()
            .execute(
                "UPDATE mail_transports SET password_sealed = $1, version = version + 1",
                &[&sealed],
            )
            .await
            .unwrap();
    };
    set("wrong").await;
    let answer = bench.send(&news("dora")).await;
    assert_eq!(
        (answer.verdict, &*answer.code),
        (Verdict::PauseDestination, "smtp_credentials")
    );
    set("right").await;
    assert_eq!(bench.send(&news("dora")).await.verdict, Verdict::Delivered);

    // Without a place to end it, only what was asked for goes.
    let nowhere = EmailChannel::new(
        &quick(),
        loopback(),
        seals(),
        bench.ground.clock.clone(),
        bench.ground.connect(),
        None,
    )
    .unwrap();
    let message = bench.ground.message(&news("dora"));
    let answer = bench
        .ground
        .deliver(&nowhere, &bench.destination, &message)
        .await;
    assert_eq!(
        (answer.verdict, &*answer.code),
        (Verdict::PauseDestination, "no_public_url")
    );
    let sealed = seals()
        .seal(&test_purpose(TRANSPORT), b"you@example.com")
        .unwrap();
    let test = Notification {
        transactional: true,
        to_sealed: Some(STANDARD.encode(sealed)),
        ..news("")
    };
    let message = bench.ground.message(&test);
    let answer = bench
        .ground
        .deliver(&nowhere, &bench.destination, &message)
        .await;
    assert_eq!(answer.verdict, Verdict::Delivered, "{answer:?}");
    assert_eq!(answer.target.as_deref(), Some("y***@example.com"));
    assert_eq!(bench.mail.caught().pop().unwrap().to, ["you@example.com"]);
}

#[actix::test]
async fn a_server_at_a_private_address_must_be_listed() {
    let bench = Bench::new().await;
    let closed = EmailChannel::new(
        &quick(),
        AddressGuard::default(),
        seals(),
        bench.ground.clock.clone(),
        bench.ground.connect(),
        Some(PUBLIC_URL.to_owned()),
    )
    .unwrap();
    for host in ["127.0.0.1", "localhost", "::1"] {
        bench
            .ground
            .sql(&format!(
                "UPDATE mail_transports SET host = '{host}', version = version + 1"
            ))
            .await;
        let message = bench.ground.message(&news("dora"));
        let answer = bench
            .ground
            .deliver(&closed, &bench.destination, &message)
            .await;
        assert_eq!(answer.verdict, retry(false), "{host}: {answer:?}");
        assert_eq!(answer.code, "address_refused");
    }
    assert_eq!(bench.mail.counts().connections, 0);
    // STARTTLS is demanded where it is asked for, and nothing is said in the clear.
    bench
        .ground
        .sql("UPDATE mail_transports SET host = '127.0.0.1', security = 'starttls', version = version + 1")
        .await;
    let answer = bench.send(&news("dora")).await;
    assert_eq!((answer.verdict, &*answer.code), (retry(false), "no_tls"));
    assert_eq!(bench.mail.counts().taken, 0);
}
