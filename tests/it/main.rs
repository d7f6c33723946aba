//! Integration tests, one binary: a module a subject.

mod attribution;
mod attribution_model;
mod migrate;
mod proxy;
mod receivers;
mod relay;
mod topics_postgres;
mod topics_suite;
