//! Files with hidden names, for systems without nameless files: those without `O_TMPFILE` or /proc.
//!
//! Each file is locked while it is in use. The lock distinguishes a file that another process is writing from one that
//! a killed process left behind.

use std::os::fd::{AsFd, OwnedFd};

use memprof_own::move_above_stdio;
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::dumps::name::DumpName;

/// Mode 0600: the owner may read and write, others have no access.
pub(crate) const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Hidden name of a dump's file: a dot, the dump's name, and `extension`, which includes its dot.
pub(crate) fn hidden_file_name(dump: &DumpName, extension: &str) -> String {
    format!(".{dump}{extension}")
}

/// Creates a new file in `directory`, open for reading and writing. Locks it if the file system supports locks.
///
/// # Errors
/// `EEXIST`: the name is in use. Otherwise the kernel's error.
pub(crate) fn create_locked_file(directory: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
    let file = retry_on_intr(|| rustix::fs::openat(&directory, name, flags, PRIVATE))
        .and_then(move_above_stdio)?;
    if let Err(errno) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // Harmless: on a file system without locks, `remove_abandoned_dumps` removes nothing.
        log::debug!("{name} is not locked: {errno}");
    }
    Ok(file)
}

/// Removes the temporary dumps that killed processes left behind in `directory`. If a dump cannot be removed, only logs
/// a warning.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn remove_abandoned_dumps(directory: &OwnedFd) -> Result<(), Errno> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        if is_temporary_dump(name) && is_abandoned(directory, name) {
            match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
                Ok(()) => log::info!("removed {name}, which a killed process had left"),
                Err(errno) => log::warn!("failed to remove {name}: {errno}"),
            }
        }
    }
    Ok(())
}

/// Whether the name consists of a dot, a dump's name and an extension.
fn is_temporary_dump(name: &str) -> bool {
    let Some((id, _extension)) = name.strip_prefix('.').and_then(|id| id.rsplit_once('.')) else {
        return false;
    };
    DumpName::parse(id).is_some()
}

/// Whether no process holds the lock of the file `name`, by trying to lock it; closing the file unlocks it again. False
/// if the file cannot be opened, or if the file system has no locks.
fn is_abandoned(directory: &OwnedFd, name: &str) -> bool {
    // `NONBLOCK`: opening a FIFO must not block this thread.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
        .and_then(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use memprof_messages::ProfileKind;

    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn sweep_removes_only_unlocked_temporary_dumps() {
        let directory_path = tempfile::tempdir().unwrap();
        let directory = OwnedFd::from(std::fs::File::open(directory_path.path()).unwrap());
        let hidden = |sequence, extension| {
            let dump = DumpName {
                taken: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_259_564),
                pid: 42,
                sequence,
                random: 0xbeef,
                cause: None,
                kind: ProfileKind::Heap,
            };
            hidden_file_name(&dump, extension)
        };
        drop(create_locked_file(&directory, &hidden(1, ".heap")).unwrap());
        drop(create_locked_file(&directory, &hidden(2, ".scratch")).unwrap());
        let _written = create_locked_file(&directory, &hidden(3, ".heap")).unwrap();
        drop(create_locked_file(&directory, ".mine.heap").unwrap());
        remove_abandoned_dumps(&directory).unwrap();
        let mut remaining: Vec<_> = std::fs::read_dir(directory_path.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        remaining.sort();
        assert_eq!(remaining, [hidden(3, ".heap"), ".mine.heap".to_owned()]);
    }
}
