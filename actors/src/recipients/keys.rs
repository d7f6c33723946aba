//! Keys of what the gates remember: 16-byte digests, one domain each, every part prefixed with its length.

use millrace_schemas::channel::Channel;
use millrace_schemas::ids::digest;
use uuid::Uuid;

/// Gate 0: what a rule wants told of a subject of a shard.
#[must_use]
pub fn cancel(ws: i32, rule: &str, shard: &str, subject: &str) -> Uuid {
    let parts = [
        &ws.to_be_bytes()[..],
        rule.as_bytes(),
        shard.as_bytes(),
        subject.as_bytes(),
    ];
    digest("gate.cancel", &parts)
}

/// Gate 6: a rule's hour.
#[must_use]
pub fn hour(ws: i32, rule: &str) -> Uuid {
    digest("gate.hour", &[&ws.to_be_bytes(), rule.as_bytes()])
}

/// Gate 7: a user, told of a subject of a shard by a rule on a channel.
#[must_use]
pub fn cooldown(
    ws: i32,
    rule: &str,
    user: &str,
    shard: &str,
    subject: &str,
    channel: Channel,
) -> Uuid {
    let parts = [
        &ws.to_be_bytes()[..],
        rule.as_bytes(),
        user.as_bytes(),
        shard.as_bytes(),
        subject.as_bytes(),
        channel.word().as_bytes(),
    ];
    digest("gate.cooldown", &parts)
}

/// Gate 8: an event, told to a user by a rule on a channel.
#[must_use]
pub fn sent(ws: i32, rule: &str, user: &str, channel: Channel, dedupe_key: &str) -> Uuid {
    let parts = [
        &ws.to_be_bytes()[..],
        rule.as_bytes(),
        user.as_bytes(),
        channel.word().as_bytes(),
        dedupe_key.as_bytes(),
    ];
    digest("gate.sent", &parts)
}
