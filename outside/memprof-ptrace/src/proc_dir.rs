//! The /proc directory of a process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::refusal::{Denial, Refusal};

/// Most bytes of a command line that are read: a process may have arguments of megabytes.
const MAX_COMMAND_BYTES: u64 = 4 << 10;

/// Most bytes of another file of /proc that are read: another user may make mounts with long names.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Most bytes of `maps` that are read: a million mappings, some distributions' limit, of files with paths of 180 bytes.
const MAX_MAPS_BYTES: u64 = 256 << 20;

/// Room for a file of /proc before its first read. The files have no size, for which `fs::read` begins with 32 bytes.
const FIRST_READ: usize = 8 << 10;

/// Reads a file of /proc as text. Bytes that are not UTF-8 are replaced: names of programs and of mount points may hold
/// any.
///
/// # Errors
/// Those of open(2) and read(2); `EFBIG`: the file has more than 64 MiB.
pub fn read_proc_text(path: impl AsRef<Path>) -> io::Result<String> {
    let text = read_file_within(File::open(path)?, MAX_FILE_BYTES)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Reads a file to its end. Fails with the errno of read(2), or with `EFBIG` if the file has more than `limit` bytes: a
/// part of it would be taken for the whole.
pub(crate) fn read_file_within(file: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(FIRST_READ);
    // Unlike `File`, `Take` does not ask for the size.
    let read = file.take(limit + 1).read_to_end(&mut text)?;
    match read as u64 > limit {
        true => Err(Errno::EFBIG.into()),
        false => Ok(text),
    }
}

/// The path /proc/PID, or /proc/self.
#[derive(Clone, Debug)]
pub(crate) struct ProcDir {
    path: PathBuf,
    /// Files that were read, by name. `None`: each is read again, as it may have changed.
    known: Option<RefCell<HashMap<String, Vec<u8>>>>,
}

impl ProcDir {
    /// Returns the directory of the process with that pid, whose files are read again each time.
    pub(crate) fn for_pid(pid: u32) -> Self {
        Self {
            path: PathBuf::from(format!("/proc/{pid}")),
            known: None,
        }
    }

    /// Returns the directory of the process with that pid, which keeps the content of each file after its first read,
    /// because the kernel takes time to generate the content for each read.
    pub(crate) fn for_pid_cached(pid: u32) -> Self {
        Self {
            known: Some(RefCell::default()),
            ..Self::for_pid(pid)
        }
    }

    /// Returns the directory of this process, whose files are read again each time.
    pub(crate) fn current() -> Self {
        Self {
            path: PathBuf::from("/proc/self"),
            known: None,
        }
    }

    /// Lists the pids that /proc shows, including that of this process.
    ///
    /// # Errors
    /// `Unreadable`: /proc cannot be listed.
    pub(crate) fn list_pids() -> Result<impl Iterator<Item = u32>, Refusal> {
        let entries = fs::read_dir("/proc").map_err(|error| Refusal::Unreadable {
            file: "/proc".to_owned(),
            cause: errno_of(&error).desc().to_owned(),
        })?;
        let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        Ok(entries.flatten().filter_map(pid))
    }

    /// Returns the path of a file in the directory, such as `/proc/4711/status`.
    pub(crate) fn file_path(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Reads a file of the directory. A directory of [`for_pid_cached`](Self::for_pid_cached) reads each file only
    /// once.
    ///
    /// # Errors
    /// `NoSuchProcess`: the process has ended, or there is no such file; `Denied`: it is `status`, and /proc hides the
    /// files of other users' processes; `Unreadable`: it cannot be read for another reason, or has more than 64 MiB
    /// (`maps`: 256 MiB).
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>, Refusal> {
        let read = || {
            let file = File::open(self.path.join(name));
            let limit = match name {
                "maps" => MAX_MAPS_BYTES,
                _ => MAX_FILE_BYTES,
            };
            let text = file.and_then(|file| read_file_within(file, limit));
            text.map_err(|error| self.read_error(name, &error))
        };
        let Some(known) = &self.known else {
            return read();
        };
        if let Some(text) = known.borrow().get(name) {
            return Ok(text.clone());
        }
        let text = read()?;
        known.borrow_mut().insert(name.to_owned(), text.clone());
        Ok(text)
    }

    /// Reads a file of the directory and parses it.
    ///
    /// # Errors
    /// Like [`read`](Self::read); `Unreadable` if `parse` fails.
    pub(crate) fn parse_file<T, E: fmt::Display>(
        &self,
        name: &str,
        parse: impl Fn(&[u8]) -> Result<T, E>,
    ) -> Result<T, Refusal> {
        let text = self.read(name)?;
        parse(&text).map_err(|cause| Refusal::Unreadable {
            file: self.file_path(name),
            cause: cause.to_string(),
        })
    }

    /// Opens the executed file, even if it was removed or lies in another mount namespace.
    ///
    /// # Errors
    /// Like [`read`](Self::read).
    pub(crate) fn open_executable(&self) -> Result<File, Refusal> {
        File::open(self.path.join("exe")).map_err(|error| self.read_error("exe", &error))
    }

    /// Returns the file name of the executed file, without its directory and the ` (deleted)` of a removed file.
    ///
    /// # Errors
    /// Like [`read`](Self::read).
    pub(crate) fn executable_name(&self) -> Result<Vec<u8>, Refusal> {
        let path = fs::read_link(self.path.join("exe"));
        let path = path.map_err(|error| self.read_error("exe", &error))?;
        let name = path.file_name().unwrap_or_default().as_bytes();
        Ok(name.strip_suffix(b" (deleted)").unwrap_or(name).to_vec())
    }

    /// Opens the memory for reading and writing. The kernel requires the permissions of ptrace(2).
    ///
    /// # Errors
    /// The errno of open(2).
    pub(crate) fn open_memory(&self) -> Result<File, Errno> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path.join("mem"));
        opened.map_err(|error| errno_of(&error))
    }

    /// Returns the user id of the owner of the directory's files, by the file `mem`: root if the process is not
    /// dumpable (proc(5)). `None` if the process has ended, or /proc hides it. The directory itself always belongs to
    /// the process's user.
    pub(crate) fn file_owner(&self) -> Option<u32> {
        Some(fs::metadata(self.path.join("mem")).ok()?.st_uid())
    }

    /// Returns the command line, its arguments joined by spaces, up to [`MAX_COMMAND_BYTES`]; empty if the process has
    /// cleared it, has ended, or is a kernel thread.
    pub(crate) fn command_line(&self) -> String {
        let mut arguments = Vec::with_capacity(FIRST_READ);
        if let Ok(file) = File::open(self.path.join("cmdline")) {
            // If the read fails midway, the part before is returned.
            let _read = file.take(MAX_COMMAND_BYTES).read_to_end(&mut arguments);
        }
        let arguments = String::from_utf8_lossy(&arguments);
        arguments.trim_end_matches('\0').replace('\0', " ")
    }

    /// Reads the file `status` of each thread. Skips threads that end meanwhile. Empty if the process has ended.
    pub(crate) fn thread_statuses(&self) -> impl Iterator<Item = Vec<u8>> {
        let tasks = fs::read_dir(self.path.join("task")).into_iter().flatten();
        let tasks = tasks.flatten();
        tasks.filter_map(|task| fs::read(task.path().join("status")).ok())
    }

    /// Builds the refusal for a file of the directory that could not be read: `NoSuchProcess`, `Denied` or
    /// `Unreadable`.
    fn read_error(&self, name: &str, error: &io::Error) -> Refusal {
        match errno_of(error) {
            Errno::ENOENT | Errno::ESRCH => Refusal::NoSuchProcess,
            // All users may read this file, unless /proc hides what is in the directory (its mount option hidepid=1).
            errno @ Errno::EPERM if name == "status" => Refusal::Denied {
                file: self.file_path(name),
                errno,
                denial: Denial::Hidden,
            },
            errno => Refusal::Unreadable {
                file: self.file_path(name),
                cause: errno.desc().to_owned(),
            },
        }
    }
}

/// Returns the errno of an error; `EIO` if it has none.
fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_beyond_the_limit_is_an_error() {
        assert_eq!(read_file_within(&b"1234"[..], 4).unwrap(), b"1234");
        let error = read_file_within(io::repeat(b'x'), 4).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
        let refusal = ProcDir::for_pid(7).read_error("maps", &error);
        let words = "failed to read /proc/7/maps: File too large";
        assert_eq!(refusal.to_string(), words);
    }

    #[test]
    fn hidden_process_is_no_unreadable_one() {
        let check = |name: &str, errno: Errno, expected: Option<Denial>| {
            let found = ProcDir::for_pid(7).read_error(name, &errno.into());
            let denial = match found {
                Refusal::Denied { denial, .. } => Some(denial),
                _ => None,
            };
            assert_eq!(denial, expected, "{name} {errno}");
        };
        check("status", Errno::EPERM, Some(Denial::Hidden));
        check("status", Errno::EMFILE, None);
        check("maps", Errno::EPERM, None);
    }

    #[test]
    fn files_are_read_once_or_each_time() {
        let rename = |name: &str| fs::write("/proc/self/comm", name).unwrap();
        let (once, anew) = (
            ProcDir::for_pid_cached(std::process::id()),
            ProcDir::current(),
        );
        let before = fs::read("/proc/self/comm").unwrap();
        for name in ["first", "second"] {
            rename(name);
            assert_eq!(once.read("comm").unwrap(), b"first\n");
            assert_eq!(anew.read("comm").unwrap(), format!("{name}\n").as_bytes());
        }
        rename(String::from_utf8_lossy(&before).trim_end());
        assert_eq!(once.read("no such file"), Err(Refusal::NoSuchProcess));
    }
}
