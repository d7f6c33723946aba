//! A destination's settings and credentials are those of the moment of sending.

use super::bench::{Bench, OTHER_KEY, PIXEL, SECRET, TOKEN, frozen};
use millrace::delivery::channel::{Unready, Verdict};

async fn unready(bench: &Bench) -> Unready {
    bench.prepare().await.err().unwrap()
}

async fn paused(bench: &Bench) -> &'static str {
    match unready(bench).await {
        Unready::Pause { code, reason } => {
            assert!(!reason.contains(TOKEN) && !reason.contains(SECRET));
            code
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_gone_gets_nothing() {
    let bench = Bench::new().await;
    let gone = Unready::Cancel("destination_archived");
    let mut elsewhere = bench.destination();
    elsewhere.workspace += 1;
    assert_eq!(
        bench.prepare_for(&elsewhere).await.err(),
        Some(gone.clone())
    );
    let mut unknown = bench.destination();
    unknown.reference = "px_none".to_owned();
    assert_eq!(bench.prepare_for(&unknown).await.err(), Some(gone.clone()));
    bench.run("UPDATE pixels SET status = 'archived'").await;
    assert_eq!(unready(&bench).await, gone);
}

#[tokio::test]
async fn without_credentials_it_waits() {
    let mut bench = Bench::new().await;
    bench.set("access_token_sealed", None).await;
    assert_eq!(paused(&bench).await, "credential_missing");
    bench
        .set(
            "access_token_sealed",
            Some(bench.sealed("pixel-access-token", "  ")),
        )
        .await;
    assert_eq!(paused(&bench).await, "credential_missing");
    // Sealed for something else; damaged; no text.
    for blob in [bench.sealed("pixel-app-secret", TOKEN), vec![1, 2, 3]] {
        bench.set("access_token_sealed", Some(blob)).await;
        assert_eq!(paused(&bench).await, "secret_unreadable");
    }
    let token = bench.sealed("pixel-access-token", TOKEN);
    bench.set("access_token_sealed", Some(token)).await;
    bench.set("app_secret_sealed", Some(vec![0])).await;
    assert_eq!(paused(&bench).await, "secret_unreadable");
    bench.set("app_secret_sealed", None).await;
    assert!(bench.prepare().await.is_ok());
    bench.key(OTHER_KEY);
    assert_eq!(paused(&bench).await, "secret_unreadable");
}

#[tokio::test]
async fn a_dataset_is_no_path() {
    let bench = Bench::new().await;
    for dataset in ["../me", "1/2", "", "1?a", "ü"] {
        bench
            .run(&format!("UPDATE pixels SET dataset_id = '{dataset}'"))
            .await;
        assert_eq!(paused(&bench).await, "dataset_invalid");
    }
}

#[tokio::test]
async fn what_changed_while_a_message_waited_counts() {
    let bench = Bench::new().await;
    let fresh = "EAABfresh";
    bench.meta.dataset("0123", fresh, None);
    let sent = bench.send(vec![frozen("a")]).await;
    assert_eq!(sent.answers[0].verdict, Verdict::PauseDestination);
    bench
        .set(
            "access_token_sealed",
            Some(bench.sealed("pixel-access-token", fresh)),
        )
        .await;
    let sent = bench.send(vec![frozen("a")]).await;
    assert_eq!(sent.answers[0].verdict, Verdict::Delivered);
    // Pointed elsewhere: what was frozen for the old dataset is not told to the new one.
    bench.run("UPDATE pixels SET dataset_id = '999'").await;
    let answer = bench
        .target()
        .await
        .admit(&bench.leased(frozen("b")), bench.wall())
        .unwrap();
    assert_eq!(
        (answer.verdict, answer.code.as_ref()),
        (Verdict::Cancelled, "destination_repointed")
    );
    assert_eq!(bench.destination().reference, PIXEL);
}

#[tokio::test]
async fn a_store_that_is_away_decides_nothing() {
    let bench = Bench::new().await;
    let row = bench
        .session
        .client()
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .unwrap();
    let pid: i32 = row.get(0);
    let killer = millrace_tests::postgres::connect(bench.database.url()).await;
    killer
        .execute("SELECT pg_terminate_backend($1)", &[&pid])
        .await
        .unwrap();
    assert!(matches!(unready(&bench).await, Unready::Later(_)));
}
