//! Config from environment variables, for programs whose config has no plugins.

use log::LevelFilter;
use memprof_own::LockFreeOnce;
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::MEMPROF_INVALID_ARGUMENT;

use super::config::{self, Settings};
use crate::secure_execution::is_secure_execution;

pub(super) const ACTIVE: &str = "MEMPROF_ACTIVE";
pub(super) const LG_SAMPLE: &str = "MEMPROF_LG_SAMPLE";

const CONFIG: &str = "MEMPROF_CONFIG";

/// Returns whether the environment names a config file of the plugin (`MEMPROF_CONFIG`).
pub(super) fn has_config() -> bool {
    environment_variable(CONFIG).is_some()
}

/// Keys of the config with their values in the environment.
type Variables = Vec<(&'static str, String)>;

/// The variables as they were read first: the program may change them at any time, on another thread.
static VARIABLES: LockFreeOnce<Variables> = LockFreeOnce::new();

/// Parses the config in the environment, whose variables are read only at the first call. Fails if a value is invalid,
/// or if the config file that a variable names cannot be read or parsed.
pub(super) fn read_settings() -> Result<Settings, Failure> {
    parse_variables(VARIABLES.get_or_set(read_variables()))
}

/// Parses the config of the environment again: the variables as [`read_settings`] read them, but the current text of
/// the config file. `None` if [`read_settings`] was never called, because the program passes its own settings.
pub(super) fn reread_settings() -> Option<Result<Settings, Failure>> {
    VARIABLES.get().map(parse_variables)
}

/// Parses the config that the variables contain, as keys and values. Reads the config file, if one is named. Fails if a
/// value is invalid, or if the file cannot be read or parsed.
fn parse_variables(variables: &Variables) -> Result<Settings, Failure> {
    config::parse_setting_pairs(variables.iter().map(|(key, value)| (*key, value.as_str())))
}

/// Reads the environment variables that configure the plugin, as far as they are set, with their keys in the config.
fn read_variables() -> Variables {
    let named = [
        ("config", CONFIG),
        ("dump_dir", "MEMPROF_DUMP_DIR"),
        ("activate_at_start", ACTIVE),
        ("lg_sample", LG_SAMPLE),
    ];
    named
        .into_iter()
        .filter_map(|(key, name)| Some((key, environment_variable(name)?)))
        .collect()
}

/// Returns the least severe level of the lines that go to standard error: that in `MEMPROF_LOG`, by default `Warn`.
/// Fails if the variable names no level.
pub(super) fn log_level() -> Result<LevelFilter, Failure> {
    environment_variable("MEMPROF_LOG").map_or(Ok(LevelFilter::Warn), |word| {
        word.parse().map_err(|_| {
            let message = format!(
                "invalid MEMPROF_LOG={word}: expected off, error, warn, info, debug or trace"
            );
            Failure::new(MEMPROF_INVALID_ARGUMENT, message)
        })
    })
}

/// Returns a variable that is set and not empty. `None` in a process with more privileges than the user who started it,
/// because that user controls the environment.
pub(super) fn environment_variable(name: &str) -> Option<String> {
    if is_secure_execution() {
        return None;
    }
    let value = std::env::var_os(name)?.to_string_lossy().into_owned();
    (!value.is_empty()).then_some(value)
}
