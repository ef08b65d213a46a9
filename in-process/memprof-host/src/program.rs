//! The host's program, as its plugins see it.

use memprof_plugin_abi::raw::memprof_jemalloc_t;

/// Name, version, log and allocator of the host's program.
#[derive(Clone, Copy)]
pub struct HostProgram {
    /// Name of the program, by which `memprof -t` selects it.
    pub name: &'static str,
    /// Version that the program reports, for logs; may be empty.
    pub version: &'static str,
    /// Logger that receives the lines of plugins.
    pub log: &'static dyn log::Log,
    /// Functions of the program's jemalloc. Without them the plugin searches for one, which fails in a stripped program
    /// that links jemalloc statically.
    pub jemalloc: Option<memprof_jemalloc_t>,
}

impl HostProgram {
    /// Creates a `HostProgram` whose plugins log to the logger of the `log` crate, up to the crate's `max_level`.
    pub fn new(name: &'static str, version: &'static str) -> Self {
        Self {
            name,
            version,
            log: &CrateLog,
            jemalloc: None,
        }
    }
}

/// The logger of the `log` crate, behind the crate's `max_level`, which its macros compare first.
struct CrateLog;

impl log::Log for CrateLog {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level() && log::logger().enabled(metadata)
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.level() <= log::max_level() {
            log::logger().log(record);
        }
    }

    fn flush(&self) {
        log::logger().flush();
    }
}

impl std::fmt::Debug for HostProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({} {})", self.name, self.version)
    }
}
