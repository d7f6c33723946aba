//! From due to done: one actor a channel, on a thread of its own. It visits destinations that have something due in turn, claims
//! what they have room for, sends in requests that run side by side, and hands what came of them to the finisher, which ends
//! leases and writes the send log in transactions of many.
//!
//! Nothing waits for a slow destination but its own lane: each has its bound of requests, its breaker and its queue.

mod actor;
mod claiming;
mod finish;
mod lane;
mod request;
mod run;

pub use actor::{ChannelActor, Delivery, DeliveryConfig, MakeChannel};
pub use claiming::DUE;
pub use finish::{Finished, finish};
pub use request::end_of;
