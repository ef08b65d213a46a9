//! The config of programs that have none for plugins: variables of the environment.
#![expect(unsafe_code, reason = "a constant of the process")]

use log::LevelFilter;
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::MEMPROF_INVALID_ARGUMENT;

use super::config::{self, Settings};

pub(super) const ACTIVE: &str = "MEMPROF_ACTIVE";
pub(super) const LG_SAMPLE: &str = "MEMPROF_LG_SAMPLE";

const CONFIG: &str = "MEMPROF_CONFIG";

/// Whether there is a config of the plugin's.
pub(super) fn has_config() -> bool {
    variable(CONFIG).is_some()
}

/// The words of the environment, as other programs have them in their configs.
pub(super) fn settings() -> Result<Settings, Failure> {
    let named = [
        ("config", CONFIG),
        ("dump_dir", "MEMPROF_DUMP_DIR"),
        ("activate_at_start", ACTIVE),
        ("lg_sample", LG_SAMPLE),
    ];
    let values = named.map(|(key, name)| Some((key, variable(name)?)));
    let words = values.iter().flatten();
    config::parse(words.map(|(key, value)| (*key, value.as_str())))
}

/// The least important lines that go to standard error.
pub(super) fn level() -> Result<LevelFilter, Failure> {
    variable("MEMPROF_LOG").map_or(Ok(LevelFilter::Warn), |word| {
        word.parse().map_err(|_| {
            let message =
                format!("MEMPROF_LOG={word} is none of off, error, warn, info, debug, trace");
            Failure::new(MEMPROF_INVALID_ARGUMENT, message)
        })
    })
}

/// A variable that is set and not empty. In a process that runs with more rights than who started it the
/// environment is somebody else's: it has none.
pub(super) fn variable(name: &str) -> Option<String> {
    if is_secure_execution() {
        return None;
    }
    let value = std::env::var_os(name)?.to_string_lossy().into_owned();
    (!value.is_empty()).then_some(value)
}

fn is_secure_execution() -> bool {
    // SAFETY: getauxval(3) reads a constant of this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
