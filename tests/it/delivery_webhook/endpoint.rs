//! When an endpoint may be sent to, and what disables it.

use super::*;
use millrace::delivery::channel::Verdict;
use millrace_tests::receivers::{Answer, Receiver};

async fn refused(ground: &Ground) -> Unready {
    ground.prepare().await.err().unwrap()
}

#[actix::test]
async fn an_endpoint_that_is_off_is_not_sent_to() {
    let ground = Ground::new("https://hooks.example.com/").await;
    assert!(ground.prepare().await.is_ok());
    for (status, code) in [
        ("disabled", "endpoint_disabled"),
        ("archived", "destination_archived"),
    ] {
        ground
            .sql(&format!("UPDATE webhooks SET status = '{status}'"))
            .await;
        assert_eq!(refused(&ground).await, Unready::Cancel(code));
    }
    ground.sql("DELETE FROM webhooks").await;
    assert_eq!(
        refused(&ground).await,
        Unready::Cancel("destination_archived")
    );
}

#[actix::test]
async fn a_secret_that_does_not_open_pauses() {
    let mut ground = Ground::new("https://hooks.example.com/").await;
    let paused = async |ground: &Ground| match refused(ground).await {
        Unready::Pause { code, reason } => {
            assert!(!reason.contains("whsec_Mf"), "{reason}");
            (code, reason)
        }
        other => panic!("{other:?}"),
    };
    ground.channel = channel(quick(), loopback(), other_seals(), &ground.clock);
    let (code, reason) = paused(&ground).await;
    assert_eq!(code, "secret_unreadable");
    assert!(reason.contains("sealed under key"), "{reason}");
    ground.channel = channel(quick(), loopback(), Arc::default(), &ground.clock);
    assert_eq!(paused(&ground).await.0, "secret_unreadable");
    ground.channel = channel(quick(), loopback(), seals(), &ground.clock);
    assert!(ground.prepare().await.is_ok());
    // A former secret matters for as long as it signs.
    let overlap = "UPDATE webhooks SET previous_secret_sealed = '\\x0102', previous_until = timestamptz '2026-01-01 01:00Z'";
    ground.sql(overlap).await;
    assert_eq!(paused(&ground).await.0, "secret_unreadable");
    ground.after(HOUR);
    assert!(ground.prepare().await.is_ok());
    ground.sql("UPDATE webhooks SET secret_sealed = NULL").await;
    assert_eq!(paused(&ground).await.0, "secret_unreadable");
}

#[actix::test]
async fn gone_disables_at_once() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    let target = ground.target().await;
    assert!(target.admit(&message(1), START).is_none());
    receiver.answer_all(Answer::status(410));
    let sent = target.send(vec![message(1)]).await;
    assert_eq!(sent.answers[0].verdict, Verdict::Cancelled);
    assert_eq!(sent.answers[0].code, "gone");
    // What was claimed together with it does not knock again.
    let answer = target.admit(&message(1), START).unwrap();
    assert_eq!(
        (answer.verdict, &*answer.code),
        (Verdict::Cancelled, "endpoint_disabled")
    );
    // Nor does what is claimed before the store knows.
    assert_eq!(refused(&ground).await, Unready::Cancel("endpoint_disabled"));
    ground.note(&*target, &sent).await;
    assert_eq!(ground.column("status").await.unwrap(), "disabled");
    let reason = ground.column("disabled_reason").await.unwrap();
    assert!(reason.contains("410"), "{reason}");
    assert_eq!(ground.column("version").await.unwrap(), "2");
    assert_eq!(refused(&ground).await, Unready::Cancel("endpoint_disabled"));
    // A late answer changes nothing more, and who enables it again is believed.
    ground.note(&*target, &sent).await;
    assert_eq!(ground.column("version").await.unwrap(), "2");
    ground
        .sql("UPDATE webhooks SET status = 'active', version = version + 1")
        .await;
    assert!(ground.target().await.admit(&message(1), START).is_none());
}

#[actix::test]
async fn what_an_old_url_answers_says_nothing_of_the_new_one() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/old")).await;
    receiver.script([Answer::status(410), Answer::status(500)]);
    for _ in 0..2 {
        ground
            .sql(&format!(
                "UPDATE webhooks SET version = version + 1, url = '{}'",
                receiver.url("/old")
            ))
            .await;
        let target = ground.target().await;
        let sent = target.send(vec![message(1)]).await;
        ground
            .sql("UPDATE webhooks SET version = version + 1, url = 'https://new.example.com/'")
            .await;
        ground.note(&*target, &sent).await;
        assert_eq!(ground.column("status").await.unwrap(), "active");
        assert_eq!(ground.column("failing_since").await, None);
    }
}

#[actix::test]
async fn five_days_without_a_success_disable() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    let since = "extract(epoch FROM failing_since)::bigint";
    receiver.answer_all(Answer::status(500));
    ground.after(10);
    ground.deliver(&message(1)).await;
    let first = Some((START.millis() / 1_000 + 10).to_string());
    assert_eq!(ground.column(since).await, first);
    // It is written when it changes, not at every failure.
    let row = ground.column("xmin").await;
    for later in [20, DAY, 5 * DAY + 9] {
        ground.after(later);
        ground.deliver(&message(1)).await;
    }
    assert_eq!(ground.column("xmin").await, row);
    assert_eq!(ground.column("status").await.unwrap(), "active");
    ground.after(5 * DAY + 10);
    ground.deliver(&message(1)).await;
    assert_eq!(ground.column("status").await.unwrap(), "disabled");
    let reason = ground.column("disabled_reason").await.unwrap();
    assert!(reason.contains("five days"), "{reason}");
    assert_eq!(refused(&ground).await, Unready::Cancel("endpoint_disabled"));
}

#[actix::test]
async fn one_success_begins_the_five_days_anew() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    receiver.script([Answer::status(500)]);
    ground.deliver(&message(1)).await;
    assert!(ground.column("failing_since").await.is_some());
    ground.after(4 * DAY);
    ground.deliver(&message(1)).await;
    assert_eq!(ground.column("failing_since").await, None);
    receiver.answer_all(Answer::status(500));
    for later in [4 * DAY + 10, 6 * DAY] {
        ground.after(later);
        ground.deliver(&message(1)).await;
        assert_eq!(ground.column("status").await.unwrap(), "active");
    }
    ground.after(9 * DAY + 10);
    ground.deliver(&message(1)).await;
    assert_eq!(ground.column("status").await.unwrap(), "disabled");
}

/// Two requests under way at once, or two processes: the failure is noted after the success was, or where nobody knew of it.
#[actix::test]
async fn a_success_that_did_not_know_of_the_failure_counts_too() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    let target = ground.target().await;
    receiver.script([Answer::status(500)]);
    let failed = target.send(vec![message(1)]).await;
    ground.after(1);
    let succeeded = target.send(vec![message(2)]).await;
    ground.note(&*target, &succeeded).await;
    ground.note(&*target, &failed).await;
    assert_eq!(ground.column("failing_since").await, None);
    // Another process notes a failure; this one, with settings from before, succeeds after it.
    let target = ground.target().await;
    ground
        .sql("UPDATE webhooks SET failing_since = timestamptz '2026-01-01 00:00:05Z'")
        .await;
    ground.after(10);
    let succeeded = target.send(vec![message(3)]).await;
    ground.note(&*target, &succeeded).await;
    ground.target().await;
    assert_eq!(ground.column("failing_since").await, None);
    // A failure after the last success stands.
    ground
        .sql("UPDATE webhooks SET failing_since = timestamptz '2026-01-01 00:00:15Z'")
        .await;
    ground.target().await;
    assert!(ground.column("failing_since").await.is_some());
}

/// A finisher whose transaction was rolled back notes the same request again.
#[actix::test]
async fn a_note_that_was_rolled_back_is_taken_again() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    let target = ground.target().await;
    receiver.script([Answer::status(500)]);
    for column in ["failing_since IS NOT NULL", "failing_since IS NULL"] {
        ground.after(1);
        let sent = target.send(vec![message(1)]).await;
        ground.sql("BEGIN").await;
        target.note(&ground.session, &sent).await.unwrap();
        ground.sql("ROLLBACK").await;
        assert_eq!(ground.column(column).await.unwrap(), "false");
        ground.note(&*target, &sent).await;
        assert_eq!(ground.column(column).await.unwrap(), "true");
    }
}
