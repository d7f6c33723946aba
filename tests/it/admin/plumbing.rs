//! What every request meets, whatever its operation.

use super::Api;
use millrace::api::registry::{EXEMPT, Place, registry};
use reqwest::Method;
use serde_json::{Value, json};

#[actix_rt::test]
async fn whoever_is_nobody_gets_nothing() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let nobody = api.caller("");
    for registered in registry() {
        let op = &registered.operation;
        let path = op.params.iter().fold(op.path.to_owned(), |p, n| {
            p.replace(&format!("{{{}}}", n.name), "x")
        });
        let method = Method::from_bytes(op.method.name().as_bytes()).unwrap();
        let reply = nobody.raw(method, &path, None, &[]).await;
        assert_eq!(reply.header("www-authenticate"), "Bearer", "{}", op.id);
        reply.refused(401, "unauthenticated");
    }
    let (id, secret) = c.key.split_once('.').unwrap();
    let other = millrace::api::keys::ApiKey::generate().unwrap().reveal();
    let wrong_secret = format!("{id}.{}", other.split_once('.').unwrap().1);
    let mut details = Vec::new();
    for key in ["x", id, &other, &wrong_secret, &format!("{id}.{secret}A")] {
        details.push(
            api.caller(key)
                .get("/v1/me")
                .await
                .refused(401, "unauthenticated")["detail"]
                .clone(),
        );
    }
    details.dedup();
    assert_eq!(
        details.len(),
        1,
        "the refusal tells what was wrong: {details:?}"
    );
    for headers in [
        [("authorization", "Basic eDp4")],
        [("authorization", "Bearer")],
        [("cookie", "__Host-millrace=sess_x")],
    ] {
        nobody
            .raw(Method::GET, "/v1/me", None, &headers)
            .await
            .refused(401, "unauthenticated");
    }
    for query in [
        format!("?x={}", c.key),
        "?access_token=x".to_owned(),
        "?api_key=1".to_owned(),
        format!("?x={}", c.key.replace('.', "%2E")),
    ] {
        c.get(&format!("/v1/me{query}"))
            .await
            .refused(400, "credential_in_url");
    }
}

#[actix_rt::test]
async fn scopes_are_asked_of_every_operation() {
    let api = Api::start().await;
    let workspace = api.workspace("acme").await;
    // A key with nothing that any operation here needs.
    let c = api.caller(&api.key(Some(workspace), &["ingest:write"]).await);
    for registered in registry()
        .iter()
        .filter(|r| r.operation.place != Place::Actor)
    {
        let op = &registered.operation;
        let path = op.params.iter().fold(op.path.to_owned(), |p, n| {
            p.replace(&format!("{{{}}}", n.name), "x")
        });
        let method = Method::from_bytes(op.method.name().as_bytes()).unwrap();
        let problem = c
            .raw(method, &path, None, &[])
            .await
            .refused(403, "scope_missing");
        assert_eq!(problem["scope"].as_str(), op.scope, "{}", op.id);
    }
}

#[actix_rt::test]
async fn bodies_are_bounded_and_strict() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let json_type = [("content-type", "application/json")];
    let post = async |body: Vec<u8>, headers: &[(&str, &str)]| {
        c.raw(Method::POST, "/v1/networks", Some(body), headers)
            .await
    };
    post(b"{\"name\":\"x\"".to_vec(), &json_type)
        .await
        .refused(400, "not_json");
    post(Vec::new(), &json_type).await.refused(400, "not_json");
    post(b"[]".to_vec(), &json_type)
        .await
        .refused(400, "invalid");
    post(b"\xff\xfe".to_vec(), &json_type)
        .await
        .refused(400, "not_json");
    let deep = format!("{{\"name\":{}1{}}}", "[".repeat(40), "]".repeat(40));
    post(deep.into_bytes(), &json_type)
        .await
        .refused(400, "not_json");
    let twice = post(
        b"{\"name\":\"a\",\"name\":\"b\\u0000\"}".to_vec(),
        &json_type,
    )
    .await
    .refused(400, "invalid");
    assert_eq!(twice["errors"].as_array().map(Vec::len), Some(2));
    post(b"{}".to_vec(), &[("content-type", "text/plain")])
        .await
        .refused(415, "media_type");
    post(b"{}".to_vec(), &[]).await.refused(415, "media_type");
    post(
        b"{}".to_vec(),
        &[("content-type", "application/json; charset=latin1")],
    )
    .await
    .refused(415, "media_type");
    post(
        b"{}".to_vec(),
        &[("content-type", "application/merge-patch+json")],
    )
    .await
    .refused(415, "media_type");
    post(
        b"{\"name\":\"x\"}".to_vec(),
        &[("content-type", "application/json; charset=UTF-8")],
    )
    .await
    .expect(201);
    let large = format!("{{\"name\":\"{}\"}}", "x".repeat(1 << 20));
    post(large.into_bytes(), &json_type)
        .await
        .refused(413, "body_too_large");
    // Just within: it is read, and refused for what it says.
    let within = format!("{{\"name\":\"{}\"}}", "x".repeat((1 << 20) - 11));
    post(within.into_bytes(), &json_type)
        .await
        .refused(400, "invalid");
    c.raw(Method::GET, "/v1/me", Some(b"{}".to_vec()), &json_type)
        .await
        .refused(400, "body_not_expected");
}

#[actix_rt::test]
async fn paths_methods_and_ids() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    c.get("/v1/nothing").await.refused(404, "not_found");
    c.get("/").await.refused(404, "not_found");
    let wrong = c.send(Method::DELETE, "/v1/campaigns", None, &[]).await;
    assert_eq!(wrong.header("allow"), "POST, GET, HEAD");
    wrong.refused(405, "method_not_allowed");
    let head = c.send(Method::HEAD, "/v1/me", None, &[]).await;
    assert_eq!((head.status, head.body), (200, Value::Null));
    for (sent, kept) in [
        ("abcdefgh-_12", true),
        ("short", false),
        ("has blank inside", false),
        (&"x".repeat(65), false),
    ] {
        let reply = c
            .send(
                Method::GET,
                "/v1/campaigns/none",
                None,
                &[("x-request-id", sent)],
            )
            .await;
        let answered = reply.header("x-request-id").to_owned();
        assert_eq!(answered == sent, kept, "{sent}");
        assert!((8..=64).contains(&answered.len()), "{answered}");
        assert_eq!(
            reply.refused(404, "not_found")["request_id"],
            json!(answered)
        );
    }
    let faults = c
        .get("/v1/campaigns?limit=0&x=1&status=active&status=active&count=yes")
        .await
        .refused(400, "invalid");
    assert_eq!(
        faults["errors"].as_array().map(Vec::len),
        Some(4),
        "{faults:#}"
    );
    for name in ["%00", "a%0Ab", "%FF", ".", "nw_%27%3B--"] {
        c.get(&format!("/v1/networks/{name}"))
            .await
            .refused(404, "not_found");
    }
}

#[actix_rt::test]
async fn the_document_is_public_and_names_every_operation() {
    let api = Api::start().await;
    let document = api.caller("").get("/v1/openapi.json").await.expect(200);
    assert_eq!(document["openapi"], "3.1.0");
    for registered in registry() {
        let op = &registered.operation;
        let entry = &document["paths"][op.path][op.method.name().to_ascii_lowercase()];
        assert_eq!(entry["operationId"], op.id);
    }
    assert_eq!(
        document["x-exempt"].as_array().map(Vec::len),
        Some(EXEMPT.len())
    );
}

#[actix_rt::test]
async fn a_body_that_never_comes_is_not_waited_for_without_end() {
    use std::io::{Read, Write};
    let api = Api::start().await;
    let (_, caller) = api.tenant("acme").await;
    let (address, key) = (api.address, caller.key.clone());
    let answer = actix_web::web::block(move || -> std::io::Result<String> {
        let mut socket = std::net::TcpStream::connect(address)?;
        socket.set_read_timeout(Some(std::time::Duration::from_secs(60)))?;
        let head = format!(
            "POST /v1/networks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: 50\r\n\r\n{{\"name\":"
        );
        socket.write_all(head.as_bytes())?;
        let mut answer = vec![0; 4_096];
        let n = socket.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..n]).into_owned())
    })
    .await
    .expect("it is waited for")
    .expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("body_timeout"), "{answer}");
}
