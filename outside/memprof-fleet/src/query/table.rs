//! Formats results as a table of text.

use memprof_report::{SampleType, amount};

use crate::output::in_line;

/// Formats a size, as `1.50MiB`.
pub(super) fn bytes(bytes: i64) -> String {
    amount(bytes, SampleType::InuseSpace)
}

/// Formats a size with its sign, as `+1.50MiB`.
pub(super) fn signed(value: i64) -> String {
    let sign = if value < 0 { "" } else { "+" };
    format!("{sign}{}", bytes(value))
}

/// Formats a table whose columns are as wide as their longest cell. Line breaks in cells are replaced.
pub(super) fn table<const N: usize>(heads: [&str; N], rows: Vec<[String; N]>) -> String {
    let rows: Vec<_> = rows
        .into_iter()
        .map(|row| row.map(|cell| in_line(&cell)))
        .collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].len()]).max().unwrap_or_default()
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let heads = heads.map(str::to_owned);
    let lines = std::iter::once(&heads).chain(&rows).map(|row| {
        let cells = row.iter().zip(widths);
        let cells = cells.map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_padded_and_cells_are_one_line() {
        let rows = vec![
            ["a".to_owned(), "long".to_owned()],
            ["bcd".to_owned(), String::new()],
        ];
        assert_eq!(table(["X", "Y"], rows), "X    Y\na    long\nbcd");
        let forged = vec![["a\nb".to_owned(), "1".to_owned()]];
        assert_eq!(table(["X", "Y"], forged), "X    Y\na\u{fffd}b  1");
    }
}
