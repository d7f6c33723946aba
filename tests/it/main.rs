//! Integration tests, one binary: a module a subject.

mod attribution;
mod attribution_model;
mod demo;
mod kafka_consumer;
mod kafka_members;
mod kafka_producer;
mod migrate;
mod proxy;
mod receivers;
mod relay;
mod runtime;
mod topics_postgres;
mod topics_suite;
