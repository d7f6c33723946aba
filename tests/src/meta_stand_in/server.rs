//! HTTP/1.1 by hand, since no server library can reset a connection in the middle of a body, and what becomes of a request.

use super::rules::{self, Refusal};
use super::{Counts, Dataset, Fault, Seen, Shared, State};
use bytes::{Buf, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bytes of a request at most.
const AT_MOST: usize = 64 << 20;
/// Events of a request at most.
const EVENTS_AT_MOST: usize = 1_000;

/// Serves until dropped.
pub(super) async fn serve(listener: std::net::TcpListener, shared: Arc<Shared>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let shared = shared.clone();
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            // A client that goes away is no concern.
            let _ = converse(stream, &shared).await;
        });
    }
}

struct Request {
    target: String,
    head: String,
    body: Bytes,
}

async fn converse(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(64 << 10);
    while let Some(request) = read(&mut stream, &mut buffer).await? {
        let (outcome, latency) = take(shared, &request);
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let goes_on = answer(&mut stream, outcome).await;
        shared.answered.send_modify(|n| *n += 1);
        if !goes_on? {
            break;
        }
    }
    Ok(())
}

async fn read(stream: &mut TcpStream, buffer: &mut BytesMut) -> io::Result<Option<Request>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let (head_len, length, target) = loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Request::new(&mut headers);
        if let httparse::Status::Complete(n) = parsed.parse(buffer).map_err(|_| invalid())? {
            let length = parsed
                .headers
                .iter()
                .find(|h| h.name.eq_ignore_ascii_case("content-length"))
                .and_then(|h| std::str::from_utf8(h.value).ok()?.parse::<usize>().ok())
                .unwrap_or(0);
            break (n, length, parsed.path.unwrap_or("/").to_owned());
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    if length > AT_MOST {
        return Err(invalid());
    }
    let head = String::from_utf8_lossy(buffer.get(..head_len).unwrap_or_default()).into_owned();
    buffer.advance(head_len);
    buffer.reserve(length.saturating_sub(buffer.len()));
    while buffer.len() < length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body = buffer.split_to(length).freeze();
    Ok(Some(Request { target, head, body }))
}

enum Outcome {
    Plain {
        status: u16,
        retry_after: Option<String>,
        body: String,
    },
    ResetNow,
    ResetMidBody(String),
    Slow(String, usize, Duration),
    Hang,
}

impl Outcome {
    fn plain(status: u16, body: impl ToString) -> Outcome {
        Outcome::Plain {
            status,
            retry_after: None,
            body: body.to_string(),
        }
    }
}

/// Answers; false: the connection is done with.
async fn answer(stream: &mut TcpStream, outcome: Outcome) -> io::Result<bool> {
    match outcome {
        Outcome::Plain {
            status,
            retry_after,
            body,
        } => {
            let mut text = head(status, body.len(), retry_after.as_deref());
            text.push_str(&body);
            stream.write_all(text.as_bytes()).await?;
            Ok(true)
        }
        Outcome::ResetNow => {
            stream.set_zero_linger()?;
            Ok(false)
        }
        Outcome::ResetMidBody(body) => {
            let mut text = head(200, body.len(), None);
            text.push_str(body.get(..body.len() / 2).unwrap_or_default());
            stream.write_all(text.as_bytes()).await?;
            stream.set_zero_linger()?;
            Ok(false)
        }
        Outcome::Slow(body, pieces, pause) => {
            stream
                .write_all(head(200, body.len(), None).as_bytes())
                .await?;
            let size = body.len().div_ceil(pieces.max(1)).max(1);
            for piece in body.as_bytes().chunks(size) {
                tokio::time::sleep(pause).await;
                stream.write_all(piece).await?;
            }
            Ok(true)
        }
        Outcome::Hang => {
            // Until the other side gives up.
            let mut rest = [0u8; 256];
            while stream.read(&mut rest).await? > 0 {}
            Ok(false)
        }
    }
}

fn head(status: u16, length: usize, retry_after: Option<&str>) -> String {
    let mut text = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json; charset=UTF-8\r\ncontent-length: {length}\r\n"
    );
    if let Some(after) = retry_after {
        text.push_str(&format!("retry-after: {after}\r\n"));
    }
    text.push_str("\r\n");
    text
}

fn error(status: u16, code: u64, subcode: Option<u64>, message: &str) -> Outcome {
    let mut error = json!({
        "message": message, "type": "OAuthException", "code": code, "is_transient": false, "fbtrace_id": "AStandIn",
    });
    if let Some(subcode) = subcode {
        error["error_subcode"] = json!(subcode);
    }
    Outcome::plain(status, json!({ "error": error }))
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
    #[serde(borrow)]
    access_token: Option<Cow<'a, str>>,
    #[serde(borrow)]
    appsecret_proof: Option<Cow<'a, str>>,
}

fn take(shared: &Shared, request: &Request) -> (Outcome, Duration) {
    let mut state = shared.state();
    let latency = state.latency;
    if state.keep > 0 {
        while state.seen.len() >= state.keep {
            state.seen.pop_front();
        }
        state.seen.push_back(Seen {
            target: request.target.clone(),
            head: request.head.clone(),
            body: request.body.clone(),
        });
    }
    (judge(&mut state, request), latency)
}

fn judge(state: &mut State, request: &Request) -> Outcome {
    let path = request.target.split('?').next().unwrap_or_default();
    let mut parts = path.rsplitn(3, '/');
    let (Some("events"), Some(dataset)) = (parts.next(), parts.next()) else {
        return error(404, 2500, None, "Unknown path components");
    };
    let body = serde_json::from_slice::<Body<'_>>(&request.body);
    if state.open && !state.datasets.contains_key(dataset) {
        let fresh = Dataset {
            token: String::new(),
            app_secret: None,
            counts: Counts::default(),
        };
        state.datasets.insert(dataset.to_owned(), fresh);
    }
    let fault = state.script.pop_front();
    let now = state.now_secs();
    let (open, names_index) = (state.open, state.names_index);
    let State {
        datasets, known, ..
    } = state;
    let Some(found) = datasets.get_mut(dataset) else {
        return error(
            400,
            100,
            Some(33),
            "Unsupported post request. Object does not exist, cannot be loaded due to missing permissions",
        );
    };
    found.counts.requests += 1;
    let n = body.as_ref().map_or(0, |b| b.data.len() as u64);
    let refuse = |counts: &mut Counts, outcome| {
        counts.refused_requests += 1;
        counts.refused += n;
        outcome
    };
    if let Some(fault) = fault.as_ref().filter(|f| !f.takes()) {
        let outcome = match fault {
            Fault::Status {
                status,
                retry_after,
                body,
            } => Outcome::Plain {
                status: *status,
                retry_after: retry_after.clone(),
                body: body.clone(),
            },
            Fault::Error {
                status,
                code,
                subcode,
            } => error(*status, *code, *subcode, "As the script says"),
            Fault::Echo => {
                let said = String::from_utf8_lossy(&request.body);
                error(400, 190, None, &format!("Malformed request: {said}"))
            }
            _ => Outcome::ResetNow,
        };
        return refuse(&mut found.counts, outcome);
    }
    let Ok(body) = body else {
        let outcome = error(400, 100, None, "Invalid JSON");
        return refuse(&mut found.counts, outcome);
    };
    if let Some(outcome) = unknown_sender(found, &body, open) {
        return refuse(&mut found.counts, outcome);
    }
    if body.data.is_empty() || body.data.len() > EVENTS_AT_MOST {
        let outcome = error(400, 100, Some(2_804_007), "1 to 1000 events a request");
        return refuse(&mut found.counts, outcome);
    }
    let mut keys = Vec::with_capacity(body.data.len());
    for (index, event) in body.data.iter().enumerate() {
        match rules::check(event, now) {
            Ok((name, id)) => keys.push(key(dataset, &name, &id)),
            Err(refusal) => {
                let outcome = refused(&refusal, names_index.then_some(index));
                return refuse(&mut found.counts, outcome);
            }
        }
    }
    for key in keys {
        let times = known.entry(key).or_insert(0);
        *times += 1;
        found.counts.received += 1;
        if *times == 1 {
            found.counts.unique += 1;
        } else {
            found.counts.duplicates += 1;
        }
    }
    taken(fault, n)
}

/// What is told of events that were taken.
fn taken(fault: Option<Fault>, n: u64) -> Outcome {
    let receipt = |n: u64| {
        json!({"events_received": n, "messages": [], "fbtrace_id": "AStandIn"}).to_string()
    };
    match fault {
        Some(Fault::ResetBeforeAnswer) => Outcome::ResetNow,
        Some(Fault::ResetMidBody) => Outcome::ResetMidBody(receipt(n)),
        Some(Fault::SlowBody { pieces, pause }) => Outcome::Slow(receipt(n), pieces, pause),
        Some(Fault::Hang) => Outcome::Hang,
        Some(Fault::WrongCount(other)) => Outcome::plain(200, receipt(other)),
        Some(Fault::NoReceipt) => Outcome::plain(200, "{}"),
        Some(Fault::HugeBody(bytes)) => Outcome::plain(200, " ".repeat(bytes)),
        _ => Outcome::plain(200, receipt(n)),
    }
}

fn unknown_sender(dataset: &Dataset, body: &Body<'_>, open: bool) -> Option<Outcome> {
    let token = body.access_token.as_deref().unwrap_or_default();
    if token.is_empty() || (token != dataset.token && !(open && dataset.token.is_empty())) {
        return Some(error(
            400,
            190,
            None,
            "Invalid OAuth access token - Cannot parse access token",
        ));
    }
    let secret = dataset.app_secret.as_deref()?;
    let right = hmac_hex(secret.as_bytes(), token.as_bytes());
    (body.appsecret_proof.as_deref() != Some(right.as_str())).then(|| {
        error(
            400,
            100,
            None,
            "Invalid appsecret_proof provided in the API argument",
        )
    })
}

fn refused(refusal: &Refusal, index: Option<usize>) -> Outcome {
    let mut body = json!({"error": {
        "message": "Invalid parameter", "type": "OAuthException", "code": 100, "error_subcode": refusal.subcode,
        "is_transient": false, "error_user_title": refusal.title, "fbtrace_id": "AStandIn",
    }});
    if let Some(index) = index {
        body["error"]["error_data"] =
            json!({"events": {"event_index": index, "message": refusal.title}});
    }
    Outcome::plain(400, body)
}

/// What an event is known by.
pub(super) fn key(dataset: &str, name: &str, id: &str) -> u128 {
    let mut hash = Sha256::new();
    for part in [dataset, name, id] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    digest
        .iter()
        .take(16)
        .fold(0, |key, b| (key << 8) | u128::from(*b))
}

/// HMAC-SHA256, from its definition: the stand-in shares no code with what it judges.
fn hmac_hex(key: &[u8], message: &[u8]) -> String {
    let mut block = [0u8; 64];
    if key.len() > 64 {
        let digest: [u8; 32] = Sha256::digest(key).into();
        block.iter_mut().zip(digest).for_each(|(to, b)| *to = b);
    } else {
        block.iter_mut().zip(key).for_each(|(to, b)| *to = *b);
    }
    let with = |pad: u8, message: &[u8]| -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(block.map(|b| b ^ pad));
        hash.update(message);
        hash.finalize().into()
    };
    let outer = with(0x5c, &with(0x36, message));
    outer.iter().map(|b| format!("{b:02x}")).collect()
}
