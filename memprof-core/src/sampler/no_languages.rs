//! Stub for processors without memprof's sampler: names no functions of interpreted programs.

use memprof_messages::{LanguageStatus, LanguagesChoice};

/// Does nothing.
pub(crate) fn prepare_languages(_: LanguagesChoice, _: bool) {}

pub(crate) fn language_status() -> Vec<LanguageStatus> {
    Vec::new()
}

pub(crate) fn comment_lines() -> Vec<String> {
    Vec::new()
}
