//! The admin API, mounted from one registry of operations. What may not: decide anything about records (that is the
//! actors'), or open a socket (that is the command line's).
//!
//! - [`keys`], [`key_store`], [`scopes`]: who a bearer is and what it may do.
//! - [`workspaces`][]: tenants.
//! - [`faults`][]: what can be wrong with a change.

pub mod faults;
pub mod key_store;
pub mod keys;
pub mod scopes;
pub mod workspaces;
