//! Page of the stacks that keep growing.

use memprof_report::{Cells, Column, Outline, OutlinePage};

use super::{Leaks, format_text};
use crate::result_output::MAX_ROWS;

/// Builds the HTML page: a table of up to [`MAX_ROWS`] stacks, each with its functions below it. `process` is its pid
/// and name.
pub(super) fn build_page(process: &str, leaks: &Leaks) -> OutlinePage {
    let heading = format_text(leaks, 0);
    // Without rows, the first line of the text is the heading.
    let heading = heading.lines().next().unwrap_or_default().to_owned();
    let (mut depth, mut hourly, mut growth, mut now) = (vec![], vec![], vec![], vec![]);
    let mut names = Vec::new();
    let amount = |bytes: i64| Some(bytes.unsigned_abs());
    for leak in leaks.stacks.iter().take(MAX_ROWS) {
        let mut functions = leak.stack.iter().rev();
        depth.push(0);
        hourly.push(amount(leak.growth_bytes_per_hour));
        growth.push(amount(leak.growth_bytes));
        now.push(amount(leak.inuse_space));
        names.push(functions.next().cloned().unwrap_or_default());
        for function in functions {
            depth.push(1);
            hourly.push(None);
            growth.push(None);
            now.push(None);
            names.push(function.clone());
        }
    }
    let column = |title, help, wide, bytes| Column {
        title,
        help,
        wide,
        cells: Cells::Bytes(bytes),
    };
    OutlinePage {
        title: format!("memprof leaks {process}"),
        heading: heading.clone(),
        facts: Vec::new(),
        notes: Vec::new(),
        limits: vec!["Sizes are estimated from samples.".to_owned()],
        outlines: vec![Outline {
            title: "Growing",
            empty: heading,
            depth,
            columns: vec![
                column("Per hour", "Growth in an hour", false, hourly),
                column("Growth", "Growth in the whole time", true, growth),
                column("Now", "In use in the newest dump", false, now),
                Column {
                    title: "Function",
                    help: "Who allocated; below it the callers",
                    wide: false,
                    cells: Cells::Name(names),
                },
            ],
        }],
    }
}
