use super::*;
use serde_json::json;

fn judged(status: u16, body: &Value) -> Meaning {
    judge(status, body.to_string().as_bytes(), false, None)
}

fn error(code: u64, subcode: Option<u64>) -> Value {
    let mut error = json!({"message": "Invalid parameter", "type": "OAuthException", "code": code, "fbtrace_id": "Ax"});
    if let Some(sub) = subcode {
        error["error_subcode"] = json!(sub);
    }
    json!({ "error": error })
}

fn again(code: &'static str, unsure: bool, dead: bool) -> Meaning {
    Meaning::Again {
        code: code.into(),
        after: None,
        unsure,
        dead,
    }
}

#[test]
fn codes_count_and_not_the_status() {
    for status in [200, 400, 403, 500] {
        for code in [1, 2, 4, 17, 32, 341, 368, 613, 80_000, 80_004, 80_014] {
            let Meaning::Again { unsure, dead, .. } = judged(status, &error(code, None)) else {
                panic!("{code} comes again");
            };
            assert!(!unsure);
            assert_eq!(dead, status == 500);
        }
        let is = |code, sub, meaning| assert_eq!(judged(status, &error(code, sub)), meaning);
        is(190, Some(463), Meaning::Pause(TOKEN_INVALID));
        is(200, None, Meaning::Pause(PERMISSION));
        is(10, None, Meaning::Pause(PERMISSION));
        is(100, Some(33), Meaning::Pause(OBJECT_MISSING));
        let bad = |code: &'static str| Meaning::OneIsBad {
            code: code.into(),
            index: None,
        };
        is(100, Some(2_804_001), bad("meta_100_2804001"));
        is(100, None, bad("meta_100"));
        is(2_804_030, None, bad("meta_2804030"));
    }
    for code in [80_015, 79_999, 3, 803, 2500] {
        let name = format!("meta_{code}");
        assert_eq!(
            judged(400, &error(code, None)),
            Meaning::Refused(name.into())
        );
        assert!(matches!(
            judged(503, &error(code, None)),
            Meaning::Again { .. }
        ));
    }
}

#[test]
fn without_an_error_the_status_counts() {
    assert_eq!(
        judged(200, &json!({"events_received": 7, "messages": []})),
        Meaning::Received(7)
    );
    assert_eq!(
        judged(200, &json!({"events_received": 7, "error": null})),
        Meaning::Received(7)
    );
    assert_eq!(
        judge(200, b"<html>", false, None),
        again("no_receipt", true, false)
    );
    assert_eq!(
        judge(204, b"", false, None),
        again("no_receipt", true, false)
    );
    assert_eq!(judge(500, b"", false, None), again("http_500", true, true));
    assert_eq!(
        judge(429, b"", false, None),
        again("http_429", false, false)
    );
    assert_eq!(
        judge(400, b"", false, None),
        Meaning::Refused("http_400".into())
    );
    assert_eq!(
        judge(302, b"", false, None),
        Meaning::Refused("http_302".into())
    );
    let large = judge(413, b"", false, None);
    assert!(matches!(large, Meaning::OneIsBad { index: None, .. }));
    assert_eq!(
        judge(400, b"{\"error\":{\"mess", true, None),
        again("answer_too_long", false, false)
    );
    assert_eq!(
        judge(200, b"{\"events", true, None),
        again("no_receipt", true, false)
    );
    // An error that says nothing of itself.
    assert_eq!(
        judged(200, &json!({"error": "oops"})),
        again("http_200_error", false, false)
    );
    assert_eq!(
        judged(400, &json!({"error": {}})),
        Meaning::Refused("http_400".into())
    );
    let after = Some(Duration::from_secs(9));
    assert!(matches!(
        judge(429, b"", false, after),
        Meaning::Again { after: Some(a), .. } if a.as_secs() == 9
    ));
}

#[test]
fn the_bad_event_is_found_wherever_it_is_named() {
    let of = |change: fn(&mut Value)| {
        let mut body = error(100, Some(2_804_001));
        change(&mut body["error"]);
        match judged(400, &body) {
            Meaning::OneIsBad { index, .. } => index,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        of(|e| e["error_data"] = json!({"events": {"event_index": 14, "code": 2}})),
        Some(14)
    );
    assert_eq!(
        of(|e| e["error_data"] = json!([{"event_index": "14"}])),
        Some(14)
    );
    assert_eq!(
        of(|e| e["error_data"] = json!("{\"event_index\":14}")),
        Some(14)
    );
    assert_eq!(
        of(|e| e["message"] = json!("(#100) Param data[14]['user_data'] is wrong")),
        Some(14)
    );
    assert_eq!(
        of(|e| e["error_user_msg"] = json!("event_index: 14 is wrong")),
        Some(14)
    );
    assert_eq!(of(|e| e["message"] = json!("data[x] is wrong")), None);
    assert_eq!(of(|_| {}), None);
}

#[test]
fn a_wrong_proof_is_no_fault_of_an_event() {
    let mut body = error(100, None);
    body["error"]["message"] = json!("Invalid appsecret_proof provided in the API argument");
    assert_eq!(judged(400, &body), Meaning::Pause(APP_SECRET_INVALID));
}

#[test]
fn what_is_secret_or_personal_is_taken_out() {
    let token = "EAAB\"x/y+z";
    let body = json!({"error": {
        "code": 190, "error_subcode": 2_804_001,
        "message": format!("Malformed access token {token}"),
        "error_user_msg": "see https://x/?access_token=EAAB%22x%2Fy%2Bz of d***",
        "error_data": {"token": token, "em": "973dfe463ec85785f5f95af5ba3906eedb2d931c24e69824a89ea65dba4e813b",
                       "ip": "203.0.113.7:80", "v6": "2001:db8::1", "who": "a.b@example.org"},
    }});
    let said = excerpt(body.to_string().as_bytes(), &[token, ""]);
    for hidden in ["EAAB", "973dfe", "203.0", "2001:db8", "example.org"] {
        assert!(!said.contains(hidden), "{hidden}: {said}");
    }
    assert!(
        said.starts_with(
            "code=190; error_subcode=2804001; message=Malformed access token [redacted]"
        ),
        "{said}"
    );
    let raw = excerpt(
        format!("proxy says {token} at 10.0.0.1").as_bytes(),
        &[token],
    );
    assert_eq!(raw, "proxy says [redacted] at [address]");
    assert!(excerpt("ü".repeat(5_000).as_bytes(), &[]).chars().count() <= 500);
}

proptest::proptest! {
    #[test]
    fn any_answer_is_judged(status in 100u16..1000, body in "\\PC{0,60}|\\{\"error\":\\PC{0,40}\\}") {
        let _ = judge(status, body.as_bytes(), false, None);
        let said = excerpt(body.as_bytes(), &["0x0x"]);
        proptest::prop_assert!(!said.contains("0x0x"));
    }
}
