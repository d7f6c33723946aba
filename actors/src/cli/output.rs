//! Tables for people, the same as JSON for programs.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde_json::{Map, Value};
use std::io::Write;

/// Rows under named columns.
#[derive(Debug)]
pub(super) struct Listing {
    columns: Vec<&'static str>,
    rows: Vec<Vec<Value>>,
}

impl Listing {
    /// An empty one.
    pub fn new(columns: &[&'static str]) -> Listing {
        Listing {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, one value a column.
    pub fn row(&mut self, values: Vec<Value>) {
        debug_assert_eq!(values.len(), self.columns.len());
        self.rows.push(values);
    }

    /// An array of objects.
    pub fn json(&self) -> Value {
        let object = |row: &Vec<Value>| {
            let pairs = self.columns.iter().map(|c| (*c).to_owned());
            Value::Object(pairs.zip(row.iter().cloned()).collect::<Map<_, _>>())
        };
        Value::Array(self.rows.iter().map(object).collect())
    }

    /// A table for a terminal; "none" where there is nothing.
    pub fn table(&self) -> String {
        if self.rows.is_empty() {
            return "none".to_owned();
        }
        let mut table = Table::new();
        table
            .load_style(UTF8_FULL_CONDENSED)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(self.columns.iter().map(|c| c.replace('_', " ")));
        for row in &self.rows {
            table.add_row(row.iter().map(shown));
        }
        for (at, column) in table.column_iter_mut().enumerate() {
            if self
                .rows
                .iter()
                .all(|r| matches!(r.get(at), Some(Value::Number(_) | Value::Null)))
            {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// One line, or many, to stdout. A reader that has gone away (`| head`) is no failure.
pub(super) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
}
