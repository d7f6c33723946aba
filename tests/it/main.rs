//! Integration tests, one binary: a module a subject.

mod attribution;
mod migrate;
mod proxy;
mod receivers;
