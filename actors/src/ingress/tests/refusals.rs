//! What bad input gets, and what everybody gets while the log, the disk or the configuration is away.

use super::*;
use actix_web::http::Method;
use futures::future::join_all;

#[actix_web::test]
async fn a_body_that_is_too_large_is_413_and_never_accepted() {
    let house = House::new();
    let long = vec![b' '; 1_001];
    assert_eq!(
        house.ask(beacon(long.clone())).await.status,
        StatusCode::PAYLOAD_TOO_LARGE
    );
    let pb = TestRequest::post()
        .uri("/pb?secret=s3cret%2B/&click_id=a")
        .set_payload(long);
    assert_eq!(house.ask(pb).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    let batch = TestRequest::post()
        .uri("/v1/batch/clicks")
        .insert_header(("authorization", "Bearer good"))
        .set_payload(vec![b'\n'; 20_001]);
    assert_eq!(house.ask(batch).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(house.produced().is_empty());
}

#[actix_web::test]
async fn a_beacon_that_says_nothing_clear_is_400() {
    let house = House::new();
    let deep = format!(
        r#"{{"click_id":"a","link_id":"camp","x":{}{}}}"#,
        "[".repeat(40),
        "]".repeat(40)
    );
    let long = format!(r#"{{"click_id":"{}","link_id":"camp"}}"#, "a".repeat(201));
    let future = ids::encode(ids::mint(NOW.plus_secs(301)).expect("random bytes"));
    let future = format!(r#"{{"click_id":"{future}","link_id":"camp"}}"#);
    for (body, code) in [
        ("", "not_json"),
        ("{", "not_json"),
        ("hello", "not_json"),
        ("[\"a\",\"camp\"]", "not_an_object"),
        ("7", "not_an_object"),
        ("{}", "invalid"),
        (r#"{"click_id":1,"link_id":"camp"}"#, "invalid"),
        (r#"{"click_id":"a","link_id":"camp","stage":-1}"#, "invalid"),
        (
            r#"{"click_id":"a","link_id":"camp","stage":40000}"#,
            "invalid",
        ),
        (r#"{"click_id":"a\u0000","link_id":"camp"}"#, "nul"),
        (r#"{"click_id":"a","link_id":"camp","x":"\u0000"}"#, "nul"),
        (
            r#"{"click_id":"a\n","link_id":"camp"}"#,
            "click_id_malformed",
        ),
        (r#"{"click_id":"","link_id":"camp"}"#, "click_id_missing"),
        (
            r#"{"click_id":"{click_id}","link_id":"camp"}"#,
            "macro_unsubstituted",
        ),
        (
            r#"{"click_id":"a","link_id":"camp","provider_click":{"network":"","network_offer_id":"1","txid":"t"}}"#,
            "field_malformed",
        ),
        (&deep, "too_deep"),
        (&long, "click_id_malformed"),
        (&future, "click_id_in_future"),
    ] {
        let got = house.ask(beacon(body.to_owned())).await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(got.code(), code, "{body}");
        assert_eq!(got.header("access-control-allow-origin"), "*");
    }
    let got = house
        .ask(beacon(r#"{"click_id":"a","link_id":"nowhere"}"#))
        .await;
    assert_eq!(
        (got.status, got.code().as_str()),
        (StatusCode::NOT_FOUND, "unknown_link")
    );
    let got = house
        .ask(beacon(&b"{\"click_id\":\"\xff\",\"link_id\":\"camp\"}"[..]))
        .await;
    assert_eq!(got.status, StatusCode::BAD_REQUEST);
    assert!(house.produced().is_empty());
}

#[actix_web::test]
async fn no_campaign_is_told_from_another_by_its_404() {
    let house = House::new();
    let unmatched = house.ask(get("/no/such/path")).await;
    for slug in ["nowhere", "paused", "empty", "theirs"] {
        let got = house.ask(get(&format!("/c/{slug}?a=b"))).await;
        assert_eq!(got.status, StatusCode::NOT_FOUND, "{slug}");
        assert_eq!(got.body, unmatched.body, "{slug}");
        let names = |r: &Reply| {
            r.headers
                .iter()
                .map(|(n, v)| (n.clone(), v.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&got), names(&unmatched), "{slug}");
    }
    assert!(house.produced().is_empty());
}

#[actix_web::test]
async fn queries_are_bounded_and_without_nul() {
    let house = House::new();
    let long = "a".repeat(20_000);
    for (uri, status) in [
        (format!("/c/camp?x={long}"), StatusCode::URI_TOO_LONG),
        (
            format!("/pb?secret=s3cret%2B/&x={long}"),
            StatusCode::URI_TOO_LONG,
        ),
        ("/c/camp?x=%00".to_owned(), StatusCode::BAD_REQUEST),
        ("/c/camp?x%00=1".to_owned(), StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(house.ask(get(&uri)).await.status, status, "{uri:.40}");
    }
    assert!(house.produced().is_empty());
}

#[test]
fn a_bad_secret_is_403_counted_and_never_logged() {
    use std::io::Write;
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("lock").extend_from_slice(buf);
            Ok(buf.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let metrics_text = recorder.handle();
    tracing::subscriber::with_default(subscriber, || {
        metrics::with_local_recorder(&recorder, || {
            actix_rt::System::new().block_on(async {
                let house = House::new();
                let service = house.service().await;
                for uri in [
                    "/pb?secret=hunter2&click_id=a",
                    "/pb?click_id=a",
                    "/pb?secret=&click_id=a",
                    "/pb",
                ] {
                    let got = reply(&service, get(uri)).await;
                    assert_eq!(got.status, StatusCode::FORBIDDEN, "{uri}");
                    assert_eq!(got.code(), "bad_secret");
                }
                assert!(house.produced().is_empty());
                let good = reply(&service, get("/pb?secret=s3cret%2B/&click_id=a")).await;
                assert_eq!(good.status, StatusCode::OK);
            });
        });
    });
    let text = metrics_text.render();
    for line in [
        r#"door_refused_total{door="pb",reason="bad_secret"} 4"#,
        r#"door_accepted_total{door="pb"} 1"#,
        r#"door_requests_total{door="pb",status="403"} 4"#,
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let logged = String::from_utf8_lossy(&lines.0.lock().expect("lock")).into_owned();
    assert!(
        !logged.contains("hunter2") && !logged.contains("s3cret"),
        "{logged}"
    );
}

#[actix_web::test]
async fn without_an_acknowledgement_every_door_says_503() {
    let house = House::new();
    let doors = || {
        [
            get("/c/camp"),
            beacon(r#"{"click_id":"a","link_id":"camp"}"#),
            get("/pb?secret=s3cret%2B/&click_id=a"),
            TestRequest::post()
                .uri("/v1/batch/clicks")
                .insert_header(("authorization", "Bearer good"))
                .set_payload(r#"{"id":"1","campaign":"camp"}"#),
        ]
    };
    for answer in [
        Answer::Fail(ProduceError::Unavailable("away".into())),
        Answer::Fail(ProduceError::QueueFull),
        Answer::Fail(ProduceError::Closed),
        Answer::Never,
    ] {
        house.answers(answer);
        // At once, since the silent log is waited for to the end.
        for got in join_all(doors().map(|request| house.ask(request))).await {
            assert_eq!(got.status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(got.header("retry-after"), "2");
            assert_eq!(got.code(), "log_unavailable");
        }
    }
    house.answers(Answer::Fail(ProduceError::TooLarge { bytes: 9, limit: 1 }));
    for request in doors().into_iter().take(3) {
        assert_eq!(
            house.ask(request).await.status,
            StatusCode::PAYLOAD_TOO_LARGE
        );
    }
}

#[actix_web::test]
async fn readiness_speaks_for_log_and_configuration_and_health_names_what_stopped() {
    let house = House::new();
    let got = house.ask(get("/readyz")).await;
    assert_eq!(
        (got.status, got.json()["ready"].as_bool()),
        (StatusCode::OK, Some(true))
    );
    let got = house.ask(get("/healthz")).await;
    assert_eq!(got.status, StatusCode::OK);
    assert_eq!(got.json()["stopped_partitions"][0], "attribution/3: poison");
    let down = House::new();
    down.answers(Answer::Never);
    let got = down.ask(get("/readyz")).await;
    assert_eq!(got.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(got.json()["reasons"][0], "log: away");
}

#[actix_web::test]
async fn configuration_that_is_too_old_and_a_full_disk_close_the_doors() {
    let old = SnapshotHandle::empty(Duration::ZERO);
    old.put(snapshot(), Instant::now());
    while old.current().is_some() {
        tokio::task::yield_now().await;
    }
    let fresh = SnapshotHandle::empty(Duration::from_secs(600));
    fresh.put(snapshot(), Instant::now());
    let full = DiskWatch::start(Some(std::env::temp_dir()), u64::MAX);
    let none = SnapshotHandle::empty(Duration::from_secs(600));
    for (house, code) in [
        (House::on(old, Arc::default()), "configuration_stale"),
        (House::on(none, Arc::default()), "configuration_stale"),
        (House::on(fresh, full), "disk_low"),
    ] {
        for request in [
            get("/c/camp"),
            beacon(r#"{"click_id":"a","link_id":"camp"}"#),
            get("/pb?secret=s3cret%2B/&click_id=a"),
            TestRequest::post()
                .uri("/v1/batch/clicks")
                .insert_header(("authorization", "Bearer good"))
                .set_payload(r#"{"id":"1","campaign":"camp"}"#),
        ] {
            let got = house.ask(request).await;
            assert_eq!(got.status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(
                (got.code().as_str(), got.header("retry-after")),
                (code, "2")
            );
        }
        assert_eq!(
            house.ask(get("/readyz")).await.status,
            StatusCode::SERVICE_UNAVAILABLE
        );
        assert!(house.produced().is_empty());
    }
}

#[actix_web::test]
async fn other_methods_are_405() {
    let house = House::new();
    for (method, uri) in [
        (Method::GET, "/e"),
        (Method::PUT, "/pb"),
        (Method::POST, "/c/camp"),
        (Method::GET, "/v1/batch/clicks"),
    ] {
        let got = house.ask(TestRequest::with_uri(uri).method(method)).await;
        assert_eq!(got.status, StatusCode::METHOD_NOT_ALLOWED, "{uri}");
    }
}
