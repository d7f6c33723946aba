//! `stub`: the channel to read first, and the one that tests are made with. It posts the payload, as it is, to the URL that
//! stands in `destinations.ref`. Its receivers do not know what they have seen, so it is sent once: what has left is never sent
//! again, and an attempt without an answer ends `unknown`. Off unless `delivery.stub.enabled`.
//!
//! Every channel has these three parts: [`channel`] says what a destination is and whether it may be sent to now, `client` how it
//! is sent and what each answer means, [`settings`] what it needs to know.

pub mod channel;
mod client;
pub mod settings;

pub use channel::StubChannel;
pub use client::MESSAGE_ID;
