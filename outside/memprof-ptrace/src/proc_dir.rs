//! The directory of a process in /proc.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::errno::Errno;

use crate::refusal::Refusal;

/// /proc/PID, or /proc/self.
#[derive(Clone, Debug)]
pub(crate) struct ProcDir(PathBuf);

impl ProcDir {
    pub(crate) fn for_pid(pid: u32) -> Self {
        Self(PathBuf::from(format!("/proc/{pid}")))
    }

    pub(crate) fn current() -> Self {
        Self(PathBuf::from("/proc/self"))
    }

    /// The pids of all processes that /proc shows.
    ///
    /// # Errors
    /// `Unreadable`.
    pub(crate) fn list_pids() -> Result<impl Iterator<Item = u32>, Refusal> {
        let entries = fs::read_dir("/proc").map_err(|error| Refusal::Unreadable {
            file: "/proc".to_owned(),
            cause: errno_of(&error).desc().to_owned(),
        })?;
        let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        Ok(entries.flatten().filter_map(pid))
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// `NoSuchProcess` where it is not there, `Unreadable`.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>, Refusal> {
        fs::read(self.0.join(name)).map_err(|error| self.unreadable(name, &error))
    }

    /// Reads a file and parses it.
    ///
    /// # Errors
    /// As `read`.
    pub(crate) fn parse<T, E: fmt::Display>(
        &self,
        name: &str,
        parse: impl Fn(&[u8]) -> Result<T, E>,
    ) -> Result<T, Refusal> {
        let text = self.read(name)?;
        parse(&text).map_err(|cause| Refusal::Unreadable {
            file: self.file(name),
            cause: cause.to_string(),
        })
    }

    /// The executed file, also one that was removed or lies in another mount namespace.
    ///
    /// # Errors
    /// As `read`.
    pub(crate) fn open_executable(&self) -> Result<File, Refusal> {
        File::open(self.0.join("exe")).map_err(|error| self.unreadable("exe", &error))
    }

    /// The name of that file.
    ///
    /// # Errors
    /// As `read`.
    pub(crate) fn executable_name(&self) -> Result<Vec<u8>, Refusal> {
        let path = fs::read_link(self.0.join("exe"));
        let path = path.map_err(|error| self.unreadable("exe", &error))?;
        let name = path.file_name().unwrap_or_default().as_bytes();
        Ok(name.strip_suffix(b" (deleted)").unwrap_or(name).to_vec())
    }

    /// Its memory. The kernel asks for this what it asks for ptrace(2).
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn open_memory(&self) -> Result<File, Errno> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.0.join("mem"));
        opened.map_err(|error| errno_of(&error))
    }

    /// The user to whom the kernel gives its files: root where the process is not dumpable. The
    /// directory itself is always its own user's.
    pub(crate) fn owner(&self) -> Option<u32> {
        Some(fs::metadata(self.0.join("mem")).ok()?.st_uid())
    }

    /// What it was called with, joined by blanks; empty where it has removed that.
    pub(crate) fn command(&self) -> String {
        let words = fs::read(self.0.join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        words.trim_end_matches('\0').replace('\0', " ")
    }

    /// The file `status` of each thread, but of those that end meanwhile.
    pub(crate) fn thread_statuses(&self) -> impl Iterator<Item = Vec<u8>> {
        let tasks = fs::read_dir(self.0.join("task")).into_iter().flatten();
        let tasks = tasks.flatten();
        tasks.filter_map(|task| fs::read(task.path().join("status")).ok())
    }

    fn unreadable(&self, name: &str, error: &io::Error) -> Refusal {
        match errno_of(error) {
            Errno::ENOENT | Errno::ESRCH => Refusal::NoSuchProcess,
            errno => Refusal::Unreadable {
                file: self.file(name),
                cause: errno.desc().to_owned(),
            },
        }
    }
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
