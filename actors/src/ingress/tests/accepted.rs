//! What is accepted, and what is produced of it.

use super::*;

#[actix_web::test]
async fn a_visit_is_produced_then_redirected() {
    let house = House::new();
    let got = house
        .ask(
            get("/c/camp?sub1=a+b&fbclid=IwAR&sub1=c&ref=")
                .insert_header(("user-agent", "Mozilla"))
                .insert_header((
                    "cookie",
                    "a=b; _fbp=fb.1.1558571054389.1098115397; _fbc=junk",
                ))
                .insert_header(("host", "door.example")),
        )
        .await;
    assert_eq!(got.status, StatusCode::FOUND);
    assert_eq!(got.header("cache-control"), "no-store");
    let (key, r) = house.only_click();
    assert_eq!(key, ids::partition_key(1, &r.click_id));
    assert_eq!(r.check(), Ok(()));
    assert_eq!((r.kind, r.direct, r.stage), (Kind::Visit, true, 0));
    assert_eq!(r.accepted_at, NOW);
    assert_eq!(r.key().minted_millis(), Some(NOW.millis()));
    assert_eq!(r.campaign.as_deref(), Some("camp"));
    assert_eq!(r.ip.as_deref(), Some("203.0.113.9"));
    assert!(r.ip_hash.is_some());
    assert_eq!(r.user_agent.as_deref(), Some("Mozilla"));
    assert_eq!(r.source_url.as_deref(), Some("http://door.example/c/camp"));
    assert_eq!((r.fbp.is_some(), r.fbc.is_some()), (true, false));
    assert_eq!(
        r.params.as_deref().map(|p| p.get()),
        Some(r#"{"sub1":["a b","c"],"fbclid":"IwAR","ref":""}"#)
    );
    assert_eq!(
        r.journey.as_deref().map(|p| p.get()),
        Some(r#"{"offer":{"id":"of_1","network":"nw_1","payout":"2.5","currency":"USD"}}"#)
    );
    assert_eq!(
        got.header("location"),
        format!(
            "https://offer.example/?c={}&v={}&r=REF&n=Spring%20%26%20Sale&s=a%20b&u=&x={{theirs}}",
            r.click_id,
            r.visit_id.expect("a visit id")
        )
    );
}

#[actix_web::test]
async fn head_answers_as_get_and_records_nothing_a_prefetch_is_refused() {
    let house = House::new();
    let head = house
        .ask(TestRequest::with_uri("/c/camp").method(actix_web::http::Method::HEAD))
        .await;
    assert_eq!(head.status, StatusCode::FOUND);
    for (name, value) in [
        ("sec-purpose", "prefetch;prerender"),
        ("purpose", "prefetch"),
        ("x-moz", "Prefetch"),
    ] {
        let got = house.ask(get("/c/camp").insert_header((name, value))).await;
        assert_eq!(got.status, StatusCode::FORBIDDEN, "{name}");
    }
    assert!(house.produced().is_empty());
}

#[actix_web::test]
async fn a_beacon_is_a_click_and_a_provider_click_is_none() {
    let house = House::new();
    let got = house
        .ask(beacon(
            r#"{"click_id":"a\"b","link_id":"paused","stage":2,"later":[1]}"#,
        ))
        .await;
    assert_eq!(got.status, StatusCode::NO_CONTENT);
    assert_eq!(got.header("access-control-allow-origin"), "*");
    let (key, r) = house.only_click();
    assert_eq!((key.as_str(), r.click_id.as_str()), ("1:a\"b", "a\"b"));
    assert_eq!((r.kind, r.stage, r.check()), (Kind::Click, 2, Ok(())));
    assert_eq!(r.campaign.as_deref(), Some("paused"));
    let got = house
        .ask(beacon(
            r#"{"click_id":"a","link_id":"camp","provider_click":{"network":"nw_1","network_offer_id":"007","txid":"t"}}"#,
        ))
        .await;
    assert_eq!(got.status, StatusCode::NO_CONTENT);
    let (_, r) = house.only_click();
    assert_eq!(r.kind, Kind::ProviderClick);
    assert_eq!(r.network_offer_id.as_deref(), Some("007"));
    let preflight = house
        .ask(
            TestRequest::with_uri("/e")
                .method(actix_web::http::Method::OPTIONS)
                .insert_header(("origin", "https://page.example")),
        )
        .await;
    assert_eq!(preflight.status, StatusCode::NO_CONTENT);
    assert_eq!(preflight.header("access-control-allow-methods"), "POST");
}

#[actix_web::test]
async fn a_postback_is_kept_without_its_secret_and_answered_1() {
    let house = House::new();
    for request in [
        get("/pb?secret=s3cret%2B%2F&click_id=a%2Fb&payout=1.5&secret=x"),
        TestRequest::post()
            .uri("/pb?click_id=a%2Fb&%73ecret=s3cret%2b/&payout=1.5")
            .set_payload("click_id=ignored&secret=ignored"),
    ] {
        let got = house.ask(request).await;
        assert_eq!((got.status, &got.body[..]), (StatusCode::OK, &b"1"[..]));
        let (key, r) = house.only_postback();
        assert_eq!(key, "1:a/b");
        assert_eq!(r.query, "click_id=a%2Fb&payout=1.5");
        assert_eq!((r.workspace, r.network.as_str()), (1, "nw_1"));
        assert_eq!(r.rules.status_words.len(), 1);
    }
}

#[actix_web::test]
async fn what_can_never_be_booked_is_kept_and_answered_400() {
    let house = House::new();
    for (query, code, key) in [
        ("payout=1", "click_id_missing", "1:payout=1"),
        ("click_id={click_id}", "macro_unsubstituted", "1:{click_id}"),
        ("click_id=a&payout=NaN", "payout_malformed", "1:a"),
        (
            "click_id=a&txid=1&transaction_id=2",
            "alias_conflict",
            "1:a",
        ),
        ("click_id=a%00", "click_id_malformed", "1:a\0"),
        ("click_id=a&sub9=%00", "field_malformed", "1:a"),
    ] {
        let got = house
            .ask(get(&format!("/pb?secret=s3cret%2B/&{query}")))
            .await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{query}");
        assert_eq!(got.code(), code, "{query}");
        let (at, r) = house.only_postback();
        assert_eq!((r.query.as_str(), at.as_str()), (query, key));
        assert_eq!(r.read().err(), Some(code), "the actor says the same");
    }
}
