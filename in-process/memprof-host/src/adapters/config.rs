//! A plugin's config as a foreign host passes it: `key=value` pairs, which become the plugin's TOML table.

use std::path::{Path, PathBuf};

use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::MEMPROF_INVALID_ARGUMENT;
use toml::{Table, Value};

use crate::config_source::ConfigSource;
use crate::log_line::one_line;

/// Parsed config of a plugin and its adapter.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Settings {
    /// Table of the plugin.
    pub(super) plugin: Table,
    /// Text of the config file, if the table is unchanged from it.
    file: Option<String>,
    /// Source of the table, for errors.
    pub(super) source: ConfigSource,
    /// Control socket. `None` if the adapter decides.
    pub(super) control: Option<Control>,
    /// Messages that are allowed for all users of an adapter that cannot distinguish users.
    pub(super) allow: Vec<String>,
}

impl Settings {
    /// Returns the plugin's table as text. An unchanged file is returned as it is, so that line numbers in the plugin's
    /// errors are those of the file.
    pub(super) fn config_text(&self) -> String {
        let file = self.file.clone();
        file.unwrap_or_else(|| self.plugin.to_string())
    }
}

/// Whether and at which path to open the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Off,
    /// In the default directory.
    On,
    /// At this path.
    Path(PathBuf),
}

const CONFIG: &str = "config";
const CONTROL: &str = "control";
const ALLOW: &str = "allow";
/// Two keys of the plugin for one setting: if a pair has one of them, both are removed from the file's table.
const INTERVAL_KEYS: [&str; 2] = ["lg_sample", "sample_interval"];

/// Parses pairs of `key` and `value`. Dots in a key separate tables; `config` names a TOML file, whose keys the other
/// pairs override; `control` is `on`, `off` or an absolute path. Fails if a key is given twice or has no name,
/// `control` or `allow` has an invalid value, or the file cannot be read or parsed. The error names the key or file.
pub(super) fn parse_setting_pairs<'a>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Settings, Failure> {
    let mut own_pairs = Vec::new();
    let mut file = None;
    for (key, value) in pairs {
        match key {
            CONFIG if file.replace(value).is_some() => return Err(duplicate_key_error(key)),
            CONFIG => {}
            key => own_pairs.push((key, value)),
        }
    }
    let text = file
        .map(|path| read_config_file(path.as_ref()))
        .transpose()?;
    let file = file.zip(text);
    parse_setting_pairs_with_file(
        own_pairs,
        file.as_ref().map(|(path, text)| (*path, text.as_str())),
    )
}

/// Parses pairs of `key` and `value`, as [`parse_setting_pairs`] does, but with a config file that the caller has read.
/// `file` is the path and the text of that file; `None` means no file. The pairs override the file's keys. If a pair
/// sets the sampling interval, by either of [`INTERVAL_KEYS`], both keys of the file are dropped. The error names the
/// key or file.
pub(super) fn parse_setting_pairs_with_file<'a>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    file: Option<(&str, &str)>,
) -> Result<Settings, Failure> {
    let mut own_pairs = Table::new();
    for (key, value) in pairs {
        match key {
            // `parse_control_setting` reads the value as a text.
            CONTROL => insert_at_path(&mut own_pairs, key, Value::String(value.to_owned()))?,
            key => insert_at_path(&mut own_pairs, key, parse_value(value))?,
        }
    }
    let mut plugin = match file {
        Some((path, text)) => parse_config_file(text, path.as_ref())?,
        None => Table::new(),
    };
    // The file's text counts only if neither the pairs nor the adapter's keys change the table.
    let is_file =
        own_pairs.is_empty() && ![CONTROL, ALLOW].iter().any(|key| plugin.contains_key(*key));
    if INTERVAL_KEYS.iter().any(|key| own_pairs.contains_key(*key)) {
        INTERVAL_KEYS
            .iter()
            .for_each(|key| drop(plugin.remove(*key)));
    }
    merge_tables(&mut plugin, own_pairs);
    let control = plugin
        .remove(CONTROL)
        .map(parse_control_setting)
        .transpose()?;
    let allow = plugin
        .remove(ALLOW)
        .map(parse_allowed_messages)
        .transpose()?;
    let path = file.map(|(path, _)| PathBuf::from(path));
    let text = file.map(|(_, text)| text.to_owned());
    Ok(Settings {
        plugin,
        file: text.filter(|_| is_file),
        source: match path {
            Some(path) if is_file => ConfigSource::File(path),
            path => ConfigSource::Words(path),
        },
        control,
        allow: allow.unwrap_or_default(),
    })
}

/// Splits a `key=value` text. Fails if it contains no `=`.
pub(super) fn split_pair(word: &str) -> Result<(&str, &str), Failure> {
    word.split_once('=').ok_or_else(|| {
        invalid_config_error(format!("config word {word:?} is not of the form key=value"))
    })
}

/// Converts a value: `true` and `on`, `false` and `off` to booleans, a decimal integer to an integer, all others to a
/// text.
fn parse_value(value: &str) -> Value {
    match value {
        "true" | "on" => Value::Boolean(true),
        "false" | "off" => Value::Boolean(false),
        text => match text.parse() {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::String(text.to_owned()),
        },
    }
}

/// Inserts a value at a key in which dots separate tables, such as `keep.count`. Creates the tables that are missing.
/// Fails if the key exists already, if a part before a dot has a value that is no table, or if the key is empty or ends
/// in a dot.
fn insert_at_path(table: &mut Table, key: &str, value: Value) -> Result<(), Failure> {
    let (tables, last) = match key.rsplit_once('.') {
        Some((tables, last)) => (Some(tables), last),
        None => (None, key),
    };
    let mut table = table;
    for name in tables.into_iter().flat_map(|tables| tables.split('.')) {
        let inner = table
            .entry(name)
            .or_insert_with(|| Value::Table(Table::new()));
        table = inner
            .as_table_mut()
            .ok_or_else(|| duplicate_key_error(key))?;
    }
    if last.is_empty() {
        return Err(invalid_config_error(format!(
            "config key {key:?} has no name"
        )));
    }
    match table.insert(last.to_owned(), value) {
        None => Ok(()),
        Some(_) => Err(duplicate_key_error(key)),
    }
}

/// Merges `above` into `below`. If both contain a table under one key, these tables are merged, also recursively. Any
/// other value of `above` replaces the value of `below` with the same key.
fn merge_tables(below: &mut Table, above: Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge_tables(below, above),
            (_, value) => drop(below.insert(key, value)),
        }
    }
}

/// Reads the text of a config file. The error names the file.
fn read_config_file(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| config_file_error(path, &error.to_string()))
}

/// Parses the text of a config file as TOML. `path` is for the error, which names the file.
fn parse_config_file(text: &str, path: &Path) -> Result<Table, Failure> {
    text.parse().map_err(|error: toml::de::Error| {
        let source = ConfigSource::File(path.to_owned());
        let reason = source.locate_error(text, &one_line(&error.to_string()));
        invalid_config_error(reason).remedy(source.remedy())
    })
}

/// Creates the error of a config file that cannot be used.
fn config_file_error(path: &Path, reason: &str) -> Failure {
    invalid_config_error(format!("config file {}: {reason}", path.display()))
}

/// Parses the value of `control`: a boolean, `on`, `off` or an absolute path. Fails for all others.
fn parse_control_setting(value: Value) -> Result<Control, Failure> {
    match value {
        Value::Boolean(true) => Ok(Control::On),
        Value::Boolean(false) => Ok(Control::Off),
        Value::String(word) if word == "on" => Ok(Control::On),
        Value::String(word) if word == "off" => Ok(Control::Off),
        Value::String(path) if path.starts_with('/') => Ok(Control::Path(path.into())),
        other => Err(invalid_config_error(format!(
            "invalid control={other}: expected on, off or an absolute path"
        ))),
    }
}

/// Parses the value of `allow`: an array of message names. Fails for any other value.
fn parse_allowed_messages(value: Value) -> Result<Vec<String>, Failure> {
    let message = format!("allow = {value} is not a list of messages, as [\"dump\"] is");
    value.try_into().map_err(|_| invalid_config_error(message))
}

/// Creates the error of a key that occurs more than once.
fn duplicate_key_error(key: &str) -> Failure {
    invalid_config_error(format!("config key {key:?} is given twice"))
}

/// Creates the error of an invalid config. Its status is `MEMPROF_INVALID_ARGUMENT`.
fn invalid_config_error(message: String) -> Failure {
    Failure::new(MEMPROF_INVALID_ARGUMENT, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `key=value` texts. Panics if one has no `=`.
    fn parse_texts(texts: &[&str]) -> Result<Settings, Failure> {
        parse_setting_pairs(texts.iter().map(|text| text.split_once('=').unwrap()))
    }

    #[test]
    fn pairs_become_table() {
        let check = |texts: &[&str], expected: &str, control: Option<Control>| {
            let settings = parse_texts(texts).unwrap();
            assert_eq!(settings.plugin.to_string(), expected, "{texts:?}");
            assert_eq!(settings.control, control, "{texts:?}");
        };
        check(&[], "", None);
        check(&["dump_dir=/x y"], "dump_dir = \"/x y\"\n", None);
        check(
            &["activate_at_start=on", "lg_sample=12"],
            "activate_at_start = true\nlg_sample = 12\n",
            None,
        );
        check(
            &["keep.count=3", "keep.bytes=9"],
            "[keep]\nbytes = 9\ncount = 3\n",
            None,
        );
        check(&["control=off"], "", Some(Control::Off));
        check(
            &["control=/run/x.sock"],
            "",
            Some(Control::Path("/run/x.sock".into())),
        );
        check(&["name=a=b"], "name = \"a=b\"\n", None);
    }

    #[test]
    fn pairs_override_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "control = true\ndump_dir = \"/f\"\n[keep]\ncount = 1\nbytes = 2\n";
        std::fs::write(file.path(), text).unwrap();
        let config = format!("config={}", file.path().display());
        let settings = parse_texts(&["keep.count=7", &config]).unwrap();
        assert_eq!(settings.control, Some(Control::On));
        assert_eq!(
            settings.plugin.to_string(),
            "dump_dir = \"/f\"\n\n[keep]\nbytes = 2\ncount = 7\n"
        );
    }

    #[test]
    fn file_alone_is_passed_unchanged() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "# mine\n\n[[watch]]\nat_exit = true\n";
        std::fs::write(file.path(), text).unwrap();
        let config = format!("config={}", file.path().display());
        assert_eq!(parse_texts(&[&config]).unwrap().config_text(), text);
        let with_word = parse_texts(&[&config, "dump_dir=/d"])
            .unwrap()
            .config_text();
        assert_eq!(
            with_word,
            "dump_dir = \"/d\"\n\n[[watch]]\nat_exit = true\n"
        );
    }

    #[test]
    fn file_can_allow_messages() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = format!("config={}", file.path().display());
        std::fs::write(file.path(), "allow = [\"dump\"]\ndump_dir = \"/d\"\n").unwrap();
        let settings = parse_texts(&[&config]).unwrap();
        assert_eq!(settings.allow, ["dump"]);
        assert_eq!(settings.config_text(), "dump_dir = \"/d\"\n");
        std::fs::write(file.path(), "allow = \"dump\"\n").unwrap();
        let error = parse_texts(&[&config]).unwrap_err().to_string();
        assert!(error.contains("allow = \"dump\" is not a list"), "{error}");
    }

    #[test]
    fn error_names_key() {
        let check = |texts: &[&str], expected: &str| {
            let error = parse_texts(texts).unwrap_err().to_string();
            assert!(error.contains(expected), "{texts:?}: {error}");
        };
        check(&["=7"], "config key \"\" has no name");
        check(&["keep.=7"], "config key \"keep.\" has no name");
        check(&["a=1", "a=2"], "config key \"a\" is given twice");
        check(
            &["keep=1", "keep.count=2"],
            "config key \"keep.count\" is given twice",
        );
        check(
            &["config=/x", "config=/y"],
            "config key \"config\" is given twice",
        );
        check(
            &["config=/no/such.toml"],
            "config file /no/such.toml: No such file",
        );
        check(
            &["control=maybe"],
            "invalid control=\"maybe\": expected on, off",
        );
    }
}
