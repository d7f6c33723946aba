//! Integration tests, one binary: a module a subject.

mod proxy;
mod receivers;
