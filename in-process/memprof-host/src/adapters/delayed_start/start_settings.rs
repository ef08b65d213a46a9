//! The settings with which the plugin starts, read once in a process.

use memprof_own::LockFreeOnce;
use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use crate::adapters::config::{Control, Settings};
use crate::adapters::instance::Adapter;
use crate::adapters::log::ProgramLog;
use crate::adapters::stderr_log::LogDestination;

/// Config from the time when the library was loaded or first used. The environment is not read again, because the
/// program may change it at any time on another thread.
pub(super) struct StartSettings {
    pub(super) entry: &'static memprof_plugin_entry_t,
    pub(super) log: ProgramLog,
    pub(super) settings: Result<Settings, Failure>,
    pub(super) stderr: LogDestination,
}

pub(super) static START_SETTINGS: LockFreeOnce<StartSettings> = LockFreeOnce::new();

impl StartSettings {
    /// Returns the adapter that logs as these settings say. It opens a control socket by default.
    pub(super) fn adapter(&'static self) -> Adapter {
        Adapter {
            log: &self.log,
            control: Control::On,
        }
    }

    /// Returns whether, and where, the config requests a control socket. `None` if the config is invalid or does not
    /// mention one.
    pub(super) fn control(&self) -> Option<&Control> {
        self.settings.as_ref().ok()?.control.as_ref()
    }
}
