//! Unsubscribing over HTTP (faults `unsub` of known_faults.tsv): a GET changes nothing, a POST acts whatever its body, both old and
//! new paths stay, and a link can be used again.

use super::*;
use actix_web::http::StatusCode;
use actix_web::http::header::{LOCATION, SET_COOKIE};
use actix_web::test::{TestRequest, call_service, init_service, read_body};
use actix_web::{App, body::MessageBody, dev::ServiceResponse};
use millrace::delivery::channel::Verdict;
use millrace::unsubscribe::{self, Pages, Subscription};
use millrace_tests::postgres::pool;

const PATHS: [&str; 3] = [
    "/unsubscribe/",
    "/api/v1/public/engagement/unsubscribe/",
    "/api/v1/public/teams/unsubscribe/",
];

async fn off_rows(ground: &Ground) -> i64 {
    ground
        .count("SELECT count(*) FROM preferences WHERE mode = 'off'")
        .await
}

/// No redirect, no cookie, no demand to log in.
fn is_plain<B: MessageBody>(answer: &ServiceResponse<B>, status: StatusCode) {
    assert_eq!(answer.status(), status);
    assert!(answer.headers().get(LOCATION).is_none());
    assert!(answer.headers().get(SET_COOKIE).is_none());
}

#[actix::test]
async fn a_look_changes_nothing_and_a_post_acts_in_every_form() {
    let bench = Bench::new().await;
    let ground = &bench.ground;
    let pages = Pages::new(pool(ground.database.url(), 2));
    let service =
        init_service(App::new().configure(|config| unsubscribe::configure(config, &pages))).await;
    let key = unsubscribe::key(ground.session.client()).await.unwrap();
    let token = key
        .sign(&Subscription {
            workspace: ground.workspace,
            user: "dora".to_owned(),
            channel: "email".to_owned(),
            scope: "team:12".to_owned(),
        })
        .unwrap();
    for path in PATHS {
        for method in ["GET", "HEAD"] {
            let request = TestRequest::with_uri(&format!("{path}{token}"));
            let request = request.method(method.parse().unwrap()).to_request();
            let answer = call_service(&service, request).await;
            is_plain(&answer, StatusCode::OK);
            let page = String::from_utf8(read_body(answer).await.to_vec()).unwrap();
            if method == "GET" {
                assert!(page.contains("mail about team:12"), "{page}");
                assert!(page.contains("method=\"post\""), "{page}");
            }
        }
        assert_eq!(off_rows(ground).await, 0, "a look changed something");
    }
    assert_eq!(bench.send(&news("dora")).await.verdict, Verdict::Delivered);

    let bodies: [(&str, &str); 4] = [
        (
            "application/x-www-form-urlencoded",
            "List-Unsubscribe=One-Click",
        ),
        (
            "multipart/form-data; boundary=x",
            "--x\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--x--\r\n",
        ),
        ("", ""),
        ("text/plain", "whatever"),
    ];
    for path in PATHS {
        for (content, body) in bodies {
            ground
                .sql("DELETE FROM preferences WHERE stream_id = ''")
                .await;
            let mut request = TestRequest::post()
                .uri(&format!("{path}{token}"))
                .set_payload(body.to_owned());
            if !content.is_empty() {
                request = request.insert_header(("content-type", content));
            }
            let answer = call_service(&service, request.to_request()).await;
            is_plain(&answer, StatusCode::OK);
            assert_eq!(off_rows(ground).await, 1, "{path} {content}");
            let answer = bench.send(&news("dora")).await;
            assert_eq!(&*answer.code, "preference", "{path} {content}");
        }
    }
    // That scope alone, that channel alone.
    let elsewhere = Notification {
        scope: "team:13".to_owned(),
        ..news("dora")
    };
    assert_eq!(bench.send(&elsewhere).await.verdict, Verdict::Delivered);

    // Without a scope the channel is off for every id, whatever was asked for by name before.
    let whole = key
        .sign(&Subscription {
            workspace: ground.workspace,
            user: "dora".to_owned(),
            channel: "email".to_owned(),
            scope: String::new(),
        })
        .unwrap();
    for _ in 0..2 {
        let request = TestRequest::post().uri(&format!("/unsubscribe/{whole}"));
        let answer = call_service(&service, request.to_request()).await;
        is_plain(&answer, StatusCode::OK);
        assert_eq!(&*bench.send(&elsewhere).await.code, "preference");
    }
    let push = "SELECT count(*) FROM preferences WHERE channel = 'push' AND mode = 'off'";
    assert_eq!(ground.count(push).await, 0);
}

#[actix::test]
async fn a_link_of_version_1_is_mail_of_its_team_and_a_forged_one_is_nothing() {
    let bench = Bench::new().await;
    let ground = &bench.ground;
    let pages = Pages::new(pool(ground.database.url(), 2));
    let service =
        init_service(App::new().configure(|config| unsubscribe::configure(config, &pages))).await;
    let key = unsubscribe::key(ground.session.client()).await.unwrap();
    let old = key.sign_v1("dora", "12").unwrap();
    let request = TestRequest::post().uri(&format!("{}{old}", PATHS[2]));
    is_plain(
        &call_service(&service, request.to_request()).await,
        StatusCode::OK,
    );
    assert_eq!(&*bench.send(&news("dora")).await.code, "preference");
    let push = "SELECT count(*) FROM preferences WHERE channel = 'push' AND mode = 'off'";
    assert_eq!(ground.count(push).await, 0);

    let before = off_rows(ground).await;
    for forged in [
        "x",
        "2.a.email..AAAA",
        format!("{old}A").as_str(),
        "dora.12.AAAA",
    ] {
        for path in PATHS {
            let request = TestRequest::post().uri(&format!("{path}{forged}"));
            let answer = call_service(&service, request.to_request()).await;
            is_plain(&answer, StatusCode::NOT_FOUND);
        }
    }
    assert_eq!(off_rows(ground).await, before);
}
