//! A change of MILLRACE_SECRET_KEY: old opens, everything is sealed anew, old is needed no more.

use millrace::sealing::stored::{self, PLACES};
use millrace::sealing::{Seals, Under};
use millrace_tests::outbox;
use millrace_tests::postgres::TestDatabase;
use std::collections::BTreeSet;

const FORMER: &str = "0101010101010101010101010101010101010101010101010101010101010101";
const NEW: &str = "0202020202020202020202020202020202020202020202020202020202020202";
const LOST: &str = "0303030303030303030303030303030303030303030303030303030303030303";

fn seals(current: &str, old: Option<&str>) -> Seals {
    Seals::from_texts(Some(current), old).unwrap()
}

#[tokio::test]
async fn every_sealed_column_is_known_and_sealed_anew() {
    let database = TestDatabase::create().await;
    let store = database.client().await;
    let rows = store
        .query(
            "SELECT table_name::text, column_name::text FROM information_schema.columns
             WHERE table_schema = 'public' AND column_name LIKE '%sealed'",
            &[],
        )
        .await
        .unwrap();
    let columns: BTreeSet<(String, String)> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
    let known: BTreeSet<(String, String)> = PLACES
        .iter()
        .map(|p| (p.table.to_owned(), p.column.to_owned()))
        .collect();
    assert_eq!(columns, known);

    let acme = outbox::workspace(&store, "acme").await.unwrap();
    let (former, lost) = (seals(FORMER, None), seals(LOST, None));
    let seal = |with: &Seals, purpose: &str| with.seal(purpose, purpose.as_bytes()).unwrap();
    store
        .execute(
            "INSERT INTO networks (network_id, workspace_id, name, secret_digest, secret_sealed, status)
             VALUES ('nw_1', $1, 'n', '1', $2, 'active'), ('nw_2', $1, 'm', '2', $3, 'archived'), ('nw_3', $1, 'o', '3', NULL, 'active')",
            &[&acme, &seal(&former, "network-secret:nw_1"), &seal(&former, "network-secret:nw_2")],
        )
        .await
        .unwrap();
    store
        .execute(
            "INSERT INTO pixels (pixel_id, workspace_id, name, dataset_id, access_token_sealed, app_secret_sealed)
             VALUES ('px_1', $1, 'p', '1', $2, $3)",
            &[
                &acme,
                &seal(&former, "pixel-access-token:px_1"),
                &seal(&seals(NEW, None), "pixel-app-secret:px_1"),
            ],
        )
        .await
        .unwrap();
    store
        .execute(
            "INSERT INTO webhooks (webhook_id, workspace_id, name, url, events, secret_sealed, previous_secret_sealed, previous_until)
             VALUES ('wh_1', $1, 'w', 'https://x.example/', '{visit}', $2, $3, now() - interval '1 day')",
            &[&acme, &seal(&former, "webhook-secret:wh_1"), &seal(&lost, "webhook-secret:wh_1")],
        )
        .await
        .unwrap();

    let both = seals(NEW, Some(FORMER));
    assert!(stored::reseal(&store, &Seals::none()).await.is_err());
    let done = stored::reseal(&store, &both).await.unwrap();
    assert_eq!((done.resealed, done.current, done.moved), (4, 1, 0));
    let shut: Vec<String> = done.shut.iter().map(|(s, _)| s.name()).collect();
    assert_eq!(shut, ["wh_1 previous secret"]);
    // The new key alone opens what opened, and what was sealed is what it was.
    let alone = seals(NEW, None);
    for secret in stored::all(&store).await.unwrap() {
        match secret.name() == shut[0] {
            true => assert!(secret.under(&alone).is_err() && !secret.used),
            false => assert_eq!(
                secret.under(&alone).unwrap(),
                Under::Current,
                "{}",
                secret.name()
            ),
        }
    }
    let row = store
        .query_one("SELECT secret_sealed FROM webhooks", &[])
        .await
        .unwrap();
    let opened = alone.open("webhook-secret:wh_1", row.get(0)).unwrap();
    assert_eq!(opened, b"webhook-secret:wh_1");
    let again = stored::reseal(&store, &both).await.unwrap();
    assert_eq!((again.resealed, again.current, again.shut.len()), (0, 5, 1));
}
