//! SIGINT and SIGTERM: the first asks for an orderly end, the second ends at once. SIGHUP asks for the modules to be read anew.

use std::io::IsTerminal;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What is asked of a running process.
pub(super) enum Asked {
    /// To end in order, by this signal.
    End(&'static str),
    /// To read the modules' manifests anew.
    Reload,
}

/// The signals.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    /// Started by a person at a terminal.
    at_terminal: bool,
}

impl Signals {
    /// From here on they no longer kill the process.
    pub fn listen() -> std::io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            at_terminal: std::io::stdin().is_terminal(),
        })
    }

    /// The next that asks for an end.
    pub async fn next(&mut self) -> &'static str {
        loop {
            if let Asked::End(signal) = self.asked().await {
                return signal;
            }
        }
    }

    /// The next of them.
    pub async fn asked(&mut self) -> Asked {
        tokio::select! {
            _ = self.interrupt.recv() => Asked::End("SIGINT"),
            _ = self.terminate.recv() => Asked::End("SIGTERM"),
            // The kernel says so, too, when a terminal is closed: then it is meant as it always was.
            _ = self.hangup.recv() => match self.at_terminal && !std::io::stdin().is_terminal() {
                true => Asked::End("SIGHUP"),
                false => Asked::Reload,
            },
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
