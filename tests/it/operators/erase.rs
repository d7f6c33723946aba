//! A contact is taken out of every table, by its hash alone; others' stay, and facts and their sums stay.

use crate::secrets::tables;
use millrace::erasure::{Contact, Report, erase};
use millrace_schemas::ids::ClickKey;
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::outbox;
use millrace_tests::postgres::TestDatabase;
use std::collections::BTreeMap;
use tokio_postgres::Client;
use uuid::Uuid;

const JANE: &str = "jane.doe@private.example";
const PHONE: &str = "15551234567";
const ADDRESS: &str = "203.0.113.77";
const AGENT: &str = "Jane's own browser";
const OTHERS: &str = "john@private.example";

fn jane() -> Contact {
    Contact::from_email(JANE).unwrap()
}

/// Everything of two people, wherever it can be.
async fn fill(store: &Client) -> (i32, Uuid) {
    let acme = outbox::workspace(store, "acme").await.unwrap();
    let pixel = outbox::destination(store, acme, "meta", "px_1")
        .await
        .unwrap();
    let hook = outbox::destination(store, acme, "webhook", "wh_1")
        .await
        .unwrap();
    let digest = jane().digest().to_owned();
    let johns = Contact::from_email(OTHERS).unwrap().digest().to_owned();
    for (n, click, contact, hash, ip) in [
        (1_u128, "clickjane", JANE, digest.to_uppercase(), ADDRESS),
        (2, "clickjohn", OTHERS, johns, "198.51.100.9"),
    ] {
        let key = ClickKey::new(acme, click).key;
        let id = Uuid::from_u128(n);
        let agent = if n == 1 { AGENT } else { "another" };
        let phone = format!("{}", 15_551_234_566 + n);
        store
            .execute(
                "INSERT INTO visits (workspace_id, click_key, visit_id, record_id, accepted_at, stage, direct, click_id, campaign_id,
                     ip, ip_hash, user_agent, fbp, fbc, params)
                 VALUES ($1, $2, $3, $3, now(), 0, false, $4, 'spring', $5, $3, $6, 'fb.1.1.2', 'fb.1.1.F',
                     json_build_object('utm_source', 'news', 'fbclid', 'F' || $4, 'email', ' ' || upper($7)))",
                &[&acme, &key, &id, &click, &ip, &agent, &contact],
            )
            .await
            .unwrap();
        store
            .execute(
                "INSERT INTO conversions (workspace_id, conversion_id, click_key, accepted_at, booked_at, click_id, campaign_id,
                     visit_id, offer_id, role, network_id, payout, currency, status, status_at, email_hash, phone_hash)
                 VALUES ($1, $2, $3, now(), now(), $4, 'spring', $2, 'of_1', 'navigation', 'nw_1', 5, 'USD', 'approved', now(), $5, $6)",
                &[&acme, &id, &key, &click, &hash, &phone],
            )
            .await
            .unwrap();
        let encoded = contact.replace('@', "%40");
        let query = format!(
            "click_id={click}&txid=t{n}&email_hash={hash}&phone_hash={phone}&payout=5&x={encoded}"
        );
        store
            .execute(
                "INSERT INTO postback_log (workspace_id, record_id, accepted_at, decided_at, click_key, outcome, reason, network_id, query)
                 VALUES ($1, $2, now(), now(), $3, 0, '', 'nw_1', $4)",
                &[&acme, &id, &key, &query],
            )
            .await
            .unwrap();
        let record = format!(
            r#"{{"v":1,"workspace":{acme},"network":"nw_1","accepted_at":5,"query":"click_id={click}&email_hash={hash}"}}"#
        );
        store
            .execute(
                "INSERT INTO parked (workspace_id, click_key, record_id, hash, accepted_at, deadline, kind, click_id, payload)
                 VALUES ($1, $2, $3, 1, now(), now() + interval '1 day', 'postback', $4, $5)",
                &[&acme, &key, &id, &click, &record.as_bytes()],
            )
            .await
            .unwrap();
        store
            .execute(
                "INSERT INTO rejects (workspace_id, record_id, accepted_at, kind, reason, click_id, payload)
                 VALUES ($1, $2, now(), 'visit', 'x', $3, $4)",
                &[&acme, &id, &click, &record.as_bytes()],
            )
            .await
            .unwrap();
        for (part, payload) in [
            (0, record.clone()),
            (1, format!("\u{fffd} <{contact}> no JSON")),
        ] {
            let dead = Uuid::from_u128(n + (u128::from(part as u32) << 64));
            store
                .execute(
                    "INSERT INTO dead_letters (record_id, group_name, workspace_id, topic_no, partition, \"offset\", key, payload, reason)
                     VALUES ($1, 'attribution', $2, 1, $3, 1, $4, $5, 'x')",
                    &[&dead, &acme, &part, &format!("{acme}:{click}").as_bytes(), &payload.as_bytes()],
                )
                .await
                .unwrap();
        }
        let from = u32::try_from(n).unwrap() * 10;
        outbox::fill(store, acme, "meta", pixel, from..from + 2, |_| {
            format!(r#"{{"dataset":"1","event":{{"event_name":"Purchase","user_data":{{"em":["{}"],"client_ip_address":"{ip}"}},"custom_data":{{"value":12.50}}}}}}"#, hash.to_lowercase())
        })
        .await
        .unwrap();
        outbox::fill(store, acme, "webhook", hook, from..from + 1, |_| {
            format!(r#"{{"type":"conversion","data":{{"click_id":"{click}"}}}}"#)
        })
        .await
        .unwrap();
        store
            .execute(
                "UPDATE outbox SET subject_key = $1 WHERE subject_key IS NULL",
                &[&click],
            )
            .await
            .unwrap();
        // One has left already.
        let sent = outbox::id_of(pixel, from);
        store
            .execute(
                "UPDATE outbox SET status = 'sent', ended_at = now() WHERE outbox_id = $1",
                &[&sent],
            )
            .await
            .unwrap();
        store
            .execute("DELETE FROM outbox_due WHERE outbox_id = $1", &[&sent])
            .await
            .unwrap();
        store
            .execute(
                "INSERT INTO idempotency_keys (actor, operation, key, body_digest, status, answer)
                 VALUES ('rk_1', 'op', $1, '', 200, jsonb_build_object('email_hash', $2::text))",
                &[&click, &hash],
            )
            .await
            .unwrap();
    }
    (acme, outbox::id_of(pixel, 11))
}

/// Tables in which a text stands, in any case, as text or as bytes.
fn is_in(all: &[(String, String)], text: &str) -> Vec<String> {
    let hex = |text: &str| -> String { text.bytes().map(|b| format!("{b:02x}")).collect() };
    let shapes = [
        text.to_lowercase(),
        hex(text),
        hex(&text.to_lowercase()),
        hex(&text.to_uppercase()),
    ];
    all.iter()
        .filter(|(_, rows)| {
            let rows = rows.to_lowercase();
            shapes.iter().any(|shape| rows.contains(shape))
        })
        .map(|(name, _)| name.clone())
        .collect()
}

fn rows(report: &Report) -> BTreeMap<&str, u64> {
    report.rows.clone()
}

#[tokio::test]
async fn a_contact_goes_out_of_every_table_and_others_stay() {
    let database = TestDatabase::create().await;
    let store = database.client().await;
    let mut client = database.client().await;
    let (acme, waiting) = fill(&store).await;
    let everything = tables(&store).await;
    let seen = is_in(&everything, jane().digest());
    assert!(seen.len() >= 7, "{seen:?}");

    let dry = erase(&mut client, &jane(), None, false).await.unwrap();
    assert_eq!(is_in(&tables(&store).await, jane().digest()), seen);
    // Another workspace has nothing to do with it.
    let elsewhere = erase(&mut client, &jane(), Some(acme + 1), true)
        .await
        .unwrap();
    assert_eq!(elsewhere, Report::default());

    // One message is just being sent: it stays, and is told.
    let lease = "UPDATE outbox_due SET lease_token = gen_random_uuid(), lease_until = now() + interval '1 hour' WHERE outbox_id = $1";
    store.execute(lease, &[&waiting]).await.unwrap();
    let first = erase(&mut client, &jane(), None, true).await.unwrap();
    assert_eq!((first.called_off, first.being_sent), (0, 1));
    assert_eq!(
        is_in(&tables(&store).await, jane().digest()),
        ["table outbox"]
    );
    store
        .batch_execute("UPDATE outbox_due SET lease_token = NULL, lease_until = NULL")
        .await
        .unwrap();
    let second = erase(&mut client, &jane(), None, true).await.unwrap();
    assert_eq!((second.called_off, second.being_sent), (1, 0));

    let after = tables(&store).await;
    for gone in [
        jane().digest(),
        JANE,
        "jane.doe%40private.example",
        PHONE,
        ADDRESS,
        AGENT,
        "Fclickjane",
    ] {
        assert_eq!(is_in(&after, gone), Vec::<String>::new(), "{gone}");
    }
    let johns = Contact::from_email(OTHERS).unwrap();
    for stays in [johns.digest(), OTHERS, "198.51.100.9", "Fclickjohn"] {
        assert_eq!(is_in(&after, stays), is_in(&everything, stays), "{stays}");
    }
    // Facts are all there, and what tells nobody.
    for table in [
        "visits",
        "conversions",
        "postback_log",
        "parked",
        "rejects",
        "outbox",
    ] {
        let n: i64 = store
            .query_one(&format!("SELECT count(*) FROM {table}"), &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(n, if table == "outbox" { 6 } else { 2 }, "{table}");
    }
    let kept = store
        .query_one(
            "SELECT v.params ->> 'utm_source', l.query, o.payload #>> '{event,custom_data,value}', o.payload #>> '{event,user_data}'
             FROM visits v, postback_log l, outbox o
             WHERE v.click_id = 'clickjane' AND l.query LIKE 'click_id=clickjane%' AND o.status_reason = 'erased'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(kept.get::<_, &str>(0), "news");
    assert_eq!(
        kept.get::<_, &str>(1),
        "click_id=clickjane&txid=t1&payout=5&x=erased"
    );
    assert_eq!(kept.get::<_, &str>(2).parse::<f64>().unwrap(), 12.5);
    assert_eq!(kept.get::<_, &str>(3), "{}");
    // The webhook's message names nobody and still leaves.
    assert_eq!(outbox::due(&store).await.unwrap(), 3);

    assert_eq!(
        rows(&dry),
        BTreeMap::from([
            ("conversions", 1),
            ("dead_letters", 2),
            ("idempotency_keys", 1),
            ("outbox", 2),
            ("parked", 1),
            ("postback_log", 1),
            ("rejects", 1),
            ("visits", 1),
        ])
    );
    assert_eq!((dry.clicks, dry.called_off, dry.being_sent), (1, 1, 0));
    let again = erase(&mut client, &jane(), None, true).await.unwrap();
    assert_eq!(again, Report::default());
}

/// What waits in an actor's memory is read anew, so that the contact does not come back with the visit.
#[tokio::test]
async fn what_is_parked_under_a_running_owner_does_not_bring_it_back() {
    use bytes::Bytes;
    use millrace_topics::catalogue;
    use millrace_topics::contract::Outgoing;
    use millrace_topics::pglog::append_in;
    use serde_json::json;
    let deployment = Deployment::start("erase", Log::Postgres, 1).await.unwrap();
    let mut store = deployment.store().await;
    let acme = outbox::workspace(&store, "acme").await.unwrap();
    let mut owner = deployment.attribution("owner").unwrap().spawn().unwrap();
    owner
        .wait_for_log("millrace is up", PATIENCE)
        .await
        .unwrap();
    let topics = catalogue::load(&store).await.unwrap();
    let at: i64 = store
        .query_one("SELECT (extract(epoch FROM now()) * 1000000)::int8", &[])
        .await
        .unwrap()
        .get(0);
    let mut append = async |topic: &str, record: serde_json::Value| {
        let no = catalogue::find(&topics, topic).unwrap().no;
        let tx = store.transaction().await.unwrap();
        let record = Outgoing {
            topic_no: no,
            key: Bytes::from(format!("{acme}:early")),
            payload: Bytes::from(record.to_string()),
        };
        append_in(&tx, &topics, &[record]).await.unwrap();
        tx.commit().await.unwrap();
    };
    let digest = jane().digest().to_owned();
    append(
        catalogue::POSTBACKS,
        json!({"v": 1, "workspace": acme, "network": "nw_1", "accepted_at": at,
            "query": format!("click_id=early&txid=t&payout=5&email_hash={digest}")}),
    )
    .await;
    let look = deployment.store().await;
    let until = async |sql: &str| {
        millrace_tests::process::eventually(sql, PATIENCE, async || {
            let n: i64 = look.query_one(sql, &[]).await?.get(0);
            Ok((n > 0).then_some(()))
        })
        .await
        .unwrap_or_else(|e| panic!("{e}\n{}", deployment.last_words()));
    };
    until("SELECT count(*) FROM parked").await;
    let said = deployment
        .launch("erase")
        .unwrap()
        .env("RUST_LOG", "off")
        .args(["--json", "erase", "--email", JANE])
        .run(PATIENCE)
        .await
        .unwrap();
    assert!(said.contains("\"parked\": 1"), "{said}");
    assert!(!said.contains(JANE) && !said.contains(&digest), "{said}");
    append(
        catalogue::CLICKS,
        json!({"v": 1, "kind": "visit", "workspace": acme, "click_id": "early", "accepted_at": at,
            "visit_id": Uuid::from_u128(1), "campaign": "spring",
            "journey": {"offer": {"id": "of_1", "network": "nw_1", "payout": "2.50", "currency": "EUR"}}}),
    )
    .await;
    until("SELECT count(*) FROM conversions").await;
    let row = look
        .query_one("SELECT email_hash FROM conversions", &[])
        .await
        .unwrap();
    let booked: Option<String> = row.get(0);
    assert_ne!(booked.as_deref(), Some(digest.as_str()));
    assert_eq!(owner.terminate(PATIENCE).await.unwrap().code(), Some(0));
    let log = owner.log_text();
    assert!(!log.contains(&digest));
}
