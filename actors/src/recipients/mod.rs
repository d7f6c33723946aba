//! Recipients: gates 5 to 8, from a notice to outbox rows (spec: engagement § The gates, in this order). Keyed by user, so that
//! whatever a user's own gates remember has one writer; the hourly cap alone is wider than a partition.
//!
//! - [`mod@keys`]: what remembered things are known by. [`preference`]: how a user wants to be told. [`hour`]: the hourly cap's counters.
//! - [`facts`]: what is read of the store in a batch's transaction. [`decide`]: gates 0 and 5, then 6 to 8, pure. [`ledger`]: what
//!   gates 6 to 8 remember, of the store and of the open batch. [`mod@slice`]: cooldowns held hot.
//! - [`load`] and [`store`]: the SQL. What is
//!   asked once more right before a message is sent stands in `delivery::recheck`. [`actor`]: what the shell needs. [`forget`]: retention.
//!
//! What may not live here: who may be reached at all (engagement), how a channel sends (delivery), commits and positions (runtime).
//! Nothing that is read here is kept for the next batch, but cooldowns, which nobody else writes.

pub mod actor;
pub mod decide;
pub mod facts;
pub mod forget;
pub mod hour;
pub mod keys;
pub mod ledger;
pub mod load;
#[cfg(test)]
mod model;
pub mod preference;
pub mod slice;
pub mod store;
