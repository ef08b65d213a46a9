//! Descriptors in a program that may close them behind our back, as daemons do that close all they
//! have. Their numbers then stand for files of the program's.
#![expect(
    unsafe_code,
    reason = "pthread_atfork(3), and the numbers of descriptors"
)]

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use rustix::io::Errno;

use crate::lock::ProcessOnce;

/// The lowest number that stands for no standard stream.
pub(crate) const FIRST: RawFd = 3;

/// Moves a descriptor that was opened just now above those of the standard streams. Until then, for about a
/// microsecond, the program can write to it.
///
/// # Errors
/// This process has no descriptor left.
pub fn above_stdio<T: AsFd + From<OwnedFd>>(opened: T) -> Result<T, Errno> {
    if opened.as_fd().as_raw_fd() >= FIRST {
        return Ok(opened);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(&opened, FIRST)?.into())
}

/// A descriptor of ours, known by what it was opened to. It is used and closed only while it still
/// is that; the standard library closes whatever has the number. A forked child never has it.
///
/// Between the look and the system call that follows lies less than a microsecond, in which the
/// program may still close it and open a file of its own under its number: the kernel has no call
/// that does both.
#[derive(Debug)]
pub struct GuardedFd<T: AsFd> {
    descriptor: ManuallyDrop<T>,
    opened: FdIdentity,
    place: Option<&'static FdRegistration>,
}

/// Device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FdIdentity(u64, u64);

impl FdIdentity {
    fn of(descriptor: impl AsFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(descriptor)?;
        Ok(Self(stat.st_dev, stat.st_ino))
    }
}

impl<T: AsFd + From<OwnedFd>> GuardedFd<T> {
    /// Takes over a descriptor that was opened just now, and moves it [above](above_stdio) those of standard streams.
    ///
    /// # Errors
    /// It cannot be looked at or moved.
    pub fn new(descriptor: T) -> io::Result<Self> {
        Self::new_verified(descriptor, |_| true)
    }

    /// The same, if `is_it` knows it again: the program may have closed it since, and opened
    /// something of its own under its number, which is then left alone.
    ///
    /// # Errors
    /// As [`new`](Self::new); `BADF` where `is_it` does not know it.
    pub fn new_verified(descriptor: T, is_it: impl FnOnce(&T) -> bool) -> io::Result<Self> {
        let descriptor = ManuallyDrop::new(descriptor);
        let opened = FdIdentity::of(&*descriptor)?;
        if !is_it(&descriptor) {
            return Err(Errno::BADF.into());
        }
        let moved = Self::at_its_number(above_stdio(ManuallyDrop::into_inner(descriptor))?)?;
        match moved.opened == opened {
            true => Ok(moved),
            false => Err(Errno::BADF.into()),
        }
    }
}

impl<T: AsFd> GuardedFd<T> {
    /// Like [`new`](Self::new), but wherever it is.
    pub(crate) fn at_its_number(descriptor: T) -> Result<Self, Errno> {
        let descriptor = ManuallyDrop::new(descriptor);
        let opened = FdIdentity::of(&*descriptor)?;
        Ok(Self {
            place: FdRegistration::register(descriptor.as_fd().as_raw_fd(), opened),
            descriptor,
            opened,
        })
    }

    /// The descriptor, if it is still ours. To be asked again before every use.
    ///
    /// # Errors
    /// `BADF`: the program closed it.
    pub fn get(&self) -> Result<&T, Errno> {
        match FdIdentity::of(&*self.descriptor) {
            Ok(now) if now == self.opened => Ok(&self.descriptor),
            _ => Err(Errno::BADF),
        }
    }
}

impl<T: AsFd> Drop for GuardedFd<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.unregister(self.opened);
        }
        if let Ok(descriptor) = self.get() {
            close(descriptor.as_fd().as_raw_fd());
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

fn close(descriptor: RawFd) {
    // SAFETY: close(2) has no conditions; that it is ours was looked up just before.
    unsafe { libc::close(descriptor) };
}

/// One of our open descriptors, where a handler of fork(2) finds it without a lock.
#[derive(Debug)]
struct FdRegistration {
    is_taken: AtomicBool,
    /// Its complement, so that `NONE` is zero and the table takes no page before it is used.
    descriptor: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

/// 32 connections, twice while one makes room for the next, with a file each, and the listener. What
/// finds no place stays open in forked children.
static PLACES: [FdRegistration; 128] = [const { FdRegistration::new() }; 128];

const NONE: RawFd = 0;

impl FdRegistration {
    const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            descriptor: AtomicI32::new(NONE),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }

    fn register(descriptor: RawFd, opened: FdIdentity) -> Option<&'static Self> {
        static WATCHED: ProcessOnce = ProcessOnce::new();
        WATCHED.call(|| {
            // SAFETY: pthread_atfork(3): a function of a library that is never unloaded. Where there
            // is no memory for it, forked children keep our descriptors.
            unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
        });
        let is_free = |place: &&Self| !place.is_taken.swap(true, Ordering::AcqRel);
        let place = PLACES.iter().find(is_free)?;
        place.device.store(opened.0, Ordering::Relaxed);
        place.inode.store(opened.1, Ordering::Relaxed);
        place.descriptor.store(!descriptor, Ordering::Release);
        Some(place)
    }

    /// In a forked child it was given back already, and may be somebody else's.
    fn unregister(&self, opened: FdIdentity) {
        let is_it = self.opened() == opened;
        if is_it && self.descriptor.swap(NONE, Ordering::AcqRel) != NONE {
            self.is_taken.store(false, Ordering::Release);
        }
    }

    fn opened(&self) -> FdIdentity {
        let [device, inode] = [&self.device, &self.inode].map(|half| half.load(Ordering::Relaxed));
        FdIdentity(device, inode)
    }
}

/// Allocates nothing and takes no lock: the threads that held one are gone.
extern "C" fn close_in_child() {
    for place in &PLACES {
        let complement = place.descriptor.swap(NONE, Ordering::AcqRel);
        if complement == NONE {
            continue;
        }
        let descriptor = !complement;
        // SAFETY: used by fstat(2) only, which takes any number.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        if FdIdentity::of(borrowed) == Ok(place.opened()) {
            close(descriptor);
        }
        place.is_taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_number_that_the_program_took_over_is_left_alone() {
        let (ours, _peer) = UnixStream::pair().unwrap();
        let ours = GuardedFd::new(ours).unwrap();
        assert!(ours.get().is_ok());
        let number = ours.get().unwrap().as_raw_fd();
        let (theirs, mut peer) = UnixStream::pair().unwrap();
        // SAFETY: the number is `ours`, which this test gives up.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), number) }, number);
        drop(theirs);
        assert_eq!(ours.get().unwrap_err(), Errno::BADF);
        drop(ours);
        // Still open: its peer finds nothing to read, but not its end.
        peer.set_nonblocking(true).unwrap();
        let error = peer.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        close(number);
    }

    #[test]
    fn a_forked_child_has_none_of_them() {
        let ours = GuardedFd::new(File::open("/dev/null").unwrap()).unwrap();
        let number = ours.get().unwrap().as_raw_fd();
        // SAFETY: the child makes two system calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: fcntl(2) takes any number.
            let is_open = unsafe { libc::fcntl(number, libc::F_GETFD) } != -1;
            // SAFETY: _exit(2) runs nothing of this process.
            unsafe { libc::_exit(i32::from(is_open)) };
        }
        let mut status = 0;
        // SAFETY: waitpid(2) fills the status of a child of ours.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert!(ours.get().is_ok());
    }
}
