//! The program that is the host, as its plugins see it.

use memprof_plugin_abi::raw::memprof_jemalloc_t;

/// Who the host is, where its log goes, and its allocator.
#[derive(Clone, Copy)]
pub struct HostProgram {
    /// The program's name, which `memprof -t` takes.
    pub name: &'static str,
    /// As the program tells it, for logs; may be empty.
    pub version: &'static str,
    /// Where the lines of plugins go.
    pub log: &'static dyn log::Log,
    /// The program's own jemalloc. Without it the plugin searches; a program that is stripped
    /// and links jemalloc statically has to hand it over.
    pub jemalloc: Option<memprof_jemalloc_t>,
}

impl HostProgram {
    /// A program that logs through the `log` crate, whose logger must be set before.
    pub fn new(name: &'static str, version: &'static str) -> Self {
        Self {
            name,
            version,
            log: log::logger(),
            jemalloc: None,
        }
    }
}

impl std::fmt::Debug for HostProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({} {})", self.name, self.version)
    }
}
