//! Tables of the code origins of functions, files and source directories.
//!
//! A pattern is a whole name, or has `*` for any text. A name proves little: each rule says where it holds.

mod allocation_words;
mod files;
mod functions;
mod languages;
mod libraries;
mod namespaces;
mod scripts;
mod sources;

use super::CodeOrigin;
pub(super) use allocation_words::{ALLOCATING_ENDS, GROWING_ENDS, MEMORY_PARTS};
pub(super) use files::FILES;
pub(super) use functions::FUNCTIONS;
pub(super) use languages::LANGUAGES;
pub(super) use libraries::LIBRARIES;
pub(super) use namespaces::NAMESPACES;
pub(super) use scripts::SCRIPTS;
pub(super) use sources::{SOURCE_DIRECTORIES, SourceDirectory};

use crate::demangle::Language;

/// Rule for the names of functions, or for their namespaces.
#[derive(Debug)]
pub(super) struct NameRule {
    pub(super) origin: CodeOrigin,
    pub(super) reach: Reach,
    pub(super) names: &'static [&'static str],
}

impl NameRule {
    /// Creates a rule: a function has this `origin` if its name or namespace matches one of the patterns `names` and
    /// the function is in the rule's `reach`.
    const fn new(origin: CodeOrigin, reach: Reach, names: &'static [&'static str]) -> Self {
        Self {
            origin,
            reach,
            names,
        }
    }
}

/// Runtime of a compiled language that is linked into its programs, with names as those of C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runtime {
    OCaml,
    Nim,
}

/// Starts of the names of functions by which a runtime's programs are known: they start the program, or call its code.
pub(super) const RUNTIMES: &[(Runtime, &[&str])] = &[
    (
        Runtime::OCaml,
        &["caml_main", "caml_start_program", "caml_callback"],
    ),
    (Runtime::Nim, &["NimMain"]),
];

/// Functions for which a name is evidence.
#[derive(Debug)]
pub(super) enum Reach {
    /// All: a language reserves the name.
    Reserved,
    /// Those of unknown source files, and those whose path holds the name's namespace: no other library has it, but a
    /// program may add to it, as to `std::hash`.
    Distinct,
    /// Those written in this language, whose source file is unknown.
    Language(Language),
    /// Those of unknown source files, in a program of this runtime.
    Runtime(Runtime),
    /// Code that is in no file.
    Jit,
    /// Those outside of the program's own files; and in these, if a word in the path of the source or of the file
    /// starts with one of these.
    With(&'static [&'static str]),
}
