//! Delivery: everything that leaves the building, and the only way out (DESIGN § Delivery).
//!
//! Here live the outbox and what is done with it: [`outbox`] writes messages in the transaction that causes them, `triggers` is
//! the one table of what sets off what, `lease` claims and ends them, `dispatcher` moves them from the one to the other,
//! `janitor` cleans up after the dead, [`schedule`] and [`breaker`] say when, `address_guard` says where to not.
//! One folder a channel, all of one shape: `channel` (what is a destination, may it be sent now), `client` (how is it sent, what
//! does an answer mean), `settings` (what it needs to know). `stub` shows the shape.
//!
//! What may not live here: decisions about what happened (those are the streams'), templates, and any request that did not
//! come out of the outbox.

pub mod address_guard;
pub mod breaker;
pub mod channel;
pub mod destination;
pub mod dispatcher;
pub mod email;
pub mod holds;
pub mod inapp;
pub mod janitor;
pub mod lease;
pub mod ledger;
pub mod meta;
pub mod outbound;
pub mod outbox;
pub mod push;
pub mod recheck;
pub mod redaction;
pub mod schedule;
pub mod stub;
pub mod triggers;
pub mod webhook;
