//! The proxy of the proving ground, against a real PostgreSQL.

use millrace_tests::postgres::{self, TestDatabase};
use millrace_tests::process::eventually;
use millrace_tests::proxy::{Protocol, Proxy};
use std::net::SocketAddr;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

/// A proxy before a database, and the database's URL through it.
fn before(database: &TestDatabase) -> (Proxy, String) {
    let url = database.url();
    let (_, rest) = url.split_once('@').unwrap();
    let (address, _) = rest.split_once('/').unwrap();
    let target: SocketAddr = address.parse().unwrap();
    let proxy = Proxy::start(target, Protocol::Postgres).unwrap();
    let through = url.replace(address, &proxy.address().to_string());
    (proxy, through)
}

async fn rows(database: &TestDatabase) -> i64 {
    let client = database.client().await;
    let row = client
        .query_one("SELECT count(*) FROM paused_groups", &[])
        .await;
    row.unwrap().get(0)
}

#[tokio::test]
async fn a_commit_s_reply_is_eaten_and_the_commit_stands() {
    let database = TestDatabase::create().await;
    let (proxy, url) = before(&database);
    proxy.eat_only_after("paused_groups");
    proxy.eat_commit_reply(1);
    for (name, known) in [("first", true), ("second", false), ("third", true)] {
        let mut client = postgres::connect(&url).await;
        // A transaction before the marker is neither counted nor eaten.
        let other = client.transaction().await.unwrap();
        other.batch_execute("SELECT 1").await.unwrap();
        other.commit().await.unwrap();
        let tx = client.transaction().await.unwrap();
        let sql = "INSERT INTO paused_groups (group_name, reason) VALUES ($1, 'test')";
        tx.execute(sql, &[&name]).await.unwrap();
        assert_eq!(tx.commit().await.is_ok(), known, "{name}");
        assert_eq!(
            client.simple_query("SELECT 1").await.is_ok(),
            known,
            "{name}"
        );
    }
    assert_eq!(proxy.eaten(), 1);
    assert_eq!(rows(&database).await, 3);
}

#[tokio::test]
async fn connections_are_cut_refused_and_stalled() {
    let database = TestDatabase::create().await;
    let (proxy, url) = before(&database);
    let client = postgres::connect(&url).await;
    client.simple_query("SELECT 1").await.unwrap();
    proxy.cut();
    eventually("closed", SOON, async || {
        Ok(client.is_closed().then_some(()))
    })
    .await
    .unwrap();
    proxy.refuse(true);
    assert!(
        tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .is_err()
    );
    proxy.refuse(false);
    let client = postgres::connect(&url).await;
    proxy.stall(true);
    let stalled = client.simple_query("SELECT 1");
    let waited = tokio::time::timeout(Duration::from_millis(200), stalled).await;
    assert!(waited.is_err(), "nobody answers, nobody hangs up");
    proxy.stall(false);
    client.simple_query("SELECT 1").await.unwrap();
    assert_eq!(proxy.connections(), 2);
}
