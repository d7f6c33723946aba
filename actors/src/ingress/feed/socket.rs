//! A feed over a WebSocket.

use super::engine::{Carrier, Got};
use actix_web::web::Bytes;
use actix_ws::{
    AggregatedMessage, AggregatedMessageStream, CloseCode, CloseReason, MessageStream,
    ProtocolError, Session,
};
use futures::StreamExt;
use std::time::Duration;

/// The longest message that is read whole, so that it can be answered with its sequence; a longer one ends the feed.
const MAX_MESSAGE: usize = 4 << 20;
/// How long a peer may take to accept an answer.
const SLOWEST: Duration = Duration::from_secs(10);

pub(super) struct Socket {
    session: Session,
    stream: AggregatedMessageStream,
}

impl Socket {
    pub fn new(session: Session, stream: MessageStream) -> Socket {
        Socket {
            session,
            stream: stream
                .max_frame_size(MAX_MESSAGE)
                .aggregate_continuations()
                .max_continuation_size(MAX_MESSAGE),
        }
    }
}

impl Carrier for Socket {
    async fn next(&mut self) -> Got {
        match self.stream.next().await {
            Some(Ok(AggregatedMessage::Text(text))) => Got::Text(text.into_bytes()),
            Some(Ok(AggregatedMessage::Binary(_))) => Got::NotText,
            Some(Ok(AggregatedMessage::Ping(payload))) => {
                // A pong that is lost is asked for again.
                let pong = self.session.pong(&payload);
                let _ = tokio::time::timeout(SLOWEST, pong).await;
                Got::Heard
            }
            Some(Ok(AggregatedMessage::Pong(_))) => Got::Heard,
            Some(Ok(AggregatedMessage::Close(_))) => Got::End,
            Some(Err(ProtocolError::Overflow)) => Got::Overflow,
            // Too long in several parts is no kind of its own.
            Some(Err(ProtocolError::Io(error)))
                if error.to_string().contains("continuation size") =>
            {
                Got::Overflow
            }
            Some(Err(_)) | None => Got::Broken,
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
