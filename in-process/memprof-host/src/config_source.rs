//! Source of a plugin's config: the file or the words in which a person corrects an error that the plugin found.

#[cfg(any(feature = "adapters", feature = "loader"))]
use std::path::PathBuf;

/// Source of the text that a plugin gets as its config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ConfigSource {
    /// The caller passed a text without its source.
    #[default]
    Unknown,
    /// A file, in which the lines have the same numbers as in the text.
    #[cfg(any(feature = "adapters", feature = "loader"))]
    File(PathBuf),
    /// A file in which the lines have other numbers, for example because the config is an inline table.
    #[cfg(any(feature = "adapters", feature = "loader"))]
    #[cfg_attr(
        not(feature = "loader"),
        expect(dead_code, reason = "only the loader reads the config of a host")
    )]
    FileKeys(PathBuf),
    /// Words of the form `key=value`, and the file whose keys they override. The text was made of both, so its lines
    /// are in no file.
    #[cfg(feature = "adapters")]
    Words(Option<PathBuf>),
}

/// Start of an error of Rust's TOML parser, in front of the line number.
const PARSE_ERROR: &str = "TOML parse error at ";

impl ConfigSource {
    /// Adds the file, line or key that an error concerns to the text of the error. `reason` is the plugin's error in
    /// one line, `text` the config that the plugin received.
    pub(crate) fn locate_error(&self, text: &str, reason: &str) -> String {
        let Some((start, position, error)) = split_at_position(reason) else {
            return match self.config_file() {
                Some(file) if !reason.contains(&file) => format!("config file {file}: {reason}"),
                _ => reason.to_owned(),
            };
        };
        let place = match self {
            Self::Unknown => format!("config, {position}"),
            #[cfg(any(feature = "adapters", feature = "loader"))]
            Self::File(file) => format!("config file {}, {position}", file.display()),
            #[cfg(any(feature = "adapters", feature = "loader"))]
            Self::FileKeys(file) => match key_at(text, position) {
                Some(key) => format!("config file {}, key {key}", file.display()),
                None => format!("config file {}", file.display()),
            },
            #[cfg(feature = "adapters")]
            Self::Words(_) => match key_at(text, position) {
                Some(key) => format!("config key {key}"),
                None => "config".to_owned(),
            },
        };
        #[cfg(not(any(feature = "adapters", feature = "loader")))]
        let _unused = text;
        format!("{start}{place}: {error}")
    }

    /// Returns the remedy for an invalid config.
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::Unknown => {
                "correct the plugin's config, and restart the program or load the plugin again"
                    .to_owned()
            }
            #[cfg(any(feature = "adapters", feature = "loader"))]
            Self::File(file) | Self::FileKeys(file) => format!(
                "correct {}, and restart the program or load the plugin again",
                file.display()
            ),
            #[cfg(feature = "adapters")]
            Self::Words(None) => "correct the words with which the plugin is loaded".to_owned(),
            #[cfg(feature = "adapters")]
            Self::Words(Some(file)) => format!(
                "correct the words with which the plugin is loaded, or {}",
                file.display()
            ),
        }
    }

    /// Returns the path of the config file. `None` if some of the config comes from elsewhere, or if its source is
    /// unknown.
    fn config_file(&self) -> Option<String> {
        match self {
            #[cfg(any(feature = "adapters", feature = "loader"))]
            Self::File(file) | Self::FileKeys(file) => Some(file.display().to_string()),
            _ => None,
        }
    }
}

/// Splits an error about a config into three parts: the text in front of the position, the position (such as `line 6,
/// column 1`), and the text after it. `None` unless the error is of Rust's TOML parser, or of `memprof_config` in
/// memprof.h.
fn split_at_position(reason: &str) -> Option<(&str, &str, &str)> {
    if let Some((start, error)) = reason.split_once(PARSE_ERROR) {
        // The condensed error is `line 6, column 1; unknown field …`.
        let (position, error) = error.split_once("; ").unwrap_or((error, "it is not TOML"));
        return Some((start, position, error));
    }
    let (position, error) = reason.strip_prefix("config: ")?.split_once(": ")?;
    position
        .starts_with("line ")
        .then_some(("", position, error))
}

/// Returns the key that is set at a position such as `line 6, column 1` or `line 6` of a TOML text. `None` if none is.
#[cfg(any(feature = "adapters", feature = "loader"))]
fn key_at(text: &str, position: &str) -> Option<String> {
    key_in_line(text, parse_line_number(position)?)
}

/// Parses the number in `line 6, column 1` or `line 6`. `None` if the text is of another form.
#[cfg(any(feature = "adapters", feature = "loader"))]
fn parse_line_number(position: &str) -> Option<usize> {
    let number = position.strip_prefix("line ")?.split(',').next()?;
    number.parse().ok()
}

/// Returns the key that line `number` (from 1) of a TOML text sets, with its table: `keep.count` for `count = 3` below
/// `[keep]`. For a table header, returns the table. The text must be as the crate `toml` formats it, with blanks around
/// `=`. `None` if the line sets no key.
#[cfg(any(feature = "adapters", feature = "loader"))]
fn key_in_line(text: &str, number: usize) -> Option<String> {
    let header = |line: &str| {
        let name = line.trim().strip_prefix('[')?.strip_suffix(']')?;
        Some(name.trim_matches(['[', ']']).to_owned())
    };
    let line = text.lines().nth(number.checked_sub(1)?)?;
    if let Some(table) = header(line) {
        return Some(table);
    }
    let (key, _) = line.split_once(" = ")?;
    match text.lines().take(number).filter_map(header).last() {
        Some(table) => Some(format!("{table}.{key}")),
        None => Some(key.to_owned()),
    }
}

#[cfg(all(test, feature = "adapters"))]
mod tests {
    use super::*;

    const TEXT: &str = "dump_dir = \"/d\"\n\n[keep]\ncnt = 3\n\n[[watch]]\nat_exit = true\n";

    #[test]
    fn errors_name_the_file_or_the_key() {
        let file = || PathBuf::from("/etc/h.toml");
        let check = |source: ConfigSource, reason: &str, expected: &str| {
            assert_eq!(source.locate_error(TEXT, reason), expected, "{source:?}");
        };
        let unknown = "TOML parse error at line 4, column 1; unknown field `cnt`";
        check(
            ConfigSource::File(file()),
            unknown,
            "config file /etc/h.toml, line 4, column 1: unknown field `cnt`",
        );
        check(
            ConfigSource::FileKeys(file()),
            unknown,
            "config file /etc/h.toml, key keep.cnt: unknown field `cnt`",
        );
        check(
            ConfigSource::Words(None),
            unknown,
            "config key keep.cnt: unknown field `cnt`",
        );
        check(
            ConfigSource::Unknown,
            unknown,
            "config, line 4, column 1: unknown field `cnt`",
        );
        let words = |reason, expected| check(ConfigSource::Words(Some(file())), reason, expected);
        words(
            "words: TOML parse error at line 1, column 12; no",
            "words: config key dump_dir: no",
        );
        words(
            "TOML parse error at line 6, column 1; no",
            "config key watch: no",
        );
        words(
            "TOML parse error at line 7, column 1; no",
            "config key watch.at_exit: no",
        );
        words("TOML parse error at line 2, column 1; no", "config: no");
        words("TOML parse error at line 99, column 1; no", "config: no");
        words("TOML parse error at nowhere; no", "config: no");
        words("x is not an absolute path", "x is not an absolute path");
        check(
            ConfigSource::File(file()),
            "x is not an absolute path",
            "config file /etc/h.toml: x is not an absolute path",
        );
        let of_header = "config: line 4: unknown key \"cnt\"; valid keys: count";
        words(
            of_header,
            "config key keep.cnt: unknown key \"cnt\"; valid keys: count",
        );
        check(
            ConfigSource::File(file()),
            of_header,
            "config file /etc/h.toml, line 4: unknown key \"cnt\"; valid keys: count",
        );
        words("config: no lines: no", "config: no lines: no");
        let named = "config file /etc/h.toml, line 1: no";
        check(ConfigSource::File(file()), named, named);
    }
}
