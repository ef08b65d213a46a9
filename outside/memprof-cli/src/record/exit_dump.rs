//! Finds the exit dump of a process.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use memprof_host::client::PassedFile;
use memprof_messages::ProfilerStatus;
use rustix::fs::OFlags;

use crate::scratch::ScratchFile;

/// The dump directory of a process, as it was before the process ended.
#[derive(Debug)]
pub(super) struct ExitDumpDir {
    directory: PathBuf,
    /// User whose files the dumps must be.
    owner: Option<u32>,
    /// Part of the names of the process's dumps.
    pid: String,
    /// Names of the files that were there before.
    known: HashSet<OsString>,
}

impl ExitDumpDir {
    /// Remembers the names of the files that are in the dump directory now: none of them is an exit dump of this
    /// recording. `pid` must be visible in this pid namespace; `own_pid` is the pid in the process's own namespace,
    /// which is part of its dumps' names.
    pub(super) fn new(pid: u32, own_pid: u32, status: &ProfilerStatus) -> Self {
        let directory = PathBuf::from(&status.dump_dir);
        Self {
            owner: fs::metadata(format!("/proc/{pid}"))
                .map(|dir| dir.uid())
                .ok(),
            pid: format!(".{own_pid}."),
            known: file_names(&directory).collect(),
            directory,
        }
    }

    /// Finds and copies the exit dump of the process. `None` if the process left none, or if the file is not a regular
    /// one of the process's user.
    ///
    /// # Errors
    /// The dump cannot be read, for example because it is a link, or the copy cannot be written.
    pub(super) fn copy_exit_dump(&self) -> Result<Option<ScratchFile>> {
        let is_exit_dump = |name: &OsString| {
            let text = name.to_string_lossy();
            !self.known.contains(name) && text.contains(&self.pid) && text.contains(".at-exit.")
        };
        let Some(name) = file_names(&self.directory).find(is_exit_dump) else {
            return Ok(None);
        };
        // The directory belongs to the process's user, who may have put a link or a FIFO there.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let path = self.directory.join(name);
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(&path);
        let file = file.with_context(|| path.display().to_string())?;
        let metadata = file
            .metadata()
            .with_context(|| path.display().to_string())?;
        if !metadata.is_file() || Some(metadata.uid()) != self.owner {
            return Ok(None);
        }
        let mut dump =
            PassedFile::new(file, metadata.len()).with_context(|| path.display().to_string())?;
        let mut copy = ScratchFile::new()?;
        copy.append(&mut dump)?;
        Ok(Some(copy))
    }
}

/// Returns the names of the files in a directory; none if it cannot be read.
fn file_names(directory: &Path) -> impl Iterator<Item = OsString> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_is_copied_unless_it_is_too_large() {
        let directory = tempfile::tempdir().unwrap();
        let last = ExitDumpDir {
            directory: directory.path().to_owned(),
            owner: fs::metadata("/proc/self").map(|of| of.uid()).ok(),
            pid: ".7.".to_owned(),
            known: HashSet::new(),
        };
        assert!(last.copy_exit_dump().unwrap().is_none());
        let path = directory.path().join("host.7.1.at-exit.heap");
        fs::write(&path, "heap").unwrap();
        let copy = last.copy_exit_dump().unwrap().unwrap();
        assert_eq!(fs::read_to_string(copy.path()).unwrap(), "heap");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        let error = format!("{:#}", last.copy_exit_dump().unwrap_err());
        assert!(error.contains("the limit is"), "{error}");
    }
}
