//! A plugin's table at its lines in the host's config file, so that the line and column in the plugin's errors are
//! those of the file.

use toml::Table;

/// Name of the table of a plugin's config.
const TABLE: &str = "plugin.config";

/// Restores the prefix `plugin.config.` in the table headers that a plugin quotes in `text`, the error about its
/// config. [`blank_outside_plugin_config`] has replaced the prefix by blanks.
pub(crate) fn restore_table_prefixes(text: &str) -> String {
    let prefix = format!("{TABLE}.");
    let blank = " ".repeat(prefix.len());
    text.replace(&format!("[{blank}"), &format!("[{prefix}"))
}

/// Returns `text` with all lines blank except those of the config of the plugin at `index`. In table headers,
/// `plugin.config.` becomes blanks. So lines and columns in the plugin's errors are those of the file. `None` if the
/// result does not parse to `table`, as for `config = { … }`.
pub(super) fn blank_outside_plugin_config(
    text: &str,
    index: usize,
    table: &Table,
) -> Option<String> {
    let mut plugins = 0;
    let mut is_inside = false;
    let mut selected = String::with_capacity(text.len());
    for line in text.lines() {
        match table_name(line) {
            Some("plugin") => {
                plugins += 1;
                is_inside = false;
            }
            Some(path) => {
                let path = path.strip_prefix(TABLE).filter(|_| plugins == index + 1);
                is_inside = path.is_some_and(|after| after.is_empty() || after.starts_with('.'));
                if is_inside && path != Some("") {
                    let prefix = format!("{TABLE}.");
                    selected += &line.replacen(&prefix, &" ".repeat(prefix.len()), 1);
                }
            }
            None if is_inside => selected += line,
            None => {}
        }
        selected.push('\n');
    }
    // A line of a multi-line string may look like a header; then the table differs.
    let is_same = selected
        .parse::<Table>()
        .is_ok_and(|selected| selected == *table);
    is_same.then_some(selected)
}

/// Returns the name in a table header: `plugin.config.keep` for `[plugin.config.keep]`, `plugin` for `[[plugin]]`.
/// `None` if the line is no header.
fn table_name(line: &str) -> Option<&str> {
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
    fn config_text_keeps_lines_and_columns() {
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
    fn own_tables_of_the_program_are_left_out() {
        let text = "port = 1\n[server]\nx = 2\n[log]\nlevel = \"debug\"\n[server.tls]\ny = 3\n\
                    [[plugin]]\npath = \"/a\"\n[plugin.config]\na = 1\n[[user]]\nname = 1";
        let own = ["port", "server", "user"];
        let config = Config::parse_beside(text, &own).unwrap();
        assert_eq!(config.log.level.as_deref(), Some("debug"));
        assert_eq!(
            config.plugin[0].config_text(),
            format!("{}a = 1\n\n\n", "\n".repeat(10))
        );
        let error = Config::parse_beside("[server]\n[sever]\n", &own).unwrap_err();
        assert!(error.contains("line 2, column 2"), "{error}");
        Config::parse_beside(text, &own[..2]).unwrap_err();
    }

    #[test]
    fn own_values_of_several_lines_are_left_out() {
        let check = |own_lines: &str| {
            let text = format!("{own_lines}\n[[plugin]]\npath = \"/a\"\n[plugin.config]\na = 1");
            let config = Config::parse_beside(&text, &["users", "server"]).unwrap();
            let lines = own_lines.lines().count() + 3;
            let expected = format!("{}a = 1\n", "\n".repeat(lines));
            assert_eq!(config.plugin[0].config_text(), expected, "{own_lines}");
        };
        check("users = [\n  \"a\",\n]");
        check("users = [\n  [\"a\"]\n]");
        check("users = \"\"\"\na\n\"\"\"");
        check("[server]\nbanner = \"\"\"\n[log]\n\"\"\"");
        check("\"users\" = 1\nserver.port = 1");
    }

    #[test]
    fn plugin_value_that_looks_like_own_table_stays() {
        let text =
            "[[plugin]]\npath = \"/a\"\n[plugin.config]\na = \"\"\"\n[server]\n\"\"\"\n[server]\n";
        let config = Config::parse_beside(text, &["server"]).unwrap();
        assert_eq!(
            config.plugin[0].config_text(),
            "a = \"\"\"\n[server]\n\"\"\"\n"
        );
    }

    #[test]
    fn quoted_header_has_table_prefix() {
        let text = "[[plugin]]\npath = \"/a\"\n[[plugin.config.watch]]\nb = 2";
        let config = Config::parse(text).unwrap();
        let config_text = config.plugin[0].config_text();
        let header = config_text.lines().nth(2).unwrap();
        let quoted = format!("  |\n3 | {header}\n  | ^^");
        let expected = "  |\n3 | [[plugin.config.watch]]\n  | ^^";
        assert_eq!(super::restore_table_prefixes(&quoted), expected);
        assert_eq!(super::restore_table_prefixes("[a [ b"), "[a [ b");
    }

    #[test]
    fn inline_config_is_serialized() {
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
