//! The plugin's file, as the target can open it.

use std::fs;
use std::path::{Path, PathBuf};

use memprof_ptrace::Refusal;
use memprof_ptrace::image::Image;
use memprof_ptrace::maps::mappings;

use crate::error::Error;
use crate::root::{Placed, Root};
use crate::target::Target;

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
pub(crate) enum Source {
    /// It lies in the process: the address of [`ENTRY_NAME`].
    Loaded(u64),
    /// By this path, which leads to the same file there.
    Path(PathBuf),
    /// By a file in memory that we fill.
    Memory,
    /// By a copy in its root directory, where it has no /proc to open a file in memory by.
    Placed(Placed),
}

impl Plugin {
    pub(crate) fn source(&self, target: &Target) -> Result<Source, Error> {
        if let Some(entry) = self.loaded(target) {
            return Ok(Source::Loaded(entry));
        }
        if same_file(&self.path, target.pid) {
            return Ok(Source::Path(self.path.clone()));
        }
        let root = Root::of(target.pid).map_err(|_| target.gone())?;
        if root.has_proc() {
            return Ok(Source::Memory);
        }
        let bytes = fs::read(&self.path).map_err(Error::io(self.path.display().to_string()))?;
        let placed = root.place(&bytes).map_err(|error| Refusal::NoFile {
            cause: error.to_string(),
        })?;
        Ok(Source::Placed(placed))
    }

    /// Where its file is mapped already, under whatever path: an attachment before this one.
    fn loaded(&self, target: &Target) -> Option<u64> {
        let name = self.path.file_name()?.as_encoded_bytes();
        let bases = mappings(&target.maps).filter(|mapping| {
            let found = mapping.file_name();
            let found = found.strip_prefix(b"memfd:").unwrap_or(found);
            mapping.offset == 0 && found == name
        });
        let entry = |base| {
            let image = Image::read(&target.memory, base).ok()?;
            image.symbol(ENTRY_NAME)
        };
        bases.map(|mapping| mapping.range.start).find_map(entry)
    }
}

/// Whether a path leads to the same file in the root directory and the mount namespace of a process.
fn same_file(path: &Path, pid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
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
