//! Migrations and daily partitions on real PostgreSQL.

use millrace::postgres::migrate::{
    MigrateError, applied, ensure_partitions, known, migrate, missing_partitions, window,
};
use millrace::postgres::pool::Database;
use millrace::runtime::clock::{ManualClock, SharedClock};
use millrace::runtime::maintenance;
use millrace::settings;
use millrace_schemas::time::Micros;
use millrace_tests::postgres::{DedicatedServer, TestDatabase, connect};
use std::time::{SystemTime, UNIX_EPOCH};

/// Tables with a partition a day: five of facts, the outbox and its log.
const TABLES: i64 = 7;

fn database(url: &str) -> Database {
    let settings = settings::Database {
        url: Some(url.to_owned()),
        ..settings::Database::default()
    };
    Database::new(&settings, "tests").unwrap()
}

fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Micros(i64::try_from(since.as_micros()).unwrap())
}

/// Many processes start at once; each must find the schema ready, one alone may make it.
#[tokio::test]
async fn concurrent_starts_migrate_once() {
    let server = tokio::task::spawn_blocking(DedicatedServer::start)
        .await
        .unwrap();
    let target = database(&server.url("postgres"));
    let reports = futures::future::join_all((0..6).map(|_| migrate(&target))).await;
    let reports: Vec<_> = reports.into_iter().map(|r| r.unwrap()).collect();
    let workers: Vec<_> = reports.iter().filter(|r| !r.applied.is_empty()).collect();
    assert_eq!(workers.len(), 1, "{reports:?}");
    assert_eq!(workers[0].applied.len(), known().len());
    assert_eq!(workers[0].partitions, TABLES * 12);
    let client = connect(&server.url("postgres")).await;
    let versions: Vec<i32> = known().into_iter().map(|(v, _)| v).collect();
    assert_eq!(applied(&client).await.unwrap(), versions);
    let (from, to) = window(now());
    assert!(
        missing_partitions(&client, from, to)
            .await
            .unwrap()
            .is_empty()
    );
}

/// During an upgrade an older program may start again on a schema that a newer one has added to; not on one that lacks what it
/// needs.
#[tokio::test]
async fn an_older_program_runs_on_what_a_newer_one_has_added_to() {
    let server = tokio::task::spawn_blocking(DedicatedServer::start)
        .await
        .unwrap();
    let target = database(&server.url("postgres"));
    let own = migrate(&target).await.unwrap().version;
    assert_eq!(known().last().unwrap().0, own);
    let client = connect(&server.url("postgres")).await;
    client
        .batch_execute(
            "INSERT INTO refinery_schema_history VALUES (9001, 'of_tomorrow', now()::text, '1')",
        )
        .await
        .unwrap();
    let again = migrate(&target).await.unwrap();
    assert_eq!((again.version, again.applied.len()), (9001, 0));
    client
        .batch_execute("UPDATE schema_floor SET version = 9001")
        .await
        .unwrap();
    let refused = migrate(&target).await.unwrap_err();
    assert!(
        matches!(refused, MigrateError::TooOld { version: 9001, floor: 9001, own: o } if o == own),
        "{refused}"
    );
}

/// A batch that has written facts holds its locks; making partitions must neither wait for it nor block it.
#[tokio::test]
async fn partitions_are_made_beside_writers_and_by_many_at_once() {
    let db = TestDatabase::create().await;
    let mut writer = connect(db.url()).await;
    let batch = writer.transaction().await.unwrap();
    let insert = "INSERT INTO rejects VALUES (1, gen_random_uuid(), now(), 'click', 'x', NULL, '')";
    batch.execute(insert, &[]).await.unwrap();

    let from = Micros(now().0 + 10 * 86_400_000_000);
    let to = Micros(from.0 + 86_400_000_000);
    let target = database(db.url());
    let makers = (0..4).map(|_| async {
        let (mut client, _driver) = target.single().await.unwrap();
        client
            .batch_execute("SET lock_timeout = '2s'")
            .await
            .unwrap();
        ensure_partitions(&mut client, from, to).await.unwrap()
    });
    let made: i64 = futures::future::join_all(makers).await.into_iter().sum();
    assert_eq!(made, 2 * TABLES);

    batch.execute(insert, &[]).await.unwrap();
    batch.commit().await.unwrap();
    // The index of the parent is the partition's too, and a row of that day finds its place.
    let client = connect(db.url()).await;
    let plan = client
        .query_one(
            "SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent WHERE c.relname = 'visits_click'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(plan.get::<_, i64>(0), 14);
    client
        .execute(
            "INSERT INTO rejects VALUES (1, gen_random_uuid(), now() + interval '10 days', 'click', 'x', NULL, '')",
            &[],
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn sessions_carry_their_bounds() {
    let db = TestDatabase::create().await;
    let (client, _driver) = database(db.url()).for_role("doors").single().await.unwrap();
    let row = client
        .query_one(
            "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('statement_timeout'),
                    current_setting('timezone'), current_setting('jit'), current_setting('application_name')",
            &[],
        )
        .await
        .unwrap();
    let values: Vec<String> = (0..5).map(|i| row.get(i)).collect();
    assert_eq!(values[..4], ["10s", "30s", "UTC", "off"]);
    assert!(values[4].starts_with("millrace/doors/"));
}

/// The daily work, ten days from now: days ahead are made, answers of old requests go, young ones stay.
#[tokio::test]
async fn maintenance_makes_days_and_deletes_old_answers() {
    let db = TestDatabase::create().await;
    let client = connect(db.url()).await;
    client
        .batch_execute(
            "INSERT INTO idempotency_keys (actor, operation, key, body_digest, status, answer, created_at)
             SELECT 'rk_x', 'create', k, '', 201, '{}', now() - age
             FROM (VALUES ('old', interval '25 hours'), ('young', interval '23 hours')) AS v(k, age)",
        )
        .await
        .unwrap();
    let clock: SharedClock = ManualClock::at(Micros(now().0 + 10 * 86_400_000_000));
    let target = database(db.url());
    let first = maintenance::once(&target, &clock).await.unwrap();
    // Days 2 to 13 from now, of which days 2 and 3 were there.
    assert_eq!((first.partitions, first.idempotency_keys), (10 * TABLES, 1));
    let again = maintenance::once(&target, &clock).await.unwrap();
    assert_eq!(again, maintenance::Round::default());
    let left = client
        .query_one("SELECT string_agg(key, ',') FROM idempotency_keys", &[])
        .await
        .unwrap();
    assert_eq!(left.get::<_, String>(0), "young");
}
