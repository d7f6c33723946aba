//! What trackers remember of keys that have not changed for long is deleted by days, and counted.

use super::{World, names};
use millrace::postgres::pool::Database;
use millrace::runtime::retention::{self, RetentionError};
use millrace::settings;
use millrace_schemas::time::Micros;
use serde_json::{Value, json};

/// A moment in the first hour of a day, when the walk is made: 2026-12-01T00:30:00Z.
const NIGHT: Micros = Micros(1_796_085_000_000_000);

fn champion(serial: &str, boss: bool) -> Value {
    json!({"serial": serial, "active": true, "bossUp": boss})
}

async fn round(w: &World, days: u16) {
    try_round(w, days).await.unwrap();
}

async fn try_round(w: &World, days: u16) -> Result<Vec<String>, RetentionError> {
    let database = settings::Database {
        url: Some(w.database.url().to_owned()),
        ..settings::Database::default()
    };
    let database = Database::new(&database, "tests").unwrap();
    let kept = settings::Settings {
        retention: settings::Retention {
            tracker_states_days: days,
            dead_letters_days: 30,
            ..settings::Retention::default()
        },
        ..settings::Settings::default()
    };
    retention::once(&database, &kept, NIGHT).await
}

/// What cannot be cleared keeps nothing else from being cleared; the round fails at its end, and is whole again once it can.
#[tokio::test]
async fn a_step_that_fails_keeps_no_other_from_being_done() {
    let w = World::new().await;
    w.client
        .batch_execute(
            "INSERT INTO cooldowns (key, fired_at) VALUES (gen_random_uuid(), '2026-01-01');
             INSERT INTO sent_keys (key, outbox_id, sent_at) VALUES (gen_random_uuid(), gen_random_uuid(), '2026-01-01');
             INSERT INTO dead_letters (record_id, group_name, topic_no, partition, \"offset\", key, payload, reason, dead_at, status)
             VALUES (gen_random_uuid(), 'thresholds', 1, 0, 0, '', '', 'r', '2026-01-01', 'discarded');
             ALTER TABLE cooldowns RENAME TO away",
        )
        .await
        .unwrap();
    let left = async || -> i64 {
        let sql = "SELECT (SELECT count(*) FROM sent_keys) + (SELECT count(*) FROM dead_letters)";
        w.client.query_one(sql, &[]).await.unwrap().get(0)
    };
    assert_eq!(left().await, 2);
    let failed = try_round(&w, 0).await.unwrap_err().to_string();
    assert!(failed.starts_with("1 of its steps failed"), "{failed}");
    assert!(failed.contains("cooldowns"), "{failed}");
    assert_eq!(left().await, 0);
    w.client
        .batch_execute("ALTER TABLE away RENAME TO cooldowns")
        .await
        .unwrap();
    round(&w, 0).await;
    let cooled = "SELECT count(*) FROM cooldowns";
    let cooled: i64 = w.client.query_one(cooled, &[]).await.unwrap().get(0);
    assert_eq!(cooled, 0);
}

#[tokio::test]
async fn a_memory_that_has_not_changed_for_long_is_forgotten_and_counted() {
    let mut w = World::new().await;
    for serial in ["0x1", "0x2"] {
        let fired = w
            .on("atlantic", "champ.update", champion(serial, false))
            .await;
        assert!(fired.is_empty());
    }
    w.client
        .batch_execute(
            "UPDATE tracker_states SET changed_on = CASE key WHEN '0x1' THEN date '2026-10-01' ELSE date '2026-11-30' END;
             INSERT INTO tracker_states (id, workspace, module, shard, mapping, key, memory, changed_on)
             SELECT gen_random_uuid(), 1, 'gone', 's', 'm', n::text, 'true', date '2026-10-02' FROM generate_series(1, 12000) n",
        )
        .await
        .unwrap();
    let count =
        async |w: &World, sql: &str| -> i64 { w.client.query_one(sql, &[]).await.unwrap().get(0) };
    let held = "SELECT count(*) FROM tracker_states";
    let all = count(&w, held).await;
    // By itself nothing goes.
    round(&w, 0).await;
    assert_eq!(count(&w, held).await, all);
    round(&w, 30).await;
    assert_eq!(
        count(&w, "SELECT count(*) FROM tracker_states WHERE key <> '0x2'").await,
        0
    );
    let counted = "SELECT sum(n)::int8 FROM dropped_facts WHERE table_name = 'tracker_states'";
    assert_eq!(count(&w, counted).await, all - count(&w, held).await);
    // An owner that holds nothing sees the one for the first time, and goes on with the other.
    w.another_owner().await;
    let first = w
        .on("atlantic", "champ.update", champion("0x1", true))
        .await;
    assert!(first.is_empty(), "{first:?}");
    let second = w
        .on("atlantic", "champ.update", champion("0x2", true))
        .await;
    assert_eq!(names(&second), ["champ.boss_up"]);
    // A change is dated.
    let dated =
        "SELECT count(*) FROM tracker_states WHERE key = '0x2' AND changed_on > date '2026-11-30'";
    assert!(count(&w, dated).await > 0);
}
