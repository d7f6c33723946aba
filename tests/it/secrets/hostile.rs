//! Contacts and secrets in all the wrong places: whatever a request is refused for, neither the answer nor a log line nor a metric
//! says them again; and what another's producer puts into the log is kept whole, but never quoted.

use super::{Api, KEY, hex, tables};
use bytes::Bytes;
use millrace::api::registry::{Method, registry};
use millrace_tests::deployment::{Deployment, Log, PATIENCE};
use millrace_tests::process::{eventually, free_address};
use millrace_topics::catalogue;
use millrace_topics::contract::Outgoing;
use millrace_topics::pglog::{append_in, chunk};
use reqwest::RequestBuilder;
use serde_json::{Map, Value, json};

const CONTACTS: [&str; 4] = [
    "jane.doe@private.example",
    "4915155501234567",
    "198.51.100.77",
    "Janine-Unmistakable",
];

/// The text as it may stand in a URL.
fn in_url(text: &str) -> String {
    text.replace('@', "%40")
}

/// Requests to the doors that are refused (or kept and never booked) for what stands at a contact's place.
fn to_doors(api: &Api, secret: &str, contact: &str) -> Vec<RequestBuilder> {
    let base = format!("http://{}", api.at);
    let get = |path: String| api.http.get(format!("{base}{path}"));
    let beacon = |body: String| api.http.post(format!("{base}/e")).body(body);
    let batch = |what: &str, line: String| {
        let url = format!("{base}/v1/batch/{what}");
        api.http.post(url).bearer_auth(&api.key).body(line)
    };
    let url = in_url(contact);
    let long = contact.repeat(40);
    let mut all = vec![
        get(format!("/c/{url}")),
        get(format!("/c/spring?email={url}%00")),
        get(format!("/c/spring?email={}", in_url(&contact.repeat(900)))),
        get(format!("/pb?secret={url}&click_id={url}")),
        get(format!("/pb?secret={secret}&click_id=a&payout={url}")),
        get(format!("/pb?secret={secret}&click_id={}", in_url(&long))),
        get(format!("/pb?secret={secret}&click_id=a&txid={url}%07")),
        get(format!(
            "/pb?secret={secret}&click_id=a&provider_event_id={url}"
        )),
        get(format!(
            "/pb?secret={secret}&click_id=a&event={url}&event=b"
        )),
        beacon(format!("{{\"click_id\":\"{contact}")),
        beacon(format!("\"{contact}\"")),
        beacon(format!("[\"{contact}\",\"spring\"]")),
        beacon(json!({"click_id": "a", "link_id": contact}).to_string()),
        beacon(json!({"click_id": long, "link_id": "spring"}).to_string()),
        beacon(json!({"click_id": "a", "link_id": "spring", "stage": contact}).to_string()),
        beacon(
            json!({"click_id": "a", "link_id": "spring", "provider_click": contact}).to_string(),
        ),
        beacon(json!({"click_id": format!("{contact}\u{7}"), "link_id": "spring"}).to_string()),
        beacon(format!(
            "{{\"click_id\":\"a\",\"link_id\":\"spring\",\"x\":\"{contact}\\u0000\"}}"
        )),
        batch("visits", format!("{{\"id\":\"{contact}")),
        batch("visits?x", contact.to_owned()),
        api.http
            .post(format!("{base}/v1/batch/visits"))
            .bearer_auth(contact),
        api.http
            .post(format!("{base}/v1/batch/clicks"))
            .header("authorization", contact),
    ];
    let lines = [
        ("visits", json!({"campaign": contact})),
        ("visits", json!({"campaign": "spring", "stage": contact})),
        ("visits", json!({"campaign": "spring", "direct": contact})),
        (
            "visits",
            json!({"campaign": "spring", "ip": format!("{contact}x")}),
        ),
        (
            "visits",
            json!({"campaign": "spring", "occurred_at": contact}),
        ),
        (
            "visits",
            json!({"campaign": "spring", "params": {"email": {"is": contact}}}),
        ),
        ("visits", json!({"campaign": "spring", "journey": contact})),
        (
            "visits",
            json!({"campaign": "spring", "journey": {"offer": contact}}),
        ),
        (
            "visits",
            json!({"campaign": "spring", "journey": {"offer": {"id": "a", "payout": contact}}}),
        ),
        (
            "visits",
            json!({"campaign": "spring", "journey": {"pixels": contact}}),
        ),
        ("visits", json!({"campaign": "spring", contact: 1})),
        (
            "visits",
            json!({"campaign": "spring", "user_agent": contact.repeat(200)}),
        ),
        ("clicks", json!({"campaign": contact, "link_id": "spring"})),
        (
            "clicks",
            json!({"link_id": "spring", "click_id": format!("{contact}\u{1}")}),
        ),
        ("postbacks", json!({"network": contact})),
        (
            "postbacks",
            json!({"network": api.network, "payout": contact}),
        ),
        (
            "postbacks",
            json!({"network": api.network, "payout": [contact]}),
        ),
        (
            "postbacks",
            json!({"network": api.network, "provider_event_id": contact}),
        ),
        (
            "postbacks",
            json!({"network": api.network, "txid": [contact]}),
        ),
    ];
    for (what, mut line) in lines {
        line["id"] = json!("1");
        all.push(batch(what, line.to_string()));
    }
    all
}

/// Requests to every operation with a contact wherever a value is read: path, query, headers, each member of the body.
fn to_operations(api: &Api, contact: &str) -> Vec<RequestBuilder> {
    let mut all = Vec::new();
    for registered in registry() {
        let op = &registered.operation;
        let mut path = op.path.to_owned();
        for parameter in op.params {
            path = path.replace(&format!("{{{}}}", parameter.name), &in_url(contact));
        }
        let method = reqwest::Method::from_bytes(op.method.name().as_bytes()).expect("a method");
        let ask = |query: &str| {
            let url = format!("http://{}{path}{query}", api.at);
            api.http
                .request(method.clone(), url)
                .bearer_auth(&api.key)
                .header("if-match", "*")
        };
        let properties = |schema: &Value| -> Vec<String> {
            let names = schema["properties"].as_object();
            names
                .into_iter()
                .flatten()
                .map(|(n, _)| n.clone())
                .collect()
        };
        let mut names = properties(&registered.query.schema);
        names.extend(["cursor", "limit", "count", "dry_run"].map(str::to_owned));
        for name in names {
            all.push(ask(&format!("?{name}={}", in_url(contact))));
        }
        all.push(ask("").header("idempotency-key", contact));
        all.push(ask("").header("x-workspace", contact));
        let Some(schema) = &registered.body else {
            continue;
        };
        let json = |body: Value| {
            let request = ask("?dry_run=true").header("content-type", "application/json");
            request.body(body.to_string())
        };
        all.push(json(json!(contact)));
        all.push(json(json!([contact])));
        let names = properties(&schema.schema);
        for value in [
            json!(contact),
            json!([contact]),
            json!({"id": contact, "offer": contact}),
        ] {
            let mut members = Map::new();
            for name in &names {
                members.insert(name.clone(), value.clone());
                all.push(json(json!({name: value})));
            }
            all.push(json(Value::Object(members)));
        }
        if op.method == Method::Post {
            all.push(ask("").header("content-type", contact).body("{}"));
        }
    }
    // As deep as a routing goes.
    for member in ["offer", "pixel", "network"] {
        let routing = json!({"offers": [{member: contact, "offer": contact}], "pixels": [{"pixel": contact}],
            "sidecar_offers": [{"offer": contact, "network": contact, "network_offer_id": contact}]});
        let url = format!("http://{}/v1/campaigns", api.at);
        let body = json!({"id": contact, "name": "n", "routing": routing});
        all.push(api.http.post(url).bearer_auth(&api.key).json(&body));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_hostile_request_says_is_not_said_again() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let deployment = Deployment::start("hostile-secrets", Log::Postgres, 2)
        .await
        .unwrap();
    let store = deployment.store().await;
    let command = |name: &str, words: &[&str]| {
        let launch = deployment.launch(name).unwrap();
        launch
            .env("MILLRACE_SECRET_KEY", KEY)
            .args(words.iter().copied())
    };
    let words = ["workspace", "create", "acme", "--name", "Acme"];
    command("workspace", &words).run(PATIENCE).await.unwrap();
    let words = [
        "key",
        "create",
        "--workspace",
        "acme",
        "--name",
        "k",
        "--scopes",
        "full,ingest:write",
    ];
    let key = command("key", &words)
        .env("RUST_LOG", "off")
        .run(PATIENCE)
        .await
        .unwrap();
    let key = key
        .split_whitespace()
        .find(|w| w.starts_with("rk_"))
        .unwrap();
    let at = free_address().unwrap();
    let mut process = command("everything", &["run"])
        .env("RUST_LOG", "debug,millrace=trace,millrace_topics=trace")
        .setting("http.doors", at)
        .setting("http.admin", at)
        .setting("http.trusted_proxies", "127.0.0.0/8")
        .spawn()
        .unwrap();
    process
        .wait_for_log("millrace is up", PATIENCE)
        .await
        .unwrap();
    let mut api = Api {
        http: reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap(),
        at,
        key: key.to_owned(),
        network: String::new(),
    };
    let network = api.post("/v1/networks", json!({"name": "n"})).await;
    api.network = network["id"].as_str().unwrap().to_owned();
    let secret = network["secret"].as_str().unwrap().to_owned();
    let offer = json!({"name": "o", "network_id": network["id"], "url_template": "https://shop.example/?cid={click_id}"});
    let offer = api.post("/v1/offers", offer).await;
    let routing = json!({"offers": [{"offer": offer["id"]}]});
    api.post(
        "/v1/campaigns",
        json!({"id": "spring", "name": "s", "routing": routing}),
    )
    .await;
    let door = format!(
        "http://{at}/c/spring?email=jane.doe%40private.example&first_name=Janine-Unmistakable&phone=4915155501234567"
    );
    // What is right comes with contacts too, from a contact's address: stored, and told to nobody.
    eventually(
        "the door knows the campaign and the network",
        PATIENCE,
        async || {
            let asked = api.http.get(&door).header("x-forwarded-for", CONTACTS[2]);
            let visited = asked.send().await?.status() == 302;
            let paid = api.http.get(format!(
                "http://{at}/pb?secret={secret}&click_id=jane.doe%40private.example&payout=1"
            ));
            Ok((visited && paid.send().await?.status() == 200).then_some(()))
        },
    )
    .await
    .unwrap();

    let mut sinks: Vec<(String, String)> = Vec::new();
    let mut refused = 0;
    for contact in CONTACTS {
        let mut requests = to_doors(&api, &secret, contact);
        requests.extend(to_operations(&api, contact));
        for request in requests {
            let request = request
                .header("x-forwarded-for", CONTACTS[2])
                .build()
                .unwrap();
            let what = format!("{} {}", request.method(), request.url());
            let answer = api.http.execute(request).await.unwrap();
            let status = answer.status();
            assert!(!status.is_server_error(), "{status} for {what}");
            // An answer that is no error may show an object to whoever made it.
            if status.is_client_error() {
                refused += 1;
                sinks.push((format!("{status} for {what}"), answer.text().await.unwrap()));
            }
        }
    }
    assert!(refused > 1_000, "{refused} refusals");

    // Another's producer: no JSON, no record, a member of the wrong kind; with a contact and the API key in each.
    let topics = catalogue::load(&store).await.unwrap();
    let api_secret = key.split_once('.').unwrap().1;
    let poison: Vec<Outgoing> = [
        format!("{} {api_secret}", CONTACTS[0]),
        format!("{{\"v\":\"{}\",\"kind\":\"{api_secret}\"}}", CONTACTS[1]),
        json!({"v": 1, "kind": "visit", "workspace": 1, "click_id": CONTACTS[0], "accepted_at": CONTACTS[3]}).to_string(),
        json!({"v": 1, "kind": CONTACTS[3], "workspace": 1, "click_id": "a", "accepted_at": 1}).to_string(),
    ]
    .into_iter()
    .map(|payload| Outgoing {
        topic_no: topics.iter().find(|t| t.name == catalogue::CLICKS).unwrap().no,
        key: Bytes::from_static(b"1:poison"),
        payload: payload.into(),
    })
    .collect();
    let mut client = deployment.store().await;
    let tx = client.transaction().await.unwrap();
    append_in(&tx, &topics, &poison).await.unwrap();
    tx.commit().await.unwrap();
    let sql = "SELECT (SELECT sum(next_offset)::bigint FROM log_heads), (SELECT sum(consumed)::bigint FROM positions),
                      (SELECT count(*) FROM dead_letters)";
    eventually("everything is consumed", PATIENCE, async || {
        let row = store.query_one(sql, &[]).await?;
        let (produced, consumed, dead): (i64, Option<i64>, i64) =
            (row.get(0), row.get(1), row.get(2));
        Ok((consumed == Some(produced) && dead == 4).then_some(()))
    })
    .await
    .unwrap_or_else(|e| panic!("{e}\n{}", deployment.last_words()));

    // What is written about records, not the records themselves.
    for row in store
        .query(
            "SELECT reason || ' ' || coalesce(detail, '') FROM dead_letters",
            &[],
        )
        .await
        .unwrap()
    {
        sinks.push(("words about a dead letter".to_owned(), row.get(0)));
    }
    for (table, columns) in [("ownership", "*"), ("outcomes", "*"), ("send_log", "*")] {
        for row in store
            .query(
                &format!("SELECT t::text FROM (SELECT {columns} FROM {table}) t"),
                &[],
            )
            .await
            .unwrap()
        {
            sinks.push((format!("table {table}"), row.get(0)));
        }
    }
    for path in [
        "/metrics",
        "/healthz",
        "/readyz",
        "/v1/destinations",
        "/v1/keys",
    ] {
        sinks.push((path.to_owned(), api.get(path).await));
    }
    for words in [
        &["dlq", "list"][..],
        &["outbox", "list"],
        &["doctor"],
        &["lag"],
    ] {
        let name = format!("terminal-{}", words[0]);
        let mut run = command(&name, words)
            .env("RUST_LOG", "trace")
            .spawn()
            .unwrap();
        run.wait(PATIENCE).await.unwrap();
    }
    process.signal(15);
    process.wait(PATIENCE).await.unwrap();
    for entry in std::fs::read_dir(deployment.scratch.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && path.file_name().is_some_and(|n| n != "key.log") {
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            sinks.push((path.display().to_string(), text));
        }
    }
    for (sink, text) in &sinks {
        for said in CONTACTS.iter().chain([&&*secret, &api_secret]) {
            let found =
                text.contains(said) || text.contains(&in_url(said)) || text.contains(&hex(said));
            assert!(
                !found,
                "`{}…` stands in {sink}:\n{}",
                &said[..6],
                around(text, said)
            );
        }
    }

    // The topics: every record as it is, without the network's secret; the visit is there with its contacts.
    let mut records = String::new();
    for row in store
        .query("SELECT records FROM log_chunks", &[])
        .await
        .unwrap()
    {
        let bytes: Vec<u8> = row.get(0);
        for record in chunk::records(&bytes).unwrap() {
            let (key, payload) = record.unwrap();
            records.push_str(&String::from_utf8_lossy(key));
            records.push(' ');
            records.push_str(&String::from_utf8_lossy(payload));
            records.push('\n');
        }
    }
    assert!(
        !records.contains(&secret),
        "the secret of a network stands in a topic"
    );
    let own: Vec<&str> = records.lines().filter(|l| !l.contains("poison")).collect();
    assert!(
        own.iter().all(|l| !l.contains(api_secret)),
        "an API key stands in a topic"
    );
    assert!(
        own.iter().any(|l| l.contains(CONTACTS[0])),
        "the search finds what is there"
    );
    for (table, text) in tables(&store).await {
        assert!(
            !text.contains(&secret) && !text.contains(&hex(&secret)),
            "a secret stands in {table}"
        );
    }
}

/// The line that a text stands in.
fn around(text: &str, said: &str) -> String {
    let line = text
        .lines()
        .find(|l| l.contains(said) || l.contains(&in_url(said)));
    line.unwrap_or(text).chars().take(600).collect()
}
