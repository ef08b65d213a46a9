//! The plugin's TOML table.

use std::path::PathBuf;

use memprof_core::{Keep, Store, default_dump_dir, is_secure_execution};
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::MEMPROF_INVALID_ARGUMENT;
use serde::Deserialize;

/// `[plugin.config]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Where dumps are kept; absolute.
    dump_dir: Option<PathBuf>,
    /// Activate when the host starts.
    pub activate_at_start: bool,
    /// log2 of the sample interval to set at activation.
    pub lg_sample: Option<u64>,
    /// How many dumps are kept.
    keep: KeepConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct KeepConfig {
    count: Option<usize>,
    bytes: Option<u64>,
}

impl Config {
    /// Parses the table.
    ///
    /// # Errors
    /// Names the key, the line and the column.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let config: Self = toml::from_str(text).map_err(|error| invalid(error.to_string()))?;
        if let Some(relative) = config.dump_dir.as_ref().filter(|path| !path.is_absolute()) {
            return Err(invalid(format!(
                "dump_dir {relative:?} is not an absolute path"
            )));
        }
        if config.keep.count == Some(0) {
            return Err(invalid("keep.count must be at least 1".to_owned()));
        }
        Ok(config)
    }

    /// The store that it describes, for the program of that name.
    pub(crate) fn store(&self, program: &str) -> Store {
        let directory = self.dump_dir.clone().unwrap_or_else(|| {
            let is_root = rustix::process::geteuid().is_root();
            default_dump_dir(program, is_root, |name| {
                // Under a changed uid the environment is somebody else's.
                std::env::var_os(name).filter(|_| !is_secure_execution())
            })
        });
        let default = Keep::default();
        let keep = Keep {
            count: self.keep.count.unwrap_or(default.count),
            bytes: self.keep.bytes.unwrap_or(default.bytes),
        };
        Store::new(directory, keep)
    }
}

fn invalid(message: String) -> Failure {
    Failure::new(MEMPROF_INVALID_ARGUMENT, message)
}

#[cfg(test)]
mod tests {
    use super::Config;

    #[test]
    fn mistakes_are_named() {
        let check = |text: &str, expected: &str| {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("dump_dirr = \"/x\"", "unknown field `dump_dirr`");
        check("\n\nactivate_at_start = 1", "line 3, column 21");
        check("dump_dir = \"x\"", "dump_dir \"x\" is not an absolute path");
        check("[keep]\ncount = 0", "keep.count must be at least 1");
        check("[keep]\ndays = 1", "unknown field `days`");
    }

    #[test]
    fn a_configured_directory_is_used() {
        let config = Config::parse("dump_dir = \"/var/dumps\"\n[keep]\ncount = 3").unwrap();
        assert_eq!(
            config.store("web").directory(),
            std::path::Path::new("/var/dumps")
        );
    }
}
