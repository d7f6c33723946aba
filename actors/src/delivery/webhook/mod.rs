//! `webhook`: signed requests to endpoints that a workspace registers (spec/delivery.md § Webhooks, standardwebhooks.com).
//!
//! [`channel`] says what an endpoint is, whether it may be sent to now and what it has earned by its answers; `client` how a
//! message is sent and what each answer means; [`settings`] what the store says of the endpoint now; [`signature`] what proves to
//! a receiver that a request is ours.

pub mod channel;
mod client;
pub mod settings;
pub mod signature;

pub use channel::WebhookChannel;
pub use client::judge;
