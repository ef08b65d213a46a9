//! Evidence on the origin of one function.

use super::mapped_file::MappedFile;
use super::rules::{Runtime, SourceDirectory};
use super::source_file::find_library_directory;
use crate::demangle::Language;
use crate::names::{Frame, Names, StringId};

/// Source file of a function.
#[derive(Clone, Copy, Debug)]
pub(super) enum SourceEvidence<'p> {
    /// In a directory of libraries.
    Library {
        path: &'p str,
        directory: &'static SourceDirectory,
        package: &'p str,
    },
    /// In no directory of libraries.
    Own(&'p str),
    Unknown,
}

/// Evidence on one function.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionEvidence<'p> {
    pub(super) name: &'p str,
    /// Whether `name` is a symbol's, not an offset.
    pub(super) is_named: bool,
    /// `None` if it is unknown, or C.
    pub(super) language: Option<Language>,
    pub(super) source: SourceEvidence<'p>,
    /// Runtime of the program's language, if it is linked into it.
    pub(super) runtime: Option<Runtime>,
    pub(super) file: MappedFile<'p>,
}

impl<'p> SourceEvidence<'p> {
    /// Classifies a source file: in a directory of libraries or not. `path` is empty if the file is unknown.
    pub(super) fn new(path: &'p str) -> Self {
        match find_library_directory(path) {
            _ if path.is_empty() => Self::Unknown,
            Some((directory, package)) => Self::Library {
                path,
                directory,
                package,
            },
            None => Self::Own(path),
        }
    }

    /// Returns whether the source file is written in Rust; false if it is unknown.
    fn is_rust(&self) -> bool {
        match self {
            Self::Library { path, .. } | Self::Own(path) => path.ends_with(".rs"),
            Self::Unknown => false,
        }
    }
}

impl<'p> FunctionEvidence<'p> {
    /// Collects the evidence that a frame gives on its function. The language is that of the symbol, else Rust if the
    /// source file ends in `.rs`. `ProfileEvidence::verdict` adds the evidence of the whole profile, e.g. the runtime.
    pub(super) fn new(
        frame: &Frame,
        names: &'p Names,
        source: SourceEvidence<'p>,
        file: MappedFile<'p>,
    ) -> Self {
        let text = |id: StringId| names.strings.get(id);
        let by_symbol = frame.linkage.map(text).and_then(Language::from_symbol);
        Self {
            name: text(frame.function),
            is_named: frame.named,
            language: by_symbol.or(source.is_rust().then_some(Language::Rust)),
            source,
            runtime: None,
            file,
        }
    }
}
