//! Finds the file of a mapping, and its debug file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::build_id::build_id;
use super::companions::{Companions, DEBUG_DIR, build_id_path};
use super::object_files::ObjectFile;
use super::regular_file::{READ_LIMIT, SearchPath, open_regular};
use super::{BuildIdMatch, Sources};
use crate::error::{Error, Result};

/// Result of searching the file of a mapping.
pub(super) enum BinaryLookup {
    Binary(Binary),
    /// Reason why no binary was found.
    Nothing(String),
}

/// A binary that can symbolize addresses.
pub(super) struct Binary {
    pub(super) file: File,
    build_id: Option<String>,
    /// Debug file, found by build id or `.gnu_debuglink`. `None` before [`find_debug_file`](Self::find_debug_file).
    pub(super) debug: Option<File>,
    pub(super) companions: Companions,
    pub(super) build_id_match: BuildIdMatch,
}

impl Binary {
    /// Finds the binary's debug file, and stores it in `debug`; `None` if there is none. May read each possible file
    /// until the `deadline`, to compute its checksum.
    pub(super) fn find_debug_file(&mut self, deadline: Instant) {
        let id = self.build_id.as_deref();
        self.debug = self.companions.find_debug_file(&self.file, id, deadline);
    }

    /// Length of the binary and of its debug file together, in bytes. A file whose length cannot be read counts as 0.
    pub(super) fn file_bytes(&self) -> u64 {
        let files = [Some(&self.file), self.debug.as_ref()]
            .into_iter()
            .flatten();
        let lengths = files.filter_map(|file| Some(file.metadata().ok()?.len()));
        lengths.fold(0, u64::saturating_add)
    }
}

/// Finds the binary of a mapping, without its debug file. `machine` is the name of the profile's machine, `None` if it
/// is unknown. For a profile of another machine without a build id, no file counts unless `force` is set. If no file
/// can be read, the result says why.
///
/// # Errors
/// Only binaries with another build id exist for the main program, or for the file that `sources.binary` replaces, and
/// `force` is not set. For other files the result says so: without the names of a library, a report is still of use.
pub(super) fn find_binary(
    object_file: &ObjectFile<'_>,
    machine: Option<&str>,
    sources: &Sources,
) -> Result<BinaryLookup> {
    let is_foreign = match (machine, sources.machine.as_deref()) {
        (Some(profile_machine), Some(machine)) => profile_machine != machine,
        _ => false,
    };
    let mut mismatch = None;
    let mut is_too_large = false;
    for search_path in search_paths(object_file, sources, is_foreign) {
        let Some(file) = open_regular(&search_path) else {
            continue;
        };
        let Ok(found) = build_id(&file) else {
            is_too_large = true;
            continue;
        };
        let build_id_match = match (object_file.build_id, &found) {
            (Some(expected), Some(found)) if expected == found => BuildIdMatch::Match,
            (Some(_), _) if sources.force => BuildIdMatch::Mismatch,
            (Some(expected), found) => {
                mismatch.get_or_insert_with(|| Error::BuildIdMismatch {
                    path: object_file.path.into(),
                    expected: expected.into(),
                    file: search_path.root.join(&search_path.path),
                    found: found.clone().unwrap_or_else(|| "none".into()),
                });
                continue;
            }
            (None, _) if is_foreign && !sources.force => continue,
            (None, _) => BuildIdMatch::Unknown,
        };
        return Ok(BinaryLookup::Binary(Binary {
            file,
            build_id: found,
            debug: None,
            companions: Companions::new(search_path, sources),
            build_id_match,
        }));
    }
    match mismatch {
        Some(_) if object_file.is_unloaded => Ok(BinaryLookup::Nothing(
            "it was unloaded, and another file is there now".into(),
        )),
        Some(error) if object_file.is_main || object_file.is_replaced => Err(error),
        Some(error) => Ok(BinaryLookup::Nothing(format!(
            "its frames are numbers: {error}"
        ))),
        None if is_too_large => Ok(BinaryLookup::Nothing(format!(
            "its tables are larger than the {READ_LIMIT} bytes that are read, or than memory, its frames are numbers; \
             --binary-root names a directory with a stripped copy"
        ))),
        None if is_foreign => Ok(BinaryLookup::Nothing(
            "the profile is from another machine; --binary-root names a directory with its binaries, \
             their build ids must match"
                .into(),
        )),
        None => Ok(BinaryLookup::Nothing("no such file here, its frames are numbers; --pid names those of a process that still runs".into())),
    }
}

/// Paths at which the binary of a mapped file may be, the preferred first. For the file that `sources.binary` replaces,
/// only the path of that binary. For a profile of another machine (`is_foreign`), this machine's own files are left
/// out. The path of a deleted file without a build id is left out, too: another file may be there now.
fn search_paths(
    object_file: &ObjectFile<'_>,
    sources: &Sources,
    is_foreign: bool,
) -> Vec<SearchPath> {
    if let Some(binary) = sources.binary.as_ref().filter(|_| object_file.is_replaced) {
        return vec![SearchPath {
            root: PathBuf::new(),
            path: binary.clone(),
        }];
    }
    let mut search_paths = Vec::new();
    // The path of a deleted file may belong to its successor, which only a build id can exclude.
    let is_deleted = object_file.path.ends_with(" (deleted)") && object_file.build_id.is_none();
    let path = Path::new(object_file.path.trim_end_matches(" (deleted)"));
    if !is_foreign && !is_deleted {
        search_paths.extend(sources.roots.iter().map(|root| SearchPath {
            root: root.clone(),
            path: path.into(),
        }));
    }
    let id = object_file.build_id;
    let debug = id.and_then(|id| build_id_path(id, ".debug"));
    if let Some(root) = &sources.binary_root {
        let name = path.file_name().map(PathBuf::from);
        let by_id = id.and_then(|id| build_id_path(id, ""));
        let paths = [Some(path.to_owned()), name, by_id, debug.clone()];
        search_paths.extend(paths.into_iter().flatten().map(|path| SearchPath {
            root: root.clone(),
            path,
        }));
    }
    // A debug file alone names addresses too.
    let roots = sources.roots.iter().filter(|_| !is_foreign);
    for root in roots.chain(&sources.binary_root) {
        search_paths.extend(debug.iter().map(|debug| SearchPath {
            root: root.clone(),
            path: Path::new(DEBUG_DIR).join(debug),
        }));
    }
    search_paths
}
