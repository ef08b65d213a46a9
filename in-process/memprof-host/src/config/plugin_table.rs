//! A plugin's table where it stands in the host's file, so that the line and the column which the
//! plugin finds fault with are those of the file.

use toml::Table;

const TABLE: &str = "plugin.config";

/// What a plugin quotes of its config, as it stands in the host's file.
pub(crate) fn with_table_prefix(text: &str) -> String {
    let prefix = format!("{TABLE}.");
    let blank = " ".repeat(prefix.len());
    text.replace(&format!("[{blank}"), &format!("[{prefix}"))
}

/// The text with all but the table of the plugin at `index` left blank. None where it cannot be
/// cut out so, as from `config = { … }`.
pub(super) fn blank_all_but(text: &str, index: usize, table: &Table) -> Option<String> {
    let mut plugins = 0;
    let mut is_inside = false;
    let mut kept = String::with_capacity(text.len());
    for line in text.lines() {
        match header(line) {
            Some("plugin") => {
                plugins += 1;
                is_inside = false;
            }
            Some(path) => {
                let path = path.strip_prefix(TABLE).filter(|_| plugins == index + 1);
                is_inside = path.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
                if is_inside && path != Some("") {
                    let prefix = format!("{TABLE}.");
                    kept += &line.replacen(&prefix, &" ".repeat(prefix.len()), 1);
                }
            }
            None if is_inside => kept += line,
            None => {}
        }
        kept.push('\n');
    }
    // A line that only looks like a header, in a text of several lines, shows here.
    let is_same = kept.parse::<Table>().is_ok_and(|kept| kept == *table);
    is_same.then_some(kept)
}

/// `plugin.config.keep` of `[plugin.config.keep]`, `plugin` of `[[plugin]]`.
fn header(line: &str) -> Option<&str> {
    let line = line.split('#').next().unwrap_or(line).trim();
    let inner = line.strip_prefix('[')?.strip_suffix(']')?;
    let list = inner
        .strip_prefix('[')
        .and_then(|list| list.strip_suffix(']'));
    Some(list.unwrap_or(inner).trim())
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    #[test]
    fn lines_and_columns_are_the_files() {
        let check = |text: &str, expected: &[&str]| {
            let config = Config::parse(text).unwrap();
            let texts: Vec<_> = config
                .plugin
                .iter()
                .map(|each| each.config_text())
                .collect();
            assert_eq!(texts, expected, "{text}");
        };
        check(
            "[log]\n[[plugin]]\npath = \"/a\"\n[plugin.config] # here\na = 1\n\n\
             [[plugin.config.watch]]\nb = 2\n[[plugin]]\npath = \"/b\"\n[plugin.config.keep]\nc = 3",
            &[
                "\n\n\n\na = 1\n\n[[              watch]]\nb = 2\n\n\n\n\n",
                "\n\n\n\n\n\n\n\n\n\n[              keep]\nc = 3\n",
            ],
        );
        check("[[plugin]]\npath = \"/a\"", &["\n\n"]);
    }

    #[test]
    fn headers_are_quoted_as_they_stand_in_the_file() {
        let text = "[[plugin]]\npath = \"/a\"\n[[plugin.config.watch]]\nb = 2";
        let config = Config::parse(text).unwrap();
        let given = config.plugin[0].config_text();
        let header = given.lines().nth(2).unwrap();
        let quoted = format!("  |\n3 | {header}\n  | ^^");
        let expected = "  |\n3 | [[plugin.config.watch]]\n  | ^^";
        assert_eq!(super::with_table_prefix(&quoted), expected);
        assert_eq!(super::with_table_prefix("[a [ b"), "[a [ b");
    }

    #[test]
    fn other_ways_to_write_it_are_written_anew() {
        let check = |text: &str, expected: &str| {
            let config = Config::parse(text).unwrap();
            assert_eq!(config.plugin[0].config_text(), expected, "{text}");
        };
        check("[[plugin]]\npath = \"/a\"\nconfig = { a = 1 }", "a = 1\n");
        check(
            "plugin = [{ path = \"/a\", config = { a = 1 } }]",
            "a = 1\n",
        );
        check(
            "[[plugin]]\npath = \"/a\"\n[plugin.config]\na = \"\"\"\n[log]\n\"\"\"",
            "a = \"\"\"\n[log]\n\"\"\"\n",
        );
    }
}
