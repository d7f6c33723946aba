//! Hostile input, the long forms: coverage-guided fuzzing of every decoder, and a million broken requests against every route.
//! Both write their sections of FAULTS.md. The short forms are tests: the kept corpus (`tests/it/corpus.rs`), some thousands of
//! requests (`tests/it/hostile.rs`).

pub mod bodies;
mod corpus;
pub mod fuzz;
mod rows;
