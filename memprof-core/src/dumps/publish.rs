//! Publishes a finished dump under its name: completely and durably, or not at all.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use memprof_own::move_above_stdio;
use rustix::fs::{AtFlags, CWD, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::dumps::hidden_file;
use crate::dumps::hidden_file::PRIVATE;

/// Copies `body` into a new file `name` in `directory`, and returns its length in bytes. The name appears only when the
/// content is complete and on disk. Never overwrites a file.
///
/// # Errors
/// The action that the kernel refused, and its error. No file is left behind.
pub(crate) fn publish_dump(
    directory: &OwnedFd,
    name: &str,
    body: &mut dyn Read,
) -> Result<u64, (&'static str, io::Error)> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let unnamed = retry_on_intr(|| rustix::fs::openat(directory, ".", flags, PRIVATE))
        .and_then(move_above_stdio);
    let length = match unnamed {
        Ok(unnamed) => {
            let mut file = File::from(unnamed);
            let length = copy_and_sync(&mut file, body)?;
            link_nameless_file(&file, directory, name)
                .map_err(|errno| ("link the dump", errno.into()))?;
            length
        }
        Err(errno) if may_mean_no_nameless_files(errno) => {
            publish_through_hidden_file(directory, name, body)?
        }
        Err(errno) => return Err(("create a file for the dump", errno.into())),
    };
    retry_on_intr(|| rustix::fs::fsync(directory))
        .map_err(|errno| ("sync the dump directory", errno.into()))
        .inspect_err(|_| try_remove_file(directory, name))?;
    Ok(length)
}

/// Whether this error of an open with `O_TMPFILE` may mean that the file system or the kernel has no nameless files.
/// They return different errors (open(2), ERRORS).
pub(super) fn may_mean_no_nameless_files(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL
    )
}

/// Copies `body` to `file`, waits until it is on disk, and returns its length in bytes.
///
/// # Errors
/// The action that the kernel refused, and its error.
fn copy_and_sync(file: &mut File, body: &mut dyn Read) -> Result<u64, (&'static str, io::Error)> {
    let length = copy_in_pieces(body, file).map_err(|error| ("write the dump", error))?;
    retry_on_intr(|| rustix::fs::fsync(&file)).map_err(|errno| ("sync the dump", errno.into()))?;
    Ok(length)
}

/// Copies `body` to `file` in pieces of 256 KiB, and returns its length in bytes. `io::copy` would read only 8 KiB at a
/// time from a reader that is not a file.
pub(crate) fn copy_in_pieces(body: &mut dyn Read, file: &mut dyn Write) -> io::Result<u64> {
    let mut piece = vec![0; 256 << 10];
    let mut length = 0;
    loop {
        match body.read(&mut piece) {
            Ok(0) => return Ok(length),
            Ok(read) => {
                file.write_all(&piece[..read])?;
                length += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Links the nameless `file` as `name` into `directory`, by its link in /proc. Fails with EEXIST if that name exists.
/// Without /proc, links the descriptor itself, which only root may do.
fn link_nameless_file(file: &File, directory: &OwnedFd, name: &str) -> Result<(), Errno> {
    let by_descriptor = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    let linked = retry_on_intr(|| {
        rustix::fs::linkat(
            CWD,
            &by_descriptor,
            directory,
            name,
            AtFlags::SYMLINK_FOLLOW,
        )
    });
    match linked {
        // ENOENT: /proc is missing. Without it, the kernel lets root link the descriptor directly.
        Err(Errno::NOENT) => retry_on_intr(|| {
            rustix::fs::linkat(file.as_fd(), "", directory, name, AtFlags::EMPTY_PATH)
        }),
        linked => linked,
    }
}

/// Copies `body` into a new file `name` in `directory`, for file systems without `O_TMPFILE`: writes to a hidden name
/// first, and removes that file after a failure. Returns the length in bytes. Never overwrites a file.
///
/// # Errors
/// The action that the kernel refused, and its error.
fn publish_through_hidden_file(
    directory: &OwnedFd,
    name: &str,
    body: &mut dyn Read,
) -> Result<u64, (&'static str, io::Error)> {
    let hidden = format!(".{name}");
    let file = hidden_file::create_locked_file(directory, &hidden)
        .map_err(|errno| ("create a file for the dump", errno.into()))?;
    let mut file = File::from(file);
    let length = copy_and_sync(&mut file, body).and_then(|length| {
        rename_without_overwrite(directory, &hidden, name)
            .map_err(|errno| ("name the dump", errno.into()))?;
        Ok(length)
    });
    length.inspect_err(|_| try_remove_file(directory, &hidden))
}

/// Renames a file in `directory`. Fails with EEXIST if `to` exists, and never overwrites it.
fn rename_without_overwrite(directory: &OwnedFd, from: &str, to: &str) -> Result<(), Errno> {
    let renamed = retry_on_intr(|| {
        rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE)
    });
    match renamed {
        // NFS supports no rename flags. linkat(2) also never overwrites.
        Err(Errno::INVAL) => {
            retry_on_intr(|| rustix::fs::linkat(directory, from, directory, to, AtFlags::empty()))?;
            try_remove_file(directory, from);
            Ok(())
        }
        renamed => renamed,
    }
}

/// Removes a file. An error is only logged.
fn try_remove_file(directory: &OwnedFd, name: &str) {
    if let Err(errno) = rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        log::warn!("failed to remove {name}: {errno}");
    }
}
