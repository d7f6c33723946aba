//! What a process tells about itself: `tracing` on stderr, `metrics` rendered as text for Prometheus. The text is mounted at
//! `/metrics` by whoever listens; nothing listens here.

use crate::settings;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::io::IsTerminal;
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// Bounds of duration histograms, in seconds.
const SECONDS: &[f64] = &[
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Bounds of other histograms (records, bytes).
const SIZES: &[f64] = &[
    1.0, 10.0, 100.0, 1_000.0, 5_000.0, 10_000.0, 100_000.0, 1e6, 1e7,
];

/// Said before every filter of the settings: what these libraries tell at their usual level is no news to an operator.
const QUIET: &str = "actix_server=warn,deadpool.postgres=error";

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error("the filter `{0}` cannot be read (RUST_LOG or telemetry.filter): {1}")]
    Filter(String, String),
    /// It was installed before.
    #[error("telemetry: {0}")]
    Installed(String),
}

/// Sends `tracing` events to stderr. `RUST_LOG` wins over `telemetry.filter`; `quiet`: warnings alone, whatever the settings say.
///
/// # Errors
/// The filter cannot be read, or a subscriber is there already.
pub fn tracing(settings: &settings::Telemetry, quiet: bool) -> Result<(), TelemetryError> {
    let text = std::env::var("RUST_LOG")
        .ok()
        .filter(|t| !t.is_empty())
        .unwrap_or_else(|| match quiet {
            // A command for one answer at a terminal: what is told must be worth interrupting for.
            true => format!("{QUIET},warn"),
            false => format!("{QUIET},{}", settings.filter),
        });
    let filter = EnvFilter::try_new(&text)
        .map_err(|e| TelemetryError::Filter(text.clone(), e.to_string()))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let done = match settings.format {
        settings::LineFormat::Text => lines.finish().try_init(),
        settings::LineFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    };
    done.map_err(|e| TelemetryError::Installed(e.to_string()))
}

/// The recorder of this process's metrics.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Makes it the process's recorder; histograms named `*_seconds` get bounds of seconds.
    ///
    /// # Errors
    /// There is one already.
    pub fn install() -> Result<Metrics, TelemetryError> {
        let say =
            |e: metrics_exporter_prometheus::BuildError| TelemetryError::Installed(e.to_string());
        let suffix = metrics_exporter_prometheus::Matcher::Suffix("_seconds".to_owned());
        PrometheusBuilder::new()
            .set_buckets(SIZES)
            .and_then(|b| b.set_buckets_for_metric(suffix, SECONDS))
            .and_then(PrometheusBuilder::install_recorder)
            .map(Metrics)
            .map_err(say)
    }

    /// The text of `/metrics`.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// The handle, for whoever mounts it.
    #[must_use]
    pub fn handle(&self) -> PrometheusHandle {
        self.0.clone()
    }

    /// Keeps histograms small; runs until aborted.
    pub async fn upkeep(self) {
        let mut every = tokio::time::interval(Duration::from_secs(5));
        loop {
            every.tick().await;
            self.0.run_upkeep();
        }
    }
}
