//! Files that hosts leave in a dump directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Files of a dump directory.
#[derive(Debug, Default)]
pub(super) struct DumpDirContents {
    /// Number of complete dumps.
    pub(super) complete: usize,
    /// All other files: partial dumps, leftover files, and files that others can read.
    pub(super) bad: Vec<PathBuf>,
}

/// Counts the complete dumps of a directory, and lists all other files; a missing directory counts as empty. Fails if a
/// file cannot be read.
pub(super) fn scan_dump_dir(directory: &Path) -> Result<DumpDirContents> {
    let mut contents = DumpDirContents::default();
    if !directory.exists() {
        return Ok(contents);
    }
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if is_complete_dump(&path)? {
            contents.complete += 1;
        } else {
            contents.bad.push(path);
        }
    }
    Ok(contents)
}

/// Whether a file is a whole dump that only its owner can read: a visible `.heap` file of mode 0600, with the first
/// line of jemalloc's or gperftools' format, the mappings, and the comment that memprof writes last.
pub(super) fn is_complete_dump(path: &Path) -> Result<bool> {
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
