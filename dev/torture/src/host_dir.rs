//! Where a host lives.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// The directory of a host, which outlives it.
#[derive(Debug)]
pub(super) struct HostDir(TempDir);

impl HostDir {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(
            tempfile::tempdir().context("failed to make a directory")?,
        ))
    }

    /// One on a memory file system.
    pub(super) fn in_memory() -> Result<Self> {
        Ok(Self(
            tempfile::tempdir_in("/dev/shm").context("failed to make a directory in memory")?,
        ))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn dumps(&self) -> PathBuf {
        self.path().join("dumps")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.path().join("host.sock")
    }

    pub(super) fn counters(&self) -> PathBuf {
        self.path().join("counters")
    }

    /// Makes a root without /proc, in which the path of the dump directory is another directory.
    pub(super) fn jail(&self) -> Result<PathBuf> {
        make_private(&self.jailed_dumps())?;
        Ok(self.path().join("root"))
    }

    /// The dump directory of a host in the jail.
    pub(super) fn jailed_dumps(&self) -> PathBuf {
        let mut inside = self.path().join("root").into_os_string();
        inside.push(self.dumps());
        inside.into()
    }

    /// Lets every user pass through.
    pub(super) fn open_to_all(&self) -> Result<()> {
        fs::set_permissions(self.path(), Permissions::from_mode(0o711))
            .with_context(|| self.path().display().to_string())
    }
}

pub(super) fn make_private(directory: &Path) -> Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
        .create(directory)
        .with_context(|| directory.display().to_string())
}
