//! Push: devices are woken, told nothing, and forgotten when they are gone.

use super::*;
use millrace::delivery::channel::Verdict;
use millrace::delivery::inapp::InappChannel;
use millrace::delivery::inapp::settings::Inapp;
use millrace::delivery::push::PushChannel;
use millrace::delivery::push::settings::Push;
use millrace_tests::receivers::{Answer as Reply, Receiver};

fn push(ground: &Ground, origins: &[&str], guard: AddressGuard) -> PushChannel {
    let settings = Push {
        origins: origins.iter().map(|o| (*o).to_owned()).collect(),
        ..Push::default()
    };
    PushChannel::new(&settings, guard, ground.clock.clone(), ground.connect()).unwrap()
}

async fn subscribe(ground: &Ground, id: &str, endpoint: &str) {
    ground
        .session
        .client()
        .execute(
            "INSERT INTO push_subscriptions (subscription_id, workspace_id, user_id, endpoint) VALUES ($1, $2, 'dora', $3)",
            &[&id, &ground.workspace, &endpoint],
        )
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
