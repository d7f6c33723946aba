//! Streams one run of a recording as a sidecar does: hello, frames without waiting for each, and after a cut the hello again
//! and what was not acknowledged.

use super::recording::{Recorded, Run};
use futures::{SinkExt, StreamExt};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_tungstenite::tungstenite::{self, Message};

/// How long the door may take for a hello, or be silent with frames under way.
const ANSWER: Duration = Duration::from_secs(30);
/// Frames that are written before the socket is flushed.
const BURST: usize = 64;
/// Pause after the first failure in a row; it doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Where to, and how.
pub(super) struct Target {
    /// `ws://…/feed/<shard>`.
    pub url: String,
    pub token: String,
    /// Frames a second; none: as fast as the door takes them.
    pub rate: Option<f64>,
    /// How long to go on without any progress.
    pub patience: Duration,
}

/// What became of a run.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Messages sent, those sent again with them.
    pub sent: u64,
    /// Settled by the door, since this sender began.
    pub settled: u64,
    /// Settled before this sender began.
    pub known: u64,
    /// Connections beside the first.
    pub again: u64,
    /// Refused frames by sequence, with the reason.
    pub refused: BTreeMap<u64, String>,
}

/// Why a run cannot be finished.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("the URL or token cannot be used: {0}")]
    Request(String),
    #[error("the door refuses: {0}")]
    Refused(String),
    #[error("no progress for {} s; last: {why}", .patience.as_secs())]
    Stuck { patience: Duration, why: String },
}

/// Why a connection ended before everything was settled.
enum Cut {
    /// Another one may go on.
    Again(String),
    /// None may.
    Never(SendError),
}

#[derive(Deserialize)]
struct Said {
    #[serde(rename = "type")]
    type_: String,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    code: String,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    expected: Option<u64>,
    #[serde(default)]
    want: Option<u32>,
    #[serde(default)]
    got: Option<u32>,
    #[serde(default)]
    max_in_flight: Option<u64>,
}

/// One run under way.
pub(super) struct Sender<'a> {
    target: &'a Target,
    run: &'a Run,
    /// Everything up to it is settled.
    settled: u64,
    moved: Instant,
    pub tally: Tally,
}

impl<'a> Sender<'a> {
    /// Begins behind `after`.
    pub fn new(target: &'a Target, run: &'a Run, after: u64) -> Sender<'a> {
        Sender {
            target,
            run,
            settled: after,
            moved: Instant::now(),
            tally: Tally::default(),
        }
    }

    /// Sends until everything is settled. `tell`: the sequence up to which it is.
    pub async fn send(&mut self, tell: impl Fn(u64)) -> Result<(), SendError> {
        let mut pause = PAUSE;
        let mut first = true;
        while self.last() > self.settled || first {
            let before = self.settled;
            match self.connection(first, &tell).await {
                Ok(()) => {}
                Err(Cut::Never(error)) => return Err(error),
                Err(Cut::Again(why)) => {
                    if self.settled > before {
                        pause = PAUSE;
                    }
                    if self.moved.elapsed() >= self.target.patience {
                        return Err(SendError::Stuck {
                            patience: self.target.patience,
                            why,
                        });
                    }
                    tracing::debug!(why, "connecting again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    self.tally.again += 1;
                }
            }
            first = false;
        }
        Ok(())
    }

    fn last(&self) -> u64 {
        self.run.frames.last().map_or(0, |f| f.seq)
    }

    /// Where in the run the frame after `seq` stands.
    fn place_after(&self, seq: u64) -> usize {
        self.run.frames.partition_point(|f| f.seq <= seq)
    }

    fn settle(&mut self, seq: u64, tell: &impl Fn(u64)) {
        if seq > self.settled {
            let frames = self.place_after(seq) - self.place_after(self.settled);
            self.tally.settled += u64::try_from(frames).unwrap_or(0);
            self.settled = seq;
            self.moved = Instant::now();
            tell(seq);
        }
    }

    async fn connection(&mut self, first: bool, tell: &impl Fn(u64)) -> Result<(), Cut> {
        let request = request(self.target).map_err(Cut::Never)?;
        let connecting = tokio::time::timeout(ANSWER, tokio_tungstenite::connect_async(request));
        let (socket, _) = match connecting.await {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => return Err(cut_of(error)),
            Err(_) => return Err(Cut::Again("no connection in time".to_owned())),
        };
        let (mut out, mut incoming) = socket.split();
        // Read apart, so that neither side waits for the other to read.
        let (heard, mut answers) = mpsc::unbounded_channel();
        let reader = tokio::spawn(async move {
            while let Some(Ok(message)) = incoming.next().await {
                if let Message::Text(text) = message
                    && heard.send(text).is_err()
                {
                    return;
                }
            }
        });
        let hello = serde_json::json!({"type": "hello", "protocol": self.run.protocol, "boot": self.run.boot,
            "seq": self.settled});
        let work = async {
            out.send(Message::text(hello.to_string()))
                .await
                .map_err(lost)?;
            let said = hear(&mut answers).await?;
            if said.type_ != "welcome" {
                return Err(ending(said));
            }
            if first {
                let known = self.place_after(said.seq) - self.place_after(self.settled);
                self.tally.known = u64::try_from(known).unwrap_or(0);
                self.settled = self.settled.max(said.seq);
                self.moved = Instant::now();
                tell(self.settled);
            } else {
                self.settle(said.seq, tell);
            }
            let room = said.max_in_flight.unwrap_or(1).max(1);
            self.stream(&mut out, &mut answers, room, tell).await
        };
        let done = work.await;
        // Whatever it says: there is nothing more to hear.
        let _ = tokio::time::timeout(ANSWER, out.close()).await;
        reader.abort();
        done
    }

    async fn stream(
        &mut self,
        out: &mut (impl SinkExt<Message, Error = tungstenite::Error> + Unpin),
        answers: &mut mpsc::UnboundedReceiver<tungstenite::Utf8Bytes>,
        room: u64,
        tell: &impl Fn(u64),
    ) -> Result<(), Cut> {
        let begun = Instant::now();
        let mut here = 0u64;
        let mut place = self.place_after(self.settled);
        loop {
            if self.settled >= self.last() {
                return Ok(());
            }
            let mut burst = 0;
            while burst < BURST
                && let Some(Recorded { seq, line }) = self.run.frames.get(place)
                && *seq <= self.settled.saturating_add(room)
                && self.due(begun, here)
            {
                out.feed(Message::text(line.as_str())).await.map_err(lost)?;
                self.tally.sent += 1;
                here += 1;
                place += 1;
                burst += 1;
            }
            if burst > 0 {
                out.flush().await.map_err(lost)?;
            }
            let more = burst == BURST;
            let pause = self.pause(begun, here, place, room);
            tokio::select! {
                biased;
                said = hear(answers) => {
                    if let Some(back) = self.told(said?, tell)? {
                        place = self.place_after(back.saturating_sub(1));
                    }
                }
                () = tokio::time::sleep(pause), if !more => {}
                () = std::future::ready(()), if more => {}
            }
        }
    }

    /// Whether another frame may go, of `here` that this connection has sent.
    fn due(&self, begun: Instant, here: u64) -> bool {
        self.target
            .rate
            .is_none_or(|rate| (here as f64) < 1.0 + begun.elapsed().as_secs_f64() * rate)
    }

    /// How long nothing can be sent.
    fn pause(&self, begun: Instant, here: u64, place: usize, room: u64) -> Duration {
        let next = self.run.frames.get(place);
        let fits = next.is_some_and(|f| f.seq <= self.settled.saturating_add(room));
        match self.target.rate {
            Some(rate) if fits => {
                let at = (here as f64 - 1.0).max(0.0) / rate;
                Duration::from_secs_f64((at - begun.elapsed().as_secs_f64()).clamp(0.001, 1.0))
            }
            // An answer comes first.
            _ => ANSWER,
        }
    }

    /// Takes an answer in; the sequence to go back to, if one is missing at the door.
    fn told(&mut self, said: Said, tell: &impl Fn(u64)) -> Result<Option<u64>, Cut> {
        match &*said.type_ {
            "ack" => self.settle(said.seq, tell),
            "refused" => match &*said.code {
                "out_of_sequence" => return Ok(said.expected),
                // It is settled already.
                "repeated" => {}
                _ => {
                    self.tally
                        .refused
                        .insert(said.seq, format!("{}: {}", said.code, said.detail));
                }
            },
            _ => {
                self.settle(said.seq, tell);
                if self.settled < self.last() {
                    return Err(ending(said));
                }
            }
        }
        Ok(None)
    }
}

fn lost(error: tungstenite::Error) -> Cut {
    Cut::Again(error.to_string())
}

/// Waits for an answer.
async fn hear(answers: &mut mpsc::UnboundedReceiver<tungstenite::Utf8Bytes>) -> Result<Said, Cut> {
    match tokio::time::timeout(ANSWER, answers.recv()).await {
        Ok(Some(text)) => serde_json::from_str(&text)
            .map_err(|e| Cut::Again(format!("an answer cannot be read: {e}"))),
        Ok(None) => Err(Cut::Again("the connection was cut".to_owned())),
        Err(_) => Err(Cut::Again("no answer in time".to_owned())),
    }
}

/// What an answer that ends a connection says of the next one.
fn ending(said: Said) -> Cut {
    let why = match (said.want, said.got) {
        (Some(want), Some(got)) => {
            format!(
                "{}: the shard is of protocol {want}, the recording of {got}",
                said.code
            )
        }
        _ => format!("{}: {}", said.code, said.detail),
    };
    let passes = said.type_ == "unavailable" || matches!(&*said.code, "shutdown" | "idle" | "end");
    if passes {
        Cut::Again(why)
    } else {
        Cut::Never(SendError::Refused(why))
    }
}

fn request(target: &Target) -> Result<tungstenite::handshake::client::Request, SendError> {
    let mut request = target
        .url
        .as_str()
        .into_client_request()
        .map_err(|e| SendError::Request(e.to_string()))?;
    let mut bearer: tungstenite::http::HeaderValue = format!("Bearer {}", target.token)
        .parse()
        .map_err(|_| SendError::Request("the token has characters that no token has".to_owned()))?;
    bearer.set_sensitive(true);
    request.headers_mut().insert(AUTHORIZATION, bearer);
    Ok(request)
}

fn cut_of(error: tungstenite::Error) -> Cut {
    match error {
        tungstenite::Error::Http(response) => {
            let status = response.status();
            let why = response
                .body()
                .as_deref()
                .and_then(|b| serde_json::from_slice::<serde_json::Value>(b).ok())
                .and_then(|v| Some(format!("{status}, {}", v.get("code")?.as_str()?)))
                .unwrap_or_else(|| status.to_string());
            if status.is_client_error() {
                Cut::Never(SendError::Refused(why))
            } else {
                Cut::Again(why)
            }
        }
        tungstenite::Error::Url(_) | tungstenite::Error::HttpFormat(_) => {
            Cut::Never(SendError::Request(error.to_string()))
        }
        other => Cut::Again(other.to_string()),
    }
}
