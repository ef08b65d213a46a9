//! The memory of another process, through /proc/PID/mem.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::auxiliary::{self, ProgramIdentity};
pub use crate::reader::MEMORY_TIMEOUT;
use crate::reader::Reader;
use crate::refusal::Refusal;

/// An open /proc/PID/mem. It keeps referring to the memory that the process had when it was opened, even after the
/// process executes another program: that memory lives on if another process shares it (clone(2), `CLONE_VM`).
///
/// Until threads are stopped, a child process does the reading ([`open_by_child`](Self::open_by_child)): if a page
/// does not arrive within [`MEMORY_TIMEOUT`], every later call fails.
#[derive(Debug)]
pub struct Memory {
    file: File,
    pid: u32,
    /// Identity of the program whose memory it is.
    program: ProgramIdentity,
    /// Child that reads; `None` once reads are direct.
    reader: Mutex<Option<Reader>>,
}

impl Memory {
    /// Opens the memory for reading and writing. This process reads it directly, not by a child.
    ///
    /// # Errors
    /// There is no such process, or this user may not trace it.
    pub fn open(pid: u32) -> io::Result<Self> {
        // In this order: if the process executes another program in between, `was_program_replaced` reports it.
        let program = ProgramIdentity::for_pid(pid);
        let mut options = File::options();
        let opened = options
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"));
        opened.map(|file| Self {
            file,
            pid,
            program,
            reader: Mutex::new(None),
        })
    }

    /// Opens the memory. A child process reads it until [`switch_to_direct_reads`](Self::switch_to_direct_reads) is
    /// called.
    ///
    /// # Errors
    /// Like [`open`](Self::open), or the child cannot be created.
    pub fn open_by_child(pid: u32) -> io::Result<Self> {
        Self::open_copy_by_child(pid, pid)
    }

    /// Opens the memory of process `pid`, a copy of process `original`. A child reads it until
    /// [`switch_to_direct_reads`](Self::switch_to_direct_reads) is called. If a child of an earlier memprof command
    /// still waits for memory of `original`, every read fails at once.
    ///
    /// # Errors
    /// Like [`open_by_child`](Self::open_by_child).
    pub fn open_copy_by_child(pid: u32, original: u32) -> io::Result<Self> {
        let memory = Self::open(pid)?;
        // Opened again: the child may outlive this process, and the lock of `try_lock_process` belongs to the open file
        // description.
        let file = File::open(format!("/proc/self/fd/{}", memory.file.as_raw_fd()))?;
        *memory.lock_reader() = Some(Reader::start(&file, original)?);
        Ok(memory)
    }

    /// Locks the child that reads. `None` in the guard if this process reads directly.
    pub(crate) fn lock_reader(&self) -> MutexGuard<'_, Option<Reader>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the child: from now on this process reads directly, because the child is too slow while threads are
    /// stopped. The pages read so far have arrived once, so they are not expected to block.
    ///
    /// # Errors
    /// `SilentMemory`: a page did not come in time.
    pub fn switch_to_direct_reads(&self) -> Result<(), Refusal> {
        self.require_responsive_memory()?;
        *self.lock_reader() = None;
        Ok(())
    }

    /// Fails if a page did not arrive in time in one of the reads so far. Never fails without a child.
    ///
    /// # Errors
    /// `SilentMemory`: a page did not come in time.
    pub fn require_responsive_memory(&self) -> Result<(), Refusal> {
        match self
            .lock_reader()
            .as_ref()
            .is_some_and(Reader::is_unresponsive)
        {
            true => Err(Refusal::SilentMemory { pid: self.pid }),
            false => Ok(()),
        }
    }

    /// Replaces an error by `SilentMemory` if a page did not arrive in time: since then every read has failed, which
    /// may have caused `error`.
    pub fn explain_error<E: From<Refusal>>(&self, error: E) -> E {
        self.require_responsive_memory()
            .err()
            .map_or(error, E::from)
    }

    /// Locks the process against other memprof commands until this value is dropped or this process ends, by flock(2)
    /// on /proc/PID/mem. Does not wait. Only users who may trace the process can open the file and so hold the lock.
    ///
    /// # Errors
    /// Another command holds the lock.
    pub fn try_lock_process(&self) -> Result<(), TryLockError> {
        self.file.try_lock()
    }

    /// Fills `buffer` with the memory at an address.
    ///
    /// # Errors
    /// A part is not mapped, the process has ended, or a page does not arrive (`TimedOut`).
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        match self.lock_reader().as_mut() {
            Some(reader) => reader.read(address, buffer),
            None => self.file.read_exact_at(buffer, address),
        }
    }

    /// Reads as much as possible from an address; returns the number of bytes read, 0 if none can be read.
    pub fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        match self.lock_reader().as_mut() {
            Some(reader) => reader.read_some(address, buffer),
            None => self.file.read_at(buffer, address).unwrap_or(0),
        }
    }

    /// Reads the `N` bytes at an address.
    ///
    /// # Errors
    /// Like [`read`](Self::read).
    pub fn read_array<const N: usize>(&self, address: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads the little-endian number of 64 bits at an address.
    ///
    /// # Errors
    /// Like [`read`](Self::read).
    pub fn read_u64(&self, address: u64) -> io::Result<u64> {
        self.read_array(address).map(u64::from_le_bytes)
    }

    /// Returns whether the process executes another program by now, so that this memory is no longer its own. False if
    /// /proc/PID/auxv cannot be read.
    pub fn was_program_replaced(&self) -> bool {
        self.program.was_replaced(self.pid)
    }

    /// Reads the auxiliary vector of the process's program: pairs of two words, key and value.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn auxiliary_vector(&self) -> io::Result<Vec<u8>> {
        auxiliary::read_auxv(self.pid)
    }

    /// Writes bytes, even where the process itself has no write access, as a debugger does.
    ///
    /// # Errors
    /// Like [`read`](Self::read); also for a shared mapping of a file without write access.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        if let Some(reader) = self.lock_reader().as_mut() {
            // The reader may have kept pages with the old bytes.
            reader.forget_pages();
        }
        self.file.write_all_at(bytes, address)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Otherwise a child that another thread forks keeps the lock, with the open file, until it calls execve(2).
        let _unlocked = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_ends_with_its_owner_while_a_child_has_the_file() {
        let own = std::process::id();
        let memory = Memory::open(own).unwrap();
        memory.try_lock_process().unwrap();
        let other = Memory::open(own).unwrap();
        other.try_lock_process().unwrap_err();
        // A duplicate, as fork(2) makes it.
        let of_child = memory.file.try_clone().unwrap();
        drop(memory);
        other.try_lock_process().unwrap();
        drop(of_child);
    }
}
