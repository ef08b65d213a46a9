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

    /// Creates a root directory for chroot(2) without /proc, in which the dump directory's path is a directory too.
    pub(super) fn create_root_without_proc(&self) -> Result<PathBuf> {
        create_private_dir(&self.dump_dir_in_root())?;
        Ok(self.path().join("root"))
    }

    /// Path of the dump directory of a host that has changed its root to that of `create_root_without_proc`: the host
    /// writes to the absolute path of the dump directory, which then lies below the new root.
    pub(super) fn dump_dir_in_root(&self) -> PathBuf {
        let mut path = self.path().join("root").into_os_string();
        path.push(self.dump_dir());
        path.into()
    }

    /// Lets every user enter the directory, but not list it.
    pub(super) fn make_searchable(&self) -> Result<()> {
        fs::set_permissions(self.path(), Permissions::from_mode(0o711))
            .with_context(|| self.path().display().to_string())
    }
}

/// Creates a directory with mode 0700, and its parents if they are missing.
pub(super) fn create_private_dir(directory: &Path) -> Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
        .create(directory)
        .with_context(|| directory.display().to_string())
}
