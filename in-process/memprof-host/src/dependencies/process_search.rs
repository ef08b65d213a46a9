//! Libraries that the loader of this process has loaded, and directories in which it searches for those of all files.
#![expect(unsafe_code, reason = "mapped files, and dladdr(3)")]

use std::collections::{BTreeSet, HashSet};
use std::env;
use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{self, Path, PathBuf};

use memmap2::Mmap;

use super::library_cache;
use super::search_list::{Candidate, expand_search_list};
use crate::elf::LinkInfo;
use crate::mapped_files::{files_mapped_as_code, mapped_file};
use crate::secure_execution::is_secure_execution;

/// Directories that glibc searches last: Debian's, and those of other systems.
const SYSTEM: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// The part of the loader's search that is the same for all libraries.
#[derive(Debug, Default)]
pub(super) struct ProcessSearch {
    /// Directories of the `DT_RPATH` of the object that loads plugins, and of the program.
    pub(super) inherited: Vec<Candidate>,
    /// Directories of `LD_LIBRARY_PATH`.
    pub(super) environment: Vec<Candidate>,
    /// Content of `/etc/ld.so.cache`.
    pub(super) cache: Vec<u8>,
    pub(super) system: Vec<Candidate>,
    /// Names by which the loader finds libraries that it has loaded.
    loaded: HashSet<Vec<u8>>,
}

impl ProcessSearch {
    /// Reads which files this process has loaded (/proc/self/maps), `LD_LIBRARY_PATH` and ldconfig's cache. Ignores
    /// `LD_LIBRARY_PATH` in a process with more privileges than its user, as the loader does. Without /proc, counts no
    /// library as loaded.
    pub(super) fn for_this_process() -> Self {
        let maps = fs::read("/proc/self/maps").unwrap_or_default();
        let program = fs::read_link("/proc/self/exe").unwrap_or_default();
        let library = path_of_own_library(&maps, &program);
        let objects: Vec<PathBuf> = library.into_iter().chain([program]).collect();
        let list = env::var_os("LD_LIBRARY_PATH").filter(|_| !is_secure_execution());
        let loaded = files_mapped_as_code(&maps);
        Self::from_parts(
            &objects,
            list.as_deref(),
            &loaded,
            library_cache::read_system_cache(),
        )
    }

    /// Creates the search of a process. `objects` are the files whose `DT_RPATH` counts for all libraries; the last is
    /// the program. `library_path` is the value of `LD_LIBRARY_PATH`, `loaded` the files of loaded libraries, `cache`
    /// the content of ldconfig's cache. Reads the dynamic sections of the files.
    pub(super) fn from_parts(
        objects: &[PathBuf],
        library_path: Option<&OsStr>,
        loaded: &BTreeSet<&Path>,
        cache: Vec<u8>,
    ) -> Self {
        let directory = |path: &Path| path.parent().unwrap_or(Path::new("/")).to_owned();
        let inherited = objects.iter().flat_map(|object| {
            let list = read_link_info(object).rpath;
            list.map(|list| expand_search_list(&list, b":", &directory(object)))
                .unwrap_or_default()
        });
        // `$ORIGIN` in `LD_LIBRARY_PATH` is the program's directory.
        let origin = objects
            .last()
            .map(|program| directory(program))
            .unwrap_or_default();
        let list = library_path
            .map(OsStr::as_bytes)
            .filter(|list| !list.is_empty());
        let system = SYSTEM.map(|path| Candidate {
            path: PathBuf::from(path),
            is_certain: true,
        });
        Self {
            inherited: inherited.collect(),
            environment: list
                .map(|list| expand_search_list(list, b":;", &origin))
                .unwrap_or_default(),
            cache,
            system: system.into(),
            loaded: loaded.iter().flat_map(|path| loaded_names(path)).collect(),
        }
    }

    /// Returns whether the loader resolves `name`, a name or a path, to a library that it has already loaded.
    pub(super) fn has_loaded(&self, name: &[u8]) -> bool {
        self.loaded.contains(name)
    }

    /// Returns whether a file is directly in one of the system's directories, not in a subdirectory.
    pub(super) fn is_in_system_directory(&self, file: &Path) -> bool {
        let directory = file.parent();
        let mut system = self.system.iter();
        system.any(|searched| Some(searched.path.as_path()) == directory)
    }
}

/// Returns the names by which the loader finds a loaded library: its path, and its soname or, if it has none, the
/// file's name.
fn loaded_names(path: &Path) -> Vec<Vec<u8>> {
    let soname = read_link_info(path).soname;
    let name = soname.or_else(|| Some(path.file_name()?.as_bytes().to_owned()));
    let path = path.as_os_str().as_bytes().to_owned();
    name.into_iter().chain([path]).collect()
}

/// Reads the names and search paths in the dynamic section of a file. Empty if it is not a regular file, cannot be read
/// or is damaged.
fn read_link_info(path: &Path) -> LinkInfo {
    // /proc/self/maps may also list the file of a device, or of a driver's buffer, as mapped code. Such a file is not
    // opened.
    if !path.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return LinkInfo::default();
    }
    let mapped = File::open(path).and_then(|file| {
        // SAFETY: the process runs code of this file: a user who may change it can end the process anyway.
        unsafe { Mmap::map(&file) }
    });
    mapped
        .map(|bytes| LinkInfo::read(&bytes))
        .unwrap_or_default()
}

/// Returns the path of the library that contains this function, as the loader names it. `None` if the program contains
/// it, or if the path is unknown. `maps` is the text of /proc/self/maps, `program` the path of the program.
fn path_of_own_library(maps: &[u8], program: &Path) -> Option<PathBuf> {
    let address = path_of_own_library as *const ();
    if mapped_file(maps, address.addr())? == program {
        return None;
    }
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr(3) accepts any address, and fills in `info` unless it returns 0.
    unsafe { libc::dladdr(address.cast(), info.as_mut_ptr()) };
    // SAFETY: filled in by dladdr(3), or zeros, which are valid.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: dladdr(3): a NUL-terminated text, while the library is loaded, which contains this code.
    let name = unsafe { CStr::from_ptr(name) };
    path::absolute(OsStr::from_bytes(name.to_bytes())).ok()
}
