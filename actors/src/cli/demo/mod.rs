//! `millrace demo`.

pub mod access;
pub mod dice;
pub mod drive;
mod networks;
pub mod recount;
pub mod report;
pub mod scenery;
pub mod setup;
mod stories;
pub mod table;
pub mod traffic;
