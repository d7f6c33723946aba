//! Meta's Conversions API: what happened on the advertiser's side, told to Meta by a server.
//!
//! [`normalize`] brings what people are matched by into its one form, [`event`] freezes an event when its cause is booked;
//! both are pure.

pub mod event;
pub mod normalize;
