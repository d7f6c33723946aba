//! `webhook`: signed requests to endpoints that a workspace registers (spec/delivery.md § Webhooks).

pub mod settings;
