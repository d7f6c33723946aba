//! A stream that emits and a stream that receives, mounted by the proving build on the product's own process: emits as they are
//! meant to be used, before a vertical of the product uses them.
//!
//! Group `proving_echo` reads topic `proving_in` and emits each record to topic `proving_out`, under another key, so that records
//! of one partition reach them all. Group `proving_sink` receives them and writes a row a record into `proving_seen`, a table
//! that nobody else knows. `millrace-proving echo create` makes topics and table; `millrace-proving echo run [emitter|sink]` is a
//! process of both groups or of one. [`run::Echo`] puts numbered records in and recounts what came out.

mod emitter;
pub mod run;
mod sink;

pub use emitter::Emitter;
pub use sink::Sink;

use millrace::runtime::mount::Mount;
use millrace::runtime::vertical::{DecodeError, Decoded};
use millrace_schemas::time::Micros;
use millrace_topics::catalogue::{self, GroupSpec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// What is put in.
pub const IN: &str = "proving_in";
/// What is emitted.
pub const OUT: &str = "proving_out";
/// The group that emits.
pub const EMITTER: GroupSpec = GroupSpec {
    name: "proving_echo",
    topics: &[IN],
};
/// The group that receives.
pub const SINK: GroupSpec = GroupSpec {
    name: "proving_sink",
    topics: &[OUT],
};

/// A record of either topic.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Said {
    /// When it was put in.
    pub accepted_at: Micros,
    /// Its number.
    pub n: i64,
}

/// Without a unique key: what is written twice is to be seen.
const TABLE: &str = "
CREATE TABLE IF NOT EXISTS proving_seen (
    n                bigint NOT NULL,
    partition        integer NOT NULL,
    \"offset\"       bigint NOT NULL,
    source_partition integer NOT NULL,
    seq              bigint NOT NULL
)";

fn decode<R: DeserializeOwned>(
    payload: &[u8],
    accepted_at: impl Fn(&R) -> Micros,
) -> Result<Decoded<R>, DecodeError> {
    let record: R = serde_json::from_slice(payload)
        .map_err(|e| DecodeError::Undecodable(format!("{:?}", e.classify())))?;
    Ok(Decoded {
        accepted_at: accepted_at(&record),
        workspace: 1,
        replay: None,
        record,
    })
}

/// `millrace-proving echo …`, with the words behind `echo`.
#[must_use]
pub fn main(words: &[String]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let emitter = || {
        Mount::new(|topics| {
            let out = catalogue::find(topics, OUT)?.no;
            Ok(move || Emitter::new(out))
        })
    };
    let sink = || Mount::new(|_| Ok(Sink::default));
    match *words {
        ["create"] => match create() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        },
        ["run"] => millrace::cli::mounted(vec![emitter(), sink()]),
        ["run", "emitter"] => millrace::cli::mounted(vec![emitter()]),
        ["run", "sink"] => millrace::cli::mounted(vec![sink()]),
        _ => {
            eprintln!("error: echo create, or echo run [emitter|sink]");
            ExitCode::from(2)
        }
    }
}

fn create() -> anyhow::Result<()> {
    let settings = millrace::settings::load(None)?;
    let url = settings.database.url.clone().unwrap_or_default();
    actix_rt::System::new().block_on(async {
        millrace::cli::create_topics(&settings, &[EMITTER, SINK]).await?;
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
        actix_rt::spawn(connection);
        client.batch_execute(TABLE).await?;
        Ok(())
    })
}
