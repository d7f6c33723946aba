//! Thresholds: from frames of game shards to firings. Trackers keyed by (workspace, module, shard, mapping, key); rosters; owners
//! through links.
//!
//! - [`plan`]: what the enabled modules make of a kind. [`tracker`]: (remembered, frame) → (remembered, fires), pure. [`roster`]: lists of
//!   accounts and their changes, pure.
//! - [`mod@slice`]: the bounded cache. [`draft`]: overlay and effects of one attempt. [`decide`]: one frame, pure. [`settle`]: firings with
//!   owners and recipients, pure.
//! - [`letters`]: dead letters that may come again, and what was decided since. [`reach`]: what a letter is overtaken by, pure.
//! - [`store`]: the SQL. [`actor`]: what the shell needs to run all this.
//!
//! A firing leaves as an emit on topic `triggers`, named by its frame's coordinates, in the transaction that holds what the trackers
//! saw. What may not live here: what a game's words mean (its manifest says), who is told (engagement, recipients), commits and
//! positions (runtime).

pub mod actor;
pub mod decide;
pub mod draft;
pub mod letters;
pub mod plan;
pub mod reach;
pub mod roster;
pub mod settle;
pub mod slice;
pub mod store;
pub mod tracker;

#[cfg(test)]
mod tests;
