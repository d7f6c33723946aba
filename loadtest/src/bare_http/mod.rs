//! The comparators of the doors: servers that take the body of `POST /e` and answer 204.
//!
//! - `actix`: bare actix-web; reads the body and forgets it.
//! - `axum`: the same with axum.
//! - `axum-produce`: what one writes without Millrace. An axum handler that reads the body as JSON, makes the product's record
//!   of it, sends it by rdkafka's `FutureProducer` (acks=all, idempotent, the product's linger and partitioner) and awaits the
//!   acknowledgement. It looks up no campaign, checks no id, counts nothing and has no time limit of its own.

mod actix;
mod axum;
mod produce;

use std::net::SocketAddr;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Bare actix-web.
    Actix,
    /// Bare axum.
    Axum,
    /// axum that awaits one produce a request.
    AxumProduce,
}

/// How to serve.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Which server.
    #[arg(long, value_enum, default_value = "actix")]
    pub kind: Kind,
    /// Where to listen.
    #[arg(long)]
    pub address: SocketAddr,
    /// Worker threads.
    #[arg(long, default_value_t = 2)]
    pub workers: usize,
    /// Kafka's brokers (`axum-produce`).
    #[arg(long, default_value = "127.0.0.1:9092")]
    pub brokers: String,
    /// The topic to produce to (`axum-produce`).
    #[arg(long, default_value = "clicks")]
    pub topic: String,
    /// The producer's linger, in milliseconds (`axum-produce`).
    #[arg(long, default_value_t = 5)]
    pub linger_ms: u64,
    /// With one worker, a tokio runtime of many threads nevertheless (axum).
    #[arg(long)]
    pub multi_thread: bool,
}

/// Serves until the process is ended.
///
/// # Errors
/// The address cannot be bound, or the producer's configuration is refused.
pub fn serve(options: &Options) -> anyhow::Result<()> {
    match options.kind {
        Kind::Actix => actix::serve(options),
        Kind::Axum => axum::serve(options, axum::bare()),
        Kind::AxumProduce => axum::serve(options, produce::router(options)?),
    }
}
