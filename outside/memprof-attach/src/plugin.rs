//! Chooses how the target opens the plugin's file.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memprof_ptrace::Refusal;
use memprof_ptrace::library_image::LibraryImage;
use memprof_ptrace::maps::{Mapping, mappings};

use crate::error::AttachError;
use crate::target::Target;
use crate::target_root::{TargetRoot, TemporaryCopy};

/// Function that the plugin exports for attached processes.
pub(crate) const ENTRY_NAME: &str = "memprof_attached";

/// The plugin's file.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// Path in this process's mount namespace.
    pub path: PathBuf,
}

/// Way in which the target loads the plugin.
#[derive(Debug)]
pub(crate) enum PluginSource {
    /// Already loaded: the address of [`ENTRY_NAME`].
    Loaded(u64),
    /// By this path, which names the same file in the target.
    Path(PathBuf),
    /// By a file in memory that memprof fills.
    Memfd,
    /// By a copy in its root directory, because it has no /proc to open a file in memory by.
    TemporaryCopy(TemporaryCopy),
}

impl PluginSource {
    /// Returns whether the loader's error says that the process may not open or map the plugin's file. False for a
    /// plugin that is loaded already, or in memory.
    pub(crate) fn is_refused(&self, loader_error: &str) -> bool {
        // glibc begins the error for a file with its path and a colon.
        match self {
            Self::Path(path) | Self::TemporaryCopy(TemporaryCopy { path, .. }) => loader_error
                .strip_prefix(&*path.to_string_lossy())
                .is_some_and(|cause| cause.starts_with(": ")),
            Self::Loaded(_) | Self::Memfd => false,
        }
    }
}

impl Plugin {
    /// Chooses how a target loads the plugin: the loaded one, its path, a file in memory, or without /proc a temporary
    /// copy, which it creates. Fails if that copy cannot be written.
    pub(crate) fn choose_source(&self, target: &Target) -> Result<PluginSource, AttachError> {
        if let Some(entry) = self.loaded_entry_address(target) {
            return Ok(PluginSource::Loaded(entry));
        }
        if self.has_same_path(target.pid) {
            return Ok(PluginSource::Path(self.path.clone()));
        }
        let root = TargetRoot::for_pid(target.pid).map_err(|_| target.process_gone_error())?;
        if root.has_proc() {
            return Ok(PluginSource::Memfd);
        }
        let bytes =
            fs::read(&self.path).map_err(AttachError::io_error(self.path.display().to_string()))?;
        let copy = root.write_copy(&bytes).map_err(|error| Refusal::NoFile {
            cause: error.to_string(),
        })?;
        Ok(PluginSource::TemporaryCopy(copy))
    }

    /// Returns whether the path names the same file in the root directory and mount namespace of a process, by device,
    /// inode and size. False if one of the two files cannot be found.
    pub(crate) fn has_same_path(&self, pid: u32) -> bool {
        let path = &self.path;
        let target_path = Path::new("/proc")
            .join(pid.to_string())
            .join("root")
            .join(path.strip_prefix("/").unwrap_or(path));
        let identity = |path: &Path| {
            let metadata = path.metadata().ok()?;
            Some((metadata.dev(), metadata.ino(), metadata.size()))
        };
        let own = identity(path);
        own.is_some() && own == identity(&target_path)
    }

    /// Returns the address of [`ENTRY_NAME`] if an earlier attachment has loaded the plugin, from any path; else
    /// `None`.
    fn loaded_entry_address(&self, target: &Target) -> Option<u64> {
        let bases = self.plugin_mappings(&target.maps);
        let bases = bases.filter(|mapping| mapping.offset == 0);
        let entry = |base| {
            let image = LibraryImage::read(&target.memory, base).ok()?;
            image.symbol_address(ENTRY_NAME)
        };
        bases.map(|mapping| mapping.range.start).find_map(entry)
    }

    /// Returns whether a library with the plugin's name is mapped from another path: a file in memory, or one that was
    /// replaced. Loading it by its path would load a second one.
    pub(crate) fn is_mapped_from_elsewhere(&self, maps: &[u8]) -> bool {
        let path = self.path.as_os_str().as_encoded_bytes();
        // The loader maps libraries privately. Paths of other mappings may lack their directories.
        let mut loaded = self
            .plugin_mappings(maps)
            .filter(|mapping| mapping.access[3] == b'p');
        loaded.any(|mapping| mapping.path != path)
    }

    /// Returns the mappings of files with the plugin's file name in any directory or in memory, by address.
    fn plugin_mappings<'a>(&'a self, maps: &'a [u8]) -> impl Iterator<Item = Mapping<'a>> {
        let name = self.path.file_name().map(OsStr::as_encoded_bytes);
        mappings(maps).filter(move |mapping| {
            let found = mapping.file_name();
            let found = found.strip_prefix(b"memfd:").unwrap_or(found);
            Some(found) == name
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loader_error_about_the_file_is_recognized() {
        let source = PluginSource::Path(PathBuf::from("/a/memory_profile.so"));
        let check =
            |error: &str, expected| assert_eq!(source.is_refused(error), expected, "{error}");
        check(
            "/a/memory_profile.so: cannot open shared object file: Permission denied",
            true,
        );
        check(
            "/a/memory_profile.so: failed to map segment from shared object",
            true,
        );
        check("libgcc_s.so.1: cannot open shared object file", false);
        check("it is attached already", false);
        assert!(!PluginSource::Memfd.is_refused("/a/memory_profile.so: cannot open"));
    }

    #[test]
    fn plugin_loaded_from_another_path_is_recognized() {
        let plugin = Plugin {
            path: PathBuf::from("/a/memory_profile.so"),
        };
        let check = |access: &str, path: &str, expected| {
            let maps = format!("1000-2000 {access} 00000000 fe:01 7    {path}\n");
            let found = plugin.is_mapped_from_elsewhere(maps.as_bytes());
            assert_eq!(found, expected, "{maps}");
        };
        check("r-xp", "/a/memory_profile.so", false);
        check("r-xp", "/b/memory_profile.so", true);
        check("r-xp", "/a/memory_profile.so (deleted)", true);
        check("r-xp", "/memfd:memory_profile.so (deleted)", true);
        check("r-xp", "/b/another.so", false);
        // Read as data; this path may have been shortened.
        check("r--s", "memory_profile.so", false);
    }
}
