//! Hostile input: one function a decoder, each with what must hold of it whatever the bytes are. The fuzzer (`tests/fuzz`) and
//! the replay of the kept corpus (`tests/corpus/<target>`) call the same table, so neither knows a target that the other lacks.
//!
//! A function panics where a promise is broken: the decoder panicked, took what it must refuse, did not read back what it wrote,
//! or said back what it must not. Time and memory are bounded by who calls (libFuzzer's `-timeout` and `-rss_limit_mb`).

mod api;
mod doors;
mod outside;
mod records;
mod sockets;
mod store;
mod streams;
mod words;

pub use streams::decode;

use millrace_topics::catalogue::{CLICKS, DIRECTORY_TOPIC, FRAMES, NOTICES, POSTBACKS, TRIGGERS};
use std::path::PathBuf;

/// One decoder under hostile input.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name: of the target, and of its folder in the corpus.
    pub name: &'static str,
    /// What is decoded, in a few words.
    pub what: &'static str,
    /// Longest input worth trying, in bytes.
    pub longest: usize,
    /// Decodes and checks.
    ///
    /// # Panics
    /// A promise is broken.
    pub run: fn(&[u8]),
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

const fn target(name: &'static str, longest: usize, run: fn(&[u8]), what: &'static str) -> Target {
    Target {
        name,
        what,
        longest,
        run,
    }
}

/// Every target, by name.
pub const TABLE: &[Target] = &[
    target(
        "api_body",
        4_096,
        api::body,
        "bodies of the admin API against their schemas",
    ),
    target(
        "api_headers",
        1_024,
        api::headers,
        "credentials, If-Match, Idempotency-Key, ids of requests",
    ),
    target("api_key", 256, api::key, "API keys"),
    target("api_query", 2_048, api::query, "queries of the admin API"),
    target(
        "batch_clicks",
        4_096,
        doors::batch_clicks,
        "POST /v1/batch/clicks",
    ),
    target(
        "batch_postbacks",
        4_096,
        doors::batch_postbacks,
        "POST /v1/batch/postbacks",
    ),
    target(
        "batch_visits",
        4_096,
        doors::batch_visits,
        "POST /v1/batch/visits",
    ),
    target("beacon_door", 2_048, doors::beacon, "POST /e"),
    target(
        "click_record",
        2_048,
        records::click,
        "records of topic clicks",
    ),
    target(
        "condition_tree",
        2_048,
        words::condition_tree,
        "conditions of rules, and what they make of variables",
    ),
    target("cursor", 512, api::cursor, "cursors of lists"),
    target(
        "decide",
        8_192,
        records::decide,
        "what attribution decides of whatever can be read",
    ),
    target(
        "directory_record",
        2_048,
        streams::directory_record,
        "records of topic directory",
    ),
    target(
        "emit",
        1_024,
        records::emit,
        "the source of an emitted record",
    ),
    target(
        "feed",
        4_096,
        doors::feed,
        "messages of a shard's feed, POST /feed/{shard}",
    ),
    target(
        "feed_cutter",
        1_024,
        sockets::cut,
        "frames of the feed's WebSocket, in whatever pieces they come",
    ),
    target(
        "feed_recording",
        4_096,
        words::feed_recording,
        "recorded sessions for `feed send`",
    ),
    target(
        "firing_record",
        2_048,
        streams::firing,
        "records of topic triggers",
    ),
    target(
        "frame_record",
        2_048,
        records::frame,
        "records of topic frames, and stored windows of replays",
    ),
    target(
        "ids",
        512,
        records::ids,
        "minted and foreign ids, coordinates, workspace slugs",
    ),
    target("journey", 2_048, records::journey, "journeys"),
    target(
        "log_chunk",
        4_096,
        store::chunk,
        "chunks of the Postgres log",
    ),
    target(
        "mail_address",
        512,
        words::mail_address,
        "addresses of mail",
    ),
    target("manifest", 8_192, words::manifest, "manifests of modules"),
    target(
        "meta_answer",
        4_096,
        outside::meta_answer,
        "answers of Meta",
    ),
    target(
        "meta_normalize",
        512,
        outside::normalize_any,
        "what Meta matches people by",
    ),
    target(
        "networks",
        512,
        outside::networks,
        "networks and URLs that may be sent to, trusted proxies",
    ),
    target(
        "notice_record",
        4_096,
        streams::notice,
        "records of topic notices",
    ),
    target(
        "notification",
        4_096,
        words::notification,
        "payloads of notices in the outbox, as mails and inbox items",
    ),
    target("payout", 128, records::payout, "payouts"),
    target("postback_door", 2_048, doors::postback, "GET and POST /pb"),
    target(
        "postback_query",
        2_048,
        records::query,
        "queries of postbacks",
    ),
    target(
        "postback_record",
        2_048,
        records::postback,
        "records of topic postbacks",
    ),
    target(
        "push_answer",
        4_096,
        outside::push_answer,
        "answers of push servers",
    ),
    target(
        "redaction",
        2_048,
        outside::redaction,
        "what is kept of a receiver's words",
    ),
    target(
        "sealed",
        512,
        store::sealed,
        "sealed secrets, sealing keys, webhook secrets",
    ),
    target(
        "segment_tree",
        2_048,
        words::segment_tree,
        "trees of segments",
    ),
    target(
        "settings",
        2_048,
        store::settings,
        "settings in a file and in the environment",
    ),
    target(
        "smtp_reply",
        1_024,
        words::smtp_reply,
        "replies of mail servers, as they suppress an address or not",
    ),
    target(
        "thresholds_decide",
        8_192,
        streams::decide,
        "what thresholds make of the bodies of frames",
    ),
    target(
        "times",
        128,
        records::times,
        "RFC 3339 times and Retry-After",
    ),
    target(
        "unsubscribe_token",
        1_024,
        words::unsubscribe_token,
        "tokens of unsubscribe links",
    ),
    target("visit_door", 2_048, doors::visit, "GET /c/:campaign"),
    target(
        "webhook_answer",
        4_096,
        outside::webhook_answer,
        "answers of webhooks",
    ),
    target(
        "wire_version",
        1_024,
        streams::version,
        "records of a newer wire version, of every topic",
    ),
];

/// By topic: the target that decodes its records. A topic without one is a test's failure.
pub const OF_TOPICS: &[(&str, &str)] = &[
    (CLICKS, "click_record"),
    (DIRECTORY_TOPIC, "directory_record"),
    (FRAMES, "frame_record"),
    (NOTICES, "notice_record"),
    (POSTBACKS, "postback_record"),
    (TRIGGERS, "firing_record"),
];

/// The target of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TABLE.iter().find(|t| t.name == name)
}

/// Where the kept inputs are: a folder a target.
#[must_use]
pub fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The first byte as a choice among `n`, and the rest.
fn choice(data: &[u8], n: usize) -> (usize, &[u8]) {
    match data.split_first() {
        Some((first, rest)) => (usize::from(*first) % n.max(1), rest),
        None => (0, data),
    }
}
