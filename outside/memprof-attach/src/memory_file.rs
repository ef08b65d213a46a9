//! The plugin's file in the target's memory: the new thread creates it, memprof fills it, and the loader opens it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::AttachError;
use crate::shared_page::{self, LoaderAck, RemotePage};
use crate::target::{Target, thread_dirs, thread_lost_error};

/// Name of the file in memory, and the text of its link in /proc/PID/fd.
pub(crate) const MEMFD_NAME: &str = "memory_profile.so";
const MEMFD_LINK: &str = "/memfd:memory_profile.so (deleted)";

/// Writes the plugin into the file in memory (memfd) that the new thread has created, and passes its path to the
/// thread. Fails if the thread could not create the file, if that file or the plugin's own cannot be opened, or if the
/// thread is gone.
pub(crate) fn provide_plugin_file(
    target: &Target,
    page: RemotePage<'_>,
    plugin: &Path,
) -> Result<(), AttachError> {
    let lost_error = |_| thread_lost_error(target);
    let fd = page.read_word(shared_page::MEMFD).map_err(lost_error)? as i64;
    if fd < 0 {
        let cause = io::Error::from_raw_os_error(fd.saturating_neg() as i32);
        let what = "it could not make a file in memory for the plugin".to_owned();
        return Err(AttachError::Io { what, cause });
    }
    let bytes = fs::read(plugin).map_err(AttachError::io_error(plugin.display().to_string()))?;
    let process = Path::new("/proc").join(target.pid.to_string());
    // The new thread may have a descriptor table of its own, and its ID is unknown here, so all threads are searched.
    // Opening any other file than one in memory could have an effect.
    let paths = thread_dirs(&process).map(|thread| thread.join("fd").join(fd.to_string()));
    let is_in_memory =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|link| link == Path::new(MEMFD_LINK));
    let path = paths.into_iter().find(is_in_memory);
    let path = path.ok_or_else(|| {
        target.require_same_program().err().unwrap_or_else(|| {
            AttachError::Failed(
                "the file in memory that it made for the plugin is not there".to_owned(),
            )
        })
    })?;
    let written = open_memory_file(&path).and_then(|mut file| file.write_all(&bytes));
    written.map_err(AttachError::io_error(path.display().to_string()))?;
    // The loader does not open a path again under which it has loaded a library, so the number of slashes varies.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let slashes = "/".repeat(1 + now.map_or(0, |now| now.subsec_micros() as usize) % 64);
    let path = format!("/proc/thread-self/fd{slashes}{fd}");
    let address = page.address + shared_page::PATH as u64;
    let written = target.memory.write(address, path.as_bytes());
    written.map_err(lost_error)?;
    page.send_reply(LoaderAck::FileReady).map_err(lost_error)
}

/// Opens for writing the file in memory that the new thread has reported by its descriptor's number. Fails unless it is
/// an empty memory file: the target may report a number of any file, even of one that it may only read, but this user
/// may write.
fn open_memory_file(path: &Path) -> io::Result<File> {
    let file = File::options().write(true).open(path)?;
    let metadata = file.metadata()?;
    let is_new = metadata.is_file() && metadata.nlink() == 0 && metadata.len() == 0;
    // Only a file in memory has seals (memfd_create(2), `F_GET_SEALS`).
    if is_new && rustix::fs::fcntl_get_seals(&file).is_ok() {
        return Ok(file);
    }
    let message = "the file that it made is not an empty memory file (memfd)";
    Err(io::Error::new(io::ErrorKind::InvalidData, message))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn only_a_new_file_in_memory_is_opened() {
        let check = |file: &OwnedFd| {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            open_memory_file(Path::new(&path)).map(drop)
        };
        let words = |file: &OwnedFd| check(file).unwrap_err().to_string();
        let in_memory = memfd_create("memory_profile.so", MemfdFlags::CLOEXEC).unwrap();
        check(&in_memory).unwrap();
        rustix::io::write(&in_memory, b"full").unwrap();
        assert_eq!(
            words(&in_memory),
            "the file that it made is not an empty memory file (memfd)"
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "kept").unwrap();
        let read_only = OwnedFd::from(File::open(&path).unwrap());
        assert_eq!(
            words(&read_only),
            "the file that it made is not an empty memory file (memfd)"
        );
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        let removed = OwnedFd::from(tempfile::tempfile().unwrap());
        assert_eq!(
            words(&removed),
            "the file that it made is not an empty memory file (memfd)"
        );
    }
}
