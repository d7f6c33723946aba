//! SIGINT and SIGTERM: the first asks for an orderly end, the second ends at once.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From here on they no longer kill the process.
    pub fn listen() -> std::io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The next of them.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }

    /// Whoever asks again does not want to wait.
    pub fn end_at_once_on_the_next(mut self) {
        tokio::spawn(async move {
            let signal = self.next().await;
            tracing::warn!(signal, "ended at once");
            std::process::exit(130);
        });
    }
}
