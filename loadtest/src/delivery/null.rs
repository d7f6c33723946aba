//! The dispatcher over a channel that answers at once: what delivery costs without a request.

use super::store::connect;
use futures::future::LocalBoxFuture;
use millrace::delivery::channel::{
    Answer, Channel, Leased, Sent, Target, Traits, Unready, Verdict,
};
use millrace::delivery::destination::Destination;
use millrace::delivery::dispatcher::{Delivery, DeliveryConfig};
use millrace::runtime::clock::SystemClock;
use millrace::runtime::session::Session;
use millrace::runtime::telemetry::Metrics;
use millrace::settings;
use millrace_schemas::time::Micros;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The channel's name.
pub const NAME: &str = "null";

/// What to deliver, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The database.
    #[arg(long)]
    pub database: String,
    /// Messages of one request at most.
    #[arg(long, default_value_t = 1_000)]
    pub batch: usize,
    /// Requests to one destination at once.
    #[arg(long, default_value_t = 8)]
    pub concurrency: usize,
}

/// Delivers until it is told to end.
///
/// # Errors
/// The database is not there.
pub fn serve(options: &Options) -> anyhow::Result<()> {
    let traits = Traits {
        idempotent: true,
        batch: options.batch.max(1),
        concurrency: options.concurrency.max(1),
        max_attempts: 8,
        timeout: Duration::from_secs(10),
    };
    let config = DeliveryConfig {
        connect: connect(&options.database, "delivery")?,
        clock: Arc::new(SystemClock),
        poll: Duration::from_millis(settings::Delivery::default().poll_ms),
        drain: Duration::from_secs(10),
    };
    // Counting costs what it costs in the product.
    let metrics = Metrics::install()?;
    actix_rt::System::new().block_on(async move {
        actix_rt::spawn(metrics.upkeep());
        let make = move || Ok(Rc::new(Null(traits)) as Rc<dyn Channel>);
        let delivery = Delivery::start(&config, vec![Arc::new(make)]);
        let mut end = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        end.recv().await;
        delivery.stop().await;
        Ok(())
    })
}

struct Null(Traits);

impl Channel for Null {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traits(&self) -> Traits {
        self.0
    }

    fn backoff(&self, _: u16) -> Duration {
        Duration::from_secs(1)
    }

    fn prepare<'a>(
        &'a self,
        _: &'a Session,
        _: &'a Destination,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Target>, Unready>> {
        Box::pin(std::future::ready(Ok(Rc::new(Nowhere) as Rc<dyn Target>)))
    }
}

struct Nowhere;

impl Target for Nowhere {
    fn admit(&self, _: &Leased, _: Micros) -> Option<Answer> {
        None
    }

    fn send(&self, messages: Vec<Leased>) -> LocalBoxFuture<'_, Sent> {
        Box::pin(std::future::ready(Sent {
            answers: vec![Answer::new(Verdict::Delivered, "ok"); messages.len()],
            dead: false,
        }))
    }
}
