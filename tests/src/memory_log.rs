//! A log in memory, for doors without one.

use millrace_topics::contract::{Acknowledgement, BoxFuture, Outgoing, Position, Producer};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A log that keeps what it is handed, and acknowledges it at once.
#[derive(Debug, Default)]
pub struct MemoryLog(Mutex<Vec<Outgoing>>);

impl MemoryLog {
    /// What it was handed since the last time.
    pub fn take(&self) -> Vec<Outgoing> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Producer for MemoryLog {
    fn produce(&self, record: Outgoing) -> Acknowledgement {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(record);
        let acknowledged = sender.send(Ok(Position {
            partition: 0,
            offset: 0,
        }));
        assert!(acknowledged.is_ok(), "somebody waits");
        receiver
    }

    fn health(&self, _: Duration) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn close(&self, _: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
