//! Random input: never a 5xx, never a panic, and whatever is accepted reads back on the other side.

use super::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

/// Text that is nearly what a door wants, or nothing like it.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        Just("\"camp\"".to_owned()),
        Just("\"a\\u0000\"".to_owned()),
        Just("null".to_owned()),
        Just("[[[[]]]]".to_owned()),
        Just("1e999".to_owned()),
        Just("\"\\ud800\"".to_owned()),
        Just("{\"offer\":{\"id\":\"of\"}}".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        "\\PC{0,20}".prop_map(|t| serde_json::json!(t).to_string()),
        "\\PC{0,20}",
    ];
    let name = prop_oneof![
        Just("id"),
        Just("click_id"),
        Just("link_id"),
        Just("campaign"),
        Just("stage"),
        Just("params"),
        Just("journey"),
        Just("network"),
        Just("payout"),
        Just("txid"),
        Just("provider_click"),
        Just("ip"),
        Just("occurred_at"),
        Just("x"),
    ];
    let object = prop::collection::vec((name, value), 0..6).prop_map(|pairs| {
        let members: Vec<String> = pairs.iter().map(|(n, v)| format!("\"{n}\":{v}")).collect();
        format!("{{{}}}", members.join(",")).into_bytes()
    });
    prop_oneof![
        3 => object.clone(),
        1 => prop::collection::vec(object, 1..4).prop_map(|lines| lines.join(&b'\n')),
        1 => prop::collection::vec(any::<u8>(), 0..200),
    ]
}

fn query() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..12)
            .prop_map(|b| b.iter().map(|b| format!("%{b:02x}")).collect::<String>()),
        "[!$-;=?-~]{0,20}",
    ];
    let name = prop_oneof![
        Just("click_id".to_owned()),
        Just("payout".to_owned()),
        Just("txid".to_owned()),
        Just("secret".to_owned()),
        Just("offer_id".to_owned()),
        Just("status".to_owned()),
        part.clone(),
    ];
    prop::collection::vec((name, part), 0..6).prop_map(|pairs| {
        let pairs: Vec<String> = pairs.iter().map(|(n, v)| format!("{n}={v}")).collect();
        pairs.join("&")
    })
}

#[actix_web::test]
async fn no_input_is_the_servers_fault() {
    let house = House::new();
    let service = house.service().await;
    let mut runner = TestRunner::new(Config::default());
    for _ in 0..4_000 {
        let body = body().new_tree(&mut runner).expect("a value").current();
        let query = query().new_tree(&mut runner).expect("a value").current();
        let key = ("authorization", "Bearer good");
        let requests = [
            beacon(body.clone()),
            TestRequest::post()
                .uri("/v1/batch/visits")
                .insert_header(key)
                .set_payload(body.clone()),
            TestRequest::post()
                .uri("/v1/batch/clicks")
                .insert_header(key)
                .set_payload(body.clone()),
            TestRequest::post()
                .uri("/v1/batch/postbacks")
                .insert_header(key)
                .set_payload(body.clone()),
            get(&format!("/c/camp?{query}")),
            get(&format!("/pb?secret=s3cret%2B/&{query}")),
            get(&format!("/pb?{query}")),
        ];
        for request in requests {
            let got = reply(&service, request).await;
            assert!(
                !got.status.is_server_error(),
                "{} for {:?} / {query}",
                got.status,
                String::from_utf8_lossy(&body)
            );
        }
        for record in house.produced() {
            let text = String::from_utf8_lossy(&record.payload).into_owned();
            if record.topic_no == 1 {
                let read: ClickRecord = serde_json::from_slice(&record.payload).expect(&text);
                assert_eq!(read.check(), Ok(()), "{text}");
            } else {
                let read: PostbackRecord = serde_json::from_slice(&record.payload).expect(&text);
                let _ = read.read();
            }
            assert!(!text.contains("\\u0000"), "{text}");
        }
    }
}
