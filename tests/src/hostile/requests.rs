//! One hostile request after another from a seed: a route of the registry, a valid request to it, something wrong with it.

use super::mutation::{garble, query_part, render};
use super::sample::{Known, sample};
use super::wire::Manner;
use crate::generator::Rng;
use millrace::api::registry::{EXEMPT, Method, Registered, registry};
use serde_json::{Value, json};
use std::sync::Arc;

/// What requests may name.
#[derive(Clone, Debug)]
pub struct Names {
    /// Keys: a full one, one that may only feed, one of the deployment.
    pub keys: Vec<String>,
    /// The secret of the network in use.
    pub secret: String,
    /// That network.
    pub network: String,
    /// Shards, each with a token of its feed.
    pub feeds: Vec<(String, String)>,
    /// Kinds of frames and bodies, as a shard says them.
    pub frames: Vec<(String, Value)>,
    /// Signed tokens of links in mails.
    pub links: Vec<String>,
    /// What else.
    pub known: Known,
}

/// A request as it goes over the wire.
#[derive(Debug)]
pub struct Request {
    /// `METHOD path`, as the registry has it.
    pub route: String,
    /// All of it.
    pub bytes: Vec<u8>,
    /// How it is sent.
    pub manner: Manner,
    /// How many records it may become at most.
    pub records: u64,
    /// Whether it is a batch.
    pub batch: bool,
    /// How many frames it may become at most.
    pub frames: u64,
    /// Whether it brings a door a body, whole.
    pub to_a_door: bool,
}

/// Doors that read a body, and pages that are posted to.
const WITH_BODY: &[&str] = &[
    "click_door",
    "postback_door",
    "batch_visits",
    "batch_clicks",
    "batch_postbacks",
    "feed_door",
    "unsubscribe",
    "unsubscribe_public",
    "unsubscribe_team",
];

/// What is asked.
enum Route {
    Operation(&'static Registered),
    /// Id and path of what is no operation.
    Other(&'static str, &'static str, &'static [Method]),
}

/// Makes requests.
pub struct Maker {
    rng: Rng,
    names: Arc<Names>,
    doors: Vec<Route>,
    with_body: Vec<Route>,
    operations: Vec<Route>,
    /// Which of the shards this request is of.
    feed: usize,
}

/// Headers that are odd wherever they stand.
const ODD_HEADERS: &[&str] = &[
    "content-encoding: gzip",
    "content-encoding: identity",
    "content-encoding: br, gzip",
    "accept-encoding: \u{1}",
    "host: ",
    "host: a b",
    "host: evil.example",
    "if-match: *",
    "if-match: \"1\"",
    "if-match: W/\"1\", x",
    "idempotency-key: a",
    "idempotency-key: é",
    "x-request-id: abcdefgh",
    "x-request-id: ../..",
    "x-workspace: acme",
    "x-workspace: other",
    "x-forwarded-for: 1.2.3.4",
    "x-forwarded-for: , ,;junk",
    "cookie: _fbp=fb.1.1558571054389.1; _fbc=x",
    "cookie: =;=;;;",
    "user-agent: \"'<script>",
    "purpose: prefetch",
    "range: bytes=0-0,-1",
    "expect: 100-continue",
    "accept: */*;q=x",
    "if-none-match: *",
    "te: trailers",
    "forwarded: for=\"[::1]\"",
    "x-http-method-override: DELETE",
    "authorization: Basic YTpi",
    "date: never",
    "max-forwards: 0",
    "content-language: \t",
];

/// Methods that nobody asked for.
const METHODS: &[&str] = &[
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "LOCK", "get",
];

const CONTENT_TYPES: &[&str] = &[
    "application/json",
    "application/json; charset=utf-8",
    "application/json;charset=utf-16",
    "application/merge-patch+json",
    "application/x-www-form-urlencoded",
    "text/plain",
    "multipart/form-data; boundary=x",
    "application/x-ndjson",
    "",
    "/",
    "application/json, text/html",
];

impl Maker {
    /// From a seed.
    pub fn new(seed: u64, names: Arc<Names>) -> Maker {
        Maker {
            rng: Rng::new(seed),
            names,
            doors: EXEMPT
                .iter()
                .map(|e| Route::Other(e.id, e.path, e.methods))
                .collect(),
            with_body: EXEMPT
                .iter()
                .filter(|e| WITH_BODY.contains(&e.id))
                .map(|e| Route::Other(e.id, e.path, e.methods))
                .collect(),
            operations: registry().iter().map(Route::Operation).collect(),
            feed: 0,
        }
    }

    /// The next one.
    pub fn next(&mut self) -> Request {
        let all = match self.rng.below(4) {
            0 => &self.operations,
            1 => &self.doors,
            _ => &self.with_body,
        };
        // A route is taken out of its list while it is made use of, so that the maker itself stays free.
        let at = self.rng.below(all.len() as u64) as usize;
        match &all[at] {
            Route::Operation(registered) => {
                let registered = *registered;
                self.operation(registered)
            }
            Route::Other(id, path, methods) => {
                let (id, path, methods) = (*id, *path, *methods);
                self.other(id, path, methods)
            }
        }
    }

    fn method(&mut self, method: &'static str) -> &'static str {
        if self.rng.one_in(60) {
            return self.rng.pick::<&str>(METHODS);
        }
        method
    }

    fn path(&mut self, pattern: &str) -> String {
        let mut out = String::new();
        for part in pattern.split('/').skip(1) {
            out.push('/');
            if !part.starts_with('{') {
                out.push_str(part);
                continue;
            }
            let own = match part {
                "{campaign}" => "spring".to_owned(),
                "{shard}" => self.names.feeds[self.feed].0.clone(),
                "{token}" => self.link(),
                _ if self.names.known.ids.is_empty() => "1-0-5".to_owned(),
                _ => self.rng.pick(&self.names.known.ids).clone(),
            };
            let odd = [
                "1-0-5",
                "%00",
                "..",
                "%2e%2e%2f",
                "a%0ab",
                "-1",
                "018f0000-0000-7000-8000-000000000000",
                "%ff%fe",
                "1-0-99999999999999999999",
            ];
            let part = match self.rng.below(10) {
                0 => (*self.rng.pick(&odd)).to_owned(),
                1 => query_part(&mut self.rng, &own),
                _ => own,
            };
            // What would end the path, or leave it.
            out.extend(part.chars().filter(|c| !"?/#".contains(*c)));
        }
        out
    }

    /// A token of a link: as it was signed, or another letter in it.
    fn link(&mut self) -> String {
        let mut token = self.rng.pick(&self.names.links).clone().into_bytes();
        if self.rng.one_in(3) {
            let at = self.rng.below(token.len() as u64) as usize;
            token[at] = *self.rng.pick(b"AZaz09-_.");
        }
        if self.rng.one_in(40) {
            token.truncate(self.rng.below(token.len() as u64) as usize);
        }
        String::from_utf8_lossy(&token).into_owned()
    }

    /// What a shard's sidecar would say, made wrong here and there: a hello and frames, one a line, and how many lines.
    fn session(&mut self) -> (Vec<u8>, u64) {
        let boot = match self.rng.below(4) {
            0 => "b".to_owned(),
            _ => format!("b{}", self.rng.below(1 << 40)),
        };
        let hello = json!({"type": "hello", "protocol": 5, "boot": boot, "seq": 0});
        let mut lines = Vec::new();
        if !self.rng.one_in(40) {
            lines.push(hello);
        }
        let mut seq = 0;
        for _ in 0..self.rng.below(8) {
            seq += match self.rng.below(40) {
                0 => 0,
                1 => 2,
                _ => 1,
            };
            let (kind, body) = self.rng.pick(&self.names.frames).clone();
            lines.push(json!({"seq": seq, "kind": kind, "body": body}));
        }
        let rate = *self.rng.pick(&[20, 60, 400]);
        let mut out = Vec::new();
        for line in &lines {
            render(&mut self.rng, line, rate, &mut out);
            out.extend_from_slice(self.rng.pick(&["\n", "\n", "\r\n", "\n \n"]).as_bytes());
        }
        if self.rng.one_in(15) {
            garble(&mut self.rng, &mut out);
        }
        let lines = out.split(|b| *b == b'\n').count() as u64;
        (out, lines)
    }

    fn query(&mut self, pairs: &[(String, String)]) -> String {
        let mut out = String::new();
        for (name, value) in pairs {
            if self.rng.one_in(12) {
                continue;
            }
            for _ in 0..=u64::from(self.rng.one_in(20)) {
                out.push(if out.is_empty() { '?' } else { '&' });
                let name = if self.rng.one_in(15) {
                    query_part(&mut self.rng, name)
                } else {
                    name.clone()
                };
                let value = if self.rng.one_in(4) {
                    query_part(&mut self.rng, value)
                } else {
                    value.clone()
                };
                out.push_str(&format!("{name}={value}"));
            }
        }
        if self.rng.one_in(200) {
            let many: String = (0..400).map(|n| format!("&p{n}=1")).collect();
            out.push_str(if out.is_empty() { "?a=1" } else { "" });
            out.push_str(&many);
        }
        out.replace(' ', "%20")
    }

    fn operation(&mut self, registered: &'static Registered) -> Request {
        let op = &registered.operation;
        let path = self.path(op.path);
        let properties = registered.query.schema["properties"].as_object();
        let mut pairs: Vec<(String, String)> = properties
            .into_iter()
            .flatten()
            .map(|(name, schema)| {
                let value = sample(&mut self.rng, schema, &self.names.known, 1);
                let text = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                let plain: String = text
                    .bytes()
                    .map(|b| {
                        if b.is_ascii_alphanumeric() || b == b'-' {
                            char::from(b).to_string()
                        } else {
                            format!("%{b:02x}")
                        }
                    })
                    .collect();
                (name.clone(), plain)
            })
            .collect();
        pairs.retain(|_| self.rng.one_in(3));
        if op.list {
            let limit = *self
                .rng
                .pick(&["1", "50", "200", "200", "0", "201", "-1", "x"]);
            pairs.push(("limit".into(), limit.into()));
            pairs.push(("count".into(), "true".into()));
        }
        // Things that keep working once made would flood what is measured: of those, as good as none is really made.
        let makes = op.writes() && op.method == Method::Post && op.params.is_empty();
        let mut query = self.query(&pairs);
        if makes && (op.path.contains("webhooks") || !self.rng.one_in(10)) {
            query.push_str(if query.is_empty() {
                "?dry_run=true"
            } else {
                "&dry_run=true"
            });
        }
        let body = registered.body.as_ref().map(|schema| {
            let value = sample(&mut self.rng, &schema.schema, &self.names.known, 6);
            let mut out = Vec::new();
            let rate = *self.rng.pick(&[8, 20, 200]);
            render(&mut self.rng, &value, rate, &mut out);
            if self.rng.one_in(10) {
                garble(&mut self.rng, &mut out);
            }
            out
        });
        let body = body.or_else(|| self.rng.one_in(20).then(|| b"{}".to_vec()));
        let mut headers =
            vec![
                self.authorization(if op.scope.is_some_and(|s| s.starts_with("ops:")) {
                    2
                } else {
                    0
                }),
            ];
        if body.is_some() {
            let kind = if self.rng.one_in(8) {
                self.rng.pick(CONTENT_TYPES)
            } else {
                &"application/json"
            };
            headers.push(format!("content-type: {kind}"));
        }
        if !self.rng.one_in(4) {
            headers.push("if-match: *".to_owned());
        }
        let method = self.method(op.method.name());
        let route = format!("{} {}", op.method.name(), op.path);
        self.finish(
            route,
            method,
            &format!("{path}{query}"),
            headers,
            body,
            (0, false),
        )
    }

    fn authorization(&mut self, key: usize) -> String {
        let key = self.names.keys.get(key).cloned().unwrap_or_default();
        match self.rng.below(40) {
            0 => "x-none: 1".to_owned(),
            1 => {
                "authorization: Bearer rk_000000000000.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
                    .to_owned()
            }
            2 => format!("authorization: bearer  {key} "),
            3 => format!(
                "authorization: Bearer {}",
                self.names.keys[self.rng.below(3) as usize]
            ),
            4 => format!("authorization: Bearer {}", query_part(&mut self.rng, &key)),
            _ => format!("authorization: Bearer {key}"),
        }
    }

    fn other(&mut self, id: &'static str, pattern: &'static str, methods: &[Method]) -> Request {
        let first = methods[self.rng.below(methods.len() as u64) as usize].name();
        self.feed = self.rng.below(self.names.feeds.len() as u64) as usize;
        let rng = &mut self.rng;
        let click = format!("known-{}", rng.below(50));
        let own = |name: &str, value: String| (name.to_owned(), value);
        let txid = rng.below(1 << 20).to_string();
        let mut headers = Vec::new();
        let mut records = 1;
        let mut frames = 0;
        let mut upgrades = false;
        let (pairs, body) = match id {
            "visit_door" => {
                let pairs = vec![
                    own("utm_source", "a+b".into()),
                    own("sub1", "%C3%A9".into()),
                    own("fbclid", "X".into()),
                    own("email", "jane%40x.example".into()),
                    own("ref", "r".into()),
                ];
                headers.push("user-agent: Mozilla/5.0".to_owned());
                (pairs, None)
            }
            "postback_door" => {
                let status = *rng.pick(&["approved", "pending", "rejected", "paid", "odd"]);
                let pairs = vec![
                    own("secret", self.names.secret.clone()),
                    own("click_id", click),
                    own("payout", "49.90".into()),
                    own("txid", txid),
                    own("status", status.into()),
                    own("event", rng.below(40).to_string()),
                    own("email_hash", "e3b0c442".into()),
                ];
                let form = first == "POST" || rng.one_in(10);
                let body = form.then(|| {
                    let mut body = b"click_id=in-the-body&txid=a%20b&payout=1".to_vec();
                    if rng.one_in(2) {
                        garble(rng, &mut body);
                    }
                    body
                });
                (pairs, body)
            }
            "click_door" => {
                let mut value = json!({"click_id": click, "link_id": "spring", "stage": 1});
                if rng.one_in(3) {
                    value["provider_click"] = json!({"network": self.names.network, "network_offer_id": "007", "txid": txid});
                }
                (vec![], Some(self.json(&value)))
            }
            "batch_visits" | "batch_clicks" | "batch_postbacks" => {
                let which = usize::from(rng.one_in(2));
                headers.push(self.authorization(which));
                let (lines, n) = self.lines(id);
                records = n;
                (vec![], Some(lines))
            }
            "feed_door" => {
                records = 0;
                let token = self.names.feeds[self.feed].1.clone();
                let bearer = match self.rng.below(20) {
                    0 => query_part(&mut self.rng, &token),
                    1 => self.names.keys[0].clone(),
                    2 => self.rng.pick(&self.names.feeds).1.clone(),
                    _ => token,
                };
                headers.push(format!("authorization: Bearer {bearer}"));
                let (lines, n) = self.session();
                frames = n;
                if first == "POST" {
                    (vec![], Some(lines))
                } else if self.rng.one_in(2) {
                    upgrades = true;
                    headers.push("connection: upgrade".to_owned());
                    headers.push("upgrade: websocket".to_owned());
                    headers.push("sec-websocket-version: 13".to_owned());
                    headers.push("sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==".to_owned());
                    (vec![], Some(messages(&lines)))
                } else {
                    frames = 0;
                    (vec![], None)
                }
            }
            "unsubscribe" | "unsubscribe_public" | "unsubscribe_team" => {
                records = 0;
                let body = (first == "POST" && !self.rng.one_in(4)).then(|| {
                    let mut body = b"List-Unsubscribe=One-Click".to_vec();
                    if self.rng.one_in(2) {
                        garble(&mut self.rng, &mut body);
                    }
                    body
                });
                (vec![], body)
            }
            _ => {
                records = 0;
                (vec![own("a", "b".into())], None)
            }
        };
        let mut method = self.method(first);
        if first == "GET" && self.rng.one_in(50) {
            method = "HEAD";
        }
        if body.is_some() && self.rng.one_in(2) {
            headers.push(format!("content-type: {}", self.rng.pick(CONTENT_TYPES)));
        }
        if matches!(method, "HEAD" | "OPTIONS") {
            records = 0;
        }
        let path = self.path(pattern);
        let plain = id.starts_with("batch") || id == "feed_door";
        let query = if plain && !self.rng.one_in(30) {
            String::new()
        } else {
            self.query(&pairs)
        };
        let route = format!("{first} {pattern}");
        let batch = id.starts_with("batch");
        if upgrades {
            return upgraded(
                route,
                method,
                &format!("{path}{query}"),
                &headers,
                body,
                frames,
            );
        }
        let has_body = body.as_ref().is_some_and(|b| !b.is_empty());
        let mut request = self.finish(
            route,
            method,
            &format!("{path}{query}"),
            headers,
            body,
            (records, batch),
        );
        request.frames = frames;
        request.to_a_door = has_body && WITH_BODY.contains(&id) && request.manner != Manner::Broken;
        request
    }

    fn json(&mut self, value: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        let rate = *self.rng.pick(&[8, 20, 200]);
        render(&mut self.rng, value, rate, &mut out);
        if self.rng.one_in(10) {
            garble(&mut self.rng, &mut out);
        }
        out
    }

    /// Lines of a batch, and how many.
    fn lines(&mut self, id: &str) -> (Vec<u8>, u64) {
        let n = 1 + self.rng.below(6);
        let mut out = Vec::new();
        for _ in 0..n {
            let click = format!("known-{}", self.rng.below(50));
            let line = self.rng.below(1 << 30).to_string();
            let value = match id {
                "batch_visits" => {
                    json!({"id": line, "campaign": "spring", "click_id": click, "stage": 1, "direct": true,
                    "params": {"email": "a@b.example", "x": ["1", "2"]}, "ip": "203.0.113.9", "user_agent": "ua",
                    "source_url": "https://x.example/?a", "fbp": "fb.1.1558571054389.1",
                    "journey": {"offer": {"id": "of_1", "payout": "2.5", "currency": "USD"}, "sidecar_offers": [], "pixels": [{"pixel": "px_1"}]}})
                }
                "batch_clicks" => {
                    json!({"id": line, "link_id": "spring", "click_id": click, "stage": 2})
                }
                _ => {
                    json!({"id": line, "network": self.names.network, "click_id": click, "payout": "1.50", "txid": line,
                    "event": self.rng.below(40).to_string(), "status": "approved", "offer_id": "007", "email_hash": "x"})
                }
            };
            // One broken line refuses all of them, so lines are wrong more seldom than bodies are.
            render(&mut self.rng, &value, 60, &mut out);
            out.extend_from_slice(
                self.rng
                    .pick(&["\n", "\n", "\n", "\r\n", "\n\n", "\n \n"])
                    .as_bytes(),
            );
        }
        if self.rng.one_in(15) {
            garble(&mut self.rng, &mut out);
        }
        // Garbling may have doubled the lines.
        let lines = out.split(|b| *b == b'\n').count() as u64;
        (out, lines)
    }

    fn finish(
        &mut self,
        route: String,
        method: &str,
        target: &str,
        mut headers: Vec<String>,
        body: Option<Vec<u8>>,
        (records, batch): (u64, bool),
    ) -> Request {
        let rng = &mut self.rng;
        let mut manner = Manner::Whole;
        let mut body = body.unwrap_or_default();
        while rng.one_in(4) {
            headers.push(rng.pick(ODD_HEADERS).to_string());
        }
        if rng.one_in(4_000) {
            // The body of such a request has no end.
            headers.push("connection: upgrade".to_owned());
            headers.push("upgrade: websocket".to_owned());
            manner = Manner::Broken;
        }
        if rng.one_in(300) {
            let n = *rng.pick(&[60_u64, 95, 120]);
            headers.extend((0..n).map(|n| format!("x-flood-{n}: {n}")));
        }
        if rng.one_in(400) {
            headers.push(format!("x-long: {}", "x".repeat(1 << (10 + rng.below(8)))));
            // Longer than a head may be: the connection is closed with what is left unread.
            manner = Manner::Broken;
        }
        if !body.is_empty() && rng.one_in(400) {
            body.resize(1 << (12 + rng.below(9)), b' ');
            manner = Manner::Broken;
        }
        // Bodies that come whole to a method or route that does not read them end the connection too.
        let version = if rng.one_in(100) { "1.0" } else { "1.1" };
        let mut bytes = format!("{method} {target} HTTP/{version}\r\n").into_bytes();
        if !headers.iter().any(|h| h.starts_with("host:")) {
            headers.push("host: t.example".to_owned());
        }
        for header in &headers {
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        let broken = rng.one_in(120);
        if broken {
            manner = Manner::Broken;
            match rng.below(6) {
                0 => bytes.extend_from_slice(
                    format!("content-length: {}\r\n\r\n", body.len() + 50).as_bytes(),
                ),
                1 => bytes.extend_from_slice(b"content-length: 5\r\ncontent-length: 7\r\n\r\n"),
                2 => bytes
                    .extend_from_slice(b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"),
                3 => bytes
                    .extend_from_slice(b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n"),
                4 => bytes.extend_from_slice(b"transfer-encoding: gzip, chunked\r\n\r\n5\r\n"),
                _ => {
                    bytes.extend_from_slice(b"content-length: -1\r\n\r\n");
                    garble(rng, &mut bytes);
                }
            }
            bytes.extend_from_slice(&body);
        } else if !body.is_empty() && rng.one_in(6) {
            bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
            for piece in body.chunks(1 + rng.below(200) as usize) {
                bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                bytes.extend_from_slice(piece);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        } else {
            if !body.is_empty() || matches!(method, "POST" | "PUT" | "PATCH") {
                bytes.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
            }
            bytes.extend_from_slice(b"\r\n");
            bytes.extend_from_slice(&body);
        }
        if manner == Manner::Whole && rng.one_in(5_000) {
            manner = Manner::Slow;
        }
        Request {
            route,
            bytes,
            manner,
            records,
            batch,
            frames: 0,
            to_a_door: false,
        }
    }
}

/// Lines as a client's text messages of a WebSocket, masked with nothing.
fn messages(lines: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
        out.push(0x81);
        match line.len() {
            n @ 0..=125 => out.push(0x80 | n as u8),
            n @ 126..=0xffff => {
                out.push(0x80 | 126);
                out.extend_from_slice(&(n as u16).to_be_bytes());
            }
            n => {
                out.push(0x80 | 127);
                out.extend_from_slice(&(n as u64).to_be_bytes());
            }
        }
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(line);
    }
    // A close frame without a reason.
    out.extend_from_slice(&[0x88, 0x80, 0, 0, 0, 0]);
    out
}

/// A handshake with the messages right behind it, on a connection of its own.
fn upgraded(
    route: String,
    method: &str,
    target: &str,
    headers: &[String],
    messages: Option<Vec<u8>>,
    frames: u64,
) -> Request {
    let mut bytes = format!("{method} {target} HTTP/1.1\r\nhost: t.example\r\n").into_bytes();
    for header in headers {
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&messages.unwrap_or_default());
    Request {
        route,
        bytes,
        manner: Manner::Broken,
        records: 0,
        batch: false,
        frames,
        to_a_door: false,
    }
}
