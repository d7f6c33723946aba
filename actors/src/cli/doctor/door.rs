//! Whether the doors answer, or could be opened here.

use super::Findings;
use crate::cli::Context;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(3);
const WHAT: &str = "doors";

pub(super) async fn look(context: &Context, findings: &mut Findings) {
    let address = context.settings().http.doors;
    // A listener on every address is asked at this machine's own.
    let asked = match address.ip().is_unspecified() {
        true => SocketAddr::from(([127, 0, 0, 1], address.port())),
        false => address,
    };
    let answer = tokio::time::timeout(PATIENCE, ask(asked)).await;
    match answer {
        Ok(Ok(text)) => answered(address, &text, findings),
        Ok(Err(e)) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
            match TcpListener::bind(address) {
                Ok(_) => findings.ok(WHAT, format!("{address} is free; no doors are open here")),
                Err(e) => findings.fail(
                    WHAT,
                    format!("nothing can listen on {address}: {e}"),
                    "set http.doors (MILLRACE_HTTP__DOORS) to an address of this machine",
                ),
            }
        }
        Ok(Err(e)) => findings.fail(
            WHAT,
            format!("{address}: {e}"),
            "another program holds the port? set http.doors (MILLRACE_HTTP__DOORS) to a free one",
        ),
        Err(_) => findings.fail(
            WHAT,
            format!("{address} takes connections and does not answer"),
            "another program holds the port, or the process hangs: look at its log",
        ),
    }
}

async fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(64 << 10).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn answered(address: SocketAddr, text: &str, findings: &mut Findings) {
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let json: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    match json.get("ready").and_then(serde_json::Value::as_bool) {
        Some(true) => findings.ok(WHAT, format!("{address} is open")),
        Some(false) => {
            let reasons: Vec<&str> = json
                .get("reasons")
                .and_then(serde_json::Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(serde_json::Value::as_str)
                .collect();
            findings.fail(
                WHAT,
                format!("{address} answers 503: {}", reasons.join("; ")),
                "mend what it names; the doors open by themselves",
            );
        }
        None => findings.fail(
            WHAT,
            format!("{address} is answered by another program"),
            "stop it, or set http.doors (MILLRACE_HTTP__DOORS) to a free port",
        ),
    }
}
