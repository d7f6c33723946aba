//! The whole way: out of the outbox, through the dispatcher, to the server and back into the outbox and the send log.

use super::*;
use millrace::cli::demo::stand_ins::mail::{Act, Step};
use millrace::delivery::dispatcher::{Delivery, DeliveryConfig, MakeChannel};
use millrace::delivery::outbox::{self, Message};
use millrace::runtime::days;
use millrace_schemas::ids::RecordId;
use millrace_tests::process::eventually;

impl Bench {
    /// Writes mails that are due now.
    async fn outbox(&self, users: &[&str]) {
        let wall = self.ground.clock.wall();
        let day = wall.0.div_euclid(86_400_000_000);
        days::make(&self.ground.session, outbox::TABLES, &[day])
            .await
            .unwrap();
        let messages: Vec<Message> = (0..)
            .zip(users)
            .map(|(offset, user)| {
                let cause = RecordId {
                    topic_no: 1,
                    partition: 0,
                    offset,
                };
                Message {
                    id: outbox::id_of(wall, cause, "email", self.destination.no, user),
                    workspace: self.ground.workspace,
                    channel: "email",
                    destination: self.destination.no,
                    subject_key: None,
                    scope_key: None,
                    dedupe_key: None,
                    payload: serde_json::to_string(&news(user)).unwrap(),
                    cause,
                    due_at: wall,
                    refused: None,
                }
            })
            .collect();
        outbox::write(&self.ground.session, &messages, wall)
            .await
            .unwrap();
    }

    fn dispatch(&self) -> Delivery {
        let config = DeliveryConfig {
            connect: self.ground.connect(),
            clock: self.ground.clock.clone(),
            poll: Duration::from_millis(20),
            drain: Duration::from_secs(5),
        };
        let (clock, connect) = (self.ground.clock.clone(), self.ground.connect());
        let make: MakeChannel = Arc::new(move || {
            let url = Some(PUBLIC_URL.to_owned());
            let (clock, connect) = (clock.clone(), connect.clone());
            let made = EmailChannel::new(&quick(), loopback(), seals(), clock, connect, url);
            Ok(Rc::new(made.map_err(|e| e.to_string())?) as Rc<dyn Channel>)
        });
        Delivery::start(&config, vec![make])
    }

    async fn ended(&self) {
        eventually("nothing is due any more", SOON, async || {
            let n = self.ground.count("SELECT count(*) FROM outbox_due").await;
            Ok((n == 0).then_some(()))
        })
        .await
        .unwrap();
    }

    async fn sum(&self, sql: &str) -> String {
        let row = self.ground.session.client().query_one(sql, &[]).await;
        let all: Option<String> = row.unwrap().get(0);
        all.unwrap_or_default()
    }
}

const STATUSES: &str = "SELECT string_agg(status || ' ' || n, ', ' ORDER BY status) FROM
     (SELECT status, count(*) AS n FROM outbox GROUP BY 1) AS s";
const RESULTS: &str = "SELECT string_agg(r, ', ' ORDER BY r) FROM
     (SELECT DISTINCT result || ' ' || code || ' ' || coalesce(target, '-') || ' ' || attempt AS r FROM send_log) AS s";

#[actix::test]
async fn mails_leave_once_and_what_may_not_leave_is_told_so() {
    let bench = Bench::new().await;
    bench.ground.user("emil", "emil@example.com").await;
    bench
        .mail
        .refuse("emil@example.com", "550 5.1.1 no such user");
    bench.mail.script([
        Act::Farewell("421 4.4.2 idle timeout".to_owned()),
        Act::Die(Step::Rcpt),
    ]);
    let mut users = vec!["dora"; 40];
    users.extend(["emil", "nobody"]);
    bench.outbox(&users).await;
    let delivery = bench.dispatch();
    // One of the first two may have been lost on a fresh connection: it comes again when its pause is over.
    eventually("all but those are through", SOON, async || {
        bench
            .ground
            .clock
            .set(bench.ground.clock.wall().plus_secs(60));
        let n = bench.ground.count("SELECT count(*) FROM outbox_due").await;
        Ok((n == 0).then_some(()))
    })
    .await
    .unwrap();
    delivery.stop().await;
    assert_eq!(
        bench.sum(STATUSES).await,
        "bounced 1, sent 40, suppressed 1"
    );
    let counts = bench.mail.counts();
    assert_eq!((counts.taken, counts.message_ids), (40, 40));
    assert_eq!(
        bench
            .ground
            .count("SELECT count(*) FROM suppressions")
            .await,
        1
    );
    let log = bench.sum(RESULTS).await;
    for told in [
        "bounced 550 e***@example.com 1",
        "delivered 250 D***@Example.com 1",
        "suppressed user_gone - 0",
    ] {
        assert!(log.contains(told), "{told}: {log}");
    }
    assert!(!log.contains("emil@"), "{log}");
}

/// A password that is refused holds everything back and ends nothing; the right one lets it go.
#[actix::test]
async fn a_refused_password_ends_no_mail() {
    let bench = Bench::new().await;
    bench.mail.ask_for("u", "right");
    let seal = |password: &str| {
        let purpose = millrace::delivery::email::settings::seal_purpose(TRANSPORT);
        seals().seal(&purpose, password.as_bytes()).unwrap()
    };
    let set =
        "UPDATE mail_transports SET username = 'u', password_sealed = $1, version = version + 1";
    let client = bench.ground.session.client();
    client.execute(set, &[&seal("wrong")]).await.unwrap();
    bench.outbox(&["dora"; 10]).await;
    let delivery = bench.dispatch();
    eventually("it is paused", SOON, async || {
        let paused = "SELECT count(*) FROM destinations WHERE paused_code = 'smtp_credentials'";
        Ok((bench.ground.count(paused).await == 1).then_some(()))
    })
    .await
    .unwrap();
    // As the API does: an answer to the password of before pauses nothing any more.
    let mend = "UPDATE mail_transports SET password_sealed = $1, version = version + 1, updated_at = clock_timestamp()";
    client.execute(mend, &[&seal("right")]).await.unwrap();
    bench
        .ground
        .sql("UPDATE destinations SET paused_code = NULL, paused_reason = NULL, paused_by = NULL, paused_at = NULL")
        .await;
    bench.ended().await;
    delivery.stop().await;
    assert_eq!(bench.sum(STATUSES).await, "sent 10");
    // Whatever was tried with the wrong one was no attempt.
    let more = "SELECT count(*) FROM outbox WHERE attempts <> 1";
    assert_eq!(bench.ground.count(more).await, 0);
}

/// So does a sender that the server does not know: it would have refused every mail, one after the other.
#[actix::test]
async fn a_refused_sender_ends_no_mail() {
    let bench = Bench::new().await;
    bench.mail.script([Act::Say(
        Step::Mail,
        "550 5.7.1 sender address rejected".to_owned(),
    )]);
    bench.outbox(&["dora"; 10]).await;
    let delivery = bench.dispatch();
    eventually("it is paused", SOON, async || {
        let paused = "SELECT count(*) FROM destinations WHERE paused_code = 'smtp_sender'";
        Ok((bench.ground.count(paused).await == 1).then_some(()))
    })
    .await
    .unwrap();
    let lost = "SELECT count(*) FROM outbox WHERE status NOT IN ('scheduled', 'sent')";
    assert_eq!(bench.ground.count(lost).await, 0);
    bench
        .ground
        .sql("UPDATE destinations SET paused_code = NULL, paused_reason = NULL, paused_by = NULL, paused_at = NULL")
        .await;
    bench.ended().await;
    delivery.stop().await;
    assert_eq!(bench.sum(STATUSES).await, "sent 10");
}
