//! The router as actix has it, walked: it answers at no path and to no method that the registry does not list, so that whoever
//! walks the registry (crossing, scopes, the document) has walked everything.

use super::SEAL_KEY;
use actix_web::dev::Service;
use actix_web::http::{Method, StatusCode};
use actix_web::test::{TestRequest, init_service, try_call_service};
use actix_web::{App, web};
use millrace::api::ApiState;
use millrace::api::keys::KeyCache;
use millrace::api::registry::{EXEMPT, registry};
use millrace::ingress::disk::DiskWatch;
use millrace::ingress::feed::FeedSetup;
use millrace::ingress::feed::kinds::Mapped;
use millrace::ingress::keys::StoredKeys;
use millrace::ingress::server;
use millrace::ingress::snapshot::SnapshotHandle;
use millrace::ingress::state::{DoorSetup, DoorState};
use millrace::runtime::clock::SystemClock;
use millrace::sealing::Seals;
use millrace::settings::Http;
use millrace::unsubscribe::Pages;
use millrace_tests::memory_log::MemoryLog;
use millrace_tests::postgres::pool;
use millrace_topics::contract::TopicRef;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The doors on a log in memory and this configuration.
pub fn doors(url: &str, snapshot: Arc<SnapshotHandle>, log: Arc<MemoryLog>) -> DoorState {
    let topic = |no, name: &str| TopicRef {
        no,
        name: name.to_owned(),
        log_name: name.to_owned(),
        partitions: 4,
    };
    DoorState::new(DoorSetup {
        producer: log,
        clicks: topic(1, "clicks"),
        postbacks: topic(2, "postbacks"),
        snapshot,
        keys: Arc::new(StoredKeys { pool: pool(url, 4) }),
        clock: Arc::new(SystemClock),
        http: Http::default(),
        ack_timeout: Duration::from_secs(60),
        disk: Arc::<DiskWatch>::default(),
        feed: FeedSetup {
            frames: Some(topic(3, "frames")),
            kinds: Arc::new(|_, _, _| Mapped::OfShard),
            ..FeedSetup::off()
        },
        stopped: Arc::new(Vec::new),
        metrics: None,
    })
    .expect("the settings read")
}

/// The state of an admin API.
pub fn admin(url: &str) -> web::Data<ApiState> {
    web::Data::new(ApiState::new(
        pool(url, 4),
        Arc::new(SystemClock),
        Arc::new(Seals::from_texts(Some(SEAL_KEY), None).expect("a key")),
        Arc::new(KeyCache::new()),
        None,
    ))
}

/// Paths and the methods that the registry lists for them.
fn listed() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut all: BTreeMap<String, BTreeSet<&'static str>> = BTreeMap::new();
    for op in registry().iter().map(|r| &r.operation) {
        all.entry(op.path.to_owned())
            .or_default()
            .insert(op.method.name());
    }
    for exempt in EXEMPT {
        let methods = exempt.methods.iter().map(|m| m.name());
        all.entry(exempt.path.to_owned())
            .or_default()
            .extend(methods);
    }
    all
}

/// The patterns within the debug form of actix's map of resources.
fn patterns(map: &str) -> BTreeSet<String> {
    // The root is a prefix of everything, and empty.
    map.split("patterns: Single(\"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"'))
        .map(|(pattern, _)| pattern.to_owned())
        .filter(|pattern| !pattern.is_empty())
        .collect()
}

#[actix_rt::test]
async fn nothing_is_mounted_that_the_registry_does_not_list() {
    // Nothing here asks the store.
    let nowhere = "postgres://nobody@127.0.0.1:1/nothing";
    let state = doors(
        nowhere,
        SnapshotHandle::empty(Duration::from_secs(1)),
        Arc::default(),
    );
    let api = admin(nowhere);
    let pages = Pages::new(pool(nowhere, 1));
    let seen = Rc::new(RefCell::new(String::new()));
    let tell = Rc::clone(&seen);
    let service = init_service(
        App::new()
            .wrap_fn(move |request, service| {
                if tell.borrow().is_empty() {
                    *tell.borrow_mut() = format!("{:?}", request.resource_map());
                }
                service.call(request)
            })
            .configure(|config| server::configure(config, &state))
            .configure(|config| millrace::unsubscribe::configure(config, &pages))
            .configure(|config| millrace::api::configure(config, api)),
    )
    .await;
    let ask = async |method: &str, path: &str| -> StatusCode {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let request = TestRequest::with_uri(path).method(method).to_request();
        let answer = try_call_service(&service, request)
            .await
            .expect("an answer");
        answer.status()
    };
    assert_eq!(ask("GET", "/nowhere").await, StatusCode::NOT_FOUND);
    assert!(
        !seen.borrow().contains("patterns: List("),
        "a path of several patterns"
    );
    let listed = listed();
    let mounted = patterns(&seen.borrow());
    assert_eq!(mounted, listed.keys().cloned().collect());
    let mut asked = 0;
    for (path, methods) in &listed {
        let place: String = path
            .split('/')
            .map(|part| if part.starts_with('{') { "x" } else { part })
            .collect::<Vec<_>>()
            .join("/");
        for method in [
            "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND",
        ] {
            let taken = ask(method, &place).await != StatusCode::METHOD_NOT_ALLOWED;
            let may = methods.contains(method)
                || (method == "HEAD" && methods.contains("GET"))
                // A page asks before it sends.
                || (method == "OPTIONS" && path == "/e");
            let must = methods.contains(method);
            assert!(
                may || !taken,
                "{method} {path} is answered and nowhere listed"
            );
            assert!(!must || taken, "{method} {path} is listed and refused");
            asked += 1;
        }
    }
    assert!(asked > 300, "{asked}");
}

/// Routes come from `api/mounter.rs`; `cli/process/http.rs` alone mounts two that are listed there too. Whoever else switches
/// clippy's rule off has a route that the walk above cannot see.
#[test]
fn two_files_alone_may_mount_routes() {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../actors/src");
    let mut found = BTreeSet::new();
    let mut folders = vec![sources.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read_to_string(&path)
                .is_ok_and(|text| text.contains("disallowed_methods") && text.contains("resource("))
            {
                let name = path.strip_prefix(&sources).expect("below");
                found.insert(name.display().to_string());
            }
        }
    }
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        ["api/mounter.rs", "cli/process/http.rs"]
    );
}
