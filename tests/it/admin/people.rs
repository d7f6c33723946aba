//! Users, links, preferences, segments, rules, triggers and reach over the admin API.

use super::{Api, Caller, id_of};
use millrace::directory::seeds;
use millrace::modules::{Modules, shipped};
use millrace_schemas::time::Micros;
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;

const AIRDROP: &str = "survival.airdrop.incoming";
const RAIDED: &str = "survival.base.raided";
const UPKEEP: &str = "survival.base.upkeep_low";
const REPORT: &str = "survival.report.filed";

/// What the API of these tests knows.
pub fn modules() -> Arc<Modules> {
    Arc::new(shipped::load(&["survival".to_owned()], None).expect("the shipped manifest"))
}

/// One of each kind that a workspace may have.
pub async fn one_of_each(c: &Caller) {
    let user = c
        .post(
            "/v1/users",
            json!({"name": "Ada", "email": "ada@example.org", "role": "editor"}),
        )
        .await
        .expect(201);
    c.post(
        "/v1/account-links",
        json!({"module": "survival", "shard": "north", "account": "0042", "user_id": user["id"]}),
    )
    .await
    .expect(201);
    let segment = c
        .post(
            "/v1/segments",
            json!({"name": "Linked", "expression": {"audience": "survival.linked.accounts"}}),
        )
        .await
        .expect(201);
    c.post(
        "/v1/rules",
        json!({"trigger_id": "survival.clan.leader_changed", "name": "Leaders", "channels": ["email"], "segment_id": segment["id"]}),
    )
    .await
    .expect(201);
}

/// The codes and paths of a refusal.
fn faults(problem: &Value) -> Vec<(&str, &str)> {
    let all = problem["errors"].as_array().expect("errors");
    all.iter()
        .map(|e| (e["code"].as_str().unwrap(), e["path"].as_str().unwrap()))
        .collect()
}

#[actix_rt::test]
async fn an_address_is_one_users() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let make =
        async |id: &str, email: &str| c.post("/v1/users", json!({"id": id, "email": email})).await;
    make("a", "Foo@x.com").await.expect(201);
    make("b", "foo@X.com").await.refused(409, "email_taken");
    make("c", "josé@x.com").await.expect(201);
    make("d", "jose@x.com").await.expect(201);
    make("e", "JOSÉ@x.com").await.refused(409, "email_taken");
    make("a", "other@x.com").await.refused(409, "id_taken");
    let problem = make("f", "nobody").await.refused(400, "invalid");
    assert_eq!(faults(&problem), [("malformed", "/email")]);
    // Another workspace has its own people.
    let (_, other) = api.tenant("beta").await;
    other
        .post("/v1/users", json!({"id": "a", "email": "foo@x.com"}))
        .await
        .expect(201);
    let found = c.all("/v1/users?email=FOO@x.com").await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["id"], "a");

    // A verified address that changes is not verified any more.
    c.patch("/v1/users/a", json!({"email_verified": true}))
        .await
        .expect(200);
    let moved = c
        .patch("/v1/users/a", json!({"email": "new@x.com"}))
        .await
        .expect(200);
    assert_eq!(
        (&moved["email_verified"], &moved["version"]),
        (&json!(false), &json!(3))
    );
    let problem = c
        .patch(
            "/v1/users/a",
            json!({"zone": "Nowhere/Atall", "email": null, "email_verified": true}),
        )
        .await
        .refused(400, "invalid");
    assert!(
        faults(&problem).contains(&("no_email", "/email_verified")),
        "{problem:#}"
    );
    // Whoever is deleted frees it.
    let gone = c
        .send(Method::DELETE, "/v1/users/a", None, &[("if-match", "*")])
        .await
        .expect(200);
    assert_eq!(
        (&gone["status"], &gone["email"]),
        (&json!("deleted"), &Value::Null)
    );
    make("g", "new@x.com").await.expect(201);
}

#[actix_rt::test]
async fn a_link_ends_and_is_remembered() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    for id in ["a", "b"] {
        c.post("/v1/users", json!({"id": id})).await.expect(201);
    }
    let link = async |user: &str| {
        let body = json!({"module": "survival", "shard": "north", "account": "1", "user_id": user});
        c.post("/v1/account-links", body).await
    };
    let first = link("a").await.expect(201);
    let second = link("b").await.expect(201);
    assert_eq!(second["live"], true);
    let path = |of: &Value| format!("/v1/account-links/{}", id_of(of));
    assert_eq!(c.get(&path(&first)).await.expect(200)["live"], false);
    let stale = format!("\"{}\"", second["version"].as_i64().unwrap() - 1);
    c.send(
        Method::DELETE,
        &path(&second),
        None,
        &[("if-match", &stale)],
    )
    .await
    .refused(412, "version_stale");
    let ended = c
        .send(Method::DELETE, &path(&second), None, &[("if-match", "*")])
        .await
        .expect(200);
    assert_eq!(ended["live"], false);
    assert!(ended["unlinked_at"].is_string());
    assert_eq!(c.all("/v1/account-links?live=true").await.len(), 0);
    assert_eq!(c.all("/v1/account-links?user_id=a").await.len(), 1);
    assert_eq!(link("a").await.expect(201)["live"], true);
    let body = json!({"module": "nothing", "shard": "north", "account": "1", "user_id": "z"});
    let problem = c
        .post("/v1/account-links", body)
        .await
        .refused(400, "invalid");
    assert_eq!(
        faults(&problem),
        [("unknown_user", "/user_id"), ("unknown_module", "/module")]
    );
}

#[actix_rt::test]
async fn preferences_are_sparse_and_bounded_by_what_can_reach_the_user() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    c.post("/v1/users", json!({"id": "a"})).await.expect(201);
    c.post("/v1/users", json!({"id": "s", "role": "editor"}))
        .await
        .expect(201);
    let set = async |user: &str, one: Value| {
        c.post(
            &format!("/v1/users/{user}/preferences"),
            json!({"preferences": [one]}),
        )
        .await
    };
    set(
        "a",
        json!({"id": AIRDROP, "channel": "email", "mode": "instant"}),
    )
    .await
    .expect(200);
    let both = set(
        "a",
        json!({"id": AIRDROP, "channel": "push", "mode": "off"}),
    )
    .await
    .expect(200);
    assert_eq!(
        both["preferences"].as_array().map(Vec::len),
        Some(2),
        "{both:#}"
    );
    let changed = set(
        "a",
        json!({"id": AIRDROP, "channel": "email", "mode": "off"}),
    )
    .await
    .expect(200);
    assert_eq!(
        changed["preferences"][0]["mode"], "off",
        "an explicit off is kept"
    );
    set(
        "s",
        json!({"id": REPORT, "channel": "email", "mode": "instant"}),
    )
    .await
    .expect(200);
    for (one, code, path) in [
        (
            json!({"id": REPORT, "channel": "email", "mode": "instant"}),
            "out_of_reach",
            "/preferences/0/id",
        ),
        (
            json!({"id": "survival.nothing", "channel": "email", "mode": "off"}),
            "unknown_id",
            "/preferences/0/id",
        ),
        (
            json!({"id": RAIDED, "channel": "push", "mode": "instant"}),
            "no_stream",
            "/preferences/0/channel",
        ),
    ] {
        let problem = set("a", one).await.refused(400, "invalid");
        assert_eq!(faults(&problem), [(code, path)]);
    }
    set("nobody", json!({"channel": "email", "mode": "off"}))
        .await
        .refused(404, "not_found");
}

#[actix_rt::test]
async fn each_refusal_of_a_rule_has_its_name() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let staff = c
        .post(
            "/v1/segments",
            json!({"name": "Staff", "expression": {"audience": "staff"}}),
        )
        .await
        .expect(201);
    let good = json!({"trigger_id": UPKEEP, "name": "Upkeep", "channels": ["email", "inapp"], "delay_s": 900,
        "cancel_on": [RAIDED], "template_keys": {"digest": "survival.upkeep"}});
    for (change, code, path) in [
        (
            json!({"trigger_id": "survival.nothing"}),
            "unknown_trigger",
            "/trigger_id",
        ),
        (json!({"channels": []}), "too_short", "/channels"),
        (
            json!({"channels": ["pigeon"]}),
            "unknown_channel",
            "/channels/0",
        ),
        (
            json!({"channels": ["email", "email"]}),
            "repeated",
            "/channels/1",
        ),
        (json!({"channels": ["push"]}), "no_stream", "/channels/0"),
        (
            json!({"audience": "everybody"}),
            "unknown_audience",
            "/audience",
        ),
        (
            json!({"audience": "everyone"}),
            "wider_than_ceiling",
            "/audience",
        ),
        // Fewer people are not less exposure.
        (
            json!({"audience": "staff"}),
            "wider_than_ceiling",
            "/audience",
        ),
        (
            json!({"segment_id": staff["id"]}),
            "wider_than_ceiling",
            "/segment_id",
        ),
        (
            json!({"segment_id": "sg_nothing"}),
            "unknown_segment",
            "/segment_id",
        ),
        (
            json!({"audience": "owner", "segment_id": staff["id"]}),
            "audience_and_segment",
            "/segment_id",
        ),
        (
            json!({"conditions": {"var": "nothing", "cmp": "eq", "value": 1}}),
            "undeclared_variable",
            "/conditions/var",
        ),
        (
            json!({"conditions": {"var": "base", "cmp": "gt", "value": 1}}),
            "operator_type",
            "/conditions/cmp",
        ),
        (
            json!({"conditions": {"var": "base", "cmp": "eq", "value": 1}}),
            "literal_type",
            "/conditions/value",
        ),
        (
            json!({"conditions": {"op": "and", "nodes": []}}),
            "malformed",
            "/conditions/nodes",
        ),
        (
            json!({"cancel_on": ["survival.nothing"]}),
            "unknown_trigger",
            "/cancel_on/0",
        ),
        (
            json!({"cancel_on": [UPKEEP]}),
            "cancels_itself",
            "/cancel_on/0",
        ),
        (
            json!({"cancel_on": [AIRDROP]}),
            "other_subject",
            "/cancel_on/0",
        ),
        (
            json!({"template_keys": {"pigeon": "x"}}),
            "unknown_channel",
            "/template_keys/pigeon",
        ),
        (
            json!({"template_keys": {"email": "a_b"}}),
            "malformed",
            "/template_keys/email",
        ),
        (json!({"delay_s": -1}), "out_of_range", "/delay_s"),
        (json!({"enabled": true}), "unknown_field", "/enabled"),
        (json!({"name": " "}), "invalid_name", "/name"),
    ] {
        let mut body = good.clone();
        body.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let problem = c.post("/v1/rules", body).await.refused(400, "invalid");
        assert_eq!(faults(&problem), [(code, path)], "{change}");
    }
    let rule = c.post("/v1/rules", good).await.expect(201);
    assert_eq!(
        (&rule["enabled"], &rule["dormant"], &rule["ceiling"]),
        (&json!(false), &json!([]), &json!("owner"))
    );
    let problem = c
        .patch(
            &format!("/v1/rules/{}", id_of(&rule)),
            json!({"trigger_id": RAIDED}),
        )
        .await
        .refused(400, "invalid");
    assert_eq!(faults(&problem), [("fixed", "/trigger_id")]);
}

#[actix_rt::test]
async fn the_switch_writes_one_column_whatever_became_of_the_rule() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let rule = c
        .post(
            "/v1/rules",
            json!({"trigger_id": AIRDROP, "name": "Airdrops", "channels": ["push"]}),
        )
        .await
        .expect(201);
    let path = format!("/v1/rules/{}", id_of(&rule));
    // Its module is gone, so is its channel.
    let store = api.database.client().await;
    store
        .execute(
            "UPDATE rules SET trigger_id = 'gone.trigger', channels = '{pigeon}'",
            &[],
        )
        .await
        .unwrap();
    let row = "SELECT to_jsonb(rules) - 'enabled' FROM rules";
    let before: Value = store.query_one(row, &[]).await.unwrap().get(0);
    c.patch(&path, json!({"name": "x"}))
        .await
        .refused(400, "invalid");
    for (turn, on) in [("enable", true), ("enable", true), ("disable", false)] {
        let turned = c.post(&format!("{path}/{turn}"), json!({})).await;
        let turned = if turned.status == 400 {
            c.send(Method::POST, &format!("{path}/{turn}"), None, &[])
                .await
        } else {
            turned
        };
        assert_eq!(turned.expect(200)["enabled"], on);
        let after: Value = store.query_one(row, &[]).await.unwrap().get(0);
        assert_eq!(after, before);
    }
    let listed = &c.all("/v1/rules").await[0];
    assert_eq!(
        listed["dormant"][0]["code"], "unknown_trigger",
        "listed and flagged: {listed:#}"
    );
    assert_eq!(
        c.get(&format!("{path}/reach")).await.expect(200)["reason"],
        "dormant"
    );
    let catalogue = c.get("/v1/triggers").await.expect(200);
    let gone = catalogue["triggers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|t| t["id"] == "gone.trigger");
    assert_eq!(
        gone.map(|t| (&t["dormant"], &t["rules"])),
        Some((&json!(true), &json!(1)))
    );
    let raided = catalogue["triggers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|t| t["id"] == RAIDED)
        .unwrap();
    assert_eq!(raided["declared"]["permits"], json!(["owner"]));
    c.send(Method::DELETE, &path, None, &[("if-match", "*")])
        .await
        .expect(200);
    assert!(c.all("/v1/rules").await.is_empty());
}

#[actix_rt::test]
async fn segments_are_bounded_and_kept_while_rules_use_them() {
    let api = Api::start().await;
    let (_, c) = api.tenant("acme").await;
    let linked = json!({"audience": "survival.linked.accounts"});
    let not_staff = json!({"op": "not", "nodes": [{"audience": "staff"}]});
    let save = async |expression: Value| {
        c.post(
            "/v1/segments",
            json!({"name": "S", "expression": expression}),
        )
        .await
    };
    for (expression, code) in [
        (not_staff.clone(), "bare_not"),
        (
            json!({"op": "or", "nodes": [linked, not_staff]}),
            "bare_not",
        ),
        (
            json!({"op": "or", "nodes": [linked, {"audience": "staff"}]}),
            "incomparable",
        ),
        (json!({"audience": "survival.nothing"}), "unknown_audience"),
        (
            json!({"audience": "survival.clan.members"}),
            "param_missing",
        ),
        (
            json!({"audience": "survival.clan.members", "params": {"clan": 7}}),
            "param_wrong_type",
        ),
        (
            json!({"audience": "staff", "params": {"clan": "7"}}),
            "param_unknown",
        ),
        (json!({"audience": "owner"}), "unknown_audience"),
    ] {
        let problem = save(expression.clone()).await.refused(400, "invalid");
        assert_eq!(faults(&problem)[0].0, code, "{expression}");
    }
    let segment = save(json!({"op": "and", "nodes": [linked, not_staff]}))
        .await
        .expect(201);
    assert_eq!(
        (&segment["ceiling"], &segment["rules"]),
        (&json!("members"), &json!(0))
    );
    let rule = json!({"trigger_id": "survival.clan.leader_changed", "name": "R", "channels": ["email"], "segment_id": segment["id"]});
    c.post("/v1/rules", rule).await.expect(201);
    let path = format!("/v1/segments/{}", id_of(&segment));
    let refused = c
        .send(Method::DELETE, &path, None, &[("if-match", "*")])
        .await
        .refused(409, "in_use");
    assert_eq!(
        (&refused["rules"], &refused["detail"]),
        (&json!(1), &json!("1 rule still uses it"))
    );

    // Its audience is declared by nobody any more: flagged in both lists, never another set.
    let store = api.database.client().await;
    store
        .execute(
            "UPDATE segments SET expression = '{\"audience\": \"gone.players\"}'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        c.get(&path).await.expect(200)["dormant"],
        json!(["gone.players"])
    );
    assert_eq!(
        c.all("/v1/rules").await[0]["dormant"][0]["code"],
        "dormant_segment"
    );
    let reach = c.get(&format!("{path}/reach")).await.expect(200);
    assert_eq!(
        (&reach["count"], &reach["reason"], &reach["permitted"]),
        (&json!(0), &json!("dormant"), &json!(false))
    );
}

#[actix_rt::test]
async fn reach_is_a_count_and_says_what_stands_in_its_way() {
    let api = Api::start().await;
    let (a, c) = api.tenant("acme").await;
    let (_, other) = api.tenant("beta").await;
    for (id, body) in [
        (
            "ada",
            json!({"email": "ada@x.com", "email_verified": true, "role": "admin"}),
        ),
        ("bob", json!({"email": "bob@x.com"})),
        ("cyd", json!({"status": "disabled", "role": "editor"})),
        ("dan", json!({"role": "editor"})),
    ] {
        let mut body = body;
        body["id"] = json!(id);
        c.post("/v1/users", body).await.expect(201);
    }
    for (id, mode) in [("bob", "instant"), ("ada", "off"), ("cyd", "instant")] {
        let one = json!({"preferences": [{"id": AIRDROP, "channel": "email", "mode": mode}]});
        c.post(&format!("/v1/users/{id}/preferences"), one)
            .await
            .expect(200);
    }
    let reach = async |query: &str| c.get(&format!("/v1/reach?{query}")).await.expect(200);
    let all = reach(&format!(
        "trigger_id={AIRDROP}&audience=authenticated&channels=email,push,inapp"
    ))
    .await;
    assert_eq!(
        (&all["count"], &all["permitted"], &all["capped"]),
        (&json!(3), &json!(true), &json!(false))
    );
    assert_eq!(
        all["ineligible"],
        json!({"email": 2, "inapp": 0, "push": 3})
    );
    // An address that is suppressed, however it is written, is one that no mail goes to.
    let dead = json!({"address": "ADA@x.com"});
    c.post("/v1/suppressions", dead).await.expect(201);
    let mail = reach(&format!(
        "trigger_id={AIRDROP}&audience=authenticated&channels=email"
    ))
    .await;
    assert_eq!(
        (&mail["count"], &mail["ineligible"]),
        (&json!(3), &json!({"email": 3}))
    );
    assert_eq!(
        reach(&format!("trigger_id={AIRDROP}")).await["count"],
        1,
        "who subscribed and is active"
    );
    assert_eq!(reach(&format!("trigger_id={REPORT}")).await["count"], 2);
    let owner = reach(&format!("trigger_id={RAIDED}")).await;
    assert_eq!(
        (&owner["count"], &owner["reason"], &owner["permitted"]),
        (&json!(0), &json!("no_owner"), &json!(true))
    );
    let wide = reach(&format!("trigger_id={RAIDED}&audience=everyone")).await;
    assert_eq!(
        (&wide["count"], &wide["permitted"]),
        (&json!(3), &json!(false))
    );
    assert!(!all.to_string().contains("ada"), "never names: {all:#}");
    // The owner's segment is nobody else's.
    let segment = c
        .post(
            "/v1/segments",
            json!({"name": "S", "expression": {"audience": "staff"}}),
        )
        .await
        .expect(201);
    let query = format!("trigger_id={REPORT}&segment_id={}", id_of(&segment));
    assert_eq!(reach(&query).await["count"], 2);
    let problem = other
        .get(&format!("/v1/reach?{query}"))
        .await
        .refused(400, "invalid");
    assert_eq!(faults(&problem), [("unknown_segment", "?segment_id")]);
    // More than ever are told.
    let store = api.database.client().await;
    store
        .execute(
            "INSERT INTO users (workspace_id, user_id, changed_at) SELECT $1, 'many' || n, now() FROM generate_series(1, 5000) AS n",
            &[&a],
        )
        .await
        .unwrap();
    let many = reach(&format!("trigger_id={AIRDROP}&audience=everyone")).await;
    assert_eq!(
        (&many["count"], &many["capped"]),
        (&json!(5000), &json!(true))
    );
}

#[actix_rt::test]
async fn rule_groups_are_seeded_once_and_disabled() {
    let api = Api::start().await;
    let (a, c) = api.tenant("acme").await;
    let mut store = api.database.client().await;
    let modules = modules();
    let wanted: usize = modules
        .iter()
        .flat_map(|m| &m.rule_groups)
        .map(|g| g.rules.len())
        .sum();
    let mut seeded = Vec::new();
    for only in [None, None, Some(a)] {
        let tx = store.transaction().await.unwrap();
        seeded.push(
            seeds::seed(&tx, &modules, only, Micros(1_790_000_000_000_000))
                .await
                .unwrap(),
        );
        tx.commit().await.unwrap();
    }
    assert_eq!(seeded, [wanted, 0, 0]);
    let rules = c.all("/v1/rules").await;
    assert_eq!(rules.len(), wanted);
    for rule in &rules {
        assert_eq!(
            (&rule["enabled"], &rule["dormant"]),
            (&json!(false), &json!([])),
            "{rule:#}"
        );
        assert!(rule["seeded_from"].is_string());
    }
    // What an operator deleted does not come back.
    let path = format!("/v1/rules/{}", id_of(&rules[0]));
    c.send(Method::DELETE, &path, None, &[("if-match", "*")])
        .await
        .expect(200);
    let tx = store.transaction().await.unwrap();
    assert_eq!(
        seeds::seed(&tx, &modules, None, Micros(1_790_000_000_000_001))
            .await
            .unwrap(),
        0
    );
    // Without a module there is nothing to seed.
    assert_eq!(
        seeds::seed(&tx, &Modules::default(), None, Micros(1))
            .await
            .unwrap(),
        0
    );
}
