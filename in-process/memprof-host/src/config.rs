//! The host's config file.

mod plugin_table;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::config_source::ConfigSource;
pub(crate) use plugin_table::restore_table_prefixes;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::de::DeTable;

/// A host's config. Unknown keys are errors.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[control]`.
    pub control: ControlConfig,
    /// `[log]`.
    pub log: LogConfig,
    /// `[[plugin]]`.
    #[serde(deserialize_with = "deserialize_plugins")]
    pub plugin: Vec<PluginConfig>,
}

/// `[control]`: the socket through which `memprof` sends messages to the host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a table, [control], with socket, name or allow_uids"
)]
pub struct ControlConfig {
    /// `on` (the default: `<pid>.sock` in the default directory), `off`, or an absolute path.
    pub socket: Option<String>,
    /// Name by which `memprof -t` selects the host; by default the program's.
    pub name: Option<String>,
    /// Ids of the users who may connect, besides root and the host's user.
    pub allow_uids: Vec<u32>,
}

/// `[log]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table, [log], with level")]
pub struct LogConfig {
    /// `error`, `warn`, `info` (the default), `debug` or `trace`.
    pub level: Option<String>,
}

/// `[[plugin]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginConfig {
    /// Absolute path of the plugin's file.
    pub path: PathBuf,
    /// Required SHA-256 digest of the file, in hexadecimal.
    pub sha256: Option<String>,
    /// `[plugin.config]`, passed to the plugin unchanged.
    #[serde(default)]
    pub config: toml::Table,
    /// Text of the file in which all lines except those of `config` are blank. `None` if the file has `config` in
    /// another form, as an inline table.
    #[serde(skip)]
    text_in_file: Option<String>,
    /// File from which the table was read.
    #[serde(skip)]
    source: ConfigSource,
}

/// Deserializes `[[plugin]]`, with an error that explains the brackets.
fn deserialize_plugins<'de, D: Deserializer<'de>>(
    tables: D,
) -> Result<Vec<PluginConfig>, D::Error> {
    struct Tables;
    impl<'de> Visitor<'de> for Tables {
        type Value = Vec<PluginConfig>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of tables, [[plugin]] with two brackets")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut tables: A) -> Result<Self::Value, A::Error> {
            let mut plugins = Vec::new();
            while let Some(plugin) = tables.next_element()? {
                plugins.push(plugin);
            }
            Ok(plugins)
        }
    }
    tables.deserialize_any(Tables)
}

/// The error of a config file that cannot be read or is invalid.
#[derive(Debug, thiserror::Error)]
#[error("config file {}: {message}", path.display())]
pub struct ConfigError {
    /// Path of the file, as the caller passed it.
    pub path: PathBuf,
    /// Description of the error, with line and column if it concerns the text.
    pub message: String,
}

impl Config {
    /// Reads and parses a config file. The error names the file.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or has an unknown key or a value of the wrong type.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::read_beside(path, &[])
    }

    /// Reads and parses a config file that also configures the program. `own` names the tables and keys at the top of
    /// the file that are the program's own, and are left out. The error names the file.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or has an unknown key or a value of the wrong type.
    pub fn read_beside(path: &Path, own: &[&str]) -> Result<Self, ConfigError> {
        let config_error = |message: String| ConfigError {
            path: path.to_owned(),
            message,
        };
        let text =
            std::fs::read_to_string(path).map_err(|error| config_error(error.to_string()))?;
        let config = Self::parse_beside(&text, own).map_err(config_error)?;
        Ok(config.with_path(path))
    }

    /// Sets the path of the file whose text was parsed, which errors of the plugins then name. Call it after
    /// [`parse`](Self::parse) or [`parse_beside`](Self::parse_beside); [`read`](Self::read) and
    /// [`read_beside`](Self::read_beside) set it themselves.
    #[must_use]
    pub fn with_path(mut self, path: &Path) -> Self {
        // The path must be absolute, because the reader of an error may be in another directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        for plugin in &mut self.plugin {
            plugin.source = match plugin.text_in_file {
                Some(_) => ConfigSource::File(path.clone()),
                None => ConfigSource::FileKeys(path.clone()),
            };
        }
        self
    }

    /// Parses the text of a config file that also configures the program. `own` names the tables and keys at the top of
    /// the file that are the program's own, such as `server` for `[server]`, and are left out. Lines in errors are
    /// those of the file. The program parses the same text for its own tables.
    ///
    /// # Errors
    /// The text is not TOML, or has an unknown key or a value of the wrong type; the message contains line and column.
    pub fn parse_beside(text: &str, own: &[&str]) -> Result<Self, String> {
        let mut table = DeTable::parse(text).map_err(|error| error.to_string())?;
        for name in own {
            table.get_mut().remove(*name);
        }
        let parsed = Self::deserialize(toml::Deserializer::from(table));
        let mut config = parsed.map_err(|mut error| {
            error.set_input(Some(text));
            error.to_string()
        })?;
        for (index, plugin) in config.plugin.iter_mut().enumerate() {
            plugin.text_in_file =
                plugin_table::blank_outside_plugin_config(text, index, &plugin.config);
        }
        // Reports an invalid level now, with the other errors of the file.
        config.log.level()?;
        Ok(config)
    }

    /// Parses the text of a config file, which must have no tables or keys but those of memprof.
    ///
    /// # Errors
    /// The text is invalid; the message contains line and column.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_beside(text, &[])
    }
}

impl LogConfig {
    /// Returns the log level; `Info` by default.
    ///
    /// # Errors
    /// The name is no level.
    pub fn level(&self) -> Result<log::LevelFilter, String> {
        match self.level.as_deref() {
            None => Ok(log::LevelFilter::Info),
            Some(word) => word.parse().map_err(|_| {
                format!("invalid [log] level {word:?}: expected error, warn, info, debug or trace")
            }),
        }
    }
}

impl PluginConfig {
    /// Returns `[plugin.config]` as the plugin receives it: the text of the file in which all other lines are blank, so
    /// that line numbers in the plugin's errors are those of the file. If the file has the config in another form, such
    /// as an inline table, returns it as new TOML.
    pub fn config_text(&self) -> String {
        let text_in_file = self.text_in_file.clone();
        text_in_file.unwrap_or_else(|| self.config.to_string())
    }

    /// Returns the source of the config, for errors.
    pub(crate) fn source(&self) -> &ConfigSource {
        &self.source
    }

    /// Returns the name of the plugin until its id is known: the file's name without its extension.
    pub fn provisional_id(&self) -> String {
        let stem = self.path.file_stem().unwrap_or(self.path.as_os_str());
        stem.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::Config;

    #[test]
    fn config_with_every_table_is_parsed() {
        let config = Config::parse(
            "[control]\nsocket = \"/run/x.sock\"\nname = \"web\"\nallow_uids = [7]\n\
             [log]\nlevel = \"debug\"\n\
             [[plugin]]\npath = \"/p/memory_profile.so\"\n[plugin.config]\ndump_dir = \"/d\"\n\
             [[plugin]]\npath = \"/p/hello_c.so\"\nsha256 = \"ab\"\n",
        )
        .unwrap();
        assert_eq!(config.control.socket.as_deref(), Some("/run/x.sock"));
        assert_eq!(config.log.level(), Ok(log::LevelFilter::Debug));
        assert_eq!(config.plugin[0].provisional_id(), "memory_profile");
        assert_eq!(config.plugin[0].config.to_string(), "dump_dir = \"/d\"\n");
        assert_eq!(config.plugin[1].sha256.as_deref(), Some("ab"));
    }

    #[test]
    fn configuration_reference_has_every_key_and_is_valid() {
        let reference = include_str!("../../../CONFIGURATION.md");
        let block = reference
            .split("```")
            .find_map(|block| block.strip_prefix("toml\n"));
        let block = block.unwrap();
        let config = Config::parse(block).unwrap();
        assert_eq!(config.plugin[0].config.len(), 1);
        for table in ["", "[control]\n", "[log]\n", "[[plugin]]\npath = \"/a\"\n"] {
            let error = Config::parse(&format!("{table}no_such_key = 1")).unwrap_err();
            let (_, listed) = error.split_once("expected ").unwrap();
            for key in listed.split('`').skip(1).step_by(2) {
                let has = [
                    format!("\n{key} = "),
                    format!("[{key}]"),
                    format!("[plugin.{key}]"),
                ]
                .iter()
                .any(|part| block.contains(part));
                assert!(has, "{key}");
            }
        }
    }

    #[test]
    fn error_contains_line_and_column() {
        let check = |text: &str, expected: &[&str]| {
            let error = Config::parse(text).unwrap_err();
            for part in expected {
                assert!(error.contains(part), "{error}");
            }
        };
        check(
            "\n[contol]\n",
            &["line 2, column 2", "unknown field `contol`"],
        );
        check(
            "[control]\nsocket = 1",
            &["line 2, column 10", "expected a string"],
        );
        check("[[plugin]]\nsha256 = \"\"", &["missing field `path`"]);
        check(
            "[log]\nlevel = \"loud\"",
            &["invalid [log] level \"loud\": expected"],
        );
        check("x", &["line 1"]);
        check(
            "[plugin]\npath = \"/a\"",
            &["line 1, column 1", "[[plugin]] with two brackets"],
        );
        check("control = \"on\"", &["line 1", "a table, [control]"]);
        check("log = \"info\"", &["line 1", "a table, [log]"]);
    }
}
