//! `email`: mail over SMTP (spec/delivery.md § Email).
//!
//! [`channel`] says what a workspace's transport is and whether a message may still go; `client` how it is sent and what each
//! answer means, over [`pool`]ed connections; [`settings`] what the configuration and the store say; [`message`] what goes over the
//! wire; [`address`] what may be shown of an address; [`suppression`] which addresses get nothing; [`bounce`] which refusals say
//! that a mailbox is not there.

pub mod address;
pub mod bounce;
pub mod channel;
mod client;
pub mod message;
pub mod pool;
pub mod settings;
pub mod suppression;
mod tls;

pub use channel::EmailChannel;
pub use client::{Refusal, Said, Stage, judge};
