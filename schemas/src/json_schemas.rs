//! JSON Schemas of the wire records, generated from their types. The committed copies are `schemas/json/*.json`; examples
//! that they take and refuse are `schemas/examples/<record>/{good,bad}-*.json`. Tests hold all of them together.

use crate::click::ClickRecord;
use crate::directory::DirectoryRecord;
use crate::firing::Firing;
use crate::frame::Frame;
use crate::journey::Journey;
use crate::notice::Notice;
use crate::postback::PostbackRecord;
use serde_json::Value;

/// Every wire record's name and schema.
#[must_use]
pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        (
            "click_record",
            schemars::schema_for!(ClickRecord).to_value(),
        ),
        ("frame", schemars::schema_for!(Frame).to_value()),
        (
            "directory_record",
            schemars::schema_for!(DirectoryRecord).to_value(),
        ),
        ("firing", schemars::schema_for!(Firing).to_value()),
        ("journey", schemars::schema_for!(Journey).to_value()),
        ("notice", schemars::schema_for!(Notice).to_value()),
        (
            "postback_record",
            schemars::schema_for!(PostbackRecord).to_value(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    fn folder(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
    }

    /// `MILLRACE_WRITE_SCHEMAS=1` writes the files instead.
    #[test]
    fn the_committed_schemas_are_these() {
        for (name, schema) in all() {
            let path = folder("json").join(format!("{name}.json"));
            let text = format!("{}\n", serde_json::to_string_pretty(&schema).expect("JSON"));
            if std::env::var_os("MILLRACE_WRITE_SCHEMAS").is_some() {
                std::fs::write(&path, &text).expect("written");
            }
            assert!(
                std::fs::read_to_string(&path).unwrap_or_default() == text,
                "{} has drifted; MILLRACE_WRITE_SCHEMAS=1 cargo test -p millrace-schemas writes it anew",
                path.display()
            );
        }
    }

    /// Whether the product itself reads the text as that record, without a fault that its form alone shows.
    fn is_read(name: &str, text: &str) -> bool {
        match name {
            "click_record" => serde_json::from_str::<ClickRecord>(text).is_ok(),
            "frame" => serde_json::from_str::<Frame>(text).is_ok(),
            "directory_record" => serde_json::from_str::<DirectoryRecord>(text).is_ok(),
            "firing" => serde_json::from_str::<Firing>(text).is_ok(),
            "journey" => serde_json::from_str::<Journey>(text).is_ok(),
            "notice" => serde_json::from_str::<Notice>(text).is_ok(),
            _ => serde_json::from_str::<PostbackRecord>(text).is_ok(),
        }
    }

    #[test]
    fn examples_are_what_their_names_say() {
        for (name, schema) in all() {
            let validator = jsonschema::options()
                .should_validate_formats(true)
                .build(&schema)
                .expect("a schema");
            let (mut good, mut bad) = (0, 0);
            for entry in std::fs::read_dir(folder("examples").join(name)).expect("examples") {
                let path = entry.expect("an entry").path();
                let text = std::fs::read_to_string(&path).expect("text");
                let value: Value = serde_json::from_str(&text).expect("JSON");
                let wanted = path
                    .file_name()
                    .and_then(|n| n.to_str())
                    .is_some_and(|n| n.starts_with("good-"));
                *(if wanted { &mut good } else { &mut bad }) += 1;
                let errors: Vec<String> = validator
                    .iter_errors(&value)
                    .map(|e| e.to_string())
                    .collect();
                assert_eq!(errors.is_empty(), wanted, "{}: {errors:?}", path.display());
                assert_eq!(
                    is_read(name, &text),
                    wanted,
                    "{}: the reader disagrees",
                    path.display()
                );
            }
            assert!(
                good > 0 && bad > 0,
                "{name}: {good} good and {bad} bad examples"
            );
        }
    }
}
