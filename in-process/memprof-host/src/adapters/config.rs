//! A plugin's config as a foreign host passes it: words, which become the plugin's TOML table.

use std::path::{Path, PathBuf};

use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::MEMPROF_INVALID_ARGUMENT;
use toml::{Table, Value};

/// What the words ask for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Settings {
    /// The plugin's own table.
    pub(super) plugin: Table,
    /// The text of the file that is all of it.
    file: Option<String>,
    /// The control socket; where nothing is said, the adapter decides.
    pub(super) control: Option<Control>,
    /// Messages that everybody may send who reaches an adapter which cannot tell people apart.
    pub(super) allow: Vec<String>,
}

impl Settings {
    /// The plugin's table as the plugin gets it: a file as it is, so that what the plugin says of a
    /// line is true.
    pub(super) fn config_text(&self) -> String {
        let file = self.file.clone();
        file.unwrap_or_else(|| self.plugin.to_string())
    }
}

/// Whether and where to open the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Off,
    /// In the default directory.
    On,
    At(PathBuf),
}

const CONFIG: &str = "config";
const CONTROL: &str = "control";
const ALLOW: &str = "allow";

/// Reads `key` and `value` pairs. Dots in a key open tables; `config` names a TOML file, over
/// which the other words win; `control` is `on`, `off` or an absolute path.
///
/// # Errors
/// Names the word.
pub(super) fn parse<'a>(
    words: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Settings, Failure> {
    let mut given = Vec::new();
    let mut file = None;
    for (key, value) in words {
        match key {
            CONFIG if file.replace(value).is_some() => return Err(twice(key)),
            CONFIG => {}
            key => given.push((key, value)),
        }
    }
    let text = file.map(|path| read(path.as_ref())).transpose()?;
    let file = file.zip(text);
    settings(
        given,
        file.as_ref().map(|(path, text)| (*path, text.as_str())),
    )
}

/// The same, where the file was read by somebody else: its path and its text.
///
/// # Errors
/// Names the word.
pub(super) fn settings<'a>(
    words: impl IntoIterator<Item = (&'a str, &'a str)>,
    file: Option<(&str, &str)>,
) -> Result<Settings, Failure> {
    let mut given = Table::new();
    for (key, value) in words {
        match key {
            CONTROL => insert(&mut given, key, Value::String(value.to_owned()))?,
            key => insert(&mut given, key, typed(value))?,
        }
    }
    let mut plugin = match file {
        Some((path, text)) => parse_file(text, path.as_ref())?,
        None => Table::new(),
    };
    let is_file = given.is_empty() && ![CONTROL, ALLOW].iter().any(|key| plugin.contains_key(*key));
    merge(&mut plugin, given);
    let control = plugin.remove(CONTROL).map(control).transpose()?;
    let allow = plugin.remove(ALLOW).map(allow).transpose()?;
    let text = file.map(|(_, text)| text.to_owned());
    Ok(Settings {
        plugin,
        file: text.filter(|_| is_file),
        control,
        allow: allow.unwrap_or_default(),
    })
}

/// Takes one `key=value` word apart.
///
/// # Errors
/// It has another form.
pub(super) fn pair(word: &str) -> Result<(&str, &str), Failure> {
    word.split_once('=')
        .ok_or_else(|| invalid(format!("config word {word:?} is not of the form key=value")))
}

fn typed(value: &str) -> Value {
    match value {
        "true" | "on" => Value::Boolean(true),
        "false" | "off" => Value::Boolean(false),
        text => match text.parse() {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::String(text.to_owned()),
        },
    }
}

fn insert(table: &mut Table, key: &str, value: Value) -> Result<(), Failure> {
    let (tables, last) = match key.rsplit_once('.') {
        Some((tables, last)) => (Some(tables), last),
        None => (None, key),
    };
    let mut table = table;
    for name in tables.into_iter().flat_map(|tables| tables.split('.')) {
        let inner = table
            .entry(name)
            .or_insert_with(|| Value::Table(Table::new()));
        table = inner.as_table_mut().ok_or_else(|| twice(key))?;
    }
    if last.is_empty() {
        return Err(invalid(format!("config key {key:?} has no name")));
    }
    match table.insert(last.to_owned(), value) {
        None => Ok(()),
        Some(_) => Err(twice(key)),
    }
}

fn merge(below: &mut Table, above: Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
            (_, value) => drop(below.insert(key, value)),
        }
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| in_file(path, &error.to_string()))
}

fn parse_file(text: &str, path: &Path) -> Result<Table, Failure> {
    text.parse()
        .map_err(|error: toml::de::Error| in_file(path, &error.to_string()))
}

fn in_file(path: &Path, why: &str) -> Failure {
    invalid(format!("config file {}: {why}", path.display()))
}

fn control(value: Value) -> Result<Control, Failure> {
    match value {
        Value::Boolean(true) => Ok(Control::On),
        Value::Boolean(false) => Ok(Control::Off),
        Value::String(word) if word == "on" => Ok(Control::On),
        Value::String(word) if word == "off" => Ok(Control::Off),
        Value::String(path) if path.starts_with('/') => Ok(Control::At(path.into())),
        other => Err(invalid(format!(
            "control={other} is none of on, off or an absolute path"
        ))),
    }
}

fn allow(value: Value) -> Result<Vec<String>, Failure> {
    let message = format!("allow = {value} is not a list of messages, as [\"dump\"] is");
    value.try_into().map_err(|_| invalid(message))
}

fn twice(key: &str) -> Failure {
    invalid(format!("config key {key:?} is given twice"))
}

fn invalid(message: String) -> Failure {
    Failure::new(MEMPROF_INVALID_ARGUMENT, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Settings, Failure> {
        parse(words.iter().map(|word| word.split_once('=').unwrap()))
    }

    #[test]
    fn words_become_a_table() {
        let check = |words: &[&str], expected: &str, control: Option<Control>| {
            let settings = of(words).unwrap();
            assert_eq!(settings.plugin.to_string(), expected, "{words:?}");
            assert_eq!(settings.control, control, "{words:?}");
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
            Some(Control::At("/run/x.sock".into())),
        );
        check(&["name=a=b"], "name = \"a=b\"\n", None);
    }

    #[test]
    fn words_win_over_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "control = true\ndump_dir = \"/f\"\n[keep]\ncount = 1\nbytes = 2\n";
        std::fs::write(file.path(), text).unwrap();
        let config = format!("config={}", file.path().display());
        let settings = of(&["keep.count=7", &config]).unwrap();
        assert_eq!(settings.control, Some(Control::On));
        assert_eq!(
            settings.plugin.to_string(),
            "dump_dir = \"/f\"\n\n[keep]\nbytes = 2\ncount = 7\n"
        );
    }

    #[test]
    fn a_file_alone_is_handed_over_as_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "# mine\n\n[[watch]]\nat_exit = true\n";
        std::fs::write(file.path(), text).unwrap();
        let config = format!("config={}", file.path().display());
        assert_eq!(of(&[&config]).unwrap().config_text(), text);
        let with_word = of(&[&config, "dump_dir=/d"]).unwrap().config_text();
        assert_eq!(
            with_word,
            "dump_dir = \"/d\"\n\n[[watch]]\nat_exit = true\n"
        );
    }

    #[test]
    fn a_file_allows_messages() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = format!("config={}", file.path().display());
        std::fs::write(file.path(), "allow = [\"dump\"]\ndump_dir = \"/d\"\n").unwrap();
        let settings = of(&[&config]).unwrap();
        assert_eq!(settings.allow, ["dump"]);
        assert_eq!(settings.config_text(), "dump_dir = \"/d\"\n");
        std::fs::write(file.path(), "allow = \"dump\"\n").unwrap();
        let refused = of(&[&config]).unwrap_err().to_string();
        assert!(
            refused.contains("allow = \"dump\" is not a list"),
            "{refused}"
        );
    }

    #[test]
    fn refusals_name_the_word() {
        let check = |words: &[&str], expected: &str| {
            let refused = of(words).unwrap_err().to_string();
            assert!(refused.contains(expected), "{words:?}: {refused}");
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
        check(&["control=maybe"], "control=\"maybe\" is none of on, off");
    }
}
