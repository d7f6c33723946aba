//! Whole days of facts are dropped, stay counted, and nothing that was booked is booked again.

use super::{MINUTE, T0, World, click, postback};
use millrace::postgres::pool::Database;
use millrace::runtime::retention;
use millrace::settings;
use millrace_schemas::time::Micros;

const DAY: i64 = 24 * 60 * MINUTE;

fn kept() -> settings::Settings {
    settings::Settings {
        retention: settings::Retention {
            visits_days: 2,
            conversions_days: 2,
            postbacks_days: 2,
            dead_letters_days: 2,
            ..settings::Retention::default()
        },
        ..settings::Settings::default()
    }
}

impl World {
    async fn drop_days(&self, kept: &settings::Settings, wall: i64) -> Vec<String> {
        let database = settings::Database {
            url: Some(self.url.clone()),
            ..settings::Database::default()
        };
        let database = Database::new(&database, "tests").unwrap();
        retention::once(&database, kept, Micros(wall))
            .await
            .unwrap()
    }

    async fn dropped(&self, table: &str) -> i64 {
        let topics: Vec<i32> = self.partition.topics.iter().map(|t| t.no).collect();
        self.client
            .query_one(
                "SELECT coalesce(sum(n), 0)::int8 FROM dropped_facts WHERE table_name = $1 AND topic_no = ANY($2) AND partition = 0",
                &[&table, &topics],
            )
            .await
            .unwrap()
            .get(0)
    }
}

#[tokio::test]
async fn days_are_dropped_whole_and_stay_counted() {
    let mut w = World::new().await;
    let (a, b) = (w.visit("a", T0), w.visit("b", T0 + DAY));
    let mut bad = super::visit(1, "c", T0);
    bad.as_object_mut().unwrap().remove("campaign");
    w.clock.set(Micros(T0 + DAY + MINUTE));
    w.send(&[
        a,
        click("a", T0 + 1, "camp0001", 0),
        super::on_wire(0, "c", &bad),
        b,
        postback("a", T0 + 2, "txid=t1&status=pending"),
        postback("a", T0 + 3, "txid=t1"),
        postback("b", T0 + DAY, "txid=t2"),
    ])
    .await;
    let before = w.outcomes().await;
    assert_eq!(
        before,
        [
            "applied 5",
            "applied:status_changed 1",
            "rejected:journey_malformed 1"
        ]
    );
    assert_eq!(w.count("SELECT count(*) FROM conversion_history").await, 1);

    // Without a word about it nothing goes, however old.
    let all = settings::Settings::default();
    assert!(
        w.drop_days(&all, T0 + 9 * DAY)
            .await
            .iter()
            .all(|p| p.starts_with("outbox"))
    );
    assert_eq!(w.count("SELECT count(*) FROM visits").await, 2);

    let gone = w.drop_days(&kept(), T0 + 3 * DAY).await;
    for table in ["visits", "clicks", "conversions", "postback_log", "rejects"] {
        assert!(
            gone.iter().any(|p| p.starts_with(table)),
            "{table}: {gone:?}"
        );
    }
    for (table, left, dropped) in [
        ("visits", 1, 1),
        ("clicks", 0, 1),
        ("conversions", 1, 1),
        ("postback_log", 1, 2),
        ("rejects", 0, 1),
        ("conversion_history", 0, 0),
        ("conversion_keys", 2, 0),
    ] {
        let sql = format!("SELECT count(*) FROM {table}");
        assert_eq!(w.count(&sql).await, left, "{table}");
        assert_eq!(w.dropped(table).await, dropped, "{table}");
    }
    assert_eq!(w.outcomes().await, before);

    // The same sale once more, for the day that is gone: a duplicate, whose receipt makes that day anew.
    w.send(&[postback("a", T0 + 4, "txid=t1")]).await;
    assert_eq!(
        w.outcomes().await,
        [
            "applied 5",
            "applied:status_changed 1",
            "duplicate 1",
            "rejected:journey_malformed 1"
        ]
    );
    assert_eq!(w.count("SELECT count(*) FROM postback_log").await, 2);
    w.drop_days(&kept(), T0 + 3 * DAY).await;
    assert_eq!(w.dropped("postback_log").await, 3);
}

#[tokio::test]
async fn a_round_that_was_cut_short_is_finished_and_an_archive_is_left_alone() {
    let mut w = World::new().await;
    let a = w.visit("a", T0);
    w.send(&[a]).await;
    let day = w
        .client
        .query_one("SELECT tableoid::regclass::text FROM visits", &[])
        .await
        .unwrap();
    let day: String = day.get(0);
    // As an operator does who wants to keep it elsewhere.
    w.client
        .batch_execute(&format!("ALTER TABLE visits DETACH PARTITION {day}"))
        .await
        .unwrap();
    assert!(!w.drop_days(&kept(), T0 + 9 * DAY).await.contains(&day));
    // As a round leaves it that died between its two steps.
    w.client
        .batch_execute(&format!("COMMENT ON TABLE {day} IS 'millrace: going'"))
        .await
        .unwrap();
    assert!(w.drop_days(&kept(), T0 + 9 * DAY).await.contains(&day));
    assert_eq!(w.dropped("visits").await, 1);
}

#[tokio::test]
async fn closed_dead_letters_go_and_open_ones_stay() {
    let mut w = World::new().await;
    w.send(&[
        (0, "1:x".to_owned(), b"no JSON".to_vec()),
        (0, "1:y".to_owned(), b"nor this".to_vec()),
    ])
    .await;
    w.client
        .batch_execute(
            "UPDATE dead_letters SET dead_at = '2020-01-01 00:00Z';
             UPDATE dead_letters SET status = 'discarded', changed_at = '2020-01-02 00:00Z' WHERE key = '1:x'",
        )
        .await
        .unwrap();
    w.drop_days(&kept(), T0).await;
    assert_eq!(w.count("SELECT count(*) FROM dead_letters").await, 1);
    assert_eq!(
        w.count("SELECT count(*) FROM dead_letters WHERE status = 'open'")
            .await,
        1
    );
}
