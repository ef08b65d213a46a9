//! Files that belong to a binary: its debug file, and those to which debug information refers.
//!
//! Like the paths of a profile, those in a binary are untrusted.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use object::Object as _;

use super::Sources;
use super::build_id::build_id;
use super::limited_file::LimitedFile;
use super::regular_file::{READ_LIMIT, SearchPath, open_regular};
use super::supplementary_link::has_supplementary_id;

/// Most bytes of a debug file whose checksum is computed; the deadline mostly ends that earlier.
const MAX_CHECKSUM_BYTES: u64 = 16 << 30;

/// Bytes of a file that are added to its checksum at a time.
const CHECKSUM_CHUNK: usize = 256 << 10;

/// Directory of debug files in distributions, relative to a root.
pub(super) const DEBUG_DIR: &str = "usr/lib/debug";

/// Path of a file that is named by its build id, such as `.build-id/5b/3c….debug` with the suffix `.debug`. `None` if
/// the id has other characters than hexadecimal digits, or less than three.
pub(super) fn build_id_path(id: &str, suffix: &str) -> Option<PathBuf> {
    let (first, rest) = id.split_at_checked(2)?;
    let is_safe = id.bytes().all(|byte| byte.is_ascii_hexdigit()) && !rest.is_empty();
    is_safe.then(|| PathBuf::from(format!(".build-id/{first}/{rest}{suffix}")))
}

/// Directories in which the files that belong to a binary are searched.
pub(super) struct Companions {
    binary: SearchPath,
    /// `None` if the binary has no debug file.
    debug: Option<SearchPath>,
    /// The binary's own root, those of the sources, and the directory of binaries.
    roots: Vec<PathBuf>,
    binary_root: Option<PathBuf>,
}

impl Companions {
    /// Prepares to search the files that belong to `binary`. Its debug file is not searched yet.
    pub(super) fn new(binary: SearchPath, sources: &Sources) -> Self {
        let roots = [&binary.root]
            .into_iter()
            .chain(&sources.roots)
            .chain(&sources.binary_root);
        let mut roots: Vec<PathBuf> = roots.cloned().collect();
        roots.dedup();
        Self {
            binary,
            debug: None,
            roots,
            binary_root: sources.binary_root.clone(),
        }
    }

    /// Directory below which the binary was found.
    pub(super) fn root_of_binary(&self) -> &Path {
        &self.binary.root
    }

    /// Finds the debug file of the binary by its build id, else by `.gnu_debuglink` with an equal checksum, and
    /// remembers its path. `id` is `None` for a binary without a build id. Returns `None` if there is no such file, or
    /// none whose checksum is computed by the `deadline`.
    pub(super) fn find_debug_file(
        &mut self,
        file: &File,
        id: Option<&str>,
        deadline: Instant,
    ) -> Option<File> {
        let by_id = id.and_then(|id| self.find_debug_file_by_id(id));
        let (found, path) = by_id.or_else(|| self.find_debug_file_by_link(file, id, deadline))?;
        self.debug = Some(path);
        Some(found)
    }

    /// Finds a debug file by its build id, below each root: in the directory of debug files, or in `.build-id`. `None`
    /// if no such file has this build id.
    fn find_debug_file_by_id(&self, id: &str) -> Option<(File, SearchPath)> {
        let path = build_id_path(id, ".debug")?;
        let paths = self.roots.iter().flat_map(|root| {
            [Path::new(DEBUG_DIR).join(&path), path.clone()].map(|path| SearchPath {
                root: root.clone(),
                path,
            })
        });
        open_first_with_build_id(paths, id)
    }

    /// Finds the debug file that the binary names in `.gnu_debuglink`: beside the binary, in `.debug`, or in the
    /// directory of debug files. It must have the build id `id` or, if one of the two files has no build id, the
    /// checksum in the link. `None` if there is no such file or link. After the `deadline`, no checksum is computed.
    fn find_debug_file_by_link(
        &self,
        file: &File,
        id: Option<&str>,
        deadline: Instant,
    ) -> Option<(File, SearchPath)> {
        let (name, checksum) = debug_link(file)?;
        let directory = self.binary.path.parent()?;
        let below = directory.strip_prefix("/").unwrap_or(directory);
        let paths = [
            directory.join(&name),
            directory.join(".debug").join(&name),
            Path::new("/").join(DEBUG_DIR).join(below).join(&name),
        ];
        paths.into_iter().find_map(|path| {
            let path = SearchPath {
                root: self.binary.root.clone(),
                path,
            };
            let debug = open_regular(&path)?;
            let is_equal = match (build_id(&debug).ok()?.as_deref(), id) {
                (Some(found), Some(id)) => found == id,
                _ => file_crc(&debug, MAX_CHECKSUM_BYTES, deadline) == Some(checksum),
            };
            is_equal.then_some((debug, path))
        })
    }

    /// Finds the supplementary file that several files of debug information share: by its `path`, which may be relative
    /// to the binary or its debug file, else where distributions install it, else by `id` as a build id. `None` if no
    /// file there has the `id`.
    pub(super) fn find_supplementary(&self, path: &Path, id: &str) -> Option<File> {
        let name = Path::new(path.file_name()?);
        let dwz = Path::new(".dwz").join(name);
        let beside = self
            .candidate_paths(path)
            .into_iter()
            .chain(self.candidate_paths(name));
        let installed = self.roots.iter().flat_map(|root| {
            [
                path.to_owned(),
                Path::new(DEBUG_DIR).join(&dwz),
                dwz.clone(),
            ]
            .map(|path| SearchPath {
                root: root.clone(),
                path,
            })
        });
        let mut paths = beside.chain(installed);
        let found = paths
            .find_map(|path| open_regular(&path).filter(|file| has_supplementary_id(file, id)));
        found.or_else(|| Some(self.find_debug_file_by_id(id)?.0))
    }

    /// Opens the files that may contain a split unit (`.dwo`), which its skeleton unit names by `path`, relative to the
    /// `directory` of the compilation. Searches there, and beside the binary and its debug file. Leaves out files that
    /// cannot be opened.
    pub(super) fn open_split_files(&self, directory: &Path, path: &Path) -> Vec<File> {
        let name = path.file_name().map(Path::new).unwrap_or(path);
        let compiled = self.roots.iter().map(|root| SearchPath {
            root: root.clone(),
            path: directory.join(path),
        });
        let beside = self
            .candidate_paths(path)
            .into_iter()
            .chain(self.candidate_paths(name));
        compiled
            .chain(beside)
            .filter_map(|path| open_regular(&path))
            .collect()
    }

    /// Opens the DWARF package (`.dwp`) beside the binary or its debug file, which contains all split units. `None` if
    /// there is none.
    pub(super) fn open_dwarf_package(&self) -> Option<File> {
        let files = [Some(&self.binary), self.debug.as_ref()];
        let mut names = files.into_iter().flatten().filter_map(|file| {
            let mut name = file.path.file_name()?.to_owned();
            name.push(".dwp");
            Some(PathBuf::from(name))
        });
        names.find_map(|name| self.candidate_paths(&name).iter().find_map(open_regular))
    }

    /// Paths at which a file may be: relative to the directories of the binary and of its debug file, and to the
    /// directory of binaries.
    fn candidate_paths(&self, path: &Path) -> Vec<SearchPath> {
        let files = [Some(&self.binary), self.debug.as_ref()];
        let beside = files.into_iter().flatten().filter_map(|file| {
            Some(SearchPath {
                root: file.root.clone(),
                path: file.path.parent()?.join(path),
            })
        });
        let given = self.binary_root.iter().map(|root| SearchPath {
            root: root.clone(),
            path: path.into(),
        });
        beside.chain(given).collect()
    }
}

/// Opens the first file in `paths` that has the build id `id`, and returns it with its path. `None` if no file has it.
fn open_first_with_build_id(
    paths: impl Iterator<Item = SearchPath>,
    id: &str,
) -> Option<(File, SearchPath)> {
    paths.into_iter().find_map(|path| {
        let file = open_regular(&path)?;
        let is_equal = build_id(&file).is_ok_and(|found| found.as_deref() == Some(id));
        is_equal.then_some((file, path))
    })
}

/// Returns the name and checksum of the debug file in `.gnu_debuglink`. `None` if the file is damaged or lacks the
/// section, or the name is not UTF-8, empty or contains a slash, because the name is untrusted.
fn debug_link(file: &File) -> Option<(PathBuf, u32)> {
    let cache = LimitedFile::new(file, READ_LIMIT);
    let object_file = object::File::parse(&cache).ok()?;
    let (name, checksum) = object_file.gnu_debuglink().ok()??;
    let name = str::from_utf8(name)
        .ok()
        .filter(|name| !name.is_empty() && !name.contains('/'))?;
    Some((name.into(), checksum))
}

/// CRC-32 of a file's contents, wherever its position is. `None` if the file has more than `limit` bytes, cannot be
/// read, or is not read whole by the `deadline`.
fn file_crc(file: &File, limit: u64, deadline: Instant) -> Option<u32> {
    let mut crc = flate2::Crc::new();
    let mut chunk = vec![0; CHECKSUM_CHUNK];
    let mut position = 0;
    while position <= limit && Instant::now() <= deadline {
        match file.read_at(&mut chunk, position) {
            Ok(0) => return Some(crc.sum()),
            Ok(count) => {
                crc.update(&chunk[..count]);
                position += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::symbol_budget::TIME_LIMIT;
    use super::*;

    /// Makes a file that only has a `.gnu_debuglink`.
    fn elf_with_link(name: &str, checksum: u32) -> Vec<u8> {
        let mut link = format!("{name}\0").into_bytes();
        link.resize(link.len().next_multiple_of(4), 0);
        link.extend(checksum.to_le_bytes());
        let names = b"\0.gnu_debuglink\0.shstrtab\0";
        let (link_at, names_at) = (64, 64 + link.len());
        let headers_at = (names_at + names.len()).next_multiple_of(8);
        let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        // Kind (`ET_DYN`), machine (x86-64), version, entry, offsets of both tables of headers, flags.
        elf.extend([3, 0, 62, 0, 1, 0, 0, 0]);
        for number in [0, 0, headers_at as u64] {
            elf.extend(number.to_le_bytes());
        }
        elf.extend([0; 4]);
        // Sizes and counts of headers, and the index of the section with names.
        for number in [64_u16, 56, 0, 64, 3, 2] {
            elf.extend(number.to_le_bytes());
        }
        elf.extend(&link);
        elf.extend(names);
        elf.resize(headers_at + 64, 0);
        // Both sections: the offset of the name, the kind, the offset and the size.
        for (name, kind, offset, size) in [
            (1_u32, 1_u32, link_at, link.len()),
            (16, 3, names_at, names.len()),
        ] {
            elf.extend(name.to_le_bytes());
            elf.extend(kind.to_le_bytes());
            for number in [0, 0, offset as u64, size as u64, 0, 1, 0] {
                elf.extend(number.to_le_bytes());
            }
        }
        elf
    }

    #[test]
    fn linked_file_is_found_by_its_checksum_until_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let contents = elf_with_link("none", 0).repeat(2);
        std::fs::write(path("app.debug"), &contents).unwrap();
        let mut crc = flate2::Crc::new();
        crc.update(&contents);
        let check = |checksum: u32, deadline: Instant, expected: bool| {
            std::fs::write(path("app"), elf_with_link("app.debug", checksum)).unwrap();
            let binary = SearchPath {
                root: PathBuf::new(),
                path: path("app"),
            };
            let file = open_regular(&binary).unwrap();
            let mut companions = Companions::new(binary, &Sources::default());
            let found = companions.find_debug_file(&file, None, deadline);
            assert_eq!(found.is_some(), expected, "{checksum:#x}");
        };
        let now = Instant::now();
        check(crc.sum(), now + TIME_LIMIT, true);
        check(!crc.sum(), now + TIME_LIMIT, false);
        check(crc.sum(), now, false);
    }

    #[test]
    fn checksum_is_that_of_the_whole_file_within_the_limit() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"123456789", 0).unwrap();
        let deadline = Instant::now() + TIME_LIMIT;
        // The check value of CRC-32.
        assert_eq!(file_crc(&file, 9, deadline), Some(0xcbf4_3926));
        assert_eq!(file_crc(&file, 8, deadline), None);
    }
}
