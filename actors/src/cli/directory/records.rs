//! Lines of a file as records of topic `directory`: what a line may leave out, and what no line may say. Pure.

use bytes::Bytes;
use millrace_schemas::WIRE_VERSION;
use millrace_schemas::directory::DirectoryRecord;
use millrace_schemas::time::Micros;
use serde_json::{Map, Value, json};

/// How far the clock of whoever wrote the file may be ahead, in seconds.
const AHEAD_S: i64 = 60;

/// A line that may be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Which, from 1.
    pub number: usize,
    /// Its workspace.
    pub ws: i32,
    /// The key in the log.
    pub key: Bytes,
    /// The record.
    pub payload: Bytes,
}

/// What is wrong with a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Which, from 1.
    pub line: usize,
    /// For people; quotes nothing of the line.
    pub why: String,
}

/// What counts for every line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// The workspace of lines that name none.
    pub workspace: Option<i32>,
    /// The acceptance of lines that name none; none may be later than a minute after it.
    pub now: Micros,
    /// The largest record that the log takes, key and all, in bytes.
    pub limit: usize,
}

/// Reads all lines; empty ones are none.
pub(super) fn read(text: &str, given: &Given) -> (Vec<Line>, Vec<Fault>) {
    let (mut lines, mut faults) = (Vec::new(), Vec::new());
    for (index, raw) in text.lines().enumerate() {
        let raw = raw.trim();
        if raw.is_empty() {
            continue;
        }
        let number = index + 1;
        match one(number, raw, given) {
            Ok(line) => lines.push(line),
            Err(why) => faults.push(Fault { line: number, why }),
        }
    }
    (lines, faults)
}

fn one(number: usize, raw: &str, given: &Given) -> Result<Line, String> {
    let mut object: Map<String, Value> =
        serde_json::from_str(raw).map_err(|e| format!("{} (column {})", said(&e), e.column()))?;
    if object.contains_key("replay") {
        return Err("`replay` is for `millrace dlq replay` to say".to_owned());
    }
    if let Some(ws) = given.workspace {
        object.entry("ws").or_insert_with(|| json!(ws));
    }
    if !object.contains_key("ws") {
        return Err("it names no workspace by `ws`, nor does --workspace".to_owned());
    }
    object.entry("v").or_insert_with(|| json!(WIRE_VERSION));
    object
        .entry("accepted_at")
        .or_insert_with(|| json!(given.now.0));
    let payload = serde_json::to_vec(&object).map_err(|e| said(&e))?;
    // As the actor will.
    let record: DirectoryRecord = serde_json::from_slice(&payload).map_err(|e| said(&e))?;
    if record.v != WIRE_VERSION {
        return Err(format!(
            "`v` is {}, and this build knows {WIRE_VERSION}",
            record.v
        ));
    }
    // A moment far ahead would be newer than whatever is said in years to come.
    let latest = given.now.plus_secs(AHEAD_S);
    for (name, moment) in [("accepted_at", Some(record.accepted_at)), ("at", record.at)] {
        if moment.is_some_and(|at| at < Micros(0) || at > latest) {
            return Err(format!(
                "`{name}` is no moment that has been: microseconds since 1970, UTC"
            ));
        }
    }
    record
        .check()
        .map_err(|reason| format!("it would be rejected: {reason}"))?;
    let key = record.log_key();
    let bytes = key.len() + payload.len();
    if bytes > given.limit {
        return Err(format!(
            "it has {bytes} bytes, the log takes at most {}",
            given.limit
        ));
    }
    Ok(Line {
        number,
        ws: record.ws,
        key: Bytes::from(key),
        payload: Bytes::from(payload),
    })
}

/// What the parser says, without its place in a text that nobody has, and without what it quotes: that could be an address.
fn said(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(&*text, |(t, _)| t);
    if text.starts_with("missing field") {
        return text.to_owned();
    }
    // What was given stands first, between `"` or between backticks; what was expected, words of this program, behind it.
    let (given, expected) = match text.rsplit_once(", expected ") {
        Some((given, expected)) => (given, format!(", expected {expected}")),
        None => (text, String::new()),
    };
    match given.split_once(['"', '`']) {
        Some((before, _)) => format!("{before}…{expected}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: Given = Given {
        workspace: Some(3),
        now: Micros(1_796_040_000_000_000),
        limit: 500,
    };

    fn record(line: &Line) -> DirectoryRecord {
        serde_json::from_slice(&line.payload).unwrap()
    }

    #[test]
    fn what_a_line_leaves_out_is_filled_in_and_what_it_says_stays() {
        let text = "
            {\"change\": \"user\", \"user\": \"u-1\", \"email\": \"ada@example.org\"}

            {\"v\": 1, \"ws\": 4, \"accepted_at\": 5, \"change\": \"login\", \"user\": \"u-2\", \"from\": \"a later build\"}";
        let (lines, faults) = read(text, &GIVEN);
        assert!(faults.is_empty(), "{faults:?}");
        let [first, second] = &lines[..] else {
            panic!("{lines:?}")
        };
        let (one, two) = (record(first), record(second));
        assert_eq!((first.number, first.ws, &*first.key), (2, 3, &b"3:u-1"[..]));
        assert_eq!((one.v, one.accepted_at), (1, GIVEN.now));
        assert_eq!((second.number, &*second.key), (4, &b"4:u-2"[..]));
        assert_eq!(two.accepted_at, Micros(5));
        let kept = String::from_utf8_lossy(&second.payload);
        assert!(kept.contains("a later build"), "{kept}");
    }

    #[test]
    fn each_fault_names_its_line_and_quotes_nothing() {
        let long = format!(
            r#"{{"change":"user","user":"u","more":"{}"}}"#,
            "x".repeat(500)
        );
        for (line, why) in [
            ("{", "EOF while parsing an object"),
            ("[1]", "invalid type: sequence, expected a map"),
            (r#"{"change":"user"}"#, "missing field `user`"),
            (
                r#"{"change":"user","user":"u","email_verified":"ada@example.org"}"#,
                "invalid type: string …, expected a boolean",
            ),
            (
                r#"{"change":"user","user":"u","name":4915112345678}"#,
                "invalid type: integer …, expected a string",
            ),
            (
                r#"{"change":"ada@example.org","user":"u"}"#,
                "unknown variant …, expected one of `user`, `login`, `link`, `unlink`, `preference`",
            ),
            (
                r#"{"change":"user","user":"u","email":"nobody"}"#,
                "it would be rejected: email_malformed",
            ),
            (
                r#"{"change":"link","user":"u"}"#,
                "it would be rejected: field_malformed",
            ),
            (
                r#"{"v":2,"change":"user","user":"u"}"#,
                "`v` is 2, and this build knows 1",
            ),
            (
                r#"{"accepted_at":2796040000000000,"change":"user","user":"u"}"#,
                "`accepted_at` is no moment that has been: microseconds since 1970, UTC",
            ),
            (
                r#"{"at":-1,"change":"login","user":"u"}"#,
                "`at` is no moment that has been: microseconds since 1970, UTC",
            ),
            (
                r#"{"change":"user","user":"u","replay":null}"#,
                "`replay` is for `millrace dlq replay` to say",
            ),
        ] {
            let (lines, faults) = read(&format!("\n{line}"), &GIVEN);
            assert!(lines.is_empty(), "{line}");
            let [fault] = &faults[..] else {
                panic!("{line}: {faults:?}")
            };
            // Where the parser stood is its own affair.
            let said = fault.why.split(" (column").next();
            assert_eq!((fault.line, said), (2, Some(why)), "{line}");
        }
        let (_, faults) = read(&long, &GIVEN);
        assert!(faults[0].why.contains("at most 500"), "{faults:?}");
        let nobody = Given {
            workspace: None,
            ..GIVEN
        };
        let (_, faults) = read(r#"{"change":"user","user":"u"}"#, &nobody);
        assert!(faults[0].why.contains("--workspace"), "{faults:?}");
    }
}
