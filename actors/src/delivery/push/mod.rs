//! `push`: wakes the devices of a user, and says nothing (spec/delivery.md § Push): `{stream, ref}` to endpoints of UnifiedPush and
//! ntfy.
//!
//! [`channel`] says whom it goes to and whether it still may; `client` how an endpoint is woken and what it answers; [`settings`]
//! what the configuration and the store say; [`answered`] what is remembered of devices between the attempts of a message.

pub mod answered;
pub mod channel;
mod client;
pub mod settings;

pub use channel::PushChannel;
pub use client::{Woken, body, judge};
