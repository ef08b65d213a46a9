//! Names of allocators and profiles.

use std::fmt;
use std::path::PathBuf;

use memprof_messages::{AllocatorKind, release_version};

/// Kind and version of an allocator, and how it was found. Prints as `jemalloc 5.3.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllocatorIdentity {
    pub kind: AllocatorKind,
    /// Version as the allocator reports it, such as `5.3.0-0-g54eaed1d8b56b1aa`.
    pub version: String,
    pub found_by: FoundBy,
    /// Whether the process's `malloc` calls this allocator.
    pub owns_malloc: bool,
    /// Address of the function by which the allocator was found. It distinguishes two allocators of the same kind.
    pub address: usize,
}

impl AllocatorIdentity {
    /// Version without the commit from which a jemalloc was built (the part after the dash).
    pub(crate) fn release_version(&self) -> &str {
        release_version(&self.version)
    }
}

impl fmt::Display for AllocatorIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.release_version())
    }
}

/// Source from which an allocator is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// The host passed its functions.
    Host,
    /// Found by dlsym(3).
    DynamicSymbol,
    /// Found in the symbol table of this file.
    SymbolTable(PathBuf),
}

impl fmt::Display for FoundBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::DynamicSymbol => f.write_str("dlsym"),
            Self::SymbolTable(path) => write!(f, "symtab {}", path.display()),
        }
    }
}
