//! Evidence on the origin of one function.

use super::mapped_file::MappedFile;
use super::rules::SourceDirectory;
use super::source_file::library_directory;
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
    /// Whether `name` is that of a symbol, not an offset.
    pub(super) is_named: bool,
    /// `None` if it is unknown, or C.
    pub(super) language: Option<Language>,
    pub(super) source: SourceEvidence<'p>,
    pub(super) file: MappedFile<'p>,
}

impl<'p> FunctionEvidence<'p> {
    pub(super) fn new(frame: &Frame, names: &'p Names, file: MappedFile<'p>) -> Self {
        let text = |id: StringId| names.strings.get(id);
        let source = frame.file.map(text).filter(|path| !path.is_empty());
        let is_rust = source.is_some_and(|path| path.ends_with(".rs"));
        let by_symbol = frame.linkage.map(text).and_then(Language::from_symbol);
        Self {
            name: text(frame.function),
            is_named: frame.named,
            language: by_symbol.or(is_rust.then_some(Language::Rust)),
            source: match source {
                None => SourceEvidence::Unknown,
                Some(path) => match library_directory(path) {
                    Some((directory, package)) => SourceEvidence::Library {
                        path,
                        directory,
                        package,
                    },
                    None => SourceEvidence::Own(path),
                },
            },
            file,
        }
    }
}
