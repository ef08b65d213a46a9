//! What allocators and profiles are called.

use std::fmt;
use std::path::PathBuf;

use memprof_messages::{AllocatorKind, release};

/// What an allocator is known by. Prints as `jemalloc 5.3.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllocatorIdentity {
    pub kind: AllocatorKind,
    /// In its own words.
    pub version: String,
    pub found_by: FoundBy,
    /// It serves this process's `malloc`.
    pub owns_malloc: bool,
    /// Where the function lies that it was found by: tells it from others of its kind.
    pub address: usize,
}

impl AllocatorIdentity {
    /// The version without the commit that a jemalloc was built from, which stands behind a dash.
    pub(crate) fn release(&self) -> &str {
        release(&self.version)
    }
}

impl fmt::Display for AllocatorIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.release())
    }
}

/// How an allocator was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// The host handed its functions over.
    Host,
    /// `dlsym`.
    DynamicSymbol,
    /// The symbol table of this file.
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
