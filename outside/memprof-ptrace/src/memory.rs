//! The memory of another process, by /proc/PID/mem.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use crate::reader::PATIENCE;
use crate::reader::Reader;
use crate::refusal::Refusal;

/// An open /proc/PID/mem. It stays that of the process that had the number when it was opened.
///
/// What is looked up before any thread is stopped, a child process reads ([`open_by_child`](Self::open_by_child)): where a
/// page does not come for [`PATIENCE`], every call fails from then on.
#[derive(Debug)]
pub struct Memory {
    file: File,
    pid: u32,
    /// Until all is looked up.
    reader: Mutex<Option<Reader>>,
}

impl Memory {
    /// Opens it for reading and writing.
    ///
    /// # Errors
    /// There is no such process; ptrace(2) would not be allowed either.
    pub fn open(pid: u32) -> io::Result<Self> {
        let mut options = File::options();
        let opened = options
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"));
        opened.map(|file| Self {
            file,
            pid,
            reader: Mutex::new(None),
        })
    }

    /// Opens it to be looked up in by a child, until [`go_direct`](Self::go_direct).
    ///
    /// # Errors
    /// As [`open`](Self::open); there can be no child.
    pub fn open_by_child(pid: u32) -> io::Result<Self> {
        Self::open_copy_by_child(pid, pid)
    }

    /// The same of a copy of process `of`. Where a child of an earlier command still waits for memory of that one, this one
    /// does not answer from the beginning.
    ///
    /// # Errors
    /// As there.
    pub fn open_copy_by_child(pid: u32, of: u32) -> io::Result<Self> {
        let memory = Self::open(pid)?;
        // Opened anew: the child may last longer than this process, which takes the lock with it.
        let again = File::open(format!("/proc/self/fd/{}", memory.file.as_raw_fd()))?;
        *memory.reader() = Some(Reader::start(&again, of)?);
        Ok(memory)
    }

    pub(crate) fn reader(&self) -> MutexGuard<'_, Option<Reader>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads without the child from now on, which would take too long while threads stand still: what was looked up has
    /// come once.
    ///
    /// # Errors
    /// `SilentMemory`.
    pub fn go_direct(&self) -> Result<(), Refusal> {
        self.require_answers()?;
        *self.reader() = None;
        Ok(())
    }

    /// Fails where a page did not come in time.
    ///
    /// # Errors
    /// `SilentMemory`.
    pub fn require_answers(&self) -> Result<(), Refusal> {
        match self.reader().as_ref().is_some_and(Reader::is_silent) {
            true => Err(Refusal::SilentMemory { pid: self.pid }),
            false => Ok(()),
        }
    }

    /// An error's true cause where a page did not come in time: what was not read makes all else fail.
    pub fn explain<E: From<Refusal>>(&self, error: E) -> E {
        self.require_answers().err().map_or(error, E::from)
    }

    /// Locks it for this process, until it is dropped or the process ends. Another user cannot hold this lock:
    /// whoever may open the file may trace.
    ///
    /// # Errors
    /// Somebody holds it.
    pub fn try_lock(&self) -> Result<(), TryLockError> {
        self.file.try_lock()
    }

    /// Reads `buffer.len()` bytes.
    ///
    /// # Errors
    /// A part is not mapped; the process has ended; a page does not come (`TimedOut`).
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        match self.reader().as_mut() {
            Some(reader) => reader.read(address, buffer),
            None => self.file.read_exact_at(buffer, address),
        }
    }

    /// Reads what begins at an address, as much as can be read; its length in bytes.
    pub fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        match self.reader().as_mut() {
            Some(reader) => reader.read_some(address, buffer),
            None => self.file.read_at(buffer, address).unwrap_or(0),
        }
    }

    /// Reads an array of bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn bytes<const N: usize>(&self, address: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads one number.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn word(&self, address: u64) -> io::Result<u64> {
        self.bytes(address).map(u64::from_le_bytes)
    }

    /// The auxiliary vector of its program.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn auxiliary_vector(&self) -> io::Result<Vec<u8>> {
        std::fs::read(format!("/proc/{}/auxv", self.pid))
    }

    /// Writes, also where the process itself may not, as a debugger does.
    ///
    /// # Errors
    /// As [`read`](Self::read); what is shared with a file is not written against its protection.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, address)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Else a child that another thread forks keeps the lock with the open file until it executes.
        let _unlocked = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_with_its_owner_though_a_child_has_the_file() {
        let own = std::process::id();
        let memory = Memory::open(own).unwrap();
        memory.try_lock().unwrap();
        let other = Memory::open(own).unwrap();
        other.try_lock().unwrap_err();
        // As fork(2) copies it.
        let of_child = memory.file.try_clone().unwrap();
        drop(memory);
        other.try_lock().unwrap();
        drop(of_child);
    }
}
