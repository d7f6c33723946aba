//! Meta's Conversions API: what happened on the advertiser's side, told to Meta by a server.
//!
//! [`normalize`] brings what people are matched by into its one form, [`event`] freezes an event when its cause is booked;
//! [`answer`] says what Meta's answers mean: all pure. [`settings`] reads the pixel as it is when its events are sent,
//! [`client`] makes one request, [`channel`] is the channel.

pub mod answer;
pub mod channel;
pub mod client;
pub mod event;
pub mod normalize;
pub mod settings;
