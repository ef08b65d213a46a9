//! Descriptors that detect when the program closes them, as daemons do that close all descriptors. The number may then
//! belong to a file of the program.
#![expect(unsafe_code, reason = "pthread_atfork(3), and descriptors by number")]

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use rustix::io::Errno;

use crate::descriptor_table::DescriptorTable;
use crate::lock::ProcessOnce;

/// The lowest descriptor that is not a standard stream.
pub(crate) const FIRST_AFTER_STDIO: RawFd = 3;

/// Moves a newly opened descriptor to a number above the standard streams, unless it already has one. Until the move,
/// for about a microsecond, the program could write to it as if it were a standard stream.
///
/// # Errors
/// Those of fcntl(2) with `F_DUPFD_CLOEXEC`: the process has no descriptor left.
pub fn move_above_stdio<T: AsFd + From<OwnedFd>>(descriptor: T) -> Result<T, Errno> {
    if descriptor.as_fd().as_raw_fd() >= FIRST_AFTER_STDIO {
        return Ok(descriptor);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(&descriptor, FIRST_AFTER_STDIO)?.into())
}

/// A descriptor that is used and closed only while it refers to the file for which it was opened. `OwnedFd` would close
/// whatever file has the number. Forked children close it.
///
/// Less than a microsecond passes between the check and the system call that uses the descriptor. In that time the
/// program may still close the descriptor and open a file with the same number: no system call does both at once.
#[derive(Debug)]
pub struct GuardedFd<T: AsFd> {
    descriptor: ManuallyDrop<T>,
    identity: FdIdentity,
    registration: Option<&'static FdRegistration>,
}

/// Device and inode of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FdIdentity(u64, u64);

impl FdIdentity {
    /// Returns the identity of an open file, from fstat(2).
    fn from_fd(descriptor: impl AsFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(descriptor)?;
        Ok(Self(stat.st_dev, stat.st_ino))
    }
}

impl<T: AsFd + From<OwnedFd>> GuardedFd<T> {
    /// Takes ownership of a newly opened descriptor, and moves it [above](move_above_stdio) the standard streams.
    ///
    /// # Errors
    /// Those of fstat(2) and fcntl(2).
    pub fn new(descriptor: T) -> io::Result<Self> {
        Self::new_if_expected(descriptor, |_| true)
    }

    /// Like [`new`](Self::new), but takes ownership only if `is_expected` recognizes the descriptor. If it does not,
    /// the program has closed the descriptor and opened a file of its own with that number; the program's file stays
    /// open.
    ///
    /// # Errors
    /// Those of fstat(2) and fcntl(2). `EBADF` if `is_expected` returns false, or if the program replaced the file
    /// while the descriptor was being moved.
    pub fn new_if_expected(
        descriptor: T,
        is_expected: impl FnOnce(&T) -> bool,
    ) -> io::Result<Self> {
        // Not closed before it is recognized: the number may be the program's.
        let descriptor = ManuallyDrop::new(descriptor);
        let identity = FdIdentity::from_fd(&*descriptor)?;
        if !is_expected(&descriptor) {
            return Err(Errno::BADF.into());
        }
        let moved =
            Self::new_keeping_number(move_above_stdio(ManuallyDrop::into_inner(descriptor))?)?;
        match moved.identity == identity {
            true => Ok(moved),
            false => Err(Errno::BADF.into()),
        }
    }
}

impl<T: AsFd> GuardedFd<T> {
    /// Takes over a descriptor, and keeps its number. Fails only with an error of fstat(2).
    pub(crate) fn new_keeping_number(descriptor: T) -> Result<Self, Errno> {
        let descriptor = ManuallyDrop::new(descriptor);
        let identity = FdIdentity::from_fd(&*descriptor)?;
        Ok(Self {
            registration: FdRegistration::register(descriptor.as_fd().as_raw_fd(), identity),
            descriptor,
            identity,
        })
    }

    /// Returns the descriptor if its device and inode are still those of the file for which `self` was created. Must be
    /// called before every use, because the program may close the descriptor at any time.
    ///
    /// # Errors
    /// `EBADF`: the program closed the descriptor, and may have opened another file with that number. Otherwise that of
    /// fstat(2).
    pub fn get(&self) -> Result<&T, Errno> {
        match FdIdentity::from_fd(&*self.descriptor)? {
            current if current == self.identity => Ok(&self.descriptor),
            _ => Err(Errno::BADF),
        }
    }
}

impl<T: AsFd> Drop for GuardedFd<T> {
    /// Closes the descriptor, unless the program has closed it or put another file under its number.
    fn drop(&mut self) {
        if let Some(registration) = self.registration {
            registration.unregister(self.identity);
        }
        if let Ok(descriptor) = self.get() {
            close_descriptor(descriptor.as_fd().as_raw_fd());
        }
    }
}

impl<T: AsFd> Read for &GuardedFd<T>
where
    for<'a> &'a T: Read,
{
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.get()?.read(buffer)
    }
}

impl<T: AsFd> Write for &GuardedFd<T>
where
    for<'a> &'a T: Write,
{
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.get()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.get()?.flush()
    }
}

impl<T: AsFd> Seek for &GuardedFd<T>
where
    for<'a> &'a T: Seek,
{
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.get()?.seek(to)
    }
}

/// Closes a descriptor that the caller knows to be memprof's. An error is ignored: Linux releases the number anyway.
fn close_descriptor(descriptor: RawFd) {
    // SAFETY: close(2) has no preconditions; the caller has checked that the number is memprof's.
    unsafe { libc::close(descriptor) };
}

/// One of memprof's open descriptors. It is in a static table, which a fork handler can read without a lock.
#[derive(Debug)]
struct FdRegistration {
    is_used: AtomicBool,
    /// Bitwise complement of the number. An unused element is therefore zero, so the table occupies no page until it is
    /// used.
    descriptor: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

/// Registered descriptors: enough for the listener and for 32 connections with one file each, twice because a new
/// connection may arrive before an evicted one is closed. Forked children keep a descriptor for which no element was
/// free.
static REGISTRATIONS: [FdRegistration; 128] = [const { FdRegistration::new() }; 128];

const NO_DESCRIPTOR: RawFd = 0;

impl FdRegistration {
    const fn new() -> Self {
        Self {
            is_used: AtomicBool::new(false),
            descriptor: AtomicI32::new(NO_DESCRIPTOR),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }

    /// Registers a descriptor, so that forked children close it. `None` if they do not inherit it, because it is in one
    /// of memprof's tables, or if all elements of `REGISTRATIONS` are in use.
    fn register(descriptor: RawFd, identity: FdIdentity) -> Option<&'static Self> {
        if DescriptorTable::current() != DescriptorTable::Program {
            return None;
        }
        static REGISTERED: ProcessOnce = ProcessOnce::new();
        REGISTERED.call(|| {
            // SAFETY: pthread_atfork(3): the handler is in a library that is never unloaded. If there is no memory for
            // the handler, forked children keep the descriptors.
            unsafe { libc::pthread_atfork(None, None, Some(close_registered_in_child)) };
        });
        let is_free = |registration: &&Self| !registration.is_used.swap(true, Ordering::AcqRel);
        let registration = REGISTRATIONS.iter().find(is_free)?;
        registration.device.store(identity.0, Ordering::Relaxed);
        registration.inode.store(identity.1, Ordering::Relaxed);
        registration
            .descriptor
            .store(!descriptor, Ordering::Release);
        Some(registration)
    }

    /// Frees the element if it still registers the file `identity`. The fork handler may have freed it before, and it
    /// may register another file by now.
    fn unregister(&self, identity: FdIdentity) {
        let is_same = self.identity() == identity;
        if is_same && self.descriptor.swap(NO_DESCRIPTOR, Ordering::AcqRel) != NO_DESCRIPTOR {
            self.is_used.store(false, Ordering::Release);
        }
    }

    /// Returns the device and inode of the file for which the descriptor was registered.
    fn identity(&self) -> FdIdentity {
        let [device, inode] =
            [&self.device, &self.inode].map(|number| number.load(Ordering::Relaxed));
        FdIdentity(device, inode)
    }
}

/// Fork handler in the child: closes memprof's descriptors. Allocates nothing and takes no lock, because the threads
/// that held locks do not exist in the child.
extern "C" fn close_registered_in_child() {
    for registration in &REGISTRATIONS {
        let complement = registration
            .descriptor
            .swap(NO_DESCRIPTOR, Ordering::AcqRel);
        if complement == NO_DESCRIPTOR {
            continue;
        }
        let descriptor = !complement;
        // The program may have closed the descriptor, and the number may now belong to a file of its own.
        // SAFETY: only fstat(2) uses the number, and it accepts any number.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        if FdIdentity::from_fd(borrowed) == Ok(registration.identity()) {
            close_descriptor(descriptor);
        }
        registration.is_used.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn number_reused_by_program_stays_open() {
        let (guarded, _peer) = UnixStream::pair().unwrap();
        let guarded = GuardedFd::new(guarded).unwrap();
        assert!(guarded.get().is_ok());
        let number = guarded.get().unwrap().as_raw_fd();
        let (other, mut peer) = UnixStream::pair().unwrap();
        // SAFETY: dup2(2): the number is `guarded`'s, which this test gives up.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        drop(other);
        assert_eq!(guarded.get().unwrap_err(), Errno::BADF);
        drop(guarded);
        // It is still open: its peer finds nothing to read, but not the end of the stream.
        peer.set_nonblocking(true).unwrap();
        let error = peer.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        close_descriptor(number);
    }

    #[test]
    fn forked_child_has_no_guarded_descriptor() {
        let guarded = GuardedFd::new(File::open("/dev/null").unwrap()).unwrap();
        let number = guarded.get().unwrap().as_raw_fd();
        // SAFETY: the child makes two system calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: fcntl(2) takes any number.
            let is_open = unsafe { libc::fcntl(number, libc::F_GETFD) } != -1;
            // SAFETY: _exit(2) runs nothing of this process.
            unsafe { libc::_exit(i32::from(is_open)) };
        }
        let mut status = 0;
        // SAFETY: waitpid(2) fills the status of a child of this process.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert!(guarded.get().is_ok());
    }
}
