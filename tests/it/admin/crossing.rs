//! No workspace reaches into another: the registry is walked, so that a new operation is tried without anybody thinking of it.

use super::facts::{one_of_each, prepare};
use super::life::set_up;
use super::{Api, Caller, id_of};
use millrace::api::registry::{Method, Operation, Place, Precondition, registry};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

fn method(operation: &Operation) -> reqwest::Method {
    reqwest::Method::from_bytes(operation.method.name().as_bytes()).expect("a method")
}

/// The list that an operation's id would stand in: the path before its parameter.
fn collection(path: &str) -> Option<&str> {
    path.split_once("/{").map(|(before, _)| before)
}

/// Everything of a list's owner, and the ids in it.
async fn items(owner: &Caller, path: &str) -> Vec<Value> {
    let items = owner.all(path).await;
    assert!(
        !items.is_empty(),
        "{path}: the walk would prove nothing without something there"
    );
    items
}

fn id_in(item: &Value, parameter: &str) -> String {
    item.get("id")
        .or_else(|| item.get(parameter))
        .and_then(Value::as_str)
        .expect("an id")
        .to_owned()
}

/// A body that the operation would take of the object's owner: what it says now.
fn body_for(schema: &Value, item: &Value) -> Value {
    let mut body = Map::new();
    for name in schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name)
    {
        if let Some(value) = item.get(name).filter(|v| !v.is_null() && name != "id") {
            body.insert(name.clone(), value.clone());
        }
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().expect("a name");
        body.entry(name).or_insert_with(|| json!("x"));
    }
    Value::Object(body)
}

/// An address that the first workspace suppresses, and the second does not.
const SUPPRESSED: &str = "dora@alpha.example";

/// What people are told by: a transport, a suppressed address, an endpoint.
async fn people_are_told(c: &Caller) {
    let me = c.get("/v1/me").await.expect(200);
    let name = me["workspace"]["id"]
        .as_str()
        .or(me["workspace"].as_str())
        .expect("a workspace")
        .to_owned();
    c.post(
        "/v1/mail-transports",
        json!({"host": "smtp.example.com", "port": 587, "sender_address": format!("news@{name}.example"), "brand_name": name}),
    )
    .await
    .expect(201);
    c.post(
        "/v1/suppressions",
        json!({"address": format!("dora@{name}.example"), "detail": name}),
    )
    .await
    .expect(201);
    c.post(
        "/v1/push-subscriptions",
        json!({"user": format!("user-of-{name}"), "endpoint": format!("https://push.example/{name}")}),
    )
    .await
    .expect(201);
}

#[actix_rt::test]
async fn no_operation_reaches_another_workspace() {
    let api = Api::start().await;
    let (a, owner) = api.tenant("alpha").await;
    let (b, other) = api.tenant("beta").await;
    let client = api.database.client().await;
    prepare(&client, 1).await;
    let (network, _, secret) = set_up(&owner, "spring").await;
    one_of_each(&client, a, 100, "spring", &network).await;
    // The other is no empty workspace, only another one.
    let (theirs, _, _) = set_up(&other, "autumn").await;
    one_of_each(&client, b, 200, "autumn", &theirs).await;

    for c in [&owner, &other] {
        people_are_told(c).await;
    }

    let before = everything(&owner).await;
    let mut tried = BTreeSet::new();
    let (mut cursors, mut filters) = (0, 0);
    for registered in registry() {
        let op = &registered.operation;
        if op.place == Place::Deployment {
            let path = op.path.replace("{workspace_id}", "alpha");
            let body = registered.body.as_ref().map(|_| json!({}));
            other
                .send(method(op), &path, body, &[("if-match", "*")])
                .await
                .refused(403, "scope_missing");
            tried.insert(op.id);
        } else if let Some(collection) = collection(op.path) {
            let [parameter] = op.params else {
                panic!("{}: one parameter is what this walk knows", op.id)
            };
            for item in items(&owner, collection).await {
                let path = op.path.replace(
                    &format!("{{{}}}", parameter.name),
                    &id_in(&item, parameter.name),
                );
                let body = registered.body.as_ref().map(|s| body_for(&s.schema, &item));
                let headers: &[(&str, &str)] = if op.precondition == Precondition::None {
                    &[]
                } else {
                    &[("if-match", "*")]
                };
                let foreign = other.send(method(op), &path, body.clone(), headers).await;
                let problem = foreign.refused(404, "not_found");
                // The same words as for what never was: nothing tells that the id exists.
                let never = op
                    .path
                    .replace(&format!("{{{}}}", parameter.name), "1-0-99999");
                let unknown = other
                    .send(method(op), &never, body, headers)
                    .await
                    .refused(404, "not_found");
                assert_eq!(
                    (&problem["detail"], &problem["title"]),
                    (&unknown["detail"], &unknown["title"])
                );
                if op.method == Method::Get {
                    owner.get(&path).await.expect(200);
                }
                tried.insert(op.id);
            }
        } else if op.list {
            tried.insert(op.id);
            let mine = items(&owner, op.path).await;
            let theirs = other.all(op.path).await;
            for item in &mine {
                assert!(!theirs.contains(item), "{}: {item:#}", op.id);
            }
            // Every filter, with every value that the other workspace's rows have.
            for name in registered.query.schema["properties"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, _)| name)
            {
                for item in &mine {
                    let value = item
                        .get(name)
                        .or_else(|| item.get(format!("{name}_id")))
                        .and_then(Value::as_str);
                    let Some(value) = value else { continue };
                    let path = format!("{}?{name}={value}", op.path);
                    assert!(
                        !owner.all(&path).await.is_empty(),
                        "{path}: the filter finds nothing of its owner's"
                    );
                    for found in other.all(&path).await {
                        assert!(!mine.contains(&found), "{path}: {found:#}");
                    }
                    filters += 1;
                }
            }
            let counted = other
                .get(&format!("{}?count=true", op.path))
                .await
                .expect(200);
            assert_eq!(
                counted["count"].as_u64(),
                Some(theirs.len() as u64),
                "{}",
                op.id
            );
            // A cursor of the other's is no cursor.
            let page = owner.get(&format!("{}?limit=1", op.path)).await.expect(200);
            if let Some(cursor) = page["next_cursor"].as_str() {
                cursors += 1;
                other
                    .get(&format!("{}?limit=1&cursor={cursor}", op.path))
                    .await
                    .refused(400, "cursor_mismatch");
            }
        } else if op.method == Method::Get && op.place == Place::Workspace {
            // Neither a list nor one thing: whatever it tells, it is nothing of the owner's.
            tried.insert(op.id);
            let reply = other.get(op.path).await;
            assert!(
                matches!(reply.status, 200 | 400),
                "{}: {:#}",
                op.id,
                reply.body
            );
            let said = reply.body.to_string();
            assert!(
                !ids_in(&before).iter().any(|id| said.contains(id)),
                "{}: {said}",
                op.id
            );
        }
    }
    // What makes things, asked with everything that the owner has of the kind, so with the owner's ids wherever one is named: it
    // is refused, or makes a thing of the other's that names nothing of the owner's.
    let named: Vec<String> = ids_in(&before).into_iter().collect();
    for registered in registry() {
        let op = &registered.operation;
        let makes =
            op.method == Method::Post && op.params.is_empty() && op.place == Place::Workspace;
        if !makes {
            continue;
        }
        // It takes an address, not an id: the other has suppressed another one.
        if op.id == "release_suppression" {
            let reply = other.post(op.path, json!({"address": SUPPRESSED})).await;
            assert_eq!(reply.expect(200)["lifted"], json!(false));
            tried.insert(op.id);
            continue;
        }
        // One that is no list's: this walk does not know what to ask it with, and fails here.
        for item in items(&owner, op.path).await {
            let body = registered.body.as_ref().map(|s| body_for(&s.schema, &item));
            let reply = other.send(method(op), op.path, body, &[]).await;
            assert!(
                matches!(reply.status, 201 | 400 | 409),
                "{}: {} {:#}",
                op.id,
                reply.status,
                reply.body
            );
            let said = reply.body.to_string();
            let reached = reply.status == 201 && named.iter().any(|id| said.contains(id));
            assert!(!reached, "{}: {said}", op.id);
        }
        tried.insert(op.id);
    }
    assert!(
        cursors >= 2 && filters >= 20,
        "{cursors} cursors and {filters} filters were tried"
    );
    for op in registry().iter().map(|r| &r.operation) {
        assert!(
            op.place == Place::Actor || tried.contains(op.id),
            "{} was not tried",
            op.id
        );
    }
    assert_eq!(
        everything(&owner).await,
        before,
        "an attempt changed something"
    );
    assert!(
        !serde_json::to_string(&everything(&other).await)
            .unwrap()
            .contains(&secret)
    );
}

/// Ids of things, long enough to be nothing else by chance.
fn ids_in(all: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let lists = all.as_object().into_iter().flat_map(Map::values);
    for item in lists.filter_map(Value::as_array).flatten() {
        let id = item.get("id").and_then(Value::as_str).unwrap_or_default();
        if id.len() >= 12 {
            found.insert(id.to_owned());
        }
    }
    found
}

/// All lists of a workspace, use of keys apart.
async fn everything(c: &Caller) -> Value {
    let mut all = Map::new();
    for registered in registry()
        .iter()
        .filter(|r| r.operation.list && r.operation.place == Place::Workspace)
    {
        let mut items = c.all(registered.operation.path).await;
        items
            .iter_mut()
            .filter_map(Value::as_object_mut)
            .for_each(|o| {
                o.remove("last_used_at");
            });
        all.insert(registered.operation.id.to_owned(), Value::Array(items));
    }
    Value::Object(all)
}

#[actix_rt::test]
async fn bodies_cannot_name_what_is_another_workspaces() {
    let api = Api::start().await;
    let (_, owner) = api.tenant("alpha").await;
    let (_, other) = api.tenant("beta").await;
    let (network, offer, _) = set_up(&owner, "spring").await;
    let problem = other
        .post(
            "/v1/offers",
            json!({"name": "x", "url_template": "https://x.example/", "network_id": network}),
        )
        .await
        .refused(400, "invalid");
    assert_eq!(problem["errors"][0]["code"], "unknown_network");
    let routing = json!({"offers": [{"offer": offer}], "sidecar_offers": [{"offer": offer, "network": network, "network_offer_id": "1"}]});
    let problem = other
        .post("/v1/campaigns", json!({"name": "x", "routing": routing}))
        .await
        .refused(400, "invalid");
    let codes: Vec<_> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["code"].as_str().unwrap())
        .collect();
    assert_eq!(codes, ["unknown_offer", "unknown_offer", "unknown_network"]);
    let pixel = id_of(&owner.all("/v1/pixels").await[0]);
    let problem = other
        .post(
            "/v1/campaigns",
            json!({"name": "x", "routing": {"pixels": [{"pixel": pixel}]}}),
        )
        .await
        .refused(400, "invalid");
    assert_eq!(problem["errors"][0]["code"], "unknown_pixel");
    // Public ids are the deployment's: taken is taken.
    other
        .post(
            "/v1/campaigns",
            json!({"id": "spring", "name": "x", "routing": {}}),
        )
        .await
        .refused(409, "id_taken");
    // A key is pinned, whatever the header says.
    other
        .send(
            reqwest::Method::GET,
            "/v1/campaigns",
            None,
            &[("x-workspace", "alpha")],
        )
        .await
        .refused(403, "workspace_pinned");
    other
        .send(
            reqwest::Method::GET,
            "/v1/campaigns",
            None,
            &[("x-workspace", "beta")],
        )
        .await
        .expect(200);
}
