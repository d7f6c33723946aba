//! Engagement: gates 0 to 4, and of gate 5 what needs no user, from a firing to the users whom it may reach (spec: engagement § The
//! gates, in this order). Keyed by (workspace, shard, subject), so that firings that call each other off meet.
//!
//! - [`decide`]: what a firing is worth by its declaration, its gates by rule, and its notices; pure. [`rules`]: rules and audiences
//!   as they stand in the batch's transaction. [`store`]: marks and firings. [`actor`]: what the shell needs.
//! - [`wire`]: reading what other streams emitted. [`declared`]: a firing against its trigger's declaration, at the door too.
//!   [`explain`]: why somebody was told or was not, from what the gates have stored; [`undecided`]: where they stored nothing.
//!
//! What may not live here: what a user wants (recipients), how an audience is resolved and a condition read (directory), what a
//! module declares (modules).

pub mod actor;
pub mod decide;
pub mod declared;
pub mod explain;
pub mod rules;
pub mod store;
pub mod undecided;
pub mod wire;
