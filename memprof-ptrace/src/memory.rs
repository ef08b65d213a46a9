//! The memory of another process, by /proc/PID/mem.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;

/// An open /proc/PID/mem. It stays that of the process that had the number when it was opened.
#[derive(Debug)]
pub struct Memory {
    file: File,
    pid: u32,
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
        opened.map(|file| Self { file, pid })
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
    /// A part is not mapped; the process has ended.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, address)
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
