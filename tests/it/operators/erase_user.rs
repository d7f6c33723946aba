//! A user of an address is taken out of the directory and of what was written to them; others of the same game stay.

use crate::secrets::tables;
use millrace::erasure::{Contact, Report, erase};
use millrace_tests::outbox;
use millrace_tests::postgres::TestDatabase;
use std::collections::BTreeMap;
use tokio_postgres::Client;
use uuid::Uuid;

/// As the directory has it; the operator types it in lower case.
const JANE: &str = "Jane.Doe@private.example";
const JOHN: &str = "john@private.example";

fn jane() -> Contact {
    Contact::from_email(&JANE.to_lowercase()).unwrap()
}

/// The `n`th firing of a workspace.
fn firing(ws: i32, n: u128) -> Uuid {
    Uuid::from_u128((u128::from(ws.unsigned_abs()) << 64) | n)
}

/// Two users of a workspace, with all that is kept of people; the number of the workspace and of its mail's destination.
async fn fill(store: &Client, slug: &str) -> (i32, i32) {
    let ws = outbox::workspace(store, slug).await.unwrap();
    let reference = format!("mt_{slug}");
    let mail = outbox::destination(store, ws, "email", &reference)
        .await
        .unwrap();
    for (n, user, name, email) in [
        (0_u32, "u-jane", "Jane of Elm Street", JANE),
        (1, "u-john", "John of Oak Street", JOHN),
    ] {
        store
            .execute(
                "INSERT INTO users (workspace_id, user_id, name, email, email_verified, changed_at)
                 VALUES ($1, $2, $3, $4, true, now())",
                &[&ws, &user, &name, &email],
            )
            .await
            .unwrap();
        let endpoint = format!("https://push.example/device-of-{user}");
        let device = format!("ps_{slug}_{user}");
        store
            .execute(
                "INSERT INTO push_subscriptions (subscription_id, workspace_id, user_id, endpoint) VALUES ($1, $2, $3, $4)",
                &[&device, &ws, &user, &endpoint],
            )
            .await
            .unwrap();
        // Two mails: the first has left, the second waits.
        let from = n * 10;
        outbox::fill(store, ws, "email", mail, from..from + 2, |n| {
            format!(
                r#"{{"v":1,"user":"{user}","trigger":"core.x","dedupe_key":"k{n}","at":5,"body":{{"title":"Hello, {name}"}},"vars":{{"name":"{name}"}}}}"#
            )
        })
        .await
        .unwrap();
        let ids: Vec<Uuid> = (from..from + 2).map(|n| outbox::id_of(mail, n)).collect();
        let pos = firing(ws, u128::from(n) + 1);
        store
            .execute(
                "UPDATE outbox SET user_id = $2, firing_pos = $3 WHERE outbox_id = ANY($1)",
                &[&ids, &user, &pos],
            )
            .await
            .unwrap();
        store
            .execute(
                "UPDATE outbox SET status = 'sent', ended_at = now() WHERE outbox_id = $1",
                &[&ids[0]],
            )
            .await
            .unwrap();
        store
            .execute("DELETE FROM outbox_due WHERE outbox_id = $1", &[&ids[0]])
            .await
            .unwrap();
        let said = format!("250 2.1.5 {} Ok", email.split('@').next().unwrap());
        let masked = format!("{}***@private.example", email.get(..1).unwrap());
        store
            .execute(
                "INSERT INTO send_log (sent_at, outbox_id, workspace_id, channel, destination_no, attempt, result, target, excerpt)
                 VALUES (now(), $1, $2, 'email', $3, 1, 'sent', $4, $5)",
                &[&ids[0], &ws, &mail, &masked, &said],
            )
            .await
            .unwrap();
        let title = format!("Hello, {name}");
        store
            .execute(
                "INSERT INTO user_notifications (workspace_id, user_id, dedupe_key, outbox_id, trigger_id, title, body, url, created_at)
                 VALUES ($1, $2, 'k', $3, 'core.x', $4, $4, '/of/' || $2, now())",
                &[&ws, &user, &ids[0], &title],
            )
            .await
            .unwrap();
        let vars = format!(r#"{{"name":"{name}"}}"#);
        fired(store, ws, pos, Some(user), &vars, 1).await;
        store
            .execute(
                "INSERT INTO suppressions (suppression_id, workspace_id, address_hash, address_masked, reason, detail)
                 SELECT 'sp_' || $2, workspace_id, sha256(convert_to(email_folded, 'UTF8')), $4::text, 'hard_bounce', '550 ' || name
                 FROM users WHERE workspace_id = $1 AND user_id = $3",
                &[&ws, &device, &user, &masked],
            )
            .await
            .unwrap();
    }
    // Both were told of it: it loses the address alone.
    let vars = format!(r#"{{"by":"{JANE}","what":"a raid on Fort Nine"}}"#);
    fired(store, ws, firing(ws, 9), None, &vars, 2).await;
    (ws, mail)
}

async fn fired(store: &Client, ws: i32, pos: Uuid, owner: Option<&str>, vars: &str, notices: i32) {
    store
        .batch_execute(
            "SELECT make_daily_partitions('firings', (now() AT TIME ZONE 'UTC')::date, (now() AT TIME ZONE 'UTC')::date + 1)",
        )
        .await
        .unwrap();
    store
        .execute(
            "INSERT INTO firings (firing_pos, accepted_at, workspace_id, firing_id, trigger_id, module, shard, subject, scope, dedupe,
                 owner, vars, at, notices)
             VALUES ($1, now(), $2, 'ev', 'core.x', 'core', '', '', '', 'd', $3, $4::text::json, now(), $5)",
            &[&pos, &ws, &owner, &vars, &notices],
        )
        .await
        .unwrap();
}

/// Tables in which a text stands, in any case.
async fn is_in(store: &Client, text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let all = tables(store).await.into_iter();
    all.filter(|(_, rows)| rows.to_lowercase().contains(&text))
        .map(|(name, _)| name)
        .collect()
}

async fn count(store: &Client, sql: &str, ws: i32) -> i64 {
    store.query_one(sql, &[&ws]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_user_of_the_address_goes_out_of_the_directory_and_of_what_was_written_to_them() {
    let database = TestDatabase::create().await;
    let store = database.client().await;
    let mut client = database.client().await;
    let (ws, mail) = fill(&store, "acme").await;
    let johns = is_in(&store, "Oak Street").await;
    assert_eq!(is_in(&store, "Elm Street").await.len(), johns.len());

    let dry = erase(&mut client, &jane(), Some(ws), false).await.unwrap();
    assert_eq!(is_in(&store, "Elm Street").await.len(), johns.len());
    assert_eq!((dry.clicks, dry.called_off, dry.being_sent), (0, 1, 0));
    let done = erase(&mut client, &jane(), Some(ws), true).await.unwrap();
    assert_eq!(
        done.rows,
        BTreeMap::from([
            ("firings", 2),
            ("outbox", 2),
            ("push_subscriptions", 1),
            ("send_log", 1),
            ("suppressions", 1),
            ("user_notifications", 1),
            ("users", 1),
        ])
    );
    assert_eq!(done, dry);
    for gone in ["Elm Street", "jane.doe", "device-of-u-jane", "/of/u-jane"] {
        assert_eq!(is_in(&store, gone).await, Vec::<String>::new(), "{gone}");
    }
    for stays in ["Oak Street", JOHN, "device-of-u-john", "Fort Nine"] {
        assert!(!is_in(&store, stays).await.is_empty(), "{stays}");
    }
    assert_eq!(is_in(&store, "Oak Street").await, johns);

    let user = store
        .query_one(
            "SELECT name, email, email_verified, status, version FROM users WHERE workspace_id = $1 AND user_id = 'u-jane'",
            &[&ws],
        )
        .await
        .unwrap();
    let texts: (Option<&str>, Option<&str>) = (user.get(0), user.get(1));
    assert_eq!(texts, (None, None));
    assert!(!user.get::<_, bool>(2));
    assert_eq!(
        (user.get::<_, &str>(3), user.get::<_, i64>(4)),
        ("active", 2)
    );
    // They stay unmailed: by the hash, which is all that is left of the entry.
    let suppressed = store
        .query_one(
            "SELECT address_masked, detail FROM suppressions
             WHERE workspace_id = $1 AND address_hash = decode($2::text, 'hex')",
            &[&ws, &jane().digest()],
        )
        .await
        .unwrap();
    let kept: (&str, Option<&str>) = (suppressed.get(0), suppressed.get(1));
    assert_eq!(kept, ("erased", None));
    // The mail that waited is called off, the one that had left has left; John's still waits.
    let statuses = outbox::statuses(&store, mail).await.unwrap();
    let of = |status: &str| statuses.get(status).copied().unwrap_or_default();
    assert_eq!((of("cancelled"), of("sent"), of("due")), (1, 2, 1));
    assert_eq!(outbox::due(&store).await.unwrap(), 1);

    let again = erase(&mut client, &jane(), Some(ws), true).await.unwrap();
    assert_eq!(again, Report::default());
}

#[tokio::test]
async fn another_workspace_s_user_of_the_same_address_stays() {
    let database = TestDatabase::create().await;
    let store = database.client().await;
    let mut client = database.client().await;
    let (acme, _) = fill(&store, "acme").await;
    let (other, _) = fill(&store, "other").await;
    let of_jane = "SELECT count(*) FROM users WHERE workspace_id = $1 AND user_id = 'u-jane' AND email IS NOT NULL";
    let devices = "SELECT count(*) FROM push_subscriptions WHERE workspace_id = $1";
    let masks = "SELECT count(*) FROM suppressions WHERE workspace_id = $1 AND detail IS NOT NULL";
    erase(&mut client, &jane(), Some(acme), true).await.unwrap();
    for (sql, left, whole) in [(of_jane, 0, 1), (devices, 1, 2), (masks, 1, 2)] {
        assert_eq!(count(&store, sql, acme).await, left, "{sql}");
        assert_eq!(count(&store, sql, other).await, whole, "{sql}");
    }
    let rest = erase(&mut client, &jane(), None, true).await.unwrap();
    assert_eq!(rest.rows.get("users"), Some(&1));
    assert_eq!(count(&store, of_jane, other).await, 0);
}

/// A message that is just being sent is not touched, and its user is found again by the next run.
#[tokio::test]
async fn a_user_who_is_being_mailed_is_found_again() {
    let database = TestDatabase::create().await;
    let store = database.client().await;
    let mut client = database.client().await;
    let (ws, mail) = fill(&store, "acme").await;
    let waiting = outbox::id_of(mail, 1);
    store
        .execute(
            "UPDATE outbox_due SET lease_token = gen_random_uuid(), lease_until = now() + interval '1 hour' WHERE outbox_id = $1",
            &[&waiting],
        )
        .await
        .unwrap();
    let first = erase(&mut client, &jane(), None, true).await.unwrap();
    assert_eq!((first.called_off, first.being_sent), (0, 1));
    assert_eq!(first.rows.get("users"), None);
    let mut left = is_in(&store, "Elm Street").await;
    left.sort();
    assert_eq!(left, ["table outbox", "table users"]);
    store
        .batch_execute("UPDATE outbox_due SET lease_token = NULL, lease_until = NULL")
        .await
        .unwrap();
    let second = erase(&mut client, &jane(), Some(ws), true).await.unwrap();
    assert_eq!((second.called_off, second.being_sent), (1, 0));
    assert_eq!(second.rows.get("users"), Some(&1));
    assert_eq!(is_in(&store, "Elm Street").await, Vec::<String>::new());
}
