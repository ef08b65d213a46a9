//! What allocators and profiles are called.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};

/// The allocators that memprof knows. The names are those of the argument `allocator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Of any prefix.
    Jemalloc,
    /// Of gperftools.
    Tcmalloc,
    /// Microsoft's.
    Mimalloc,
    /// The C library's own.
    Glibc,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Jemalloc, Self::Tcmalloc, Self::Mimalloc, Self::Glibc];

    /// The kind of that name.
    ///
    /// # Errors
    /// `Invalid`: names the kinds there are.
    pub fn parse(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|kind| kind.to_string() == name);
        known.ok_or_else(|| {
            let message = format!("allocator={name:?} is no allocator that memprof knows");
            let names = Self::ALL.map(|kind| kind.to_string()).join(", ");
            Error::new(ErrorKind::Invalid, message).remedy(format!("valid allocators: {names}"))
        })
    }

    /// Whether some build of it has a profiler.
    pub(crate) fn has_profiler(self) -> bool {
        matches!(self, Self::Jemalloc | Self::Tcmalloc)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jemalloc => "jemalloc",
            Self::Tcmalloc => "tcmalloc",
            Self::Mimalloc => "mimalloc",
            Self::Glibc => "glibc",
        })
    }
}

/// What an allocator is known by. Prints as `jemalloc 5.3.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub kind: Kind,
    /// In its own words.
    pub version: String,
    pub found_by: FoundBy,
    /// It serves this process's `malloc`.
    pub owns_malloc: bool,
    /// Where the function lies that it was found by: tells it from others of its kind.
    pub address: usize,
}

impl Identity {
    /// The version without the commit that a jemalloc was built from, which stands behind a dash.
    pub(crate) fn release(&self) -> &str {
        match self.version.split_once('-') {
            Some((release, _)) if !release.is_empty() => release,
            _ => &self.version,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.release())
    }
}

/// What a profile tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfileKind {
    /// Which stacks hold live memory, by samples.
    #[default]
    Heap,
    /// Which stacks made the heap grow, since the start.
    Growth,
}

impl fmt::Display for ProfileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Heap => "heap",
            Self::Growth => "growth",
        })
    }
}

impl ProfileKind {
    /// `heap` or `growth`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "heap" => Ok(Self::Heap),
            "growth" => Ok(Self::Growth),
            other => {
                let message = format!("kind={other:?} is no kind of profile");
                Err(Error::new(ErrorKind::Invalid, message).remedy("valid kinds: heap, growth"))
            }
        }
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
