//! The whole way: out of the outbox, through the dispatcher, to the receiver and back into the outbox and the send log.

use super::*;
use millrace::delivery::dispatcher::{Delivery, DeliveryConfig, MakeChannel};
use millrace::delivery::outbox::{self, Message};
use millrace::postgres::types::Tz;
use millrace::runtime::clock::Clock;
use millrace::runtime::connector::connector;
use millrace::runtime::days;
use millrace_schemas::ids::RecordId;
use millrace_tests::process::eventually;
use millrace_tests::receivers::{Answer, CountingReceiver, Receiver, by_header};

impl Ground {
    /// Writes messages that are due now.
    async fn outbox(&self, count: i64) {
        let wall = self.clock.wall();
        let day = wall.0.div_euclid(86_400_000_000);
        days::make(&self.session, outbox::TABLES, &[day])
            .await
            .unwrap();
        let messages: Vec<Message> = (0..count)
            .map(|offset| {
                let cause = RecordId {
                    topic_no: 1,
                    partition: 0,
                    offset,
                };
                Message {
                    id: outbox::id_of(wall, cause, "webhook", self.destination.no, "test"),
                    workspace: self.destination.workspace,
                    channel: "webhook",
                    destination: self.destination.no,
                    subject_key: None,
                    scope_key: None,
                    dedupe_key: None,
                    payload: format!("{{\"n\": {offset}}}"),
                    cause,
                    due_at: wall,
                    refused: None,
                }
            })
            .collect();
        outbox::write(&self.session, &messages, wall).await.unwrap();
    }

    fn dispatch(&self) -> Delivery {
        let settings = millrace::settings::Database {
            url: Some(self.database.url().to_owned()),
            ..Default::default()
        };
        let database = millrace::postgres::pool::Database::new(&settings, "delivery").unwrap();
        let config = DeliveryConfig {
            connect: connector(&database, Duration::from_secs(2)),
            clock: self.clock.clone(),
            poll: Duration::from_millis(20),
            drain: Duration::from_secs(5),
        };
        let clock = self.clock.clone();
        let make: MakeChannel = Arc::new(move || {
            Ok(Rc::new(channel(quick(), loopback(), seals(), &clock)) as Rc<dyn Channel>)
        });
        Delivery::start(&config, vec![make])
    }

    async fn count(&self, sql: &str) -> i64 {
        let row = self.session.client().query_one(sql, &[]).await.unwrap();
        row.get(0)
    }

    async fn none_is_due(&self) {
        eventually("nothing is due any more", SOON, async || {
            let n = self.count("SELECT count(*) FROM outbox_due").await;
            Ok((n == 0).then_some(()))
        })
        .await
        .unwrap();
    }
}

#[actix::test]
async fn eight_attempts_by_the_schedule_under_one_id() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    // No 5xx: those would open the breaker, whose pauses are by the machine's clock.
    receiver.answer_all(Answer::status(404).saying("no"));
    ground.outbox(1).await;
    let delivery = ground.dispatch();
    let schedule = [5, 300, 1_800, 2 * HOUR, 5 * HOUR, 10 * HOUR, 10 * HOUR];
    for (nth, pause) in schedule.into_iter().enumerate() {
        let attempt = i16::try_from(nth + 1).unwrap();
        let due = eventually("it waits for its next attempt", SOON, async || {
            let rows = ground
                .session
                .client()
                .query(
                    "SELECT due_at FROM outbox_due WHERE attempts = $1 AND lease_token IS NULL",
                    &[&attempt],
                )
                .await?;
            Ok(rows.first().map(|r| r.get::<_, Tz>(0).0))
        })
        .await
        .unwrap();
        let waits = (due.0 - ground.clock.wall().0) / 1_000_000;
        assert!(
            (pause..=pause + pause / 4 + 1).contains(&waits),
            "{pause}: {waits}"
        );
        ground.clock.set(due);
    }
    ground.none_is_due().await;
    delivery.stop().await;
    let all = receiver.received();
    assert_eq!(all.len(), 8);
    assert!(
        all.iter()
            .all(|r| r.header("webhook-id") == all[0].header("webhook-id"))
    );
    assert!(all.iter().all(|r| r.body == "{\"n\": 0}"));
    let ended = "SELECT count(*) FROM outbox WHERE status = 'failed' AND status_reason = '404' AND attempts = 8";
    assert_eq!(ground.count(ended).await, 1);
    assert_eq!(
        ground
            .count("SELECT count(DISTINCT attempt) FROM send_log WHERE excerpt = 'no'")
            .await,
        8
    );
}

#[actix::test]
async fn gone_ends_the_message_and_what_waits_behind_it() {
    let receiver = Receiver::start().unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    receiver.answer_all(Answer::status(410));
    ground.outbox(500).await;
    let delivery = ground.dispatch();
    ground.none_is_due().await;
    delivery.stop().await;
    assert_eq!(ground.column("status").await.unwrap(), "disabled");
    let knocked = i64::try_from(receiver.received().len()).unwrap();
    // As many as were under way at once.
    assert!((1..=64).contains(&knocked), "{knocked}");
    let gone = "SELECT count(*) FROM outbox WHERE status = 'cancelled' AND status_reason = 'gone'";
    assert_eq!(ground.count(gone).await, knocked);
    let rest = "SELECT count(*) FROM outbox WHERE status = 'cancelled' AND status_reason = 'endpoint_disabled'";
    assert_eq!(ground.count(rest).await, 500 - knocked);
}

#[actix::test]
async fn each_message_arrives_once_over_warm_connections() {
    let receiver =
        CountingReceiver::start(Duration::from_millis(5), by_header("webhook-id")).unwrap();
    let ground = Ground::new(&receiver.url("/hook")).await;
    ground.outbox(2_000).await;
    let delivery = ground.dispatch();
    ground.none_is_due().await;
    delivery.stop().await;
    let arrivals = receiver.arrivals();
    assert_eq!((arrivals.times.len(), arrivals.total()), (2_000, 2_000));
    assert_eq!(
        ground
            .count("SELECT count(*) FROM outbox WHERE status = 'sent'")
            .await,
        2_000
    );
}
