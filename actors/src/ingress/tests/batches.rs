//! The batch doors.

use super::*;
use serde_json::{Value, json};

fn batch(stream: &str, body: impl Into<Bytes>) -> TestRequest {
    TestRequest::post()
        .uri(&format!("/v1/batch/{stream}"))
        .insert_header(("authorization", "Bearer good"))
        .set_payload(body)
}

fn code_of(reply: &Reply, line: usize) -> Value {
    reply.json()["lines"][line]["error"]["code"].clone()
}

#[actix_web::test]
async fn lines_are_accepted_with_ids_that_a_retry_makes_again() {
    let house = House::new();
    let body = concat!(
        r#"{"id":"v1","campaign":"camp","params":{"utm_source":"x","sub":["1","2"]},"ip":"198.51.100.7","source_url":"https://p.example/a?b#c","occurred_at":"2025-12-31T23:00:00+00:00"}"#,
        "\n\r\n",
        r#"{"id":"v2","click_id":"own","campaign":"paused","stage":1,"journey":{"offer":{"id":"of_x"},"mine":1.0}}"#,
        "\n"
    );
    let first = house.ask(batch("visits", body)).await;
    assert_eq!(first.status, StatusCode::OK, "{:?}", first.body);
    let answer = first.json();
    assert_eq!(answer["accepted"], 2);
    assert_eq!(answer["lines"][1]["line"], 3);
    assert_eq!(answer["lines"][1]["click_id"], "own");
    let made = house.produced();
    let r: ClickRecord = serde_json::from_slice(&made[0].payload).expect("reads");
    assert_eq!(
        Some(r.click_id.as_str()),
        answer["lines"][0]["click_id"].as_str()
    );
    assert_eq!(r.check(), Ok(()));
    assert!(r.key().minted_millis().is_none(), "derived, never minted");
    assert_eq!(r.occurred_at, Some(NOW.plus_secs(-3600)));
    assert_eq!(r.source_url.as_deref(), Some("https://p.example/a"));
    assert_eq!(r.ip.as_deref(), Some("198.51.100.7"));
    assert_eq!(
        r.params.as_deref().map(|p| p.get()),
        Some(r#"{"utm_source":"x","sub":["1","2"]}"#)
    );
    assert!(r.journey.expect("the campaign's").get().contains("of_1"));
    let own: ClickRecord = serde_json::from_slice(&made[1].payload).expect("reads");
    assert_eq!(
        own.journey.as_deref().map(|j| j.get()),
        Some(r#"{"offer":{"id":"of_x"},"mine":1.0}"#)
    );
    assert!(!own.direct);
    let second = house.ask(batch("visits", body)).await;
    assert_eq!(second.body, first.body);
    let same: Vec<Bytes> = house.produced().into_iter().map(|o| o.payload).collect();
    assert_eq!(
        same,
        made.into_iter().map(|o| o.payload).collect::<Vec<_>>()
    );
    // A click line of the same id, without a click id of its own, is of that visit.
    let click = house
        .ask(batch("clicks", r#"{"id":"v1","link_id":"camp"}"#))
        .await;
    assert_eq!(
        click.json()["lines"][0]["click_id"],
        answer["lines"][0]["click_id"]
    );
}

#[actix_web::test]
async fn a_postback_line_becomes_its_query() {
    let house = House::new();
    let got = house
        .ask(batch(
            "postbacks",
            r#"{"id":"p","network":"nw_1","click_id":"a&b","payout":12.50,"txid":"é","status":"paid","event":""}"#,
        ))
        .await;
    assert_eq!(got.status, StatusCode::OK, "{:?}", got.body);
    let (key, r) = house.only_postback();
    assert_eq!(key, "1:a&b");
    assert_eq!(
        r.query,
        "click_id=a%26b&payout=12.50&txid=%C3%A9&event=&status=paid"
    );
    let read = r.read().expect("can be booked");
    assert_eq!(read.payout.map(|p| p.to_string()).as_deref(), Some("12.50"));
}

#[actix_web::test]
async fn one_line_that_is_no_json_refuses_all_of_it_and_names_the_line() {
    let house = House::new();
    let good = r#"{"id":"1","campaign":"camp"}"#;
    for bad in ["{", "nonsense", "{\"a\":\u{0}}", "{} {}"] {
        let got = house
            .ask(batch("clicks", format!("{good}\n\n{bad}\n{good}")))
            .await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{bad}");
        assert_eq!(got.header("content-type"), "application/problem+json");
        assert_eq!(
            (got.code().as_str(), &got.json()["line"]),
            ("not_json", &json!(3))
        );
    }
    let mut bytes = good.as_bytes().to_vec();
    bytes.extend_from_slice(b"\n{\"id\":\"\xff\"}");
    let got = house.ask(batch("clicks", bytes)).await;
    assert_eq!(got.json()["line"], 2);
    assert!(house.produced().is_empty());
}

#[actix_web::test]
async fn a_line_that_is_wrong_is_answered_by_itself() {
    let house = House::new();
    let cases = [
        ("visits", json!({"id":"1"}), "invalid"),
        ("visits", json!(["1", "camp"]), "not_an_object"),
        (
            "visits",
            json!({"id":"1","campaign":"camp","colour":"red"}),
            "invalid",
        ),
        ("visits", json!({"id":"","campaign":"camp"}), "id_malformed"),
        (
            "visits",
            json!({"id":"1","campaign":"theirs"}),
            "unknown_campaign",
        ),
        (
            "visits",
            json!({"id":"1","campaign":"empty"}),
            "no_active_offer",
        ),
        (
            "visits",
            json!({"id":"1","campaign":"paused"}),
            "no_active_offer",
        ),
        ("visits", json!({"id":"1\u{0}","campaign":"camp"}), "nul"),
        (
            "visits",
            json!({"id":"1","campaign":"camp","params":{"a":1}}),
            "invalid",
        ),
        (
            "visits",
            json!({"id":"1","campaign":"camp","journey":[]}),
            "journey_malformed",
        ),
        (
            "visits",
            json!({"id":"1","campaign":"camp","journey":{"offer":{"id":""}}}),
            "journey_malformed",
        ),
        (
            "visits",
            json!({"id":"1","campaign":"camp","occurred_at":"yesterday"}),
            "occurred_at",
        ),
        (
            "visits",
            json!({"id":"1","campaign":"camp","occurred_at":"2025-12-24T23:59:00Z"}),
            "occurred_at",
        ),
        (
            "visits",
            json!({"id":"1","campaign":"camp","occurred_at":"2026-01-01T00:06:00Z"}),
            "occurred_at",
        ),
        (
            "visits",
            json!({"id":"1","campaign":"camp","ip":"1.2.3"}),
            "invalid",
        ),
        ("clicks", json!({"id":"1"}), "invalid"),
        (
            "clicks",
            json!({"id":"1","campaign":"camp","link_id":"paused"}),
            "alias_conflict",
        ),
        (
            "clicks",
            json!({"id":"1","campaign":"camp","click_id":"{click_id}"}),
            "macro_unsubstituted",
        ),
        (
            "postbacks",
            json!({"id":"1","network":"nw_2"}),
            "unknown_network",
        ),
        (
            "postbacks",
            json!({"id":"1","network":"nw_1","payout":"NaN"}),
            "payout_malformed",
        ),
        (
            "postbacks",
            json!({"id":"1","network":"nw_1","payout":1e3}),
            "payout_malformed",
        ),
        (
            "postbacks",
            json!({"id":"1","network":"nw_1","payout":true}),
            "invalid",
        ),
    ];
    let good = |stream| match stream {
        "postbacks" => json!({"id":"good","network":"nw_1"}),
        _ => json!({"id":"good","campaign":"camp"}),
    };
    for (stream, line, code) in cases {
        let line = if code == "payout_malformed" && line["payout"].is_number() {
            r#"{"id":"1","network":"nw_1","payout":1e3}"#.to_owned()
        } else {
            line.to_string()
        };
        let got = house
            .ask(batch(stream, format!("{line}\n{}", good(stream))))
            .await;
        assert_eq!(got.status, StatusCode::OK, "{line}");
        assert_eq!(code_of(&got, 0), code, "{line}");
        assert_eq!(got.json()["lines"][1]["status"], "accepted", "{line}");
        assert_eq!(house.produced().len(), 1, "{line}");
        let alone = house.ask(batch(stream, line.clone())).await;
        assert_eq!(alone.status, StatusCode::BAD_REQUEST, "{line}");
        assert_eq!(
            (alone.code().as_str(), code_of(&alone, 0)),
            ("no_valid_line", json!(code))
        );
        assert!(house.produced().is_empty());
    }
}

#[actix_web::test]
async fn what_the_log_does_not_take_is_said_of_each_line() {
    let house = House::new();
    house.answers(Answer::FailFrom(1));
    let body = "{\"id\":\"1\",\"campaign\":\"camp\"}\n{\"id\":\"2\",\"campaign\":\"camp\"}\n7";
    let got = house.ask(batch("clicks", body)).await;
    assert_eq!(got.status, StatusCode::OK);
    let answer = got.json();
    let statuses: Vec<&str> = answer["lines"]
        .as_array()
        .expect("lines")
        .iter()
        .filter_map(|l| l["status"].as_str())
        .collect();
    assert_eq!(statuses, ["accepted", "unavailable", "refused"]);
    house.produced();
    house.answers(Answer::FailFrom(0));
    let got = house.ask(batch("clicks", body)).await;
    assert_eq!(got.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(got.header("retry-after"), "2");
}

#[actix_web::test]
async fn an_empty_batch_is_no_fault() {
    let house = House::new();
    let got = house.ask(batch("clicks", "\n\n")).await;
    assert_eq!(
        (got.status, got.json()["accepted"].as_u64()),
        (StatusCode::OK, Some(0))
    );
}

#[actix_web::test]
async fn keys_open_their_own_workspace_alone() {
    let house = House::new();
    let line = r#"{"id":"1","campaign":"camp"}"#;
    let with = |key: &str| {
        TestRequest::post()
            .uri("/v1/batch/clicks")
            .insert_header(("authorization", key.to_owned()))
            .set_payload(line)
    };
    for (key, status, code) in [
        ("Bearer bad", StatusCode::UNAUTHORIZED, "unauthenticated"),
        ("Basic good", StatusCode::UNAUTHORIZED, "unauthenticated"),
        ("Bearer narrow", StatusCode::FORBIDDEN, "scope_missing"),
        ("Bearer deployment", StatusCode::FORBIDDEN, "deployment_key"),
        (
            "Bearer archived",
            StatusCode::FORBIDDEN,
            "workspace_archived",
        ),
        ("Bearer elsewhere", StatusCode::FORBIDDEN, "address_refused"),
        (
            "Bearer away",
            StatusCode::SERVICE_UNAVAILABLE,
            "keys_unavailable",
        ),
    ] {
        let got = house.ask(with(key)).await;
        assert_eq!((got.status, got.code().as_str()), (status, code), "{key}");
        assert_eq!(got.header("content-type"), "application/problem+json");
    }
    let got = house
        .ask(with("Bearer narrow").insert_header(("x-request-id", "my-request")))
        .await;
    assert_eq!(got.header("x-request-id"), "my-request");
    assert_eq!(got.json()["request_id"], "my-request");
    assert_eq!(got.json()["scope"], "ingest:write");
    let got = house
        .ask(with("Bearer good").insert_header(("x-workspace", "other")))
        .await;
    assert_eq!(got.code(), "workspace_pinned");
    // The other workspace's key does not see this campaign.
    let got = house.ask(with("Bearer other")).await;
    assert_eq!(code_of(&got, 0), "unknown_campaign");
    let got = house
        .ask(
            TestRequest::post()
                .uri("/v1/batch/clicks")
                .set_payload(line),
        )
        .await;
    assert_eq!(got.status, StatusCode::UNAUTHORIZED);
    let got = house
        .ask(
            TestRequest::post()
                .uri("/v1/batch/clicks?dry_run=true")
                .insert_header(("authorization", "Bearer good"))
                .set_payload(line),
        )
        .await;
    assert_eq!(got.code(), "unknown_parameter");
    let got = house
        .ask(batch("clicks", line).insert_header(("content-encoding", "gzip")))
        .await;
    assert_eq!(got.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert!(house.produced().is_empty());
}
