//! A recorded session of a shard: lines of NDJSON as its sidecar said them, hellos and frames.

use serde::Deserialize;
use std::path::Path;

/// What a shard sent between two starts.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// The protocol that its hello names.
    pub protocol: u32,
    /// The run that its hello names.
    pub boot: String,
    /// By ascending sequence, without gaps.
    pub frames: Vec<Recorded>,
}

/// A frame, as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its number.
    pub seq: u64,
    /// All of it, on one line.
    pub line: String,
}

/// Why a file is no recording.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RecordingError {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// A line is neither a hello nor a frame where it stands.
    #[error("line {line}: {what}")]
    Malformed {
        /// Which, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// Hellos alone, or not even these.
    #[error("there is no frame in it")]
    Empty,
}

#[derive(Deserialize)]
struct Line {
    #[serde(default, rename = "type")]
    type_: Option<String>,
    #[serde(default)]
    seq: Option<u64>,
    #[serde(default)]
    protocol: Option<u32>,
    #[serde(default)]
    boot: Option<String>,
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Vec<Run>, RecordingError> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| RecordingError::Unreadable(format!("{}: {e}", path.display())))?;
    parse(&text)
}

/// Reads its text.
///
/// # Errors
/// It is no recording; the first line that is not is named.
pub fn parse(text: &str) -> Result<Vec<Run>, RecordingError> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let raw = raw.trim();
        if raw.is_empty() {
            continue;
        }
        let wrong = |what: String| RecordingError::Malformed {
            line: index + 1,
            what,
        };
        let line: Line = serde_json::from_str(raw).map_err(|e| wrong(e.to_string()))?;
        if line.type_.as_deref() == Some("hello") {
            runs.push(Run {
                protocol: line
                    .protocol
                    .ok_or_else(|| wrong("a hello names its `protocol`".to_owned()))?,
                boot: line
                    .boot
                    .ok_or_else(|| wrong("a hello names its `boot`".to_owned()))?,
                frames: Vec::new(),
            });
            continue;
        }
        let run = runs
            .last_mut()
            .ok_or_else(|| wrong("a recording begins with a hello".to_owned()))?;
        let seq = line
            .seq
            .ok_or_else(|| wrong("a frame has a `seq`".to_owned()))?;
        let before = run.frames.last().map(|f| f.seq);
        if before.is_some_and(|b| b.checked_add(1) != Some(seq)) || seq == 0 {
            return Err(wrong(format!(
                "sequence {seq} does not follow {}",
                before.unwrap_or(0)
            )));
        }
        run.frames.push(Recorded {
            seq,
            line: raw.to_owned(),
        });
    }
    if runs.iter().all(|r| r.frames.is_empty()) {
        return Err(RecordingError::Empty);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_begin_with_hellos() {
        let text = "{\"type\":\"hello\",\"protocol\":5,\"boot\":\"a\"}\n{\"seq\":1,\"kind\":\"k\",\"body\":{}}\n\n\
                    {\"seq\":2,\"kind\":\"k\",\"body\":{}}\n{\"type\":\"hello\",\"protocol\":5,\"boot\":\"b\"}\n{\"seq\":1,\"kind\":\"k\",\"body\":{}}";
        let runs = parse(text).expect("a recording");
        let seen: Vec<(&str, Vec<u64>)> = runs
            .iter()
            .map(|r| (r.boot.as_str(), r.frames.iter().map(|f| f.seq).collect()))
            .collect();
        assert_eq!(seen, [("a", vec![1, 2]), ("b", vec![1])]);
    }

    #[test]
    fn what_is_no_recording_is_named_with_its_line() {
        let hello = "{\"type\":\"hello\",\"protocol\":5,\"boot\":\"a\"}\n";
        for (text, want) in [
            (String::new(), "there is no frame in it"),
            (hello.to_owned(), "there is no frame in it"),
            (
                "{\"seq\":1}".to_owned(),
                "line 1: a recording begins with a hello",
            ),
            (format!("{hello}{{}}"), "line 2: a frame has a `seq`"),
            (
                format!("{hello}{{\"seq\":1}}\n{{\"seq\":3}}"),
                "line 3: sequence 3 does not follow 1",
            ),
            (
                format!(
                    "{hello}{{\"seq\":18446744073709551615}}\n{{\"seq\":18446744073709551615}}"
                ),
                "line 3: sequence 18446744073709551615 does not follow 18446744073709551615",
            ),
        ] {
            assert_eq!(parse(&text).expect_err(want).to_string(), want);
        }
    }
}
