//! Integration tests, one binary: a module a subject.

mod migrate;
mod proxy;
mod receivers;
