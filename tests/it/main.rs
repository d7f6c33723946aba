//! Integration tests, one binary: a module a subject.

mod admin;
mod attribution;
mod attribution_model;
mod demo;
mod doors;
mod faults;
mod faults_door;
mod faults_group;
mod faults_kill;
mod faults_log;
mod faults_pglog;
mod faults_proof;
mod faults_sources;
mod faults_store;
mod kafka_consumer;
mod kafka_members;
mod kafka_producer;
mod migrate;
mod proxy;
mod readme;
mod receivers;
mod relay;
mod runtime;
mod topics_postgres;
mod topics_suite;
