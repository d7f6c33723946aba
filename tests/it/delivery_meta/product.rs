//! The product's own process: the channel under its dispatcher, and `millrace meta normalize`.

use super::bench::{KEY, TOKEN, bad, frozen, seals};
use crate::delivery::sender;
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::meta_stand_in::{Fault, MetaStandIn};
use millrace_tests::outbox;
use millrace_tests::process::{Launch, Scratch, eventually};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Events of the run; `MILLRACE_META_EVENTS` asks for more, to see how fast it goes.
fn events() -> u32 {
    std::env::var("MILLRACE_META_EVENTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(3_000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_due_arrives_and_no_secret_is_written_anywhere() {
    let deployment = Deployment::start("meta", Log::Postgres, 1).await.unwrap();
    let store = deployment.store().await;
    let workspace = outbox::workspace(&store, "acme").await.unwrap();
    let meta = MetaStandIn::start().unwrap();
    meta.dataset("0123", TOKEN, None);
    meta.latency(Duration::from_millis(50));
    meta.script([
        Fault::Echo,
        Fault::ResetMidBody,
        Fault::code(190, Some(463)),
    ]);
    let sealed = seals(KEY)
        .seal("pixel-access-token:px_1", TOKEN.as_bytes())
        .unwrap();
    store
        .execute(
            "INSERT INTO pixels (pixel_id, workspace_id, name, dataset_id, access_token_sealed)
             VALUES ('px_1', $1, 'p', '0123', $2)",
            &[&workspace, &sealed],
        )
        .await
        .unwrap();
    let no = outbox::destination(&store, workspace, "meta", "px_1")
        .await
        .unwrap();
    let (n, wrong) = (events(), [7, 1_500]);
    outbox::fill(&store, workspace, "meta", no, 0..n, |at| {
        let id = format!("e{at}");
        if wrong.contains(&at) {
            bad(&id)
        } else {
            frozen(&id)
        }
    })
    .await
    .unwrap();
    let mut process = sender(&deployment, "meta-sender")
        .env("MILLRACE_SECRET_KEY", KEY)
        .setting("delivery.meta.graph_url", meta.url())
        .setting("delivery.meta.retry_first_ms", 100)
        .spawn()
        .unwrap();
    // One answer repeats the whole request, one breaks off, and one says that the token is wrong: all waits for a person.
    let paused = eventually("it is paused", PATIENCE, async || {
        let row = store
            .query_one(
                "SELECT paused_code FROM destinations WHERE destination_no = $1",
                &[&no],
            )
            .await?;
        Ok(row.get::<_, Option<String>>(0))
    });
    let code = match paused.await {
        Ok(code) => code,
        Err(e) => panic!(
            "{e}\n{:?} {:?}\n{}",
            meta.counts(),
            outbox::statuses(&store, no).await,
            deployment.last_words()
        ),
    };
    assert_eq!(code, "meta_token_invalid");
    let begun = Instant::now();
    store
        .execute(
            "UPDATE destinations SET paused_code = NULL, paused_reason = NULL, paused_by = NULL, paused_at = NULL",
            &[],
        )
        .await
        .unwrap();
    let done = eventually("nothing is due", PATIENCE, async || {
        Ok((outbox::due(&store).await? == 0).then_some(()))
    });
    if let Err(e) = done.await {
        panic!("{e}\n{:?}\n{}", meta.counts(), deployment.last_words());
    }
    let took = begun.elapsed();
    println!(
        "{n} events in {took:?}: {:.0}/s",
        f64::from(n) / took.as_secs_f64()
    );
    let good = u64::from(n) - 2;
    assert_eq!(meta.counts().unique, good);
    let statuses: BTreeMap<String, i64> = outbox::statuses(&store, no).await.unwrap();
    let right = [("failed", 2), ("sent", i64::from(n) - 2)].map(|(s, n)| (s.to_owned(), n));
    assert_eq!(statuses, BTreeMap::from(right));
    process.signal(libc::SIGTERM);
    process.wait(PATIENCE).await.unwrap();
    let rows = store
        .query(
            "SELECT to_jsonb(s)::text FROM send_log s UNION ALL SELECT to_jsonb(d)::text FROM destinations d",
            &[],
        )
        .await
        .unwrap();
    assert!(rows.len() > usize::try_from(n).unwrap());
    let log = process.log_text();
    for text in rows.iter().map(|r| r.get::<_, String>(0)).chain([log]) {
        for hidden in ["EAAB", "secret/token", KEY] {
            assert!(!text.contains(hidden), "{text}");
        }
    }
}

async fn normalized(words: &[&str]) -> (Option<i32>, String) {
    let scratch = Scratch::new("normalize").unwrap();
    let mut process = Launch::product("normalize", scratch.path())
        .unwrap()
        .env("RUST_LOG", "off")
        .args(["meta", "normalize"])
        .args(words)
        .spawn()
        .unwrap();
    let status = process.wait(PATIENCE).await.unwrap();
    (status.code(), process.log_text())
}

#[tokio::test]
async fn a_value_is_normalised_at_a_terminal() {
    let (code, said) = normalized(&["em", "  John_Smith@gmail.com "]).await;
    let digest = "62a14e44f765419d10fea99367361a727c12365e2520f32218d505ed9aa0f62f";
    assert_eq!(code, Some(0));
    assert_eq!(
        said,
        format!("normalised  john_smith@gmail.com\nsha256      {digest}\n")
    );
    let (code, said) = normalized(&["ph", "-"]).await;
    assert_eq!(code, Some(0));
    assert!(said.starts_with("omitted     nothing_left: "), "{said}");
    let (_, said) = normalized(&["fbc", "IwAR0", "--clicked-ms", "1554763741205"]).await;
    assert!(
        said.starts_with("normalised  fb.1.1554763741205.IwAR0\n"),
        "{said}"
    );
    let (_, said) = normalized(&["em", "null", "--json"]).await;
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(json["omitted"], "blank");
    let (code, said) = normalized(&["email", "x"]).await;
    assert_eq!(code, Some(2));
    assert!(
        said.contains("no field `email`; there are: em, ph, fn"),
        "{said}"
    );
}
