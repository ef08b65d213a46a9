//! What hosts leave in a directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// What lies in a dump directory.
#[derive(Debug, Default)]
pub(super) struct DumpDirContents {
    /// Whole dumps.
    pub(super) whole: usize,
    /// Everything else: partial, left over, or readable by others.
    pub(super) bad: Vec<PathBuf>,
}

/// Looks at everything in `directory`; a missing one is empty.
pub(super) fn survey(directory: &Path) -> Result<DumpDirContents> {
    let mut survey = DumpDirContents::default();
    if !directory.exists() {
        return Ok(survey);
    }
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if is_whole(&path)? {
            survey.whole += 1;
        } else {
            survey.bad.push(path);
        }
    }
    Ok(survey)
}

/// True for a dump that is private, and has its head, its mappings and its last comment.
pub(super) fn is_whole(path: &Path) -> Result<bool> {
    let text = fs::read(path).with_context(|| path.display().to_string())?;
    let text = String::from_utf8_lossy(&text);
    let name = path.file_name().map(|name| name.to_string_lossy());
    Ok(
        name.is_some_and(|name| name.ends_with(".heap") && !name.starts_with('.'))
            && path.metadata()?.mode() & 0o777 == 0o600
            && (text.starts_with("heap_v2/") || text.starts_with("heap profile: "))
            && text.contains("\nMAPPED_LIBRARIES:\n")
            && text.ends_with('\n')
            && text
                .lines()
                .last()
                .is_some_and(|last| last.starts_with("# estimated-inuse-bytes: ")),
    )
}
