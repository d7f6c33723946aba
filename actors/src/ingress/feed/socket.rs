//! A feed over a WebSocket.

use super::cutter::{Cutter, Was};
use super::engine::{Carrier, Got};
use actix_web::web::Bytes;
use actix_ws::{
    AggregatedMessage, AggregatedMessageStream, CloseCode, CloseReason, MessageStream, Session,
};
use futures::StreamExt;
use millrace_schemas::frame::MAX_FRAME_BYTES;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// How long a peer may take to accept an answer.
const SLOWEST: Duration = Duration::from_secs(10);

pub(super) struct Socket {
    session: Session,
    stream: AggregatedMessageStream,
    cutter: Rc<RefCell<Cutter>>,
}

impl Socket {
    /// The stream of a payload that `cutter` cuts.
    pub fn new(session: Session, stream: MessageStream, cutter: Rc<RefCell<Cutter>>) -> Socket {
        Socket {
            session,
            // What is longer is cut before it comes here.
            stream: stream
                .max_frame_size(MAX_FRAME_BYTES)
                .aggregate_continuations()
                .max_continuation_size(MAX_FRAME_BYTES),
            cutter,
        }
    }
}

impl Carrier for Socket {
    async fn next(&mut self) -> Got {
        match self.stream.next().await {
            Some(Ok(AggregatedMessage::Binary(bytes))) => match self.cutter.borrow_mut().was() {
                Some(Was::Text) => Got::Text(bytes),
                Some(Was::TooLong(length)) => {
                    Got::TooLarge(bytes, usize::try_from(length).unwrap_or(usize::MAX))
                }
                Some(Was::NotText) => Got::NotText,
                None => Got::Broken,
            },
            Some(Ok(AggregatedMessage::Ping(payload))) => {
                // A pong that is lost is asked for again.
                let pong = self.session.pong(&payload);
                let _ = tokio::time::timeout(SLOWEST, pong).await;
                Got::Heard
            }
            Some(Ok(AggregatedMessage::Pong(_))) => Got::Heard,
            Some(Ok(AggregatedMessage::Close(_))) => Got::End,
            // The cutter lets none pass as text.
            Some(Ok(AggregatedMessage::Text(_)) | Err(_)) | None => Got::Broken,
        }
    }

    async fn say(&mut self, text: String) -> bool {
        matches!(
            tokio::time::timeout(SLOWEST, self.session.text(text)).await,
            Ok(Ok(()))
        )
    }

    async fn ping(&mut self) -> bool {
        matches!(
            tokio::time::timeout(SLOWEST, self.session.ping(&Bytes::new())).await,
            Ok(Ok(()))
        )
    }

    async fn close(self, code: CloseCode, reason: &'static str) {
        // That one is no code to be sent.
        let reason = (code != CloseCode::Abnormal).then(|| CloseReason {
            code,
            description: Some(reason.to_owned()),
        });
        let _ = tokio::time::timeout(SLOWEST, self.session.close(reason)).await;
    }
}
