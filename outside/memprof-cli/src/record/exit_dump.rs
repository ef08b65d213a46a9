//! Finds the exit dump of a process.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
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
    /// Pid in the process's own namespace, which is part of its dumps' names.
    own_pid: u32,
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
            own_pid,
            known: file_names_in(&directory).collect(),
            directory,
        }
    }

    /// Finds and copies the latest exit dump of the process. `None` if the process left none, or if the file is not a
    /// regular one of the process's user.
    ///
    /// # Errors
    /// The dump cannot be read, for example because it is a link, or the copy cannot be written.
    pub(super) fn copy_exit_dump(&self) -> Result<Option<ScratchFile>> {
        let is_new_exit_dump =
            |name: &OsString| !self.known.contains(name) && is_exit_dump(name, self.own_pid);
        // Names begin with the time of their dump.
        let Some(name) = file_names_in(&self.directory)
            .filter(is_new_exit_dump)
            .max()
        else {
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

/// Returns whether a file name is that of an exit dump of the process `pid`:
/// `<UTC time>.<pid>.<sequence>.<random>.at-exit.<rss>kib.heap`. A hidden name, which begins with a dot, is that of an
/// unfinished dump.
fn is_exit_dump(name: &OsStr, pid: u32) -> bool {
    let name = name.to_string_lossy();
    let parts: Vec<_> = name.split('.').collect();
    match *parts.as_slice() {
        [stamp, name_pid, _, _, "at-exit", _, "heap"] => {
            !stamp.is_empty() && name_pid == pid.to_string()
        }
        _ => false,
    }
}

/// Returns the names of the files in a directory; none if it cannot be read.
fn file_names_in(directory: &Path) -> impl Iterator<Item = OsString> {
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
            own_pid: 7,
            known: HashSet::new(),
        };
        assert!(last.copy_exit_dump().unwrap().is_none());
        for other in [
            // Of another process, whose sequence number is 7.
            "20261127T180000Z.77.7.0000beef.at-exit.9kib.heap",
            // Unfinished, and of another cause.
            ".20261127T190000Z.7.2.0000beef.at-exit.9kib.heap",
            "20261127T190000Z.7.2.0000beef.rss-above.9kib.heap",
        ] {
            fs::write(directory.path().join(other), "other").unwrap();
            assert!(last.copy_exit_dump().unwrap().is_none(), "{other}");
        }
        let earlier = "20261127T180000Z.7.2.0000beef.at-exit.9kib.heap";
        fs::write(directory.path().join(earlier), "earlier").unwrap();
        let name = "20261127T180001Z.7.1.0000beef.at-exit.9kib.heap";
        let path = directory.path().join(name);
        fs::write(&path, "heap").unwrap();
        let copy = last.copy_exit_dump().unwrap().unwrap();
        assert_eq!(fs::read_to_string(copy.path()).unwrap(), "heap");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        let error = format!("{:#}", last.copy_exit_dump().unwrap_err());
        assert!(error.contains("the limit is"), "{error}");
    }
}
