//! Files with hidden names, for systems without nameless files: those without `O_TMPFILE` or /proc.
//!
//! Each file is locked while it is in use. The lock distinguishes a file that another process is writing from one that
//! a killed process left behind.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

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

/// Maximum number of attempts to lock a new file, which [`remove_abandoned_dumps`] of another process may lock and
/// remove before this process can lock it.
const LOCK_ATTEMPTS: u32 = 100;
/// Time between two attempts while another process holds the lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Creates a new file in `directory`, open for reading and writing. Locks it if the file system supports locks; may
/// wait up to a second for another process that is about to remove it.
///
/// # Errors
/// `EEXIST`: the name is in use. `EAGAIN`: other processes held or removed the file each time. Otherwise the kernel's
/// error.
pub(crate) fn create_locked_file(directory: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let directory = directory.as_fd();
    lock_or_recreate_file(directory, name, create_file(directory, name)?)
}

/// Creates a new file in `directory`, open for reading and writing. Fails with the kernel's error.
fn create_file(directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(directory, name, flags, PRIVATE)).and_then(move_above_stdio)
}

/// Locks the new `file`, which [`create_file`] created as `name`. Creates and locks another one if
/// [`remove_abandoned_dumps`] of another process has removed it. Fails like [`create_locked_file`].
fn lock_or_recreate_file(
    directory: BorrowedFd<'_>,
    name: &str,
    mut file: OwnedFd,
) -> Result<OwnedFd, Errno> {
    for _ in 0..LOCK_ATTEMPTS {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => match is_file_named(&file, directory, name) {
                Ok(false) => file = create_file(directory, name)?,
                // Where the name cannot be examined, a removed file fails at its rename.
                Ok(true) | Err(_) => return Ok(file),
            },
            Err(Errno::WOULDBLOCK) => thread::sleep(LOCK_RETRY_INTERVAL),
            Err(errno) => {
                // Harmless: on a file system without locks, `remove_abandoned_dumps` removes nothing.
                log::debug!("{name} is not locked: {errno}");
                return Ok(file);
            }
        }
    }
    // It stays unlocked, so that the next `remove_abandoned_dumps` removes it.
    Err(Errno::AGAIN)
}

/// Returns whether `name` in `directory` still leads to `file`. Fails if either cannot be examined.
fn is_file_named(file: &OwnedFd, directory: BorrowedFd<'_>, name: &str) -> Result<bool, Errno> {
    let own = rustix::fs::fstat(file)?;
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
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
        // The lock is held until the file is removed: its creator may be about to lock it.
        if is_temporary_dump(name)
            && let Some(_lock) = lock_if_abandoned(directory.as_fd(), name)
        {
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

/// Opens the file `name` and locks it until the result is closed, if no process holds its lock. `None` if one does, if
/// the file cannot be opened or was replaced meanwhile, or if the file system has no locks.
fn lock_if_abandoned(directory: BorrowedFd<'_>, name: &str) -> Option<OwnedFd> {
    // `NONBLOCK`: opening a FIFO must not block this thread.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty()).and_then(move_above_stdio);
    let file = file.ok()?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    (is_file_named(&file, directory, name) == Ok(true)).then_some(file)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::SystemTime;

    use memprof_messages::ProfileKind;

    use super::*;

    fn open(directory: &tempfile::TempDir) -> OwnedFd {
        OwnedFd::from(std::fs::File::open(directory.path()).unwrap())
    }

    fn hidden(sequence: u32, extension: &str) -> String {
        let dump = DumpName {
            taken: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_259_564),
            pid: 42,
            sequence,
            random: 0xbeef,
            cause: None,
            kind: ProfileKind::Heap,
        };
        hidden_file_name(&dump, extension)
    }

    #[test]
    fn sweep_removes_only_unlocked_temporary_dumps() {
        let directory_path = tempfile::tempdir().unwrap();
        let directory = open(&directory_path);
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

    #[test]
    fn file_that_a_sweep_removes_before_its_lock_is_created_again() {
        let directory_path = tempfile::tempdir().unwrap();
        let directory = open(&directory_path);
        let (directory, name) = (directory.as_fd(), hidden(1, ".heap"));
        let check = |finish_sweep: &dyn Fn()| {
            let file = create_file(directory, &name).unwrap();
            let lock = lock_if_abandoned(directory, &name).unwrap();
            finish_sweep();
            let file = thread::scope(|scope| {
                let locked = scope.spawn(|| lock_or_recreate_file(directory, &name, file));
                // Removed and unlocked before, while or after the thread tries to lock it.
                let _ = rustix::fs::unlinkat(directory, &*name, AtFlags::empty());
                drop(lock);
                locked.join().unwrap().unwrap()
            });
            assert_eq!(is_file_named(&file, directory, &name), Ok(true));
            assert!(lock_if_abandoned(directory, &name).is_none());
            rustix::fs::unlinkat(directory, &*name, AtFlags::empty()).unwrap();
        };
        check(&|| {});
        check(&|| rustix::fs::unlinkat(directory, &*name, AtFlags::empty()).unwrap());
    }

    #[test]
    fn created_file_survives_sweeps_of_others() {
        let directory_path = tempfile::tempdir().unwrap();
        let directory = open(&directory_path);
        let is_over = AtomicBool::new(false);
        let lost = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = remove_abandoned_dumps(&directory);
                }
            });
            let is_lost = |sequence: &u32| {
                let name = hidden(*sequence, ".heap");
                let file = create_locked_file(&directory, &name);
                !file.is_ok_and(|file| is_file_named(&file, directory.as_fd(), &name) == Ok(true))
            };
            let lost = (0..2000).filter(is_lost).count();
            is_over.store(true, Ordering::Relaxed);
            lost
        });
        assert_eq!(lost, 0);
    }
}
