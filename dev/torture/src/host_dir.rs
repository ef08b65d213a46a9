//! Directory of a host.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Temporary directory with a host's files; it may outlive the host.
#[derive(Debug)]
pub(super) struct HostDir(TempDir);

impl HostDir {
    /// Creates a temporary directory, which is removed when this value is dropped.
    pub(super) fn new() -> Result<Self> {
        Ok(Self(
            tempfile::tempdir().context("failed to create a directory")?,
        ))
    }

    /// Creates a temporary directory on a memory file system, below /dev/shm.
    pub(super) fn new_in_memory() -> Result<Self> {
        Ok(Self(
            tempfile::tempdir_in("/dev/shm").context("failed to create a directory in memory")?,
        ))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn dump_dir(&self) -> PathBuf {
        self.path().join("dumps")
    }

    pub(super) fn socket_path(&self) -> PathBuf {
        self.path().join("host.sock")
    }

    pub(super) fn counters_file(&self) -> PathBuf {
        self.path().join("counters")
    }

    /// Creates a root directory for chroot(2), and returns its path. It has no /proc, but a dump directory at the
    /// absolute path that the dump directory has outside.
    pub(super) fn create_root_without_proc(&self) -> Result<PathBuf> {
        create_private_dir(&self.dump_dir_in_root())?;
        Ok(self.path().join("root"))
    }

    /// Path, as seen from outside, of the dump directory of a host that has called chroot(2): the path of the new root,
    /// then the absolute path of the dump directory.
    pub(super) fn dump_dir_in_root(&self) -> PathBuf {
        let mut path = self.path().join("root").into_os_string();
        // `Path::join` would replace the root's path by the absolute one.
        path.push(self.dump_dir());
        path.into()
    }

    /// Lets every user enter the directory, but not list it.
    pub(super) fn make_searchable(&self) -> Result<()> {
        fs::set_permissions(self.path(), Permissions::from_mode(0o711))
            .with_context(|| self.path().display().to_string())
    }
}

/// Creates a directory and its missing parents with mode 0700. A directory that exists keeps its mode.
pub(super) fn create_private_dir(directory: &Path) -> Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
        .create(directory)
        .with_context(|| directory.display().to_string())
}
