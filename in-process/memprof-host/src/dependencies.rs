//! Finds the libraries that the loader will read with a plugin (ld.so(8)), and checks them before: a damaged one ends
//! the process, and their code runs as the plugin's does.
#![expect(unsafe_code, reason = "mapped files")]

mod library_cache;
mod process_search;
mod search_list;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::elf::{LinkInfo, check_loadable, is_for_another_machine};
use crate::file_trust::check_trusted;
use process_search::ProcessSearch;
use search_list::{Candidate, candidates_in, expand_path, expand_search_list};

/// Most libraries that are checked for one plugin.
const MAX_LIBRARIES: usize = 1024;

/// Checks the libraries that the loader reads with a plugin. All must be complete ELF files. Libraries that the plugin,
/// or a library that it brings, finds by its own search path must also be as trusted as the plugin. Libraries in the
/// directories of the program and of the system need not be trusted: the program's own libraries come from there.
/// `plugin` is the path that the loader gets, `bytes` the content of that file, and `own_uid` the user id of the
/// process. The error names the library.
pub(crate) fn check_dependencies(plugin: &Path, bytes: &[u8], own_uid: u32) -> Result<(), String> {
    let process = ProcessSearch::for_this_process();
    let check = |library: &Library, bytes: &[u8]| {
        if library.is_own {
            check_trusted(&library.path, own_uid)?;
        }
        check_loadable(bytes).map_err(|reason| format!("{}: {reason}", library.path.display()))
    };
    let libraries = visit_dependencies(plugin, bytes, &process, check)?;
    require_versioned_files(&libraries, &process)
}

/// Fails if a library needs symbol versions of another one that will not be loaded, because the loader would end the
/// process: `_dl_check_map_versions` of glibc asserts that the other library is there.
fn require_versioned_files(libraries: &[Library], process: &ProcessSearch) -> Result<(), String> {
    let is_loaded = |name: &Vec<u8>| {
        let has_name = |library: &Library| {
            // The loader loads each needed library too, or fails with an error.
            let info = &library.link_info;
            info.soname.as_ref() == Some(name) || info.needed.contains(name)
        };
        process.has_loaded(name) || libraries.iter().any(has_name)
    };
    for library in libraries {
        let mut versioned = library.link_info.versioned.iter();
        if let Some(name) = versioned.find(|name| !is_loaded(name)) {
            return Err(format!(
                "{}, of which {} needs versions, is not loaded",
                String::from_utf8_lossy(name),
                library.path.display()
            ));
        }
    }
    Ok(())
}

/// A library that the loader reads.
#[derive(Clone, Debug)]
struct Library {
    /// As the loader names it: `$ORIGIN` is its directory, also if the file is a symbolic link.
    path: PathBuf,
    link_info: LinkInfo,
    /// Index of the library that needs it. `None` for the plugin.
    needed_by: Option<usize>,
    /// Whether the plugin brings it: it is in a directory that the plugin or another such library names.
    is_own: bool,
}

/// Calls `check` with each library that the loader reads with the plugin, in the loader's order (breadth-first), and
/// returns them with the plugin as the first. If it is not certain which of several files the loader takes, as for
/// variants for several CPUs, all of them are visited. Fails as soon as `check` fails, if a file cannot be mapped, and
/// if there are more than [`MAX_LIBRARIES`].
fn visit_dependencies(
    plugin: &Path,
    bytes: &[u8],
    process: &ProcessSearch,
    check: impl Fn(&Library, &[u8]) -> Result<(), String>,
) -> Result<Vec<Library>, String> {
    let mut libraries = vec![Library {
        path: plugin.to_owned(),
        link_info: LinkInfo::read(bytes),
        needed_by: None,
        is_own: true,
    }];
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut next = 0;
    while next < libraries.len() {
        for name in libraries[next].link_info.needed.clone() {
            if process.has_loaded(&name) || names.contains(&name) {
                continue;
            }
            for (candidate, is_own) in library_candidates(&libraries, next, &name, process) {
                let Some(bytes) = map_library(&candidate.path)? else {
                    continue;
                };
                let library = Library {
                    path: candidate.path,
                    link_info: LinkInfo::read(&bytes),
                    needed_by: Some(next),
                    is_own,
                };
                check(&library, &bytes)?;
                names.extend(library.link_info.soname.clone());
                libraries.push(library);
                if libraries.len() > MAX_LIBRARIES {
                    return Err(format!("there are more than {MAX_LIBRARIES}"));
                }
                if candidate.is_certain {
                    break;
                }
            }
            names.push(name);
        }
        next += 1;
    }
    Ok(libraries)
}

/// Returns the paths at which the loader looks for the library `name` that `libraries[requester]` needs, in the
/// loader's order (ld.so(8)). Each comes with a flag: whether the plugin, or a library that it brings, names the
/// directory.
fn library_candidates(
    libraries: &[Library],
    requester: usize,
    name: &[u8],
    process: &ProcessSearch,
) -> Vec<(Candidate, bool)> {
    let library = &libraries[requester];
    if name.contains(&b'/') {
        let paths = expand_path(name, library.origin_directory());
        return paths
            .into_iter()
            .map(|path| (path, library.is_own))
            .collect();
    }
    let own_list = |library: &Library, list: &Option<Vec<u8>>| {
        let list = list.as_deref().unwrap_or_default();
        let directories = match list {
            b"" => Vec::new(),
            list => expand_search_list(list, b":", library.origin_directory()),
        };
        let files = directories
            .into_iter()
            .flat_map(|found| candidates_in(&found, name));
        files.map(|file| (file, library.is_own)).collect::<Vec<_>>()
    };
    let of_process = |directories: &[Candidate]| {
        let files = directories
            .iter()
            .flat_map(|found| candidates_in(found, name));
        files.map(|file| (file, false)).collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    // The `DT_RPATH` of the library, and of those that need it, counts only if the library has no `DT_RUNPATH`.
    if library.link_info.runpath.is_none() {
        let needed_by = |library: &&Library| library.needed_by.map(|index| &libraries[index]);
        for library in std::iter::successors(Some(library), needed_by) {
            found.extend(own_list(library, &library.link_info.rpath));
        }
        found.extend(of_process(&process.inherited));
    }
    found.extend(of_process(&process.environment));
    found.extend(own_list(library, &library.link_info.runpath));
    let uses_system = !library.link_info.ignores_system_directories;
    let cached = library_cache::find_libraries(&process.cache, name).into_iter();
    let cached = cached.filter(|file| uses_system || !process.is_in_system_directory(&file.path));
    found.extend(cached.map(|file| (file, false)));
    if uses_system {
        found.extend(of_process(&process.system));
    }
    found
}

/// Maps a library into memory. `None` if the file cannot be opened or is for another machine: the loader then tries the
/// next path. Fails if the file is not a regular one (the loader might wait for a FIFO), or cannot be mapped.
fn map_library(path: &Path) -> Result<Option<Mmap>, String> {
    let refuse = |reason: String| format!("{}: {reason}", path.display());
    let Ok(metadata) = path.metadata() else {
        return Ok(None);
    };
    if !metadata.is_file() {
        return Err(refuse("it is not a regular file".to_owned()));
    }
    let Ok(file) = File::open(path) else {
        return Ok(None);
    };
    // SAFETY: the loader will map the same file: a user who may change it can end the process anyway.
    let bytes = unsafe { Mmap::map(&file) }.map_err(|error| refuse(error.to_string()))?;
    Ok((!is_for_another_machine(&bytes)).then_some(bytes))
}

impl Library {
    /// Returns the directory that `$ORIGIN` means in this library: that of its path, even if the path is a symbolic
    /// link.
    fn origin_directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }
}
