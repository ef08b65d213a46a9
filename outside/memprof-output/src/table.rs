//! Tables of text.

use unicode_width::UnicodeWidthStr;

use crate::one_line;

/// Formats a table with `heads` as its first line. Each column is as wide as its widest cell is on a terminal. Line
/// feeds and other control characters in the cells of `rows` are escaped.
pub fn format_table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let rows = rows
        .iter()
        .map(|row| row.each_ref().map(|cell| one_line(cell)));
    let rows: Vec<_> = std::iter::once(heads.map(Into::into)).chain(rows).collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        let widths = rows.iter().map(|row| row[column].width());
        widths.max().unwrap_or(0)
    });
    let lines = rows.iter().map(|row| {
        let mut line = String::new();
        for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
            line += cell;
            // Not padded by a width in `format!`, which panics above 65,535. The last cell of a line is not padded: its
            // column may be wide.
            if index + 1 < N {
                line += &" ".repeat(width - cell.width() + 2);
            }
        }
        line.truncate(line.trim_end().len());
        line
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Formats a table for a terminal of `width` columns. Cuts each cell of `rows` to its column's width in `limits`, and
/// each line to `width`; a cut text ends with `…`. Cuts nothing if `width` is `None`, as for a file or a pipe.
pub fn format_table_within<const N: usize>(
    width: Option<usize>,
    limits: [usize; N],
    heads: [&str; N],
    rows: &[[String; N]],
) -> String {
    let Some(width) = width else {
        return format_table(heads, rows);
    };
    let cut = |text: &str, limit: usize| match text.width() > limit {
        true => format!("{}…", crate::cut_to_width(text, limit)),
        false => text.to_owned(),
    };
    let rows = rows.iter().map(|row| {
        let cells = row.each_ref().map(|cell| one_line(cell));
        std::array::from_fn(|column| cut(&cells[column], limits[column]))
    });
    let all = format_table(heads, &rows.collect::<Vec<_>>());
    let lines = all.lines().map(|line| cut(line, width));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_of_megabytes_is_written_whole() {
        let wide = "x".repeat(1 << 20);
        let rows = [[wide.clone(), "1".into()], ["y".into(), wide.clone()]];
        let written = format_table(["A", "B"], &rows);
        let lines: Vec<_> = written.lines().collect();
        assert_eq!(lines[1], format!("{wide}  1"));
        assert_eq!(lines[2].len(), 2 * wide.len() + 2);
    }

    #[test]
    fn cells_and_lines_are_cut_for_a_terminal() {
        let rows = [["a long cell", "command with words"]].map(|row| row.map(str::to_owned));
        let check = |width, expected: &str| {
            let limits = [6, usize::MAX];
            assert_eq!(
                format_table_within(width, limits, ["X", "Y"], &rows),
                expected
            );
        };
        check(None, "X            Y\na long cell  command with words");
        check(Some(80), "X       Y\na lon…  command with words");
        check(Some(15), "X       Y\na lon…  comman…");
    }

    #[test]
    fn columns_are_padded_and_cells_are_one_line() {
        let check = |rows: &[[&str; 2]], expected: &str| {
            let rows: Vec<_> = rows.iter().map(|row| row.map(str::to_owned)).collect();
            assert_eq!(format_table(["X", "Y"], &rows), expected);
        };
        check(&[["a", "long"], ["bcd", ""]], "X    Y\na    long\nbcd");
        check(&[["a\nb", "1"]], "X         Y\na\\u000ab  1");
        check(&[["a\u{202e}", "1"]], "X        Y\na\\u202e  1");
        check(
            &[["値", "1"], ["e\u{301}", "2"]],
            "X   Y\n値  1\ne\u{301}   2",
        );
    }
}
