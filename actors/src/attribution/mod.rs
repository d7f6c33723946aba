//! Attribution: visits, clicks, postbacks, conversions. Keyed by (workspace, click id), whatever the partition.
//!
//! - [`mod@slice`]: the bounded cache of clicks. [`draft`]: overlay and effects of one attempt.
//! - [`decide`]: one record at a time, pure. [`identity`]: the keys of a conversion. [`settle`]: bookings by their claims, pure.
//! - [`load`] and [`store`]: the SQL. [`sets_off`]: messages into the outbox. [`actor`]: what the shell needs to run all this.
//!
//! What may not live here: commits, positions, retries (runtime); what a record says by itself (schemas).

pub mod actor;
pub mod decide;
pub mod draft;
pub mod identity;
pub mod load;
pub mod sets_off;
pub mod settle;
pub mod slice;
pub mod store;
