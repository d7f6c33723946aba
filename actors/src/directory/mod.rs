//! The directory: users, their links to accounts in games, preferences, and the audiences that are made of them. Keyed by
//! (workspace, user), whatever the partition.
//!
//! - [`state`]: what is known of what a batch names, with the changes of it. [`decide`]: one record at a time, pure.
//!   [`store`]: its SQL, on either side of [`sql`]. [`actor`]: what the shell needs to run all this. [`operator`]: the same
//!   decisions, for the admin API.
//! - [`segment`]: the tree of a saved audience, and what it may reach; pure. [`audience`]: from a rule to user ids, set-wise.
//! - [`conditions`]: the tree of a rule's conditions: read, checked, and asked. [`rules`]: rules as stored, what a rule may not
//!   say, and why one sleeps. [`seeds`]: the rules that a module brings.
//!
//! The admin API writes the same tables (`api/operations`), stamped later than what it overwrites. What may not live here: who
//! is told at last (`engagement`, `recipients`), and what a module declares (`modules`).

pub mod actor;
pub mod audience;
pub mod conditions;
pub mod decide;
pub mod operator;
pub mod rules;
pub mod seeds;
pub mod segment;
pub mod sql;
pub mod state;
pub mod store;
