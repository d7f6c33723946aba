//! The doors: one file a door. A door authenticates, checks form, stamps `accepted_at`, produces to the log, awaits its
//! acknowledgement, and only then answers success (spec: attribution § Doors, routing § 1).
//!
//! - [`click`] `GET /c/:campaign`, [`beacon`] `POST /e`, [`postback`] `GET|POST /pb`, [`batch`] `POST /v1/batch/*`,
//!   [`feed`] `/feed/:shard`, [`health`] `/metrics`, `/healthz`, `/readyz`.
//! - [`snapshot`]: the configuration that doors hold; they ask no table while they serve. [`compile`]: how it is made.
//! - [`state`]: what all doors share, and the one way to have a record accepted. [`server`]: how they are mounted.
//! - [`body`], [`client`], [`disk`], [`errors`], [`counts`], [`keys`], [`wire`], `patience`: what they need for it.
//!
//! What may not live here: rows (attribution books what doors produced), any knowledge of what became of a record.

pub mod batch;
pub mod beacon;
pub mod body;
pub mod click;
pub mod client;
pub mod compile;
pub mod counts;
pub mod disk;
pub mod errors;
pub mod feed;
pub mod health;
pub mod keys;
mod patience;
pub mod postback;
pub mod server;
pub mod snapshot;
pub mod state;
pub mod wire;

#[cfg(test)]
mod tests;
