//! Push: devices are woken, told nothing, and forgotten when they are gone.

use super::*;
use millrace::delivery::channel::Verdict;
use millrace::delivery::dispatcher::{Delivery, DeliveryConfig, MakeChannel};
use millrace::delivery::inapp::InappChannel;
use millrace::delivery::inapp::settings::Inapp;
use millrace::delivery::outbox::{self, Message};
use millrace::delivery::push::PushChannel;
use millrace::delivery::push::settings::Push;
use millrace::runtime::days;
use millrace_schemas::ids::RecordId;
use millrace_tests::process::eventually;
use millrace_tests::receivers::{Answer as Reply, Receiver};

fn push(ground: &Ground, origins: &[&str], guard: AddressGuard) -> PushChannel {
    let settings = Push {
        origins: origins.iter().map(|o| (*o).to_owned()).collect(),
        ..Push::default()
    };
    PushChannel::new(&settings, guard, ground.clock.clone(), ground.connect()).unwrap()
}

async fn subscribe(ground: &Ground, id: &str, endpoint: &str) {
    subscribe_user(ground, "dora", id, endpoint).await;
}

async fn subscribe_user(ground: &Ground, user: &str, id: &str, endpoint: &str) {
    ground
        .session
        .client()
        .execute(
            "INSERT INTO push_subscriptions (subscription_id, workspace_id, user_id, endpoint) VALUES ($1, $2, $3, $4)",
            &[&id, &ground.workspace, &user, &endpoint],
        )
        .await
        .unwrap();
}

/// Writes a push for a user that is due now.
async fn push_to(ground: &Ground, to: &Destination, user: &str, offset: i64) {
    let wall = ground.clock.wall();
    days::make(&ground.session, outbox::TABLES, &[wall.day()])
        .await
        .unwrap();
    let cause = RecordId {
        topic_no: 1,
        partition: 0,
        offset,
    };
    let message = Message {
        id: outbox::id_of(wall, cause, "push", to.no, user),
        workspace: ground.workspace,
        channel: "push",
        destination: to.no,
        subject_key: None,
        scope_key: None,
        dedupe_key: None,
        payload: serde_json::to_string(&news(user)).unwrap(),
        cause,
        due_at: wall,
        refused: None,
    };
    outbox::write(&ground.session, &[message], wall)
        .await
        .unwrap();
}

#[actix::test]
async fn a_device_hears_of_a_stream_and_a_row_and_nothing_of_it() {
    let ground = Ground::new().await;
    let receiver = Receiver::start().unwrap();
    let origin = receiver.url("");
    let (to, channel) = (
        ground.destination("push").await,
        push(&ground, &[&origin], loopback()),
    );
    let none = ground.message(&news("dora"));
    let answer = ground.deliver(&channel, &to, &none).await;
    assert_eq!(
        (answer.verdict, &*answer.code),
        (Verdict::Suppressed, "no_endpoint")
    );
    subscribe(&ground, "ps_1", &receiver.url("/up?up=1")).await;
    let alone = ground.message(&news("dora"));
    assert_eq!(
        ground.deliver(&channel, &to, &alone).await.verdict,
        Verdict::Delivered
    );

    let inbox = InappChannel::new(&Inapp::default(), ground.clock.clone(), ground.connect());
    let row = ground.message(&news("dora"));
    let place = ground.destination("inapp").await;
    ground.deliver(&inbox, &place, &row).await;
    let id = ground
        .count("SELECT notification_id FROM user_notifications")
        .await;
    let behind = Notification {
        after: Some(row.id),
        stream: Some("core.stream".to_owned()),
        ..news("dora")
    };
    let message = ground.message(&behind);
    assert_eq!(
        ground.deliver(&channel, &to, &message).await.verdict,
        Verdict::Delivered
    );
    let bodies: Vec<String> = receiver
        .received()
        .iter()
        .map(|r| String::from_utf8(r.body.to_vec()).unwrap())
        .collect();
    assert_eq!(
        bodies,
        [
            r#"{"stream":"core.news","ref":null}"#.to_owned(),
            format!(r#"{{"stream":"core.stream","ref":"notification:{id}"}}"#),
        ]
    );
}

#[actix::test]
async fn a_device_that_is_gone_is_forgotten_and_others_are_woken() {
    let ground = Ground::new().await;
    let receiver = Receiver::start().unwrap();
    let origin = receiver.url("");
    let (to, channel) = (
        ground.destination("push").await,
        push(&ground, &[&origin], loopback()),
    );
    for (n, status) in [404, 410].into_iter().enumerate() {
        subscribe(
            &ground,
            &format!("ps_{n}"),
            &receiver.url(&format!("/gone{n}")),
        )
        .await;
        receiver.script([Reply::status(status)]);
        let message = ground.message(&news("dora"));
        let answer = ground.deliver(&channel, &to, &message).await;
        assert_eq!(answer.verdict, Verdict::Rejected, "{answer:?}");
        // Only the origin is ever written down.
        assert_eq!(answer.target.as_deref(), Some(origin.as_str()));
        assert_eq!(
            ground
                .count("SELECT count(*) FROM push_subscriptions")
                .await,
            0
        );
    }
    subscribe(&ground, "ps_busy", &receiver.url("/busy")).await;
    receiver.script([Reply::status(503)]);
    let message = ground.message(&news("dora"));
    let answer = ground.deliver(&channel, &to, &message).await;
    assert!(
        matches!(answer.verdict, Verdict::RetryAt { .. }),
        "{answer:?}"
    );
    assert_eq!(
        ground
            .count("SELECT count(*) FROM push_subscriptions")
            .await,
        1
    );
}

/// A user has two devices and the server of one is away: the message waits for it, though the other was woken.
#[actix::test]
async fn a_device_whose_server_is_away_is_woken_when_it_is_back() {
    let ground = Ground::new().await;
    let (well, away) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    let origins = [well.url(""), away.url("")];
    let to = ground.destination("push").await;
    let channel = push(&ground, &[&origins[0], &origins[1]], loopback());
    subscribe(&ground, "ps_1", &well.url("/well")).await;
    subscribe(&ground, "ps_2", &away.url("/away")).await;
    away.answer_all(Reply::status(503));
    let mut message = ground.message(&news("dora"));
    let answer = ground.deliver(&channel, &to, &message).await;
    assert!(
        matches!(answer.verdict, Verdict::RetryAt { .. }),
        "{answer:?}"
    );
    // One that never comes back does not make a message fail that woke another.
    message.attempt = channel.traits().max_attempts;
    let answer = ground.deliver(&channel, &to, &message).await;
    assert_eq!(answer.verdict, Verdict::Delivered);
    away.answer_all(Reply::status(200));
    message.attempt = 2;
    let answer = ground.deliver(&channel, &to, &message).await;
    assert_eq!(answer.verdict, Verdict::Delivered);
    assert_eq!((well.received().len(), away.received().len()), (3, 3));
}

/// What each device answered outlasts the sender: one that took it is not woken again for one that did not.
#[actix::test]
async fn a_device_that_was_woken_is_not_woken_again_for_another() {
    let ground = Ground::new().await;
    let (well, away) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    let origins = [well.url(""), away.url("")];
    let to = ground.destination("push").await;
    subscribe(&ground, "ps_1", &well.url("/well")).await;
    subscribe(&ground, "ps_2", &away.url("/away")).await;
    away.script([503, 503, 201].map(Reply::status));
    push_to(&ground, &to, "dora", 1).await;
    let sql = "SELECT outbox_id, (extract(epoch FROM created_at) * 1000000)::int8 FROM outbox";
    let row = ground.session.client().query_one(sql, &[]).await.unwrap();
    let mut message = ground.message(&news("dora"));
    message.id = row.get(0);
    message.created_at.0 = row.get(1);
    for (attempt, delivered) in [(1, false), (2, false), (3, true)] {
        message.attempt = attempt;
        // Another program each time: nothing but the store knows.
        let channel = push(&ground, &[&origins[0], &origins[1]], loopback());
        let answer = ground.deliver(&channel, &to, &message).await;
        assert_eq!(
            answer.verdict == Verdict::Delivered,
            delivered,
            "{attempt}: {answer:?}"
        );
    }
    assert_eq!((well.received().len(), away.received().len()), (1, 3));
    // By its subscription alone.
    let kept = "SELECT count(*) FROM outbox WHERE answered = '{\"ps_1\": true}'";
    assert_eq!(ground.count(kept).await, 1);
}

/// Endpoints come from users: nothing is asked of a host that the operator has not listed, or that lies inside.
#[actix::test]
async fn an_endpoint_leads_nowhere_but_to_listed_origins_at_public_addresses() {
    let ground = Ground::new().await;
    let receiver = Receiver::start().unwrap();
    let to = ground.destination("push").await;
    let origin = receiver.url("");
    subscribe(&ground, "ps_1", &receiver.url("/x")).await;
    let message = ground.message(&news("dora"));
    let elsewhere = push(&ground, &["https://ntfy.sh"], loopback());
    let answer = ground.deliver(&elsewhere, &to, &message).await;
    assert_eq!(
        (answer.verdict, &*answer.code),
        (Verdict::Suppressed, "origin_refused")
    );
    let inside = push(&ground, &[&origin], AddressGuard::default());
    let answer = ground.deliver(&inside, &to, &message).await;
    assert_eq!(
        (answer.verdict, &*answer.code),
        (Verdict::Suppressed, "address_refused")
    );
    let off = push(&ground, &[], loopback());
    match off.prepare(&ground.session, &to).await.err() {
        Some(Unready::Pause { code, .. }) => assert_eq!(code, "unconfigured"),
        other => panic!("{other:?}"),
    }
    assert!(receiver.received().is_empty());
}

/// Endpoints of many servers stand behind one destination: what one of them asks for holds for its own message.
#[actix::test]
async fn a_server_that_asks_to_be_left_alone_holds_up_nobody_else_s_device() {
    let ground = Ground::new().await;
    let receiver = Receiver::start().unwrap();
    let origin = receiver.url("");
    let to = ground.destination("push").await;
    ground.user("emil", "emil@example.com").await;
    subscribe(&ground, "ps_busy", &receiver.url("/busy")).await;
    subscribe_user(&ground, "emil", "ps_well", &receiver.url("/well")).await;
    receiver.script([Reply::status(429).with("retry-after", "3600")]);
    let config = DeliveryConfig {
        connect: ground.connect(),
        clock: ground.clock.clone(),
        poll: Duration::from_millis(20),
        drain: Duration::from_secs(5),
    };
    let (clock, connect) = (ground.clock.clone(), ground.connect());
    let make: MakeChannel = Arc::new(move || {
        let settings = Push {
            origins: vec![origin.clone()],
            ..Push::default()
        };
        let made = PushChannel::new(&settings, loopback(), clock.clone(), connect.clone());
        Ok(Rc::new(made.map_err(|e| e.to_string())?) as Rc<dyn Channel>)
    });
    let delivery = Delivery::start(&config, vec![make]);
    let log = async |what: &str, sql: &str| {
        eventually(what, SOON, async || {
            Ok((ground.count(sql).await == 1).then_some(()))
        })
        .await
        .unwrap();
    };
    push_to(&ground, &to, "dora", 1).await;
    log(
        "it asks for an hour",
        "SELECT count(*) FROM send_log WHERE result = 'retry' AND code = '429'",
    )
    .await;
    push_to(&ground, &to, "emil", 2).await;
    log(
        "the other device is woken",
        "SELECT count(*) FROM send_log WHERE result = 'delivered'",
    )
    .await;
    delivery.stop().await;
    let asked = ground.count(
        "SELECT count(*) FROM outbox_due WHERE due_at >= timestamptz '2026-01-01T01:00:00Z'",
    );
    assert_eq!(asked.await, 1);
    let paths: Vec<String> = receiver.received().into_iter().map(|r| r.target).collect();
    assert_eq!(paths, ["/busy", "/well"]);
}
