//! Memory of the program that another thread may unmap at any time, read by way of the kernel: it answers EFAULT where
//! a load would end the process.
#![expect(unsafe_code, reason = "an address of the program's")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use memprof_own::move_above_stdio;
use rustix::fs::{MemfdFlags, memfd_create};

/// A file in memory through which words are copied.
#[derive(Debug)]
pub(super) struct CheckedMemory(File);

impl CheckedMemory {
    /// Creates the file in memory, empty at first.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptor for it.
    pub(super) fn new() -> io::Result<Self> {
        let file = memfd_create("memprof-types", MemfdFlags::CLOEXEC)?;
        Ok(Self(File::from(move_above_stdio(file)?)))
    }

    /// Copies the program's memory at `address` to `buffer`, and returns the bytes up to the first that is unreadable.
    /// Copies through the file, because pwrite(2) stops at unreadable memory, where a load would end the process. Other
    /// threads may change the bytes during the copy.
    pub(super) fn read<'a>(&self, address: u64, buffer: &'a mut [u8]) -> &'a [u8] {
        let from = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: pwrite(2) checks the address.
        let written = unsafe { libc::pwrite(self.0.as_raw_fd(), from, buffer.len(), 0) };
        let len = usize::try_from(written).unwrap_or(0).min(buffer.len());
        let read = self.0.read_exact_at(&mut buffer[..len], 0);
        &buffer[..if read.is_ok() { len } else { 0 }]
    }

    /// Reads `N` words of 8 bytes each from the program's memory at `address`. `None` if one is unreadable.
    pub(super) fn read_words<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        let mut buffer = [[0; 8]; N];
        let bytes = buffer.as_flattened_mut();
        let is_whole = self.read(address, bytes).len() == 8 * N;
        is_whole.then(|| buffer.map(u64::from_ne_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_memory_is_none() {
        let memory = CheckedMemory::new().unwrap();
        let words = [1_u64, 2, 3];
        let address = words.as_ptr() as u64;
        assert_eq!(memory.read_words(address), Some(words));
        for bad in [0, 8, u64::MAX - 7, 1 << 47] {
            assert_eq!(memory.read_words::<1>(bad), None, "{bad:#x}");
        }
    }
}
