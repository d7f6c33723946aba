//! No workspace reaches into another through a door. The registry's list of what answers beside the operations is walked: one
//! that is not known here fails the test.

use super::life::set_up;
use super::routes::{admin, doors};
use super::{Api, Caller};
use actix_web::App;
use actix_web::body::to_bytes;
use actix_web::test::{TestRequest, init_service, try_call_service};
use millrace::api::registry::EXEMPT;
use millrace::ingress::server;
use millrace::ingress::snapshot::SnapshotHandle;
use millrace::unsubscribe::{self, Subscription};
use millrace_schemas::click::ClickRecord;
use millrace_schemas::frame::Frame;
use millrace_schemas::postback::PostbackRecord;
use millrace_tests::memory_log::MemoryLog;
use millrace_tests::postgres::pool;
use millrace_topics::contract::Outgoing;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Of which workspace a record is, by what it says and by its key.
fn workspace_of(record: &Outgoing) -> i32 {
    let said = if record.topic_no == 3 {
        let read: Frame = serde_json::from_slice(&record.payload).expect("a record");
        read.ws
    } else if record.topic_no == 1 {
        let read: ClickRecord = serde_json::from_slice(&record.payload).expect("a record");
        read.workspace
    } else {
        let read: PostbackRecord = serde_json::from_slice(&record.payload).expect("a record");
        read.workspace
    };
    let key = String::from_utf8_lossy(&record.key).into_owned();
    let keyed = key.split_once(':').and_then(|(w, _)| w.parse().ok());
    assert_eq!(keyed, Some(said), "{key}");
    said
}

async fn network_of(caller: &Caller) -> String {
    let all = caller.all("/v1/networks").await;
    super::id_of(&all[0])
}

#[actix_rt::test]
async fn no_door_reaches_another_workspace() {
    let api = Api::start().await;
    let (a, alpha) = api.tenant("alpha").await;
    let (b, beta) = api.tenant("beta").await;
    let (_, _, secret) = set_up(&alpha, "spring").await;
    let (_, _, others_secret) = set_up(&beta, "autumn").await;
    let (network, theirs) = (network_of(&alpha).await, network_of(&beta).await);
    let key = api.key(Some(b), &["ingest:write"]).await;

    // Both have a shard of one name, each with its token.
    let mut tokens = Vec::new();
    for caller in [&alpha, &beta] {
        let shard = json!({"id": "same", "name": "S", "module": "survival", "protocol": 5});
        caller.post("/v1/shards", shard).await.expect(201);
        let token = json!({"shard": "same", "name": "T"});
        let made = caller.post("/v1/feed-tokens", token).await.expect(201);
        tokens.push(made["token"].as_str().expect("a token").to_owned());
    }

    let url = api.database.url();
    let snapshot = SnapshotHandle::empty(Duration::from_secs(600));
    snapshot.refresh(&pool(url, 2)).await.expect("it is read");
    let log = Arc::new(MemoryLog::default());
    let state = doors(url, snapshot, Arc::clone(&log));
    let shared = admin(url);
    let pages = unsubscribe::Pages::new(pool(url, 2));
    let links = unsubscribe::key(&api.database.client().await).await;
    let links = links.expect("a key");
    let service = init_service(
        App::new()
            .configure(|config| server::configure(config, &state))
            .configure(|config| unsubscribe::configure(config, &pages))
            .configure(|config| millrace::api::configure(config, shared)),
    )
    .await;
    let ask = async |request: TestRequest| -> (u16, String, Vec<i32>) {
        let request = request
            .peer_addr(([127, 0, 0, 1], 4711).into())
            .insert_header(("x-request-id", "one-and-the-same"))
            .to_request();
        let answer = try_call_service(&service, request)
            .await
            .expect("an answer");
        let status = answer.status().as_u16();
        let body = to_bytes(answer.into_body()).await.expect("a body");
        let records = log.take().iter().map(workspace_of).collect();
        (status, String::from_utf8_lossy(&body).into_owned(), records)
    };
    let bearer = ("authorization", format!("Bearer {key}"));
    let batch = |what: &str, line: &Value| {
        TestRequest::post()
            .uri(&format!("/v1/batch/{what}"))
            .insert_header(("authorization", format!("Bearer {key}")))
            .set_payload(line.to_string())
    };
    // What is another's and what never was are told in the same words.
    let unknown = async |what: &str, foreign: Value, never: Value| {
        let (status, said, records) = ask(batch(what, &foreign)).await;
        assert_eq!((status, records.len()), (400, 0), "{said}");
        assert_eq!((status, said), {
            let (status, said, _) = ask(batch(what, &never)).await;
            (status, said)
        });
    };
    let pinned = async |what: &str, line: &Value| {
        let request = batch(what, line).insert_header(("x-workspace", "alpha"));
        let (status, said, records) = ask(request).await;
        assert!(status == 403 && records.is_empty(), "{said}");
        assert!(said.contains("workspace_pinned"), "{said}");
    };

    for exempt in EXEMPT {
        match exempt.id {
            "visit_door" => {
                // The campaign alone says whose visit it is.
                for (campaign, workspace) in [("spring", a), ("autumn", b)] {
                    let request = TestRequest::get()
                        .uri(&format!("/c/{campaign}?workspace=beta&workspace_id={b}"))
                        .insert_header(bearer.clone())
                        .insert_header(("x-workspace", "beta"));
                    let (status, _, records) = ask(request).await;
                    assert_eq!((status, records), (302, vec![workspace]));
                }
            }
            "click_door" => {
                // A click id of one workspace under a link of another is another click.
                for (link, workspace) in [("spring", a), ("autumn", b)] {
                    let body = json!({"click_id": "of-alpha", "link_id": link, "workspace": a});
                    let request = TestRequest::post().uri("/e").set_payload(body.to_string());
                    let (status, _, records) = ask(request).await;
                    assert_eq!((status, records), (204, vec![workspace]));
                }
            }
            "postback_door" => {
                // The secret alone says whose postback it is.
                for (secret, other, workspace) in
                    [(&secret, &theirs, a), (&others_secret, &network, b)]
                {
                    let uri = format!(
                        "/pb?secret={secret}&click_id=of-alpha&network={other}&network_id={other}&workspace=alpha&payout=1"
                    );
                    for request in [TestRequest::get(), TestRequest::post()] {
                        let (status, _, records) = ask(request.uri(&uri)).await;
                        assert_eq!((status, records), (200, vec![workspace]));
                    }
                }
            }
            "batch_visits" | "batch_clicks" => {
                let what = exempt.id.trim_start_matches("batch_");
                unknown(
                    what,
                    json!({"id": "1", "campaign": "spring"}),
                    json!({"id": "1", "campaign": "never"}),
                )
                .await;
                let own = json!({"id": "1", "campaign": "autumn", "click_id": "of-alpha"});
                assert_eq!(ask(batch(what, &own)).await.2, [b]);
                pinned(what, &own).await;
            }
            "batch_postbacks" => {
                unknown(
                    "postbacks",
                    json!({"id": "1", "network": network, "click_id": "x"}),
                    json!({"id": "1", "network": "nw_never", "click_id": "x"}),
                )
                .await;
                let own = json!({"id": "1", "network": theirs, "click_id": "of-alpha"});
                assert_eq!(ask(batch("postbacks", &own)).await.2, [b]);
                pinned("postbacks", &own).await;
            }
            "unsubscribe" | "unsubscribe_public" | "unsubscribe_team" => {
                // The link alone says whose it is: the same user's name in another workspace is another user.
                let subscription = Subscription {
                    workspace: a,
                    user: "dora".to_owned(),
                    channel: "email".to_owned(),
                    scope: String::new(),
                };
                let token = links.sign(&subscription).expect("a link");
                let uri = format!("{}?workspace={b}", exempt.path.replace("{token}", &token));
                let request = TestRequest::post()
                    .uri(&uri)
                    .insert_header(bearer.clone())
                    .insert_header(("x-workspace", "beta"));
                let (status, _, records) = ask(request).await;
                assert_eq!((status, records.len()), (200, 0));
                let store = api.database.client().await;
                let rows = store
                    .query("SELECT workspace_id FROM preferences", &[])
                    .await;
                let off: Vec<i32> = rows.expect("rows").iter().map(|r| r.get(0)).collect();
                assert_eq!(off, [a]);
                let forged = TestRequest::post().uri(&uri.replacen("/2.", "/3.", 1));
                assert_eq!(ask(forged).await.0, 404);
            }
            "feed_door" => {
                // The token alone says whose frame it is, and opens its own shard alone.
                let frames = "{\"type\":\"hello\",\"protocol\":5,\"boot\":\"b\",\"ws\":1}\n\
                              {\"seq\":1,\"kind\":\"a\",\"ws\":1,\"workspace\":\"alpha\",\"body\":{\"ws\":1}}\n";
                let send = |token: &str, shard: &str| {
                    ask(TestRequest::post()
                        .uri(&format!("/feed/{shard}?workspace=alpha"))
                        .insert_header(("authorization", format!("Bearer {token}")))
                        .set_payload(frames))
                };
                for (token, workspace) in tokens.iter().zip([a, b]) {
                    let (status, said, records) = send(token, "same").await;
                    assert_eq!((status, records), (200, vec![workspace]), "{said}");
                }
                // Another's shard and what never was are told in the same words.
                let foreign = send(&tokens[1], "shard-spring").await;
                assert_eq!((foreign.0, foreign.2.len()), (401, 0), "{}", foreign.1);
                assert_eq!(foreign, send(&tokens[1], "never").await);
                assert_eq!(send(&key, "same").await.0, 401);
            }
            // Of the process and of the interface: nothing of any workspace's.
            "metrics" | "healthz" | "readyz" | "openapi" => {
                let request = TestRequest::get()
                    .uri(exempt.path)
                    .insert_header(bearer.clone());
                let (_, said, records) = ask(request).await;
                assert!(records.is_empty());
                for word in [&network, &theirs, &secret, &others_secret] {
                    assert!(!said.contains(&**word), "{}: {word}", exempt.id);
                }
            }
            other => panic!("nobody has tried to cross at {other}"),
        }
    }
}
