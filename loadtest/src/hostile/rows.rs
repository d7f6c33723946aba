//! The table of what was fuzzed: a row a target, each with its own date, so that targets may be fuzzed on several days.

use std::collections::BTreeMap;

/// What the table is headed by. A table of other columns is an older one: its rows are not taken over.
const HEAD: &str = "| target | decodes | executions | edges | inputs | peak MiB | finding | seconds | seed | fuzzed |\n\
    |---|---|---|---|---|---|---|---|---|---|\n";

/// Columns of a row.
const COLUMNS: usize = 10;

/// A row, cell by cell, as the table has it.
pub(super) type Row = [String; COLUMNS];

/// A cell's text: what would end a cell or a line stands for itself no longer.
pub(super) fn cell(text: &str) -> String {
    let one_line: Vec<&str> = text.split_whitespace().collect();
    one_line.join(" ").replace('|', "/")
}

/// Rows by target, as an earlier section has them.
pub(super) fn read(section: &str) -> BTreeMap<String, Row> {
    let Some((_, rows)) = section.split_once(HEAD) else {
        return BTreeMap::new();
    };
    rows.lines()
        .map_while(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .filter_map(|line| {
            let cells: Vec<String> = line.split(" | ").map(|c| c.trim().to_owned()).collect();
            let row: Row = cells.try_into().ok()?;
            Some((row[0].trim_matches('`').to_owned(), row))
        })
        .collect()
}

/// The table: the rows of before, those of `new` in the place of their targets' old ones, and only targets that there are.
pub(super) fn merged(
    mut rows: BTreeMap<String, Row>,
    new: impl IntoIterator<Item = (String, Row)>,
    exists: impl Fn(&str) -> bool,
) -> BTreeMap<String, Row> {
    rows.extend(new);
    rows.retain(|name, _| exists(name));
    rows
}

/// As Markdown.
pub(super) fn table(rows: &BTreeMap<String, Row>) -> String {
    let mut out = HEAD.to_owned();
    for row in rows.values() {
        out.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, date: &str) -> (String, Row) {
        let mut row: Row = std::array::from_fn(|n| n.to_string());
        row[0] = format!("`{name}`");
        row[6] = cell("none | but\ntwo lines");
        row[COLUMNS - 1] = date.to_owned();
        (name.to_owned(), row)
    }

    #[test]
    fn rows_of_targets_that_did_not_run_stay_with_their_dates() {
        let all = |_: &str| true;
        let first = merged(
            BTreeMap::new(),
            [row("a", "monday"), row("b", "monday")],
            all,
        );
        let text = format!(
            "## Fuzzing\n\nwords | and bars\n\n{}\nand more\n",
            table(&first)
        );
        assert_eq!(read(&text), first);
        let second = merged(read(&text), [row("b", "tuesday")], all);
        let dates: Vec<&str> = second
            .values()
            .filter_map(|r| r.last())
            .map(String::as_str)
            .collect();
        assert_eq!(dates, ["monday", "tuesday"]);
        let third = merged(second, [row("c", "tuesday")], |name| name != "a");
        assert_eq!(third.keys().collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn a_table_of_other_columns_is_left_behind() {
        assert!(read("| target | decodes |\n|---|---|\n| `a` | b |\n").is_empty());
        assert!(read("").is_empty());
    }
}
