//! `inapp`: a row in the inbox of a user (spec/delivery.md § In-app), written when it is due, one an event and user.
//!
//! [`channel`] says whom it goes to and whether it still may; `client` writes the rows; [`settings`] what the configuration says.

pub mod channel;
mod client;
pub mod settings;

pub use channel::InappChannel;
