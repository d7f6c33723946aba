use super::*;
use serde_json::{Value, json};

const EMAIL: &str = "973DFE463EC85785F5F95AF5BA3906EEDB2D931C24E69824A89EA65DBA4E813B";

fn bought() -> Occasion<'static> {
    Occasion {
        dataset: "0123",
        event_id: "cv_1",
        event_name: "Purchase",
        event_time: 1_700_000_000,
        now: 1_700_000_100,
        action_source: "website",
        event_source_url: Some("https://shop.example/offer?email=a@b.c#top"),
        client_user_agent: Some(" Mozilla/5.0 "),
        client_ip: Some("1.2.3.4:5678"),
        click_id: Some("external123"),
        value: Some(Decimal::new(1050, 2)),
        currency: Some("usd"),
        ..Occasion::default()
    }
}

fn event(o: &Occasion<'_>) -> Value {
    let frozen = freeze(o);
    assert_eq!(frozen.refused, None, "{}", frozen.payload);
    let mut payload: Value = serde_json::from_str(&frozen.payload).unwrap();
    assert_eq!(payload["dataset"], "0123");
    payload["event"].take()
}

#[test]
fn an_event_holds_what_was_given_and_nothing_else() {
    let frozen = freeze(&bought());
    assert!(
        frozen.payload.contains(r#""value":10.50,"#),
        "{}",
        frozen.payload
    );
    assert_eq!(
        event(&bought()),
        json!({
            "event_name": "Purchase", "event_time": 1_700_000_000, "event_id": "cv_1", "action_source": "website",
            "event_source_url": "https://shop.example/offer",
            "user_data": {
                "external_id": ["8d0c0390b1974cddc2c7e9d49ebd7f9efaf47ae9cdc344cedbec91e772b54a08"],
                "client_ip_address": "1.2.3.4", "client_user_agent": "Mozilla/5.0",
            },
            "custom_data": {"value": 10.5, "currency": "USD"},
        })
    );
}

#[test]
fn hashes_are_passed_on_and_nothing_else_is_taken_for_one() {
    let o = Occasion {
        email_hash: Some(EMAIL),
        phone_hash: Some("+1 650 555 1212"),
        lead_hash: Some("abc123xyz"),
        order_id: Some("0042"),
        ..bought()
    };
    let user = event(&o)["user_data"].take();
    assert_eq!(user["em"], json!([EMAIL.to_lowercase()]));
    assert_eq!(user.get("ph"), None);
    assert_eq!(
        user["external_id"],
        json!(["604365fa1146d17e81aa41ef72ef03b07a5d3c2e44cfa6f9b817606779eccae6"])
    );
    assert_eq!(event(&o)["custom_data"]["order_id"], "0042");
    let empty = Occasion {
        email_hash: Some(DIGEST_OF_NOTHING),
        lead_hash: Some(DIGEST_OF_NOTHING),
        ..bought()
    };
    let user = event(&empty)["user_data"].take();
    assert_eq!(user.get("em"), None);
    assert_eq!(
        user["external_id"],
        json!(["8d0c0390b1974cddc2c7e9d49ebd7f9efaf47ae9cdc344cedbec91e772b54a08"])
    );
}

#[test]
fn fbc_is_the_cookie_else_made_of_the_click_else_left_out() {
    let fbc = |cookie: Option<&str>, fbclid: Option<&str>, ms: Option<i64>| {
        let o = Occasion {
            fbc: cookie,
            fbclid,
            clicked_ms: ms,
            ..bought()
        };
        event(&o)["user_data"].get("fbc").cloned()
    };
    let (cookie, made) = ("fb.1.1554763741205.AbC", "fb.1.1600000000123.IwAR0_x");
    let ms = Some(1_600_000_000_123);
    assert_eq!(fbc(Some(cookie), Some("IwAR0_x"), ms), Some(json!(cookie)));
    assert_eq!(
        fbc(Some("fb.1.1554763741205"), Some("IwAR0_x"), ms),
        Some(json!(made))
    );
    assert_eq!(fbc(None, Some("IwAR0_x"), ms), Some(json!(made)));
    assert_eq!(fbc(Some("IwAR0_x"), None, ms), None);
    assert_eq!(fbc(None, Some("IwAR0_x"), None), None);
    assert_eq!(fbc(None, Some("a b"), ms), None);
    assert_eq!(fbc(None, None, ms), None);
    let o = Occasion {
        fbp: Some("fb.1.1554763741205.x"),
        ..bought()
    };
    assert_eq!(event(&o)["user_data"].get("fbp"), None);
}

#[test]
fn time_is_when_it_happened() {
    let near = Occasion {
        event_time: 1_700_000_390,
        ..bought()
    };
    assert_eq!(event(&near)["event_time"], 1_700_000_100);
    let late = Occasion {
        event_time: 1_700_000_401,
        ..bought()
    };
    assert_eq!(freeze(&late).refused, Some(refused::FUTURE));
}

#[test]
fn data_processing_is_said_as_the_pixel_says_it() {
    let (limited, unlimited): (DataProcessing, DataProcessing) = (
        serde_json::from_value(json!({"options": ["LDU"], "country": 1, "state": 1000})).unwrap(),
        serde_json::from_value(json!({"options": []})).unwrap(),
    );
    let of = |data_processing| {
        event(&Occasion {
            data_processing,
            ..bought()
        })
    };
    let e = of(Some(&limited));
    assert_eq!(e["data_processing_options"], json!(["LDU"]));
    assert_eq!(e["data_processing_options_country"], 1);
    assert_eq!(e["data_processing_options_state"], 1000);
    let e = of(Some(&unlimited));
    assert_eq!(e["data_processing_options"], json!([]));
    assert_eq!(e.get("data_processing_options_state"), None);
    assert_eq!(of(None).get("data_processing_options"), None);
}

#[test]
fn what_meta_would_refuse_is_refused_before() {
    type Change = fn(&mut Occasion<'static>);
    let cases: &[(Change, &str)] = &[
        (|o| o.dataset = " ", refused::NO_DATASET),
        (|o| o.event_id = "", refused::NO_EVENT_ID),
        (|o| o.event_name = " ", refused::NO_EVENT_NAME),
        (|o| o.event_time = 0, refused::NO_EVENT_TIME),
        (|o| o.action_source = "", refused::BAD_ACTION_SOURCE),
        (|o| o.event_source_url = None, refused::NO_SOURCE_URL),
        (
            |o| o.event_source_url = Some("/offer"),
            refused::NO_SOURCE_URL,
        ),
        (
            |o| o.client_user_agent = Some("undefined"),
            refused::NO_USER_AGENT,
        ),
        (|o| o.currency = None, refused::NO_CURRENCY),
        (|o| o.currency = Some(" "), refused::NO_CURRENCY),
        (|o| o.currency = Some("XQZ"), refused::BAD_CURRENCY),
        (|o| o.value = None, refused::NO_VALUE),
        (
            |o| {
                o.click_id = None;
                o.client_ip = None;
            },
            refused::NO_USER_DATA,
        ),
    ];
    for (change, why) in cases {
        let mut o = bought();
        change(&mut o);
        let frozen = freeze(&o);
        assert_eq!(frozen.refused, Some(*why));
        let kept: Value = serde_json::from_str(&frozen.payload).unwrap();
        assert!(kept["event"].is_object());
    }
}

#[test]
fn what_is_optional_and_blank_is_left_out() {
    let o = Occasion {
        event_name: "Lead",
        action_source: "system_generated",
        event_source_url: Some(""),
        client_user_agent: Some(""),
        client_ip: Some("10.0.0.1"),
        fbp: Some(""),
        fbc: Some(""),
        fbclid: Some(""),
        clicked_ms: Some(0),
        email_hash: Some(""),
        value: None,
        currency: Some(""),
        order_id: Some(""),
        ..bought()
    };
    let e = event(&o);
    assert_eq!(e.get("custom_data"), None);
    assert_eq!(e.get("event_source_url"), None);
    assert_eq!(e["user_data"].as_object().unwrap().len(), 1);
}
