//! In-app: one row an event and user, whatever happens twice.

use super::*;
use millrace::delivery::channel::Verdict;
use millrace::delivery::inapp::InappChannel;
use millrace::delivery::inapp::settings::Inapp;
use millrace::postgres::types::Tz;
use millrace_schemas::notification::Linked;

fn inbox(ground: &Ground) -> InappChannel {
    InappChannel::new(&Inapp::default(), ground.clock.clone(), ground.connect())
}

#[actix::test]
async fn a_row_is_written_once_an_event_and_user() {
    let ground = Ground::new().await;
    ground.user("emil", "emil@example.com").await;
    let (to, channel) = (ground.destination("inapp").await, inbox(&ground));
    let first = ground.message(&news("dora"));
    let answer = ground.deliver(&channel, &to, &first).await;
    assert_eq!(
        (answer.verdict, &*answer.code),
        (Verdict::Delivered, "written")
    );
    // An attempt whose end was lost finds its own row; another rule's message of the same event finds that there is one.
    let answer = ground.deliver(&channel, &to, &first).await;
    assert_eq!(&*answer.code, "written");
    let second = ground.message(&news("dora"));
    let answer = ground.deliver(&channel, &to, &second).await;
    assert_eq!(
        (answer.verdict, &*answer.code),
        (Verdict::Delivered, "duplicate")
    );
    let other = ground.message(&news("emil"));
    assert_eq!(
        &*ground.deliver(&channel, &to, &other).await.code,
        "written"
    );
    assert_eq!(
        ground
            .count("SELECT count(*) FROM user_notifications")
            .await,
        2
    );

    let row = ground
        .session
        .client()
        .query_one(
            "SELECT title, body, url, trigger_id, scope, outbox_id, read_at IS NULL FROM user_notifications WHERE user_id = 'dora'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>(0), "A house falls: Ünal's Häuschen");
    assert_eq!(
        row.get::<_, &str>(1),
        "First line\n.second line with a dot\n\n- one"
    );
    assert_eq!(row.get::<_, Option<&str>>(2), Some("/houses/1"));
    assert_eq!(row.get::<_, &str>(3), "core.news");
    assert_eq!(row.get::<_, &str>(4), "team:12");
    assert_eq!(row.get::<_, Uuid>(5), first.id);
    assert!(row.get::<_, bool>(6));
}

#[actix::test]
async fn a_batch_is_one_statement_and_each_message_is_asked_about() {
    let ground = Ground::new().await;
    let (to, channel) = (ground.destination("inapp").await, inbox(&ground));
    let target = channel.prepare(&ground.session, &to).await;
    let target = target.map_err(|e| format!("{e:?}")).unwrap();
    let mut leads_away = news("dora");
    leads_away.dedupe_key = "core.news:2".to_owned();
    leads_away.body.action = Some(Action {
        label: "x".to_owned(),
        url: "https://evil.example/".to_owned(),
    });
    let messages = vec![
        ground.message(&news("dora")),
        ground.message(&news("nobody")),
        ground.message(&leads_away),
        ground.message(&news("dora")),
    ];
    let asked = target.ask(&messages, START).await.unwrap();
    let codes: Vec<Option<String>> = asked
        .iter()
        .map(|a| a.as_ref().map(|a| a.code.to_string()))
        .collect();
    assert_eq!(codes, [None, Some("user_gone".to_owned()), None, None]);
    let going: Vec<Leased> = messages
        .iter()
        .zip(&asked)
        .filter(|(_, a)| a.is_none())
        .map(|(m, _)| m.clone())
        .collect();
    let sent = target.send(going).await;
    let codes: Vec<&str> = sent.answers.iter().map(|a| &*a.code).collect();
    assert_eq!(codes, ["written", "written", "duplicate"]);
    let led = "SELECT count(*) FROM user_notifications WHERE url IS NOT NULL";
    assert_eq!(ground.count(led).await, 1);
}

/// Of an owner and a member the link is asked for again: the very account, or any of theirs on the shard. All in one look.
#[actix::test]
async fn whoever_has_left_an_account_is_told_nothing_of_it() {
    let ground = Ground::new().await;
    ground.user("emil", "emil@example.com").await;
    ground.user("fay", "fay@example.com").await;
    let (to, channel) = (ground.destination("inapp").await, inbox(&ground));
    ground
        .sql(
            "INSERT INTO links (workspace_id, module, shard, account, user_id, linked_at, live, link_id)
             SELECT workspace_id, 'g', l.shard, l.account, l.user_id, now(), l.live, concat('ln_', l.account, l.user_id)
             FROM workspaces, (VALUES ('s1', 'old', 'dora', false), ('s1', 'new', 'dora', true), ('s1', 'old', 'emil', true),
                                      ('s2', 'other', 'fay', true)) AS l(shard, account, user_id, live)",
        )
        .await;
    let target = channel.prepare(&ground.session, &to).await;
    let target = target.map_err(|e| format!("{e:?}")).unwrap();
    let cases = [
        ("owner", "dora", "new", None),
        ("owner", "dora", "old", Some("ceiling")),
        ("owner", "emil", "old", None),
        // Somebody else's account by now.
        ("owner", "emil", "new", Some("ceiling")),
        ("members", "dora", "", None),
        // Has left all accounts of this shard; those of another do not count.
        ("members", "fay", "", Some("ceiling")),
    ];
    let mut messages: Vec<Leased> = cases
        .iter()
        .map(|(ceiling, user, account, _)| {
            let linked = Linked {
                module: "g".to_owned(),
                shard: "s1".to_owned(),
                account: (*account).to_owned(),
            };
            ground.message(&Notification {
                ceiling: Some((*ceiling).to_owned()),
                linked: Some(linked),
                ..news(user)
            })
        })
        .collect();
    // Decided by no link: what the event named holds.
    messages.push(ground.message(&Notification {
        ceiling: Some("members".to_owned()),
        ..news("fay")
    }));
    let asked = target.ask(&messages, START).await.unwrap();
    let codes: Vec<Option<&str>> = asked
        .iter()
        .map(|a| a.as_ref().map(|answer| &*answer.code))
        .collect();
    let wanted = cases.iter().map(|(_, _, _, code)| *code).chain([None]);
    assert_eq!(codes, wanted.collect::<Vec<_>>());
}

/// Ninety days after it was read a notification is deleted, and counted; an unread one stays, however old.
#[actix::test]
async fn what_was_read_long_ago_is_deleted_and_counted() {
    let ground = Ground::new().await;
    ground
        .sql(
            "INSERT INTO user_notifications (workspace_id, user_id, dedupe_key, outbox_id, trigger_id, title, created_at, read_at)
             SELECT workspace_id, 'dora', n.key, gen_random_uuid(), 't', 'T', timestamptz '2025-01-01 00:00Z' + n.day * interval '1 day', n.read
             FROM workspaces, (VALUES ('unread', 0, NULL::timestamptz), ('late', 0, '2025-10-04 00:00Z'), ('long', 1, '2025-10-02 00:00Z'),
                                      ('longer', 1, '2025-03-01 00:00Z')) AS n(key, day, read)",
        )
        .await;
    let settings = millrace::settings::Database {
        url: Some(ground.database.url().to_owned()),
        ..Default::default()
    };
    let database = millrace::postgres::pool::Database::new(&settings, "tests").unwrap();
    for days in [0, 90, 90] {
        let mut kept = millrace::settings::Settings::default();
        assert_eq!(kept.retention.read_inbox_days, 90);
        kept.retention.read_inbox_days = days;
        millrace::runtime::retention::once(&database, &kept, START)
            .await
            .unwrap();
        let left = ground
            .count("SELECT count(*) FROM user_notifications")
            .await;
        assert_eq!(left, if days == 0 { 4 } else { 2 });
    }
    let counted = "SELECT count(*) FROM dropped_facts WHERE (table_name, day, n) = ('user_notifications', '2025-01-02', 2)";
    assert_eq!(ground.count(counted).await, 1);
}

/// The mark of a later firing calls off what an older one wanted told; the mark of an older one does not.
#[actix::test]
async fn what_was_called_off_is_told_nobody() {
    let ground = Ground::new().await;
    let (to, channel) = (ground.destination("inapp").await, inbox(&ground));
    let message = ground.message(&news("dora"));
    let (older, own, later) = (
        Uuid::from_u128(1 << 64),
        Uuid::from_u128(2 << 64),
        Uuid::from_u128(3 << 64),
    );
    let key = Uuid::from_u128(77);
    let client = ground.session.client();
    let day = START.0.div_euclid(86_400_000_000);
    millrace::runtime::days::make(&ground.session, &["outbox"], &[day])
        .await
        .unwrap();
    client
        .execute(
            "INSERT INTO outbox (outbox_id, created_at, workspace_id, channel, destination_no, payload, cause, firing_pos, cancel_key)
             VALUES ($1, $2, $3, 'inapp', $4, '{}', $1, $5, $6)",
            &[
                &message.id,
                &Tz(START),
                &ground.workspace,
                &to.no,
                &own,
                &key,
            ],
        )
        .await
        .unwrap();
    let mark = "INSERT INTO cancel_marks VALUES ($1, $2, now()) ON CONFLICT (key) DO UPDATE SET firing_pos = $2";
    client.execute(mark, &[&key, &older]).await.unwrap();
    let target = channel.prepare(&ground.session, &to).await;
    let target = target.map_err(|e| format!("{e:?}")).unwrap();
    let one = std::slice::from_ref(&message);
    assert_eq!(target.ask(one, START).await.unwrap(), [None]);
    client.execute(mark, &[&key, &later]).await.unwrap();
    let answer = ground.hand_over(&*target, &message).await;
    assert_eq!(
        (answer.verdict, &*answer.code),
        (Verdict::Cancelled, "called_off")
    );
    assert_eq!(
        ground
            .count("SELECT count(*) FROM user_notifications")
            .await,
        0
    );
}

/// A message of a paused destination waits for longer than any mark is kept: what calls it off waits with it.
#[actix::test]
async fn a_mark_outlives_what_waits_under_its_key() {
    let ground = Ground::new().await;
    let to = ground.destination("inapp").await;
    let message = ground.message(&news("dora"));
    let (key, other, later) = (
        Uuid::from_u128(77),
        Uuid::from_u128(78),
        Uuid::from_u128(3 << 64),
    );
    let client = ground.session.client();
    let day = START.0.div_euclid(86_400_000_000);
    millrace::runtime::days::make(&ground.session, &["outbox"], &[day])
        .await
        .unwrap();
    let at = Tz(START);
    client
        .execute(
            "INSERT INTO outbox (outbox_id, created_at, workspace_id, channel, destination_no, payload, cause, firing_pos, cancel_key)
             VALUES ($1, $2, $3, 'inapp', $4, '{}', $1, $1, $5)",
            &[&message.id, &at, &ground.workspace, &to.no, &key],
        )
        .await
        .unwrap();
    client
        .execute(
            "INSERT INTO outbox_due (outbox_id, created_at, destination_no, due_at) VALUES ($1, $2, $3, $2)",
            &[&message.id, &at, &to.no],
        )
        .await
        .unwrap();
    for key in [key, other] {
        client
            .execute(
                "INSERT INTO cancel_marks VALUES ($1, $2, $3)",
                &[&key, &later, &at],
            )
            .await
            .unwrap();
    }
    let long_after = START.plus_secs(60 * 86_400);
    let [.., marks] = &millrace::recipients::forget::STEPS;
    assert_eq!(marks.table, "cancel_marks");
    let forget = async || {
        millrace::recipients::forget::one(client, marks, long_after)
            .await
            .unwrap()
    };
    assert_eq!(forget().await, 1, "nothing waits under the other");
    assert_eq!(ground.count("SELECT count(*) FROM cancel_marks").await, 1);
    assert_eq!(forget().await, 0);
    ground.sql("DELETE FROM outbox_due").await;
    assert_eq!(forget().await, 1);
}
