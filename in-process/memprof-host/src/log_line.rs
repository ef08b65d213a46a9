//! Texts of several lines as one line of a log.

use memprof_plugin_abi::escape_controls;

/// Joins the lines of a text by `; `. Escapes control characters, and leaves out the excerpts with which the TOML
/// parser illustrates its errors.
pub fn one_line(text: &str) -> String {
    let is_excerpt = |line: &str| {
        let line = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        line.starts_with('|')
    };
    let lines = text.lines().filter(|line| !is_excerpt(line)).map(str::trim);
    let text = lines.collect::<Vec<_>>().join("; ");
    escape_controls(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn text_becomes_one_line() {
        let check = |text: &str, expected: &str| assert_eq!(one_line(text), expected);
        check("", "");
        check("a\n  b\r\n", "a; b");
        check("a\u{1b}[2J\tb\u{85}c", "a\\u{1b}[2J\\tb\\u{85}c");
        check(
            "TOML parse error at line 1, column 3\n  |\n1 | 1 | x = 1\n  | ^\nexpected",
            "TOML parse error at line 1, column 3; expected",
        );
    }
}
