//! The dispatcher over a real store and real receivers: everything leaves once, nothing waits for a dead destination.

use millrace::delivery::dispatcher::DUE;
use millrace::delivery::lease;
use millrace::runtime::connector::connector;
use millrace::runtime::session::Session;
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::outbox;
use millrace_tests::postgres::TestDatabase;
use millrace_tests::process::{Launch, eventually};
use millrace_tests::receivers::{Answer, Receiver};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_postgres::SimpleQueryMessage;
use uuid::Uuid;

/// A process that only delivers, to receivers on loopback.
pub fn sender(deployment: &Deployment, name: &str) -> Launch {
    deployment.delivery(name).unwrap()
}

fn counted(pairs: &[(&str, i64)]) -> BTreeMap<String, i64> {
    pairs.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_due_leaves_once_and_is_written_down() {
    let deployment = Deployment::start("deliver", Log::Postgres, 1)
        .await
        .unwrap();
    let store = deployment.store().await;
    let workspace = outbox::workspace(&store, "acme").await.unwrap();
    let (good, refusing) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    refusing.script((0..20).map(|_| Answer::status(422)));
    let to = async |receiver: &Receiver| {
        let url = receiver.url("/in");
        outbox::destination(&store, workspace, "stub", &url)
            .await
            .unwrap()
    };
    let (one, two) = (to(&good).await, to(&refusing).await);
    let payload = |n: u32| format!("{{\"n\":{n}}}");
    for (no, n) in [(one, 500), (two, 20)] {
        outbox::fill(&store, workspace, "stub", no, 0..n, payload)
            .await
            .unwrap();
    }
    let mut process = sender(&deployment, "sender").spawn().unwrap();
    let done = eventually("nothing is due", PATIENCE, async || {
        Ok((outbox::due(&store).await? == 0).then_some(()))
    });
    if let Err(e) = done.await {
        panic!("{e}\n{}", deployment.last_words());
    }
    assert_eq!(
        outbox::statuses(&store, one).await.unwrap(),
        counted(&[("sent", 500)])
    );
    assert_eq!(
        outbox::statuses(&store, two).await.unwrap(),
        counted(&[("failed", 20)])
    );
    let received = good.received();
    assert_eq!(received.len(), 500);
    let mut bodies: Vec<&[u8]> = received.iter().map(|r| &r.body[..]).collect();
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!(bodies.len(), 500);
    let logged = store
        .query(
            "SELECT destination_no, result, attempt, count(*) FROM send_log GROUP BY 1, 2, 3 ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    let logged: Vec<(i32, String, i16, i64)> = logged
        .iter()
        .map(|r| (r.get(0), r.get(1), r.get(2), r.get(3)))
        .collect();
    assert_eq!(
        logged,
        [
            (one, "delivered".to_owned(), 1, 500),
            (two, "rejected".to_owned(), 1, 20)
        ]
    );
    process.signal(15);
    let status = process.wait(PATIENCE).await.unwrap();
    assert!(status.success(), "{}", process.last_words(20));
}

const RIGHT: &str = "0707070707070707070707070707070707070707070707070707070707070707";
const WRONG: &str = "0808080808080808080808080808080808080808080808080808080808080808";

/// Started under a wrong key nothing is sent and nothing ends: destinations pause, `doctor` names them and the key, and under the
/// right one they go on by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_key_at_the_start_pauses_and_ends_nothing() {
    let deployment = Deployment::start("wrong-key", Log::Postgres, 1)
        .await
        .unwrap();
    let store = deployment.store().await;
    let workspace = outbox::workspace(&store, "acme").await.unwrap();
    let hook = Receiver::start().unwrap();
    let seals = millrace::sealing::Seals::from_texts(Some(RIGHT), None).unwrap();
    let sealed = |purpose: &str, secret: &[u8]| seals.seal(purpose, secret).unwrap();
    let secret = b"whsec_bWlsbHJhY2UtbWlsbHJhY2UtbWlsbHJhY2UtMzI=";
    store
        .execute(
            "INSERT INTO webhooks (webhook_id, workspace_id, name, url, events, secret_sealed)
             VALUES ('wh_1', $1, 'hook', $2, '{visit}', $3)",
            &[
                &workspace,
                &hook.url("/hook"),
                &sealed("webhook-secret:wh_1", secret),
            ],
        )
        .await
        .unwrap();
    store
        .execute(
            "INSERT INTO pixels (pixel_id, workspace_id, name, dataset_id, currency, access_token_sealed)
             VALUES ('px_1', $1, 'pixel', '77', 'USD', $2)",
            &[&workspace, &sealed("pixel-access-token:px_1", b"token")],
        )
        .await
        .unwrap();
    let mut numbers = Vec::new();
    for (channel, reference) in [("webhook", "wh_1"), ("meta", "px_1")] {
        let no = outbox::destination(&store, workspace, channel, reference)
            .await
            .unwrap();
        outbox::fill(&store, workspace, channel, no, 0..10, |n| {
            format!("{{\"n\":{n}}}")
        })
        .await
        .unwrap();
        numbers.push(no);
    }
    let start = |name: &str, key: &str| {
        let launch = sender(&deployment, name).env("MILLRACE_SECRET_KEY", key);
        launch
            .setting("delivery.meta.graph_url", "http://127.0.0.1:9")
            .spawn()
            .unwrap()
    };
    let paused = async || {
        let sql = "SELECT count(*) FROM destinations WHERE paused_code = 'secret_unreadable'";
        anyhow::Ok(store.query_one(sql, &[]).await?.get::<_, i64>(0))
    };
    let mut wrong = start("wrong", WRONG);
    eventually("both are paused", PATIENCE, async || {
        Ok((paused().await? == 2).then_some(()))
    })
    .await
    .unwrap();
    let doctor = deployment
        .launch("doctor")
        .unwrap()
        .env("MILLRACE_SECRET_KEY", WRONG)
        .arg("doctor");
    let mut doctor = doctor.spawn().unwrap();
    let status = doctor.wait(PATIENCE).await.unwrap();
    let said = doctor.log_text();
    assert!(!status.success(), "{said}");
    for named in ["wh_1", "px_1", "MILLRACE_SECRET_KEY"] {
        assert!(said.contains(named), "{named} is not named: {said}");
    }
    for no in &numbers {
        let left = outbox::statuses(&store, *no).await.unwrap();
        assert_eq!(left, counted(&[("due", 10)]));
    }
    wrong.signal(15);
    assert!(wrong.wait(PATIENCE).await.unwrap().success());
    assert_eq!(hook.received().len(), 0);

    let _right = start("right", RIGHT);
    eventually("the webhooks went out", PATIENCE, async || {
        let sent = outbox::statuses(&store, numbers[0]).await?;
        Ok((sent == counted(&[("sent", 10)])).then_some(()))
    })
    .await
    .unwrap_or_else(|e| panic!("{e}\n{}", deployment.last_words()));
    assert_eq!(paused().await.unwrap(), 0);
}

/// Old days go; one with an open message stays until it has ended.
#[tokio::test]
async fn old_days_are_dropped_but_not_before_their_last_message_has_ended() {
    use millrace::postgres::pool::Database;
    use millrace::runtime::retention;
    use millrace::settings;
    let db = millrace_tests::postgres::TestDatabase::create().await;
    let store = db.client().await;
    let workspace = outbox::workspace(&store, "acme").await.unwrap();
    let no = outbox::destination(&store, workspace, "stub", "x")
        .await
        .unwrap();
    store
        .batch_execute("SELECT make_daily_partitions(t, date '2026-01-01', date '2026-01-03') FROM unnest('{outbox,send_log}'::text[]) t")
        .await
        .unwrap();
    outbox::fill(&store, workspace, "stub", no, 0..2, |_| "{}".to_owned())
        .await
        .unwrap();
    store
        .batch_execute(
            "UPDATE outbox SET created_at = '2026-01-02 12:00Z';
             UPDATE outbox_due SET created_at = '2026-01-02 12:00Z'",
        )
        .await
        .unwrap();
    let database = settings::Database {
        url: Some(db.url().to_owned()),
        ..settings::Database::default()
    };
    let database = Database::new(&database, "tests").unwrap();
    let wall = millrace_schemas::time::Micros::parse_rfc3339("2026-02-05T00:00:00Z").unwrap();
    let kept = settings::Settings::default();
    let gone = async || retention::once(&database, &kept, wall).await.unwrap();
    assert_eq!(gone().await, ["outbox_20260101", "outbox_20260103"]);
    store.batch_execute("DELETE FROM outbox_due").await.unwrap();
    assert_eq!(gone().await, ["outbox_20260102"]);
    assert_eq!(gone().await, Vec::<String>::new());
    let later = millrace_schemas::time::Micros(wall.0 + 60 * 86_400_000_000);
    let gone = retention::once(&database, &kept, later).await.unwrap();
    assert!(gone.contains(&"send_log_20260103".to_owned()), "{gone:?}");
    // Today's are there.
    outbox::fill(&store, workspace, "stub", no, 2..3, |_| "{}".to_owned())
        .await
        .unwrap();
}

/// The plan of a statement as a dispatcher's connection makes it, once and for all.
async fn plan(session: &Session, sql: &str, arguments: &str) -> String {
    let prepare = format!("DEALLOCATE ALL; PREPARE asked AS {sql}");
    session.batch(&prepare).await.unwrap();
    let explain = format!("EXPLAIN EXECUTE asked ({arguments})");
    let told = session.client().simple_query(&explain).await.unwrap();
    let lines = told.iter().filter_map(|m| match m {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn what_is_planned_while_little_or_much_is_due_walks_the_index() {
    let database = TestDatabase::create().await;
    let settings = millrace::settings::Database {
        url: Some(database.url().to_owned()),
        ..Default::default()
    };
    let store = millrace::postgres::pool::Database::new(&settings, "tests").unwrap();
    let connect = connector(&store, Duration::from_secs(2));
    let session = lease::session(&connect).await.unwrap();
    let nil = Uuid::nil();
    let claim = format!("1, now(), 1000, 50000, '{nil}', '-infinity', '{nil}'");
    for due in [0, 20_000] {
        let sql = format!(
            "INSERT INTO outbox_due (outbox_id, created_at, destination_no, due_at)
             SELECT gen_random_uuid(), now(), 1 + n % 3, now() FROM generate_series(1, {due}) AS n; ANALYZE outbox_due"
        );
        session.batch(&sql).await.unwrap();
        let claim = plan(&session, lease::CLAIM, &claim).await;
        assert!(
            claim.contains("Index Scan using outbox_due_next"),
            "{claim}"
        );
        // All that is due to the destination would be read for each thousand of it.
        assert!(!claim.contains("Sort"), "{claim}");
        let due = plan(&session, DUE, "'stub', now(), '{1}'").await;
        assert!(!due.contains("hashed"), "{due}");
        assert!(due.contains("destination_no = d.no"), "{due}");
    }
}
