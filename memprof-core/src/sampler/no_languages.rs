//! Stub for processors without memprof's sampler: names no functions of interpreted programs.

use memprof_messages::{LanguageStatus, LanguagesChoice};

/// Does nothing, because no frames of interpreters are read.
pub(crate) fn prepare_languages(_: LanguagesChoice, _: bool) {}

/// Returns no interpreters.
pub(crate) fn language_status() -> Vec<LanguageStatus> {
    Vec::new()
}

/// Returns no comment lines for a dump.
pub(crate) fn language_comment_lines() -> Vec<String> {
    Vec::new()
}
