//! Finds the file of a mapping, and its debug file.
//!
//! Paths in a profile are untrusted: only regular files are opened, never blocking, and below a root no link leads
//! out of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::Object as _;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::limited_file::LimitedFile;
use super::object_files::ObjectFile;
use super::{BuildIdMatch, Sources};
use crate::error::{Error, Result};

/// Directory of debug files in distributions, relative to a root.
const DEBUG_DIR: &str = "usr/lib/debug";

/// Most bytes read of one binary, and of its debug file.
pub(super) const READ_LIMIT: u64 = 1 << 30;

/// Result of searching the file of a mapping.
pub(super) enum BinaryLookup {
    Binary(Binary),
    /// Reason why no binary was found.
    Nothing(String),
}

/// A binary that can symbolize addresses.
pub(super) struct Binary {
    pub(super) file: File,
    /// Debug file, found by build id or `.gnu_debuglink`.
    pub(super) debug: Option<File>,
    pub(super) build_id_match: BuildIdMatch,
}

/// Path relative to a root.
pub(super) struct SearchPath {
    pub(super) root: PathBuf,
    pub(super) path: PathBuf,
}

/// Finds the binary of a mapping, with its debug file. If none can be read, the result says why.
///
/// # Errors
/// Only binaries with another build id exist, and `force` is not set.
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
        let Some(file) = open(&search_path) else {
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
        let debug = debug_file(&file, &search_path, found.as_deref(), sources);
        return Ok(BinaryLookup::Binary(Binary {
            file,
            debug,
            build_id_match,
        }));
    }
    match mismatch {
        Some(error) => Err(error),
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

/// Paths at which the binary may be, the preferred first. Only `sources.binary` for the file that it replaces.
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

/// Path of a file below `.build-id`. `None` if the id is malformed.
fn build_id_path(id: &str, suffix: &str) -> Option<PathBuf> {
    let (first, rest) = id.split_at_checked(2)?;
    let is_safe = id.bytes().all(|byte| byte.is_ascii_hexdigit()) && !rest.is_empty();
    is_safe.then(|| PathBuf::from(format!(".build-id/{first}/{rest}{suffix}")))
}

/// Finds the debug file of a binary: by build id, else by `.gnu_debuglink`, with an equal checksum. `None` if there is
/// none.
fn debug_file(
    file: &File,
    search_path: &SearchPath,
    id: Option<&str>,
    sources: &Sources,
) -> Option<File> {
    let mut roots: Vec<&Path> = [&search_path.root]
        .into_iter()
        .chain(&sources.roots)
        .chain(&sources.binary_root)
        .map(PathBuf::as_path)
        .collect();
    roots.dedup();
    if let Some(path) = id.and_then(|id| build_id_path(id, ".debug")) {
        for root in &roots {
            for path in [Path::new(DEBUG_DIR).join(&path), path.clone()] {
                let found = open(&SearchPath {
                    root: root.to_path_buf(),
                    path,
                });
                if let Some(debug) =
                    found.filter(|debug| build_id(debug).is_ok_and(|found| found.as_deref() == id))
                {
                    return Some(debug);
                }
            }
        }
    }
    let (name, checksum) = debug_link(file)?;
    let directory = search_path.path.parent()?;
    let below = directory.strip_prefix("/").unwrap_or(directory);
    let paths = [
        directory.join(&name),
        directory.join(".debug").join(&name),
        Path::new("/").join(DEBUG_DIR).join(below).join(&name),
    ];
    paths.into_iter().find_map(|path| {
        let debug = open(&SearchPath {
            root: search_path.root.clone(),
            path,
        })?;
        let is_equal = match (build_id(&debug).ok()?.as_deref(), id) {
            (Some(found), Some(id)) => found == id,
            _ => crc(&debug).is_some_and(|found| found == checksum),
        };
        is_equal.then_some(debug)
    })
}

/// Returns the name and checksum in `.gnu_debuglink`. `None` if the file lacks it, or the name contains a slash.
fn debug_link(file: &File) -> Option<(PathBuf, u32)> {
    let cache = LimitedFile::new(file, READ_LIMIT);
    let object_file = object::File::parse(&cache).ok()?;
    let (name, checksum) = object_file.gnu_debuglink().ok()??;
    let name = str::from_utf8(name)
        .ok()
        .filter(|name| !name.is_empty() && !name.contains('/'))?;
    Some((name.into(), checksum))
}

/// A binary whose tables exceed [`READ_LIMIT`].
#[derive(Debug, PartialEq, Eq)]
struct TooLarge;

/// Returns the build id in hex. `None` if the file is no ELF or has none. Fails if more than [`READ_LIMIT`] bytes would
/// have to be read, or there is no memory for them.
fn build_id(file: &File) -> std::result::Result<Option<String>, TooLarge> {
    let cache = LimitedFile::new(file, READ_LIMIT);
    let object_file = object::File::parse(&cache);
    if cache.is_exceeded() {
        return Err(TooLarge);
    }
    let id = object_file.and_then(|object_file| Ok(object_file.build_id()?.map(<[u8]>::to_vec)));
    let hex = |id: Vec<u8>| id.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(id.ok().flatten().map(hex))
}

/// CRC-32 of a file's contents. `None` if it cannot be read.
fn crc(mut file: &File) -> Option<u32> {
    let mut reader = flate2::CrcReader::new(&mut file);
    io::copy(&mut reader, &mut io::sink()).ok()?;
    Some(reader.crc().sum())
}

/// Opens a regular file without blocking; no link leads out of its root, unless that is empty. `None` if it cannot be
/// opened, is not regular, or consists mostly of holes.
pub(super) fn open(search_path: &SearchPath) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = if search_path.root.as_os_str().is_empty() {
        rustix::fs::open(&search_path.path, flags, Mode::empty())
    } else {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, &search_path.root, directory, Mode::empty()).ok()?;
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(root, &search_path.path, flags, Mode::empty(), inside) {
            // Before Linux 5.6, or under some seccomp filters. No link can lead out of "/".
            Err(Errno::NOSYS | Errno::PERM) if search_path.root == Path::new("/") => {
                rustix::fs::open(
                    search_path.root.join(&search_path.path),
                    flags,
                    Mode::empty(),
                )
            }
            opened => opened,
        }
    };
    let file = File::from(file.ok()?);
    let metadata = file.metadata().ok()?;
    (metadata.is_file() && !is_mostly_holes(metadata.len(), metadata.blocks())).then_some(file)
}

/// Returns whether a file declares far more than it holds, in bytes and in blocks of 512. A section in a hole costs
/// its writer nothing, but costs its reader unlimited memory and time. Linkers leave no large holes, and
/// compressing file systems do not save that much.
fn is_mostly_holes(length: u64, blocks: u64) -> bool {
    const MIN_CHECKED_BYTES: u64 = 64 << 20;
    const MAX_HOLE_RATIO: u64 = 16;
    length > MIN_CHECKED_BYTES && length / MAX_HOLE_RATIO > blocks.saturating_mul(512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_file_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let check = |length: u64, bytes: usize, expected: bool| {
            let path = directory.path().join("library.so");
            std::fs::write(&path, vec![1; bytes]).unwrap();
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(length)
                .unwrap();
            let root = PathBuf::new();
            let opened = open(&SearchPath { root, path });
            assert_eq!(opened.is_some(), expected, "{length} {bytes}");
        };
        check(7 << 30, 20 << 10, false);
        check(1 << 40, 1 << 20, false);
        // Such as a library with an empty table.
        check(1 << 20, 4096, true);
        check(65 << 20, 8 << 20, true);
    }
}
