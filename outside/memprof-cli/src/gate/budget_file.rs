//! The text of a budget file: where its limits stand, and how an update changes it. Comments and the order of keys
//! stay, because people review the file.

use std::collections::BTreeMap;
use std::path::Path;

use toml_edit::{Document, DocumentMut, Item, Table, TableLike, Value};

use super::budget::{Budget, ByteSize, FunctionBudgets};
use super::measurement::BudgetedTotal;
use crate::exit::{USAGE, with_exit_code};

/// A new file.
const TEMPLATE: &str = "\
# The budget of `memprof test`: a run may exceed it by `tolerance`. `--update` writes what it measures.
tolerance = \"2.5%\"
peak = 0  # bytes that live at the same time in one process
allocated = 0  # bytes, in all processes together
";
/// Table of the functions' bytes, and its name in older files.
const BASELINE: [&str; 2] = ["baseline", "held"];
/// Comment above a new table of the functions' bytes.
const BASELINE_COMMENT: &str =
    "\n# Bytes by function when this was written. These are not limits.\n";

/// Text of a budget file that was read or will be written.
#[derive(Debug)]
pub(super) struct BudgetFile(Document<String>);

impl BudgetFile {
    /// Reads a file, and the budget in it. `None` if there is no file.
    ///
    /// # Errors
    /// The file cannot be read or parsed; the text names the line.
    pub(super) fn read(path: &Path) -> anyhow::Result<Option<(Self, Budget)>> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(with_exit_code(
                    USAGE,
                    format!("{}: {error}", path.display()),
                ));
            }
        };
        // Parsed twice: for the values, and as a document that keeps comments and positions.
        let parsed = toml::from_str(&text).map_err(|error| error.to_string());
        let parsed = parsed.and_then(|budget| {
            let document = Document::parse(text).map_err(|error| error.to_string())?;
            Ok((Self(document), budget))
        });
        parsed
            .map(Some)
            .map_err(|error| with_exit_code(USAGE, format!("{}: {error}", path.display())))
    }

    /// Returns the file that `--update` fills if there is none, with limits of 0.
    pub(super) fn template() -> anyhow::Result<Self> {
        Ok(Self(Document::parse(TEMPLATE.to_owned())?))
    }

    /// Returns the line of a limit, counted from 1. `function` is `None` for the limit of a total. 1 if the limit is
    /// not in the file.
    pub(super) fn limit_line(&self, total: BudgetedTotal, function: Option<&str>) -> usize {
        let table = self.0.as_table();
        let item = match function {
            None => table.get(total.key()),
            Some(function) => table
                .get("functions")
                .and_then(|functions| functions.get(total.key())?.get(function)),
        };
        let start = item.and_then(Item::span).map_or(0, |span| span.start);
        let before = self.0.raw().get(..start).unwrap_or_default();
        before.matches('\n').count() + 1
    }

    /// Returns the text of the file with the values of a budget. Lines end as the first line of the file does.
    pub(super) fn into_updated_text(self, budget: &Budget) -> String {
        let first_line = self.0.raw().split_inclusive('\n').next();
        let ends_with_cr = first_line.is_some_and(|line| line.ends_with("\r\n"));
        let mut document = self.0.into_mut();
        for total in BudgetedTotal::ALL {
            if let Some(bytes) = budget.limit_of_total(total) {
                set_size(document.as_table_mut(), total.key(), bytes);
            }
            let limits = document
                .get_mut("functions")
                .and_then(Item::as_table_like_mut)
                .and_then(|functions| functions.get_mut(total.key()))
                .and_then(Item::as_table_like_mut);
            if let Some(limits) = limits {
                for (function, bytes) in budget.functions.for_total(total) {
                    set_size(limits, function, *bytes);
                }
            }
        }
        set_baseline(&mut document, &budget.baseline);
        // toml_edit ends new lines, and those that it parsed, with a newline alone.
        let text = document.to_string().replace("\r\n", "\n");
        match ends_with_cr {
            true => text.replace('\n', "\r\n"),
            false => text,
        }
    }
}

/// Sets the size of a key, or adds the key if the table lacks it. Keeps the comment behind the value.
fn set_size(table: &mut dyn TableLike, key: &str, ByteSize(bytes): ByteSize) {
    // Integers of TOML have 64 bits with a sign; a larger size becomes the largest of them.
    let mut value = Value::from(i64::try_from(bytes).unwrap_or(i64::MAX));
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(known) => {
            *value.decor_mut() = known.decor().clone();
            *known = value;
        }
        None => drop(table.insert(key, Item::Value(value))),
    }
}

/// Replaces the functions and their bytes in the table `baseline`. Comments stay with the functions that remain. A
/// table with the older name is renamed.
fn set_baseline(document: &mut DocumentMut, baseline: &FunctionBudgets) {
    let [name, older_name] = BASELINE;
    if let Some(older) = document.remove(older_name) {
        document.insert(name, older);
    }
    for total in BudgetedTotal::ALL {
        let functions = baseline.for_total(total);
        let tables = document.entry(name).or_insert_with(|| {
            let mut tables = Table::new();
            // Only its subtables have headers.
            tables.set_implicit(true);
            Item::Table(tables)
        });
        let Some(tables) = tables.as_table_like_mut() else {
            continue;
        };
        if functions.is_empty() {
            tables.remove(total.key());
            continue;
        }
        let new_table = || {
            let mut table = Table::new();
            table.decor_mut().set_prefix(BASELINE_COMMENT);
            Item::Table(table)
        };
        let table = tables.entry(total.key()).or_insert_with(new_table);
        if let Some(table) = table.as_table_like_mut() {
            set_functions(table, functions);
        }
    }
}

/// Sets the bytes of all functions of a table, and removes the other functions. New ones come last, the largest first.
fn set_functions(table: &mut dyn TableLike, functions: &BTreeMap<String, ByteSize>) {
    let known: Vec<_> = table.iter().map(|(name, _)| name.to_owned()).collect();
    for name in known.iter().filter(|name| !functions.contains_key(*name)) {
        table.remove(name);
    }
    let mut sorted: Vec<_> = functions.iter().collect();
    sorted.sort_by_key(|(name, bytes)| (std::cmp::Reverse(bytes.0), *name));
    for (name, bytes) in sorted {
        set_size(table, name, *bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::measurement::tests::measured;
    use super::super::stacks::tests::stacks_with;
    use super::*;

    fn parse(text: &str) -> BudgetFile {
        BudgetFile(Document::parse(text.to_owned()).unwrap())
    }

    #[test]
    fn new_file_has_comments_and_the_measured_budget() {
        let budget = Budget::from_measurement(
            &measured(1000, 5000),
            &stacks_with(&[("a \"b\"\n\\", 700), ("c", 300)]),
            Budget::default(),
        );
        let text = BudgetFile::template().unwrap().into_updated_text(&budget);
        let expected = "tolerance = \"2.5%\"\npeak = 1000  # bytes that live at the same time in one process\n";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("not limits.\n[baseline.peak]\n"), "{text}");
        assert_eq!(toml::from_str::<Budget>(&text), Ok(budget));
    }

    #[test]
    fn update_keeps_comments_order_and_form_of_the_file() {
        let check = |before: &str, expected: &str| {
            let file = parse(before);
            let known: Budget = toml::from_str(before).unwrap();
            let stacks = stacks_with(&[("f", 40), ("g::<a, b>", 30)]);
            let budget = Budget::from_measurement(&measured(100, 200), &stacks, known);
            let after = file.into_updated_text(&budget);
            let (limits, baseline) = after.split_once("[baseline").unwrap_or((&after, ""));
            let new_lines = if expected.contains("\r\n") {
                "\r\n"
            } else {
                "\n"
            };
            let comment = BASELINE_COMMENT.replace('\n', new_lines);
            assert_eq!(
                limits.trim_end_matches(&comment).trim_end(),
                expected.trim_end(),
                "{before}"
            );
            assert!(baseline.contains("\"g::<a, b>\" = 30"), "{after}");
            assert_eq!(toml::from_str::<Budget>(&after), Ok(budget), "{after}");
        };
        check(
            "# reviewed by the team\ntolerance = \"5%\"\npeak = \"100MiB\"  # ticket 12\n",
            "# reviewed by the team\ntolerance = \"5%\"\npeak = 100  # ticket 12\n",
        );
        check(
            "# last\nallocated = 1 # b\n\n# first\npeak = 2\n",
            "# last\nallocated = 200 # b\n\n# first\npeak = 100\n",
        );
        check(
            "[functions.peak] # hot\n# why\nf = \"1KiB\" # 3\n",
            "[functions.peak] # hot\n# why\nf = 40 # 3\n",
        );
        check(
            "functions.allocated.f = 1 # dotted\npeak=7#x\n",
            "functions.allocated.f = 40 # dotted\npeak=100#x\n",
        );
        check(
            "functions = { peak = { f = 1, \"g::<a, b>\" = 2 } } # inline\n",
            "functions = { peak = { f = 40, \"g::<a, b>\" = 30 } } # inline\n",
        );
        check(
            "\r\n# c\r\npeak = 1 # d\r\n",
            "\r\n# c\r\npeak = 100 # d\r\n",
        );
        check("# c\npeak = 1\r\n", "# c\npeak = 100\n");
        check(
            "tolerance = \"1%\" # only\n",
            "tolerance = \"1%\" # only\npeak = 100\nallocated = 200\n",
        );
    }

    #[test]
    fn baseline_keeps_comments_of_functions_that_remain() {
        let before =
            "peak = 1\n# large on purpose\n[held.peak]\ng = 1\n# the cache\nf = 2 # see 7\n";
        let budget: Budget = toml::from_str(before).unwrap();
        let budget = Budget::from_measurement(&measured(1, 1), &stacks_with(&[("f", 40)]), budget);
        assert_eq!(
            parse(before)
                .into_updated_text(&budget)
                .split("\n\n")
                .next(),
            Some("peak = 1\n# large on purpose\n[baseline.peak]\n# the cache\nf = 40 # see 7")
        );
    }

    #[test]
    fn line_of_a_limit_is_found() {
        let text =
            "# c\npeak = 1\n[functions.peak]\na = 1\n\n\"b c\" = 2\n[functions.allocated]\na = 3\n";
        let check = |total, function, expected| {
            assert_eq!(
                parse(text).limit_line(total, function),
                expected,
                "{function:?}"
            );
        };
        check(BudgetedTotal::Peak, None, 2);
        check(BudgetedTotal::Allocated, None, 1);
        check(BudgetedTotal::Peak, Some("a"), 4);
        check(BudgetedTotal::Peak, Some("b c"), 6);
        check(BudgetedTotal::Allocated, Some("a"), 8);
        check(BudgetedTotal::Allocated, Some("absent"), 1);
    }
}
