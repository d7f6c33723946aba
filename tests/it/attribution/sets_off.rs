//! What facts set off: messages in the outbox, in the batch's own transaction, once.

use super::{MINUTE, Record, T0, World, click, on_wire, postback, visit};
use millrace_schemas::time::Micros;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl World {
    /// Workspaces 1 and 2; in the first a pixel in euros and a webhook that listens to everything.
    async fn with_destinations() -> World {
        let world = World::new().await;
        // Everything below lies in its past.
        world.clock.set(Micros(T0 + 24 * 60 * MINUTE));
        world
            .client
            .batch_execute(
                "INSERT INTO workspaces (slug, name) VALUES ('one', 'One'), ('two', 'Two');
                 INSERT INTO pixels (pixel_id, workspace_id, name, dataset_id, event_name, currency)
                 VALUES ('px_1', 1, 'p', '0042', 'Purchase', 'EUR'), ('px_other', 1, 'q', '43', 'Purchase', 'EUR');
                 INSERT INTO webhooks (webhook_id, workspace_id, name, url, events)
                 VALUES ('wh_1', 1, 'w', 'https://x.example/hook', '{visit,click,conversion}')",
            )
            .await
            .unwrap();
        world
    }

    /// Messages by channel and what they are.
    async fn messages(&self) -> BTreeMap<String, i64> {
        let rows = self
            .client
            .query(
                "SELECT channel || ' ' || coalesce(payload ->> 'type', payload -> 'event' ->> 'event_name') ||
                        CASE status WHEN 'scheduled' THEN '' ELSE ' ' || status || ' ' || status_reason END, count(*)
                 FROM outbox GROUP BY 1",
                &[],
            )
            .await
            .unwrap();
        rows.iter().map(|r| (r.get(0), r.get(1))).collect()
    }

    async fn payloads(&self, channel: &str) -> Vec<Value> {
        let rows = self
            .client
            .query(
                "SELECT payload FROM outbox WHERE channel = $1 ORDER BY outbox_id",
                &[&channel],
            )
            .await
            .unwrap();
        rows.iter().map(|r| r.get(0)).collect()
    }
}

fn seen(pairs: &[(&str, i64)]) -> BTreeMap<String, i64> {
    pairs.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect()
}

/// A visit whose journey has pixels attached to nothing.
fn visited(world: &mut World, id: &str, at: i64, pixels: Value) -> Record {
    world.visits += 1;
    let mut record = visit(1, id, at);
    record["visit_id"] = json!(uuid::Uuid::from_u128(u128::from(world.visits)));
    record["journey"]["pixels"] = pixels;
    record["user_agent"] = json!("Mozilla/5.0");
    record["source_url"] = json!("https://t.example/c/camp0001");
    record["params"] = json!({"fbclid": "IwAR_Case"});
    on_wire(0, id, &record)
}

/// What was accepted before a clock stepped back does not lie in the future, and comes before what was accepted since.
#[tokio::test]
async fn a_clock_that_steps_back_spoils_no_event_and_no_order() {
    let mut w = World::with_destinations().await;
    w.clock.set(Micros(T0));
    w.send(&[postback("c1", T0, "payout=1&txid=t1&lead_hash=L")])
        .await;
    w.clock.set(Micros(T0 - 50 * MINUTE));
    // The same identity, accepted later; then the visit that both wait for.
    w.send(&[postback("c1", T0 + MINUTE, "payout=2&txid=t1&lead_hash=L")])
        .await;
    let pixels = json!([{"pixel": "px_1"}]);
    let v = visited(&mut w, "c1", T0 + 2 * MINUTE, pixels);
    w.send(&[v]).await;
    assert_eq!(
        w.messages().await,
        seen(&[
            ("webhook visit", 1),
            ("webhook conversion", 1),
            ("meta Purchase", 1)
        ])
    );
    assert_eq!(w.count("SELECT payout::int8 FROM conversions").await, 1);
}

#[tokio::test]
async fn a_first_approval_fires_each_pixel_once_and_webhooks_hear_of_everything() {
    let mut w = World::with_destinations().await;
    let pixels = json!([{"pixel": "px_1"}, {"pixel": "px_1"}, {"pixel": "px_gone"}]);
    let visit = visited(&mut w, "c1", T0, pixels);
    w.send(&[visit.clone(), click("c1", T0 + 1, "camp0001", 0)])
        .await;
    assert_eq!(
        w.messages().await,
        seen(&[("webhook visit", 1), ("webhook click", 1)])
    );
    let paid = postback("c1", T0 + MINUTE, "payout=9.99&txid=t1&lead_hash=L");
    w.send(&[paid.clone(), paid.clone()]).await;
    // Repeats in other batches, of the visit too.
    w.send(&[paid, visit, click("c1", T0 + 2, "camp0001", 0)])
        .await;
    let all = seen(&[
        ("webhook visit", 1),
        ("webhook click", 1),
        ("webhook conversion", 1),
        ("meta Purchase", 1),
    ]);
    assert_eq!(w.messages().await, all);
    assert_eq!(w.count("SELECT count(*) FROM outbox_due").await, 4);

    let meta = &w.payloads("meta").await[0];
    assert_eq!(meta["dataset"], "0042");
    let event = &meta["event"];
    assert_eq!(event["event_time"], (T0 + MINUTE) / 1_000_000);
    assert!(event["event_id"].as_str().unwrap().starts_with("pxe_"));
    assert_eq!(event["custom_data"]["value"].to_string(), "9.99");
    assert_eq!(event["custom_data"]["currency"], "EUR");
    assert_eq!(event["event_source_url"], "https://t.example/c/camp0001");
    let user = &event["user_data"];
    assert_eq!(user["fbc"], format!("fb.1.{}.IwAR_Case", T0 / 1_000));
    let told = w.payloads("webhook").await;
    let conversion = told.iter().find(|p| p["type"] == "conversion").unwrap();
    assert_eq!(conversion["workspace"], "one");
    assert_eq!(conversion["data"]["click_id"], "c1");
    assert_eq!(conversion["data"]["payout"], "9.99");
    assert_eq!(conversion["data"]["status"], "approved");
}

#[tokio::test]
async fn pending_reaches_webhooks_alone_until_it_is_approved() {
    let mut w = World::with_destinations().await;
    let visit = visited(
        &mut w,
        "c1",
        T0,
        json!([{"pixel": "px_1", "event": "Lead"}]),
    );
    w.send(&[
        visit,
        postback("c1", T0 + 1, "txid=t1&status=pending&payout=1"),
    ])
    .await;
    let before = seen(&[("webhook visit", 1), ("webhook conversion", 1)]);
    assert_eq!(w.messages().await, before);
    let later = T0 + 9 * 60 * MINUTE;
    w.send(&[postback("c1", later, "txid=t1&status=approved&payout=3")])
        .await;
    w.send(&[postback(
        "c1",
        later + 1,
        "txid=t1&status=approved&payout=4",
    )])
    .await;
    let after = seen(&[
        ("webhook visit", 1),
        ("webhook conversion", 2),
        ("meta Lead", 1),
    ]);
    assert_eq!(w.messages().await, after);
    let event = &w.payloads("meta").await[0]["event"];
    assert_eq!(event["custom_data"]["value"].to_string(), "3");
    assert_eq!(event["event_time"], later / 1_000_000);
    // Both in one batch: one booking, one step, one fire.
    let visit = visited(
        &mut w,
        "c2",
        later,
        json!([{"pixel": "px_1", "event": "Lead"}]),
    );
    let steps = ["pending", "approved"]
        .map(|s| postback("c2", later, &format!("txid=t2&payout=1&status={s}")));
    let mut batch = vec![visit];
    batch.extend(steps);
    w.send(&batch).await;
    let both = seen(&[
        ("webhook visit", 2),
        ("webhook conversion", 4),
        ("meta Lead", 2),
    ]);
    assert_eq!(w.messages().await, both);
    let statuses: Vec<String> = w
        .payloads("webhook")
        .await
        .iter()
        .filter(|p| p["data"]["click_id"] == "c2" && p["type"] == "conversion")
        .map(|p| format!("{} {}", p["data"]["previous_status"], p["data"]["status"]))
        .collect();
    let mut statuses = statuses;
    statuses.sort();
    assert_eq!(statuses, ["\"pending\" \"approved\"", "null \"pending\""]);
}

#[tokio::test]
async fn what_cannot_be_sent_is_kept_and_never_due() {
    let mut w = World::with_destinations().await;
    w.client
        .batch_execute(
            "UPDATE pixels SET currency = NULL WHERE pixel_id = 'px_1';
             UPDATE pixels SET currency = 'USD' WHERE pixel_id = 'px_other'",
        )
        .await
        .unwrap();
    let pixels = json!([
        {"pixel": "px_1"},
        {"pixel": "px_other"},
        {"pixel": "px_other", "event": "Other"},
    ]);
    let visit = visited(&mut w, "c1", T0, pixels);
    // Its own amount needs no agreement with the payout's currency.
    let own = json!([{"pixel": "px_other", "amount": "0", "conversion_events": ["sale"]}]);
    let second = visited(&mut w, "c2", T0, own.clone());
    let third = visited(&mut w, "c3", T0, own);
    w.send(&[
        visit,
        second,
        third,
        postback("c1", T0 + 1, "txid=t1&payout=5"),
        postback("c2", T0 + 1, "txid=t2&payout=5&event=sale"),
        postback("c3", T0 + 1, "txid=t3&payout=5&event=lead"),
    ])
    .await;
    let mut all = w.messages().await;
    all.retain(|k, _| k.starts_with("meta"));
    let wanted = seen(&[
        ("meta Purchase failed currency_missing", 1),
        ("meta Purchase failed currency_mismatch", 1),
        ("meta Purchase", 1),
    ]);
    assert_eq!(all, wanted);
    let due = "SELECT count(*) FROM outbox_due d JOIN destinations t USING (destination_no) WHERE t.channel = 'meta'";
    assert_eq!(w.count(due).await, 1);
}

#[tokio::test]
async fn who_waited_sets_off_when_it_is_booked_and_another_workspace_hears_nothing() {
    let mut w = World::with_destinations().await;
    w.send(&[postback("c1", T0, "txid=t1&payout=5")]).await;
    assert_eq!(w.messages().await, seen(&[]));
    let theirs = on_wire(0, "c1", &visit(2, "c1", T0 + 1));
    w.send(&[theirs]).await;
    assert_eq!(w.messages().await, seen(&[]));
    let visit = visited(&mut w, "c1", T0 + MINUTE, json!([{"pixel": "px_1"}]));
    w.send(&[visit]).await;
    let all = seen(&[
        ("webhook visit", 1),
        ("webhook conversion", 1),
        ("meta Purchase", 1),
    ]);
    assert_eq!(w.messages().await, all);
    let event = &w.payloads("meta").await[0]["event"];
    assert_eq!(event["event_time"], T0 / 1_000_000);
    // Archived meanwhile: nothing more is written for it.
    w.client
        .batch_execute(
            "UPDATE pixels SET status = 'archived'; UPDATE webhooks SET status = 'disabled'",
        )
        .await
        .unwrap();
    let visit = visited(&mut w, "c9", T0 + MINUTE, json!([{"pixel": "px_1"}]));
    w.send(&[visit, postback("c9", T0 + MINUTE, "txid=t9&payout=5")])
        .await;
    assert_eq!(w.messages().await, all);
}
