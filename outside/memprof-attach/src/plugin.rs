//! The plugin's file, as the target can open it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memprof_ptrace::Refusal;
use memprof_ptrace::library_image::LibraryImage;
use memprof_ptrace::maps::{Mapping, mappings};

use crate::error::Error;
use crate::target::Target;
use crate::target_root::{TargetRoot, TemporaryCopy};

/// What the plugin exports for a process that was not prepared.
pub(crate) const ENTRY_NAME: &str = "memprof_attached";

/// The plugin's file.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// Its path here.
    pub path: PathBuf,
}

/// How the target comes by the plugin.
#[derive(Debug)]
pub(crate) enum PluginSource {
    /// It lies in the process: the address of [`ENTRY_NAME`].
    Loaded(u64),
    /// By this path, which leads to the same file there.
    Path(PathBuf),
    /// By a file in memory that we fill.
    Memfd,
    /// By a copy in its root directory, where it has no /proc to open a file in memory by.
    TemporaryCopy(TemporaryCopy),
}

impl PluginSource {
    /// Whether the loader's words are that the process may not open or map the plugin's file.
    pub(crate) fn is_refused(&self, said: &str) -> bool {
        match self {
            Self::Path(path) | Self::TemporaryCopy(TemporaryCopy { path, .. }) => said
                .strip_prefix(&*path.to_string_lossy())
                .is_some_and(|why| why.starts_with(": ")),
            Self::Loaded(_) | Self::Memfd => false,
        }
    }
}

impl Plugin {
    pub(crate) fn source(&self, target: &Target) -> Result<PluginSource, Error> {
        if let Some(entry) = self.loaded(target) {
            return Ok(PluginSource::Loaded(entry));
        }
        if self.has_same_path(target.pid) {
            return Ok(PluginSource::Path(self.path.clone()));
        }
        let root = TargetRoot::of(target.pid).map_err(|_| target.process_gone_error())?;
        if root.has_proc() {
            return Ok(PluginSource::Memfd);
        }
        let bytes = fs::read(&self.path).map_err(Error::io(self.path.display().to_string()))?;
        let placed = root.put_file(&bytes).map_err(|error| Refusal::NoFile {
            cause: error.to_string(),
        })?;
        Ok(PluginSource::TemporaryCopy(placed))
    }

    /// Whether its path leads to the same file in the root directory and the mount namespace of a process.
    pub(crate) fn has_same_path(&self, pid: u32) -> bool {
        let path = &self.path;
        let there = Path::new("/proc")
            .join(pid.to_string())
            .join("root")
            .join(path.strip_prefix("/").unwrap_or(path));
        let identity = |path: &Path| {
            let metadata = path.metadata().ok()?;
            Some((metadata.dev(), metadata.ino(), metadata.size()))
        };
        let here = identity(path);
        here.is_some() && here == identity(&there)
    }

    /// Where its file is mapped already, under whatever path: an attachment before this one.
    fn loaded(&self, target: &Target) -> Option<u64> {
        let bases = self.mappings(&target.maps);
        let bases = bases.filter(|mapping| mapping.offset == 0);
        let entry = |base| {
            let image = LibraryImage::read(&target.memory, base).ok()?;
            image.symbol(ENTRY_NAME)
        };
        bases.map(|mapping| mapping.range.start).find_map(entry)
    }

    /// Whether a library of its name is mapped that its path does not lead to: a file in memory, one that was
    /// replaced. Loaded by its path, there would be two.
    pub(crate) fn is_mapped_from_elsewhere(&self, maps: &[u8]) -> bool {
        let path = self.path.as_os_str().as_encoded_bytes();
        self.mappings(maps).any(|mapping| mapping.path != path)
    }

    /// Those of a file of its name, in memory or on a disk.
    fn mappings<'a>(&'a self, maps: &'a [u8]) -> impl Iterator<Item = Mapping<'a>> {
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
    fn the_loader_s_refusal_of_the_file_is_told_from_what_else_is_said() {
        let source = PluginSource::Path(PathBuf::from("/a/memory_profile.so"));
        let check = |said: &str, expected| assert_eq!(source.is_refused(said), expected, "{said}");
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
}
