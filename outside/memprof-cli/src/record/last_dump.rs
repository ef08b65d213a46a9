//! The profile that a process leaves when it ends.

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

/// A directory of dumps, as it was before a process ended.
#[derive(Debug)]
pub(super) struct LastDump {
    directory: PathBuf,
    /// The user whose files its dumps are.
    owner: Option<u32>,
    /// A part of their names.
    pid: String,
    known: HashSet<OsString>,
}

impl LastDump {
    /// `own_pid` is that by which the process knows itself.
    pub(super) fn before(pid: u32, own_pid: u32, status: &ProfilerStatus) -> Self {
        let directory = PathBuf::from(&status.dump_dir);
        Self {
            owner: fs::metadata(format!("/proc/{pid}")).map(|of| of.uid()).ok(),
            pid: format!(".{own_pid}."),
            known: names(&directory).collect(),
            directory,
        }
    }

    /// Copies the dump that the process took at its exit, if there is one.
    ///
    /// # Errors
    /// The dump cannot be read, or the copy not be written.
    pub(super) fn copy(&self) -> Result<Option<ScratchFile>> {
        let is_it = |name: &OsString| {
            let text = name.to_string_lossy();
            !self.known.contains(name) && text.contains(&self.pid) && text.contains(".at-exit.")
        };
        let Some(name) = names(&self.directory).find(is_it) else {
            return Ok(None);
        };
        // The directory is the process's user's: a link there leads where that user says, and so does a FIFO.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let path = self.directory.join(name);
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(&path);
        let file = file.with_context(|| path.display().to_string())?;
        let found = file
            .metadata()
            .with_context(|| path.display().to_string())?;
        if !found.is_file() || Some(found.uid()) != self.owner {
            return Ok(None);
        }
        let mut dump =
            PassedFile::new(file, found.len()).with_context(|| path.display().to_string())?;
        let mut copy = ScratchFile::new()?;
        copy.append(&mut dump)?;
        Ok(Some(copy))
    }
}

fn names(directory: &Path) -> impl Iterator<Item = OsString> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_is_copied_unless_it_is_larger_than_any() {
        let directory = tempfile::tempdir().unwrap();
        let last = LastDump {
            directory: directory.path().to_owned(),
            owner: fs::metadata("/proc/self").map(|of| of.uid()).ok(),
            pid: ".7.".to_owned(),
            known: HashSet::new(),
        };
        assert!(last.copy().unwrap().is_none());
        let path = directory.path().join("host.7.1.at-exit.heap");
        fs::write(&path, "heap").unwrap();
        let copy = last.copy().unwrap().unwrap();
        assert_eq!(fs::read_to_string(copy.path()).unwrap(), "heap");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        let error = format!("{:#}", last.copy().unwrap_err());
        assert!(error.contains("the limit is"), "{error}");
    }
}
